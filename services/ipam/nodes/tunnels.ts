import { Failure } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';
import { addressAt, hostPrefix, type Prefix } from '@podwire/shared/net/prefix';

import { chooseBlocks, blockChoices } from '../addresses/allocate/block-choice.js';
import { refusalOf } from '../addresses/allocate/refusal.js';
import { authorizeNode, nodeNotFound, type Demand, type Need } from '../blocks/demand.js';
import { requireReports } from '../blocks/epoch.js';
import { addressOf } from '../records/block.js';
import { blocksOf, handleChanges, requireHandleReadable } from '../records/handle-counts.js';
import { releaseHeld } from '../blocks/release-changes.js';
import { beginSearch } from '../blocks/search.js';
import { servingPools, wrongUseReason } from '../pools/selection.js';
import { requireReadable } from '../records/absence.js';
import { heldAddressesIn, takeOrdinals, type Block, type HeldAddress } from '../records/block.js';
import { tunnelAttributes, tunnelHandleId, type Node, type Tunnel, type TunnelKind } from '../records/node.js';
import { unavailableReason, poolOf, type Pool } from '../records/pool.js';
import type { Change, Decision, View } from '../records/view.js';

/**
 * Tunnel addresses of nodes: held under Calico's handles and attributes, from pools with the encapsulation of the
 * tunnel, and written to the node's record in the same transaction.
 */

interface TunnelProperties {
  readonly family: Family;
  readonly encapsulation: string;
  readonly isEncapsulated: (pool: Pool) => boolean;
}

const VXLAN = {
  encapsulation: 'VXLAN',
  isEncapsulated: ({ vxlanMode }: Pool): boolean => vxlanMode !== 'Never',
};

const TUNNELS: Readonly<Record<TunnelKind, TunnelProperties>> = {
  ipipTunnelAddress: {
    family: 4,
    encapsulation: 'IPIP',
    isEncapsulated: ({ ipipMode }) => ipipMode !== 'Never',
  },
  vxlanTunnelAddress: { family: 4, ...VXLAN },
  vxlanV6TunnelAddress: { family: 6, ...VXLAN },
};

/** A node's tunnel. */
export interface TunnelKey {
  readonly nodeName: string;
  readonly kind: TunnelKind;
}

interface TunnelRequest extends TunnelKey {
  readonly nowMs: number;
}

/** The address of a node's tunnel. */
export interface TunnelAssignment {
  /** Address of full length. */
  readonly address: Prefix;
  /** Whether the tunnel had the address before. */
  readonly isKept: boolean;
  /** Released addresses that the tunnel no longer uses. */
  readonly released: readonly Prefix[];
}

/**
 * Ensures that a node's tunnel has an address of an enabled pool with its encapsulation that allows tunnels. A valid
 * address under the tunnel's handle is kept; any other is replaced. Selectors do
 * not apply, as in Calico. Idempotent.
 * @throws Failure NODE_NOT_FOUND, NODE_BEING_DELETED; NO_POOL when no pool is for such tunnels, POOLS_EXHAUSTED when they have no address,
 * STORE_CORRUPT in place of it when the configuration cannot be read
 */
export function assignTunnel(view: View, request: TunnelRequest): Decision<TunnelAssignment> {
  const { nodeName, kind, nowMs } = request;
  authorizeNode(view, { nodeName, unknownNodes: { policy: 'refuse' }, nowMs });
  const node = requireNode(view, nodeName);
  const pools = tunnelPools(view, kind);
  const held = heldByTunnel(view, request);
  const usable = held.filter(({ block }) => poolOf(pools, block.prefix));
  const current = node.tunnels.get(kind)?.address;
  const kept = usable.find((address) => hasAddress(address, current)) ?? usable[0];
  const outdated = held.filter((address) => address !== kept);
  const released = outdated.map(addressOf);
  if (kept) {
    const address = addressOf(kept);
    const isKept = hasAddress(kept, current);
    const nodeChanges = isKept ? [] : [putTunnel(node, kind, { address })];
    return { changes: [...releaseHeld(view, outdated, nowMs), ...nodeChanges], outcome: { address, isKept, released } };
  }
  const taken = takeAddress(view, request, pools);
  return {
    changes: [
      ...taken.changes,
      ...replaceAddresses(view, { request, outdated, taken: taken.block }),
      putTunnel(node, kind, taken),
    ],
    outcome: { address: taken.address, isKept: false, released },
  };
}

/** The result of a tunnel release. */
export interface TunnelRelease {
  /** Released addresses of full length; empty when the tunnel had none. */
  readonly released: readonly Prefix[];
}

/**
 * Releases the address of a node's tunnel and removes it from the node's record. Idempotent; the node may be deleted.
 * @throws Failure STORE_CORRUPT when the record cannot be read, and so cannot be cleared
 */
export function releaseTunnel(view: View, request: TunnelRequest): Decision<TunnelRelease> {
  requireReadable(view, { kind: 'node', name: request.nodeName });
  const held = heldByTunnel(view, request);
  const node = view.node(request.nodeName);
  const recorded = node?.tunnels.has(request.kind) === true;
  const nodeChanges = recorded ? [putTunnel(node, request.kind, undefined)] : [];
  return {
    changes: [...releaseHeld(view, held, request.nowMs), ...nodeChanges],
    outcome: { released: held.map(addressOf) },
  };
}

