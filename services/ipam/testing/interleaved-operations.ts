import { addressAt, formatPrefix } from '@podwire/shared/net/prefix';

import { attributesFor, type AllocationRequest } from '../addresses/allocate/allocate.js';
import { forever } from '../engine/testing/stores.js';
import type { Ipam } from '../ipam.js';
import { checkPool } from '../pools/rules.js';
import { attachment, NOW_MS, prefix, request } from './records.js';

/** Operations of several callers, for every order in which their steps can come. */

/** An operation; its answer, as text, is all that a test can evaluate. */
export interface Operation {
  readonly name: string;
  readonly run: (ipam: Ipam) => Promise<string>;
  /** Whether it is one transaction, so that some order of whole operations has to explain the outcome. */
  readonly isAtomic: boolean;
}

const operation = (name: string, run: Operation['run'], isAtomic = true): Operation => ({ name, run, isAtomic });

/** Containers of one pod compete for its endpoint as well. */
export const POD = { namespace: 'default', name: 'web', uid: '' };

export function allocate(id: string, rest: Partial<AllocationRequest> = {}): Operation {
  const node = rest.nodeName ?? 'n1';
  return operation(`allocate ${id} on ${node}`, async (ipam) => {
    const wanted = request(id, { pod: undefined, ...rest });
    const { endpoint } = await ipam.addresses.allocate(wanted, forever);
    return endpoint.addresses.map(({ address }) => formatPrefix(address)).join(' ');
  });
}

export const release = (id: string): Operation =>
  operation(`release ${id}`, async (ipam) => {
    const { addresses } = await ipam.addresses.release(attachment(id), forever);
    return addresses.map(formatPrefix).join(' ');
  });

/** Release of an attachment on a second network, with the same endpoint key. */
export const releaseSecond = (id: string): Operation =>
  operation(`release ${id} on the second network`, async (ipam) => {
    const { addresses } = await ipam.addresses.release(attachment(id, { network: 'second' }), forever);
    return addresses.map(formatPrefix).join(' ');
  });

export const releaseHandle = (id: string): Operation =>
  operation(`release handle of ${id}`, async (ipam) => {
    const { addresses } = await ipam.handles.release({ handleId: `net.${id}`, searchesAllBlocks: false }, forever);
    return addresses.map(formatPrefix).join(' ');
  });

