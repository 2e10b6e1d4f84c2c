import { Failure } from '@podwire/shared/failure/failure';
import { formatPrefix, prefixContains, prefixesOverlap, prefixOf, type Prefix } from '@podwire/shared/net/prefix';
import { formatCount } from '@podwire/shared/words/format-count';
import { compareTexts } from '@podwire/shared/words/order';

import { poolUtilization, type PoolUtilization } from '../blocks/utilization.js';
import { requirePool } from '../records/absence.js';
import { countUnused } from '../records/block-stats.js';
import { collectCooled, isHeld, isUnneeded, type Block } from '../records/block.js';
import { isLease } from '../records/lease.js';
import { isTunnelType, type Node } from '../records/node.js';
import { pageOf, type Page, type PageQuery } from '../records/page.js';
import { poolVersion, unavailableReason, type Pool } from '../records/pool.js';
import type { UnreadableBlock, View } from '../records/view.js';
import { LOAD_BALANCER } from './rules.js';

/** A pool with its utilization. */
export interface PoolListing {
  readonly pool: Pool;
  readonly utilization: PoolUtilization;
  /** Until it is full, by the trend of the last hour; undefined: unknown, or longer than a month. */
  readonly fullInSeconds?: number | undefined;
}

/** @param resourceVersion - empty for any @throws Failure STALE_VERSION */
export function requireVersion(pool: Pool, resourceVersion: string): void {
  if (resourceVersion !== '' && resourceVersion !== poolVersion(pool)) throw staleFailure(pool, resourceVersion);
}

export function staleFailure({ name }: Pool, resourceVersion: string): Failure {
  const text = `pool "${name}" was changed since resource version ${resourceVersion}; read it again and retry`;
  return new Failure('STALE_VERSION', text, { details: { pool: name } });
}

/** @throws Failure POOL_NOT_FOUND */
export function getPool(view: View, name: string): PoolListing {
  const pool = requirePool(view, name);
  return { pool, utilization: poolUtilization(view, pool) };
}

/** A page of the pools, in the order of their names. */
export function listPools(view: View, query: PageQuery): Page<PoolListing> {
  const { items, more } = pageOf(view.pools(), query);
  return { items: items.map((pool) => ({ pool, utilization: poolUtilization(view, pool) })), more };
}

/** Obstacles to the removal of a pool. */
export interface PoolHolders {
  /** Addresses in use, for any purpose. */
  readonly inUseCount: number;
  /** Unbound leases: their nodes may give them to pods until they return them. */
  readonly leasedCount: number;
  /** Tunnel addresses of nodes, among the ones in use. */
  readonly tunnelCount: number;
  /** Addresses whose cool-down is not over: they must not be allocated yet, even from another pool. */
  readonly coolingCount: number;
  /** A block that cannot be read and may hold addresses; undefined when there is none. */
  readonly unreadable: UnreadableBlock | undefined;
  /** Number of addresses in use per node, in the order of the nodes' names. */
  readonly nodes: readonly NodeCount[];
}

interface NodeCount {
  /** `unknown` for an address without a node in a block without an owner. */
  readonly nodeName: string;
  readonly count: number;
}

/** The blocks of a pool. */
interface PoolBlocks {
  /** Blocks without held addresses. */
  readonly empty: readonly Block[];
  /** The holders of the remaining addresses; undefined when there are none. */
  readonly holders: PoolHolders | undefined;
}

