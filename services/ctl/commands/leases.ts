import { HandleServiceService, type HandleAddress } from '@podwire/proto/podwire/ipam/v1/handle';
import type { Pool } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { parsePrefix, prefixContains } from '@podwire/shared/net/prefix';
import { formatCount } from '@podwire/shared/words/format-count';

import { allPages, type Context, type Service } from '../clients/services.js';
import type { Verb } from '../command-line/verb.js';
import { sentence, type Report, type Table } from '../output/report.js';
import { momentOfAttribute } from '../output/words.js';
import { requireNamed } from '../resources/block.js';
import { listPools } from '../resources/ippool.js';
import { NODE } from '../resources/reading.js';

/** A node's unbound leases have one handle: `podwire-lease.<node name>`. */
const HANDLE_PREFIX = 'podwire-lease.';

/** Calls at a time: more only wait in podwire-ipam. */
const CALLS_AT_ONCE = 16;

export const leases: Verb = {
  name: 'leases',
  about: 'the addresses that are leased to nodes, and that no pod has yet',
  details:
    'A node gives a leased address to a pod without waiting for podwire-ipam. Leased addresses count as available: they are recalled\n' +
    'when a pool runs short.',
  options: [NODE],
  examples: ['leases', 'leases --node node-1', 'leases -o wide'],
  run: async (input, context) => {
    const node = input.get(NODE);
    const found = node === undefined ? await leasesOfAll(context.ipam) : await leasesOfOne(node, context.ipam);
    const pools = found.length > 0 ? await listPools(context.ipam) : [];
    return report(found, pools, context);
  },
};

/** The unbound leases of a node, IPv4 before IPv6. */
interface NodeLeases {
  readonly node: string;
  readonly addresses: readonly HandleAddress[];
}

async function leasesOfAll(ipam: Service): Promise<NodeLeases[]> {
  const pages = await allPages((page) =>
    ipam.call(HandleServiceService.listHandles, { ...page, prefix: HANDLE_PREFIX }),
  );
  const nodes = pages
    .flatMap(({ handles }) => handles)
    // Services that do not know the prefix list all handles.
    .filter(({ handleId }) => handleId.startsWith(HANDLE_PREFIX))
    .map(({ handleId }) => handleId.slice(HANDLE_PREFIX.length));
  const found: NodeLeases[] = [];
  for (let start = 0; start < nodes.length; start += CALLS_AT_ONCE) {
    const some = nodes.slice(start, start + CALLS_AT_ONCE);
    found.push(...(await Promise.all(some.map((node) => leasesOf(node, ipam)))));
  }
  return found.filter(({ addresses }) => addresses.length > 0);
}

/** @throws Failure NODE_NOT_FOUND where the node has no lease, and is not registered */
async function leasesOfOne(node: string, ipam: Service): Promise<NodeLeases[]> {
  const found = await leasesOf(node, ipam);
  if (found.addresses.length > 0) return [found];
  await requireNamed(ipam, { pool: '', node });
  return [];
}

async function leasesOf(node: string, ipam: Service): Promise<NodeLeases> {
  const request = { handleId: `${HANDLE_PREFIX}${node}` };
  try {
    const pages = await allPages((page) => ipam.call(HandleServiceService.getHandle, { ...page, ...request }));
    return { node, addresses: pages.flatMap(({ addresses }) => addresses) };
  } catch (error) {
    if (error instanceof Failure && error.code === 'HANDLE_NOT_FOUND') return { node, addresses: [] };
    throw error;
  }
}

function report(found: readonly NodeLeases[], pools: readonly Pool[], { json, output }: Context): Report {
  return {
    sections: [leaseTable(found, pools, output === 'wide'), ...(found.length > 0 ? [sentence(summaryOf(found))] : [])],
    data: () => ({
      nodes: found.map(({ node, addresses }) => {
        const answer = { addresses: [...addresses], nextPageToken: '' };
        return { node, leases: json.of(HandleServiceService.getHandle, answer) };
      }),
    }),
  };
}

function leaseTable(found: readonly NodeLeases[], pools: readonly Pool[], isWide: boolean): Table {
  const columns = ['NODE', 'FAMILY', 'ADDRESS', 'POOL', 'SINCE'];
  return {
    kind: 'table',
    columns: isWide ? [...columns, 'BLOCK', { right: 'SEQUENCE' }, 'BOOT'] : columns,
    rows: found.flatMap(({ node, addresses }) =>
      addresses.map(({ address, blockCidr, sequenceNumber, attributes }) => {
        const { timestamp = '', 'boot-id': bootId = '' } = attributes;
        const family = address.includes(':') ? 'IPv6' : 'IPv4';
        const cells = [node, family, address, poolOf(blockCidr, pools), momentOfAttribute(timestamp)];
        return isWide ? [...cells, blockCidr, String(sequenceNumber), bootId] : cells;
      }),
    ),
    none: 'leases: none',
  };
}

/** The pool of a block; empty if it was deleted. */
function poolOf(blockCidr: string, pools: readonly Pool[]): string {
  const block = parsePrefix(blockCidr);
  const pool = pools.find(({ cidr }) => {
    const range = parsePrefix(cidr);
    return range.ok && block.ok && prefixContains(range.prefix, block.prefix);
  });
  return pool?.name ?? '';
}

function summaryOf(found: readonly NodeLeases[]): string {
  const total = found.reduce((sum, { addresses }) => sum + addresses.length, 0);
  const counts = found.map(({ node, addresses }) => `${node} ${addresses.length}`).join(', ');
  return `${formatCount(total, 'leased address', 'leased addresses')} on ${formatCount(found.length, 'node')}: ${counts}`;
}
