import { formatAddress } from '@podwire/shared/net/address';
import { comparePrefixes, formatPrefix, parsePrefix, prefixesOverlap, type Prefix } from '@podwire/shared/net/prefix';

import { isNodeAddress } from '../blocks/lookup.js';
import { networkInPool, servesPods } from '../pools/pools.js';
import { cannotRead, expectBlock } from '../records/absence.js';
import type { Handle } from '../records/block.js';
import type { Node, NodeAddress } from '../records/node.js';
import type { Pool } from '../records/pool.js';
import type { Change, UnreadableRecord } from '../records/view.js';
import { handleCountIn, type AuditContext } from './context.js';
import { allocationStateOf } from './endpoint-findings.js';
import { makeFinding, objectOf, noRemedy, safeRemedy, type Finding, type FindingKind } from './finding.js';

/** A handle by its ID, with blocks that have its addresses but that it does not name. */
interface HandleSubject {
  readonly id: string;
  readonly alsoIn: readonly Prefix[];
}

/** A block that a handle counts, with the actual number of its addresses. */
interface BlockCount {
  readonly prefix: Prefix;
  readonly count: number;
}

/** Faults of a handle: its counts differ from the blocks, or it is missing. */
export function findHandleFaults(context: AuditContext, { id, alsoIn }: HandleSubject): Finding[] {
  if (cannotRead(context.view, { kind: 'handle', id })) return [];
  const handle = context.view.handle(id);
  const prefixes = distinct([...blocksOf(handle), ...alsoIn]);
  if (prefixes.some((prefix) => cannotRead(context.view, { kind: 'block', prefix }))) return [];
  const counted = prefixes.map((prefix): BlockCount => {
    const block = context.view.block(prefix);
    return { prefix, count: block ? handleCountIn(block, id) : 0 };
  });
  const kind = handleFaultOf(handle, counted);
  return kind ? [handleFinding(context, kind, { id, alsoIn, handle, counted })] : [];
}

function handleFaultOf(handle: Handle | undefined, counted: readonly BlockCount[]): FindingKind | undefined {
  const total = counted.reduce((sum, { count }) => sum + count, 0);
  if (!handle) return total > 0 ? 'handleMissing' : undefined;
  if (total === 0) return 'handleWithoutAddresses';
  const hasRightCounts = counted.every(
    ({ prefix, count }) => (handle.blocks.get(formatPrefix(prefix)) ?? -1) === count,
  );
  const hasNoOtherBlocks = counted.filter(({ count }) => count > 0).length === handle.blocks.size;
  return hasRightCounts && hasNoOtherBlocks ? undefined : 'handleCountsWrong';
}

interface HandleFault extends HandleSubject {
  readonly handle: Handle | undefined;
  readonly counted: readonly BlockCount[];
}

function handleFinding(
  { view }: AuditContext,
  kind: FindingKind,
  { id, alsoIn, handle, counted }: HandleFault,
): Finding {
  const blocks = counted.filter(({ count }) => count > 0).map(({ prefix }) => objectOf.block(prefix));
  const counts = new Map(counted.flatMap(({ prefix, count }) => (count > 0 ? [[formatPrefix(prefix), count]] : [])));
  const preconditions = counted.flatMap(({ prefix }) => expectBlock(view, prefix));
  const remove: Change[] = handle ? [{ type: 'delete', record: { kind: 'handle', value: handle } }] : [];
  const write: Change = { type: 'put', record: { kind: 'handle', value: { id, blocks: counts } } };
  return makeFinding({
    kind,
    subject: { type: 'handle', id, alsoIn },
    objects: [objectOf.handle(id), ...blocks],
    explanation: explainHandle(kind, { id, handle, counts }),
    remedy:
      counts.size === 0
        ? safeRemedy('removes the handle', () => [...preconditions, ...remove])
        : safeRemedy('rewrites the handle from the blocks', () => [...preconditions, write]),
  });
}

interface Counts {
  readonly id: string;
  readonly handle: Handle | undefined;
  readonly counts: ReadonlyMap<string, number>;
}

function explainHandle(kind: FindingKind, { id, handle, counts }: Counts): string {
  if (kind === 'handleMissing') return `addresses in ${countText(counts)} are of handle ${id}, which does not exist`;
  const stored = countText(handle?.blocks ?? new Map());
  return counts.size === 0
    ? `handle ${id} counts addresses in ${stored}, but has none`
    : `handle ${id} counts addresses in ${stored}, but has them in ${countText(counts)}`;
}

function countText(counts: ReadonlyMap<string, number>): string {
  const texts = [...counts].sort().map(([cidr, count]) => `${cidr} (${count})`);
  return texts.length > 0 ? texts.join(', ') : 'no block';
}

function blocksOf(handle: Handle | undefined): Prefix[] {
  return [...(handle?.blocks.keys() ?? [])].flatMap((cidr) => {
    const parsed = parsePrefix(cidr);
    return parsed.ok ? [parsed.prefix] : [];
  });
}

