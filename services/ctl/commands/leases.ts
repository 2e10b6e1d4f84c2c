import { HandleServiceService, type HandleAddress } from '@podwire/proto/podwire/ipam/v1/handle';
import { LeaseServiceService } from '@podwire/proto/podwire/ipam/v1/lease';
import type { Pool } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { parsePrefix, prefixContains } from '@podwire/shared/net/prefix';
import { formatCount } from '@podwire/shared/words/format-count';

import { allPages, type Context, type Service } from '../clients/services.js';
import type { Verb } from '../command-line/verb.js';
import { FAILED, sentence, type Report, type Table } from '../output/report.js';
import { LEASE_PREFIX, momentOfAttribute } from '../output/words.js';
import { requireNamed } from '../resources/block.js';
import { listPools } from '../resources/ippool.js';
import { NODE } from '../resources/reading.js';

/** Calls at a time: more only wait in podwire-ipam. */
const CALLS_AT_ONCE = 16;

/** How long `leases return` waits for the nodes, and how often it looks, in milliseconds. */
const RETURN_TIMEOUT_MS = 10_000;
const RETURN_POLL_MS = 250;

const NO_LEASES = 'leases: none';

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

export const leasesReturn: Verb = {
  name: 'leases return',
  about: 'make nodes return the leases that no pod has',
  details:
    'Waits up to 10 s. A node that runs leases no address for a minute afterwards: run "ipam check" or calicoctl within it.\n' +
    'Pods are added meanwhile, a few milliseconds slower.',
  options: [NODE],
  examples: ['leases return', 'leases return --node node-1'],
  run: async (input, context) => {
    const { ipam, clock } = context;
    const stopped = context.process.stopSignal();
    const node = input.get(NODE);
    const list = (): Promise<NodeLeases[]> => (node === undefined ? leasesOfAll(ipam) : leasesOfOne(node, ipam));
    const before = await list();
    await inGroups(before, ({ node: nodeName }) => ipam.call(LeaseServiceService.recallLeases, { nodeName }));
    let left = before;
    for (let waitedMs = 0; left.length > 0 && waitedMs < RETURN_TIMEOUT_MS; waitedMs += RETURN_POLL_MS) {
      if ((await clock.sleep(RETURN_POLL_MS, stopped)) === 'aborted') break;
      left = await list();
    }
    const data = (): ReturnType<Report['data']> => leaseData(left, context);
    const returned = before.length === 0 ? NO_LEASES : `returned ${summaryOf(before)}`;
    if (left.length === 0) return { sections: [sentence(returned)], data };
    const text = `not returned: ${summaryOf(left)}; start podwire-node on these nodes, or delete them`;
    return { sections: [sentence(text)], data, exitCode: FAILED };
  },
};

/** The unbound leases of a node, IPv4 before IPv6. */
interface NodeLeases {
  readonly node: string;
  readonly addresses: readonly HandleAddress[];
}

async function leasesOfAll(ipam: Service): Promise<NodeLeases[]> {
  const pages = await allPages((page) =>
    ipam.call(HandleServiceService.listHandles, { ...page, prefix: LEASE_PREFIX }),
  );
  const nodes = pages
    .flatMap(({ handles }) => handles)
    // Services that do not know the prefix list all handles.
    .filter(({ handleId }) => handleId.startsWith(LEASE_PREFIX))
    .map(({ handleId }) => handleId.slice(LEASE_PREFIX.length));
  const found = await inGroups(nodes, (node) => leasesOf(node, ipam));
  return found.filter(({ addresses }) => addresses.length > 0);
}

async function inGroups<Item, Result>(items: readonly Item[], act: (item: Item) => Promise<Result>): Promise<Result[]> {
  const results: Result[] = [];
  for (let start = 0; start < items.length; start += CALLS_AT_ONCE)
    results.push(...(await Promise.all(items.slice(start, start + CALLS_AT_ONCE).map(act))));
  return results;
}

/** @throws Failure NODE_NOT_FOUND where the node has no lease, and is not registered */
async function leasesOfOne(node: string, ipam: Service): Promise<NodeLeases[]> {
  const found = await leasesOf(node, ipam);
  if (found.addresses.length > 0) return [found];
  await requireNamed(ipam, { pool: '', node });
  return [];
}

async function leasesOf(node: string, ipam: Service): Promise<NodeLeases> {
  const request = { handleId: `${LEASE_PREFIX}${node}` };
  try {
    const pages = await allPages((page) => ipam.call(HandleServiceService.getHandle, { ...page, ...request }));
    return { node, addresses: pages.flatMap(({ addresses }) => addresses) };
  } catch (error) {
    if (error instanceof Failure && error.code === 'HANDLE_NOT_FOUND') return { node, addresses: [] };
    throw error;
  }
}

function report(found: readonly NodeLeases[], pools: readonly Pool[], context: Context): Report {
  const table = leaseTable(found, pools, context.output === 'wide');
  return {
    sections: [table, ...(found.length > 0 ? [sentence(summaryOf(found))] : [])],
    data: () => leaseData(found, context),
  };
}

/** The leases of nodes, in GetHandle's answers. */
function leaseData(found: readonly NodeLeases[], { json }: Context): ReturnType<Report['data']> {
  return {
    nodes: found.map(({ node, addresses }) => {
      const answer = { addresses: [...addresses], nextPageToken: '' };
      return { node, leases: json.of(HandleServiceService.getHandle, answer) };
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
    none: NO_LEASES,
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