/** Scans every block of a pool, without the blocks of a pool that serves in its place. Addresses whose cool-down is over count as free. */
export function poolBlocks(view: View, pool: Pool, nowMs: number): PoolBlocks {
  const cooldownSeconds = view.config()?.cooldownSeconds ?? 0;
  const empty: Block[] = [];
  const nodes = new Map<string, number>();
  let [leasedCount, coolingCount, tunnelCount] = [0, 0, 0];
  const serving = view.pools().filter((other) => other.name !== pool.name && unavailableReason(other) === undefined);
  for (const block of view.blocksIn(pool.prefix)) {
    if (serving.some(({ prefix }) => prefixContains(prefix, block.prefix))) continue;
    const current = collectCooled(block, nowMs, cooldownSeconds);
    if (isUnneeded(current)) {
      empty.push(block);
      continue;
    }
    const unused = countUnused(current);
    leasedCount += unused.leased;
    coolingCount += unused.cooling;
    tunnelCount += countHolders(current, nodes);
  }
  const inUseCount = [...nodes.values()].reduce((sum, count) => sum + count, 0);
  const unreadable = view.unreadableBlock(pool.prefix);
  const holders = { inUseCount, leasedCount, coolingCount, tunnelCount, unreadable, nodes: sortByNode(nodes) };
  return { empty, holders: unreadable || inUseCount + leasedCount + coolingCount > 0 ? holders : undefined };
}

/** Adds a block's addresses in use to the counts of their nodes. @returns the number of tunnel addresses */
function countHolders({ allocations, attributes, owner }: Block, nodes: Map<string, number>): number {
  let tunnelCount = 0;
  for (const index of allocations) {
    const held = index === null ? undefined : attributes[index];
    if (!held || !isHeld(held) || isLease(held)) continue;
    const node = held.owner.node ?? owner?.name ?? 'unknown';
    nodes.set(node, (nodes.get(node) ?? 0) + 1);
    if (isTunnelType(held.owner.type)) tunnelCount++;
  }
  return tunnelCount;
}

function sortByNode(nodes: ReadonlyMap<string, number>): NodeCount[] {
  return [...nodes].sort(([a], [b]) => compareTexts(a, b)).map(([nodeName, count]) => ({ nodeName, count }));
}

/** Maximum number of nodes named in a message. */
const NAMED_NODES = 8;

/** Holders in words: `1 on node n1, 4 on node n2, 2 leased to nodes, 3 that cool down, perhaps some of record … which cannot be read`. */
export function describeHolders({ nodes, leasedCount, coolingCount, tunnelCount, unreadable }: PoolHolders): string {
  const named = nodes.slice(0, NAMED_NODES).map(({ nodeName, count }) => `${count} on node ${nodeName}`);
  const more =
    nodes.length > NAMED_NODES ? [`and more on ${formatCount(nodes.length - NAMED_NODES, 'other node')}`] : [];
  const tunnels = tunnelCount > 0 ? [`of them ${formatCount(tunnelCount, 'tunnel address', 'tunnel addresses')}`] : [];
  const leased = leasedCount > 0 ? [`${leasedCount} leased to nodes`] : [];
  const cooling = coolingCount > 0 ? [formatCount(coolingCount, 'that cools down', 'that cool down')] : [];
  const unknown = unreadable ? [`perhaps some of record ${unreadable.key}, which cannot be read`] : [];
  return [...named, ...more, ...tunnels, ...leased, ...cooling, ...unknown].join(', ');
}

/** Whether pods or tunnels can get the pool's addresses. Load balancer pools often lie in the nodes' network. */
export function servesPods({ disabled, allowedUses }: Pick<Pool, 'disabled' | 'allowedUses'>): boolean {
  return !disabled && !allowedUses.includes(LOAD_BALANCER);
}

/** The first network of the node that shares addresses with the pool. */
export function networkInPool({ ipv4, ipv6, interfaces }: Node, { prefix }: Pick<Pool, 'prefix'>): Prefix | undefined {
  return [ipv4, ipv6, ...interfaces.flatMap(({ addresses }) => addresses)]
    .flatMap((own) => (own ? [prefixOf(own.address, own.subnetBits)] : []))
    .find((network) => prefixesOverlap(network, prefix));
}

/** The text for a pool in messages. */
export function poolText({ name, prefix }: Pool): string {
  return `pool "${name}" ${formatPrefix(prefix)}`;
}