export function poolSpec(name: string, cidr: string) {
  const blockSizeBits = cidr.includes(':') ? 127 : 31;
  const checked = checkPool({ name, cidr, blockSizeBits, vxlanMode: 'Always', disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  return checked.spec;
}

export const createPool = (name: string, cidr: string): Operation =>
  operation(`create pool ${cidr}`, async (ipam) => (await ipam.pools.create(poolSpec(name, cidr), forever)).pool.name);

export const deletePool = (whenInUse: 'drain' | 'refuse' | 'release'): Operation =>
  operation(
    `delete the pool (${whenInUse})`,
    async (ipam) => {
      const { isGone } = await ipam.pools.delete({ name: 'p', resourceVersion: '', whenInUse }, forever);
      return isGone ? 'gone' : 'draining';
    },
    false,
  );

export const splitPool = operation('split the pool', async (ipam) => {
  const request = { pool: { by: 'name', name: 'p' }, partsCount: 2, resourceVersion: '' } as const;
  const split = await ipam.pools.split(request, forever);
  return split.ok ? split.parts.map(({ pool }) => pool.name).join(' ') : 'at fault';
});

export const deleteNode = (name: string): Operation =>
  operation(
    `delete node ${name}`,
    async (ipam) => JSON.stringify(await ipam.nodes.delete({ name, resourceVersion: '' }, forever), text64),
    false,
  );

export const claim = (cidr: string, nodeName: string): Operation =>
  operation(`claim ${cidr} for ${nodeName}`, async (ipam) => {
    const { claimed } = await ipam.affinities.claim({ cidr: prefix(cidr), nodeName }, forever);
    return claimed.map(formatPrefix).join(' ');
  });

export const note = (id: string, text: string): Operation =>
  operation(`note "${text}" on the address of ${id}`, async (ipam) => {
    const { owner } = attributesFor({ attachment: attachment(id), nodeName: 'n1', pod: undefined }, NOW_MS);
    const second = { expectedAlternate: undefined, alternate: undefined };
    const now = { sequenceNumber: undefined, expected: owner, attributes: { ...owner, note: text }, ...second };
    const address = addressAt(prefix('10.0.0.0/30'), 1);
    return JSON.stringify(
      await ipam.addresses.setAttributes({ address, handleId: `net.${id}`, ...now }, forever),
      text64,
    );
  });

/** Names a second owner, unless there is one. */
export const second = (id: string, pod: string): Operation =>
  operation(`${pod} as the second owner of the address of ${id}`, async (ipam) => {
    const first = { sequenceNumber: undefined, expected: undefined, attributes: undefined };
    const change = { address: addressAt(prefix('10.0.0.0/30'), 1), handleId: `net.${id}`, ...first };
    const holder = await ipam.addresses.setAttributes(
      { ...change, expectedAlternate: {}, alternate: { pod } },
      forever,
    );
    return String(holder.alternateOwner?.pod);
  });

/** The lease of an address of the first block, by its place: see `LEASES`. */
const leaseAt = (ordinal: number) => ({
  address: addressAt(prefix('10.0.0.0/30'), ordinal),
  sequenceNumber: BigInt(NOW_MS) * 1_000_000n + BigInt(ordinal),
});

/** Node n1 in its session: see `LEASES`. */
const NODE = { nodeName: 'n1', session: { bootId: 'b2', generation: 1, revision: 1 } };

export const bind = (id: string, ordinal: number): Operation =>
  operation(`bind lease ${ordinal} to ${id}`, async (ipam) => {
    const binding = { attachment: attachment(id), pod: POD, netns: undefined, attachedAtMs: NOW_MS };
    const { results } = await ipam.leases.bind(NODE, [{ ...binding, addresses: [leaseAt(ordinal)] }], forever);
    return results.map((each) => (each.ok ? 'bound' : each.refusal.code)).join();
  });

/** @param id - the attachment that had it, bound or not */
export const giveBack = (ordinal: number, id?: string): Operation =>
  operation(`return lease ${ordinal}${id === undefined ? '' : ` of ${id}`}`, async (ipam) => {
    const times = { attachedAtMs: NOW_MS, detachedAtMs: NOW_MS };
    const use = id === undefined ? undefined : { attachment: attachment(id), netns: undefined, ...times };
    const { results } = await ipam.leases.giveBack(NODE, [{ allocation: leaseAt(ordinal), use }], forever);
    return results.map(({ state }) => state).join();
  });

/** The node's first list frees the leases of its former boot. */
export const reboot = operation('reboot n1', async (ipam) => {
  const { leases } = await ipam.leases.lease({ ...NODE, bootId: 'b2', family: 4, count: 0 }, forever);
  return leases.map(({ address }) => formatPrefix(address)).join();
});

/** Replacer for JSON, which has no such numbers. */
const text64 = (_key: string, value: unknown): unknown => (typeof value === 'bigint' ? undefined : value);

/** Also reads: otherwise a later borrower would look like an earlier one. */
export const makeStrict = operation('make affinity strict, and look at borrowable addresses', async (ipam) => {
  const { config } = await ipam.configuration.update(
    { changes: { strictAffinity: true }, resourceVersion: '' },
    forever,
  );
  const { state } = await ipam.addresses.get(addressAt(prefix('10.0.0.0/30'), 0), forever);
  return `${config.strictAffinity} ${state.kind}`;
});

const TUNNEL = 'vxlanTunnelAddress';

export const tunnel = (nodeName: string): Operation =>
  operation(`an address for the tunnel of ${nodeName}`, async (ipam) =>
    formatPrefix((await ipam.nodes.assignTunnel({ nodeName, kind: TUNNEL }, forever)).address),
  );

export const endTunnel = (nodeName: string): Operation =>
  operation(`no address for the tunnel of ${nodeName}`, async (ipam) => {
    const { released } = await ipam.nodes.releaseTunnel({ nodeName, kind: TUNNEL }, forever);
    return released.map(formatPrefix).join(' ');
  });

export const repair: Operation = operation(
  'repair',
  async (ipam) => {
    const order = { kinds: [], dryRun: false, releases: true, graceMs: 0, limit: 100 };
    const { results } = await ipam.audits.repair(order, forever);
    return results.map(({ finding, result }) => `${finding.kind} ${result.state}`).join(', ');
  },
  false,
);