function distinct(prefixes: readonly Prefix[]): Prefix[] {
  return prefixes
    .toSorted(comparePrefixes)
    .filter((prefix, index, sorted) => index === 0 || comparePrefixes(prefix, sorted[index - 1] ?? prefix) !== 0);
}

/**
 * Overlaps of a pool with later pools in name order. Of a pool that is refused for its overlap no address was ever allocated; a
 * disabled pool may still have addresses in use.
 */
export function findPoolOverlap({ view }: AuditContext, pool: Pool): Finding[] {
  const isRefused = ({ notAllocatable }: Pool): boolean => notAllocatable !== undefined;
  const rivals = view
    .pools()
    .filter((other) => other.name > pool.name && !isRefused(other) && prefixesOverlap(other.prefix, pool.prefix));
  if (isRefused(pool) || rivals.length === 0) return [];
  const text = (each: Pool): string => `"${each.name}" ${formatPrefix(each.prefix)}`;
  return [
    makeFinding({
      kind: 'poolsOverlap',
      subject: { type: 'pool', name: pool.name },
      objects: [objectOf.pool(pool.name), ...rivals.map(({ name }) => objectOf.pool(name))],
      explanation: `pool ${text(pool)} overlaps ${rivals.map(text).join(', ')}`,
      remedy: noRemedy('disable and delete all but one of them'),
    }),
  ];
}

export function findNodeFaults(context: AuditContext, node: Node): Finding[] {
  return [
    ...findTunnelFaults(context, node),
    ...findPoolsOverNode(context, node),
    ...[node.ipv4, node.ipv6].flatMap((own) => (own ? findSharedAddress(context, node, own) : [])),
  ];
}

/** Pools that give addresses of the node's networks to pods. */
function findPoolsOverNode({ view }: AuditContext, node: Node): Finding[] {
  return view.pools().flatMap((pool) => {
    const network = servesPods(pool) ? networkInPool(node, pool) : undefined;
    if (!network) return [];
    return makeFinding({
      kind: 'nodeInPool',
      subject: { type: 'node', name: node.name },
      objects: [objectOf.node(node.name), objectOf.pool(pool.name)],
      explanation: `network ${formatPrefix(network)} of node ${node.name} overlaps pool "${pool.name}" ${formatPrefix(pool.prefix)}, so pods may get addresses of hosts`,
      remedy: noRemedy('disable the pool, and create one of another range'),
    });
  });
}

/** An address of the node that another node or a pod has, too. */
function findSharedAddress(context: AuditContext, node: Node, { address }: NodeAddress): Finding[] {
  const allocation = allocationStateOf(context, address);
  const rivals = context.view
    .nodes()
    .filter((each) => each.name > node.name && isNodeAddress(context.view, each.name, address));
  const holders = [
    ...rivals.map(({ name }) => `node ${name}`),
    ...(allocation.state === 'held' ? [`handle ${allocation.attributes.handleId ?? 'none'}`] : []),
  ];
  return holders.map((holder) =>
    makeFinding({
      kind: 'addressOfSeveralOwners',
      subject: { type: 'node', name: node.name },
      objects: [objectOf.address(address), objectOf.node(node.name), ...rivals.map(({ name }) => objectOf.node(name))],
      explanation: `node ${node.name} is registered with ${formatAddress(address)}, which ${holder} has, too`,
      remedy: noRemedy('give one of them another address'),
    }),
  );
}

/** Tunnel addresses of a node that are not allocated to it. */
function findTunnelFaults(context: AuditContext, node: Node): Finding[] {
  return [...node.tunnels].flatMap(([kind, { address }]) => {
    const allocation = allocationStateOf(context, address);
    const text = `node ${node.name} has ${formatAddress(address)} as its ${kind}`;
    const objects = [objectOf.address(address), objectOf.node(node.name)] as const;
    const subject = { type: 'node', name: node.name } as const;
    switch (allocation.state) {
      case 'unknown':
      case 'outside':
        return [];
      case 'noBlock':
      case 'free': {
        const explanation = `${text}, which is not allocated`;
        const remedy = noRemedy('allocate the tunnel address of the node again');
        return [makeFinding({ kind: 'tunnelUnallocated', subject, objects, explanation, remedy })];
      }
      case 'held': {
        const { owner, handleId } = allocation.attributes;
        if (owner.node === node.name && owner.type !== undefined) return [];
        const explanation = `${text}, which is allocated to handle ${handleId ?? 'none'}`;
        const remedy = noRemedy('allocate another tunnel address for the node');
        return [makeFinding({ kind: 'addressOfSeveralOwners', subject, objects, explanation, remedy })];
      }
    }
  });
}

export function unreadableFinding({ key, reason }: UnreadableRecord): Finding {
  return makeFinding({
    kind: 'recordUnreadable',
    subject: { type: 'record', key },
    objects: [objectOf.record(key)],
    explanation: `record ${key} cannot be read: ${reason}`,
    remedy: noRemedy('its content is unknown; correct or delete it in the datastore'),
  });
}