function requireNode(view: View, nodeName: string): Node {
  const node = view.node(nodeName);
  if (!node) throw nodeNotFound(nodeName);
  return node;
}

/** The pools that can serve the tunnel, in name order. */
function tunnelPools(view: View, kind: TunnelKind): Pool[] {
  const { family, isEncapsulated } = TUNNELS[kind];
  return view
    .pools()
    .filter((pool) => pool.prefix.family === family && isEncapsulated(pool))
    .filter((pool) => unavailableReason(pool) === undefined && wrongUseReason(pool, 'Tunnel') === undefined);
}

/** Addresses under the tunnel's handle whose attributes name this node and kind. */
function heldByTunnel(view: View, { nodeName, kind }: TunnelRequest): HeldAddress[] {
  const id = tunnelHandleId(nodeName, kind);
  requireHandleReadable(view, id);
  return blocksOf(view, view.handle(id)).flatMap((block) =>
    heldAddressesIn(block, ({ handleId, owner }) => handleId === id && owner.node === nodeName && owner.type === kind),
  );
}

function hasAddress({ block, ordinal }: HeldAddress, address: Prefix | undefined): boolean {
  const at = addressAt(block.prefix, ordinal);
  return at.family === address?.family && at.value === address.value;
}

function putTunnel(node: Node, kind: TunnelKind, tunnel: Tunnel | undefined): Change {
  const tunnels = new Map(node.tunnels);
  if (tunnel) tunnels.set(kind, { address: tunnel.address });
  else tunnels.delete(kind);
  return { type: 'put', record: { kind: 'node', value: { ...node, tunnels } } };
}

interface TakenAddress {
  readonly address: Prefix;
  readonly block: Block;
  /** All changes except changes of the handle and the node. */
  readonly changes: readonly Change[];
}

function takeAddress(view: View, { nodeName, kind, nowMs }: TunnelRequest, pools: readonly Pool[]): TakenAddress {
  const { family, encapsulation } = TUNNELS[kind];
  if (pools.length === 0) {
    const text = `no enabled IPv${family} pool allows ${encapsulation} tunnels; enable one with that encapsulation and Tunnel among its allowedUses`;
    throw new Failure('NO_POOL', `${text}, or release the tunnel's address`, { details: { node: nodeName } });
  }
  requireReports(view);
  const demand = demandOf(view, { nodeName, kind, nowMs }, pools);
  const [place] = chooseBlocks([blockChoices(beginSearch(view, demand, servingPools(view, demand)))]);
  if (place) {
    const { ordinal, offer } = place;
    const block = takeOrdinals(offer.block, [ordinal], tunnelAttributes(nodeName, kind));
    const put: Change = { type: 'put', record: { kind: 'block', value: block } };
    return { address: hostPrefix(addressAt(block.prefix, ordinal)), block, changes: [...offer.changes, put] };
  }
  throw refusalOf(view, [demand], { subject: `the ${encapsulation} tunnel`, details: { node: nodeName } });
}

/** Address that an assignment takes, if the tunnel has no address. */
export function needOf(request: TunnelRequest): Need {
  return { demands: (view) => [demandOf(view, request, tunnelPools(view, request.kind))], addresses: [] };
}

function demandOf(view: View, { nodeName, kind, nowMs }: TunnelRequest, pools: readonly Pool[]): Demand {
  return {
    family: TUNNELS[kind].family,
    use: 'Tunnel',
    owner: { kind: 'host', name: nodeName },
    nodeLabels: view.node(nodeName)?.labels ?? {},
    namespaceLabels: {},
    pools: pools.map(({ name }) => name),
    maxBlocksCount: 0,
    seed: tunnelHandleId(nodeName, kind),
    nowMs,
  };
}

interface Replacement {
  readonly request: TunnelRequest;
  readonly outdated: readonly HeldAddress[];
  readonly taken: Block;
}

/**
 * Releases the outdated addresses and counts the handle once over all changes. The blocks differ: the outdated pools no
 * longer serve the tunnel.
 */
function replaceAddresses(view: View, { request, outdated, taken }: Replacement): Change[] {
  const id = tunnelHandleId(request.nodeName, request.kind);
  const freed = releaseHeld(view, outdated, request.nowMs).filter((change) => !isHandle(change, id));
  const blocks = freed.flatMap((change) => {
    if (!('record' in change) || change.record.kind !== 'block') return [];
    const { value } = change.record;
    const emptied = { ...value, allocations: value.allocations.map(() => null), attributes: [] };
    return change.type === 'put' ? [value] : change.type === 'delete' ? [emptied] : [];
  });
  return [...freed, ...handleChanges(view, id, [...blocks, taken]), { type: 'expectUnreleased', handleId: id }];
}

function isHandle(change: Change, id: string): boolean {
  return 'record' in change && change.record.kind === 'handle' && change.record.value.id === id;
}
