import { FAMILIES, type Family } from '@podwire/shared/net/address';
import { defaultRoute } from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';

import { blockUse, poolUtilization } from '../blocks/utilization.js';
import { isHeld, type Block } from '../records/block.js';
import { poolOf } from '../records/pool.js';
import type { View } from '../records/view.js';
import { reservedIn } from '../reservations/reservations.js';

/** Placeholder names of Calico's metrics. */
const NO_POOL = 'no_ippool';
export const NO_AFFINITY = 'no_affinity';

/** Usage of a pool by one node. */
interface NodePoolUsage {
  /** {@link NO_POOL} for blocks that are in none. */
  readonly poolName: string;
  /** The node that uses the addresses; for blocks, their owner. `unknown_node` and {@link NO_AFFINITY} where there is none. */
  readonly nodeName: string;
  readonly blocks: number;
  /** Addresses in use on the node, from any block. */
  readonly inUse: number;
  /** Addresses from blocks that are not the node's. */
  readonly borrowed: number;
  /** Addresses leased to the node and not in use, from any block. */
  readonly leased: number;
}

interface PoolSize {
  readonly poolName: string;
  readonly family: Family;
  readonly size: bigint;
  /** Covered by reservations, allocated or not, as Calico's metric counts them. */
  readonly reserved: bigint;
  /** Neither allocated nor reserved, or leased. */
  readonly available: bigint;
}

/** No namespace has this name. */
const OTHER_NAMESPACES = '_other';
const MAX_NAMESPACES = 20;

export interface Usage {
  readonly nodeUsages: readonly NodePoolUsage[];
  /** Addresses in use by the pods of the largest namespaces, the largest first, and of {@link OTHER_NAMESPACES}. */
  readonly namespaces: readonly { readonly namespace: string; readonly inUse: number }[];
  readonly pools: readonly PoolSize[];
  /** Addresses that cool down. */
  readonly cooling: number;
}

/** Counts used addresses, per pool and node, in the order of their names. */
export function usageOf(view: View): Usage {
  const pools = view.pools();
  const nodeUsages = new UsageByNode();
  const namespaces = new Map<string, number>();
  let cooling = 0;
  for (const family of FAMILIES) {
    for (const block of view.blocksIn(defaultRoute(family))) {
      const poolName = poolOf(pools, block.prefix)?.name ?? NO_POOL;
      const owner = block.owner?.kind === 'host' ? block.owner.name : (block.owner?.name ?? NO_AFFINITY);
      const use = blockUse(block);
      nodeUsages.add(poolName, owner, { blocks: 1 });
      for (const [node, count] of use.inUse)
        nodeUsages.add(poolName, node, { inUse: count, borrowed: node === owner ? 0 : count });
      for (const [node, count] of use.leased) nodeUsages.add(poolName, node, { leased: count });
      for (const count of use.cooling.values()) cooling += count;
      for (const [name, count] of namespacesOf(block)) namespaces.set(name, (namespaces.get(name) ?? 0) + count);
    }
  }
  const reserved = reservedIn(view);
  return {
    nodeUsages: nodeUsages.sorted(),
    namespaces: largest(namespaces),
    pools: pools.map((pool) => {
      const { capacity, available } = poolUtilization(view, pool);
      const { family } = pool.prefix;
      return { poolName: pool.name, family, size: capacity, reserved: reserved.countIn(pool.prefix), available };
    }),
    cooling,
  };
}

/** Blocks are immutable, so their counts are cached. */
const namespacesCache = new WeakMap<Block, ReadonlyMap<string, number>>();

function namespacesOf(block: Block): ReadonlyMap<string, number> {
  const known = namespacesCache.get(block);
  if (known) return known;
  const counts = new Map<string, number>();
  for (const index of block.allocations) {
    const attributes = index === null ? undefined : block.attributes[index];
    const name = attributes && isHeld(attributes) ? (attributes.owner.namespace ?? '') : '';
    if (name !== '') counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  namespacesCache.set(block, counts);
  return counts;
}

function largest(counts: ReadonlyMap<string, number>): Usage['namespaces'] {
  const sorted = [...counts]
    .map(([namespace, inUse]) => ({ namespace, inUse }))
    .sort((a, b) => b.inUse - a.inUse || compareTexts(a.namespace, b.namespace));
  const rest = sorted.slice(MAX_NAMESPACES).reduce((sum, { inUse }) => sum + inUse, 0);
  return [...sorted.slice(0, MAX_NAMESPACES), ...(rest > 0 ? [{ namespace: OTHER_NAMESPACES, inUse: rest }] : [])];
}

type Counts = Pick<NodePoolUsage, 'blocks' | 'inUse' | 'borrowed' | 'leased'>;

class UsageByNode {
  readonly #byName = new Map<string, Map<string, NodePoolUsage>>();

  add(poolName: string, nodeName: string, added: Partial<Counts>): void {
    const { blocks = 0, inUse = 0, borrowed = 0, leased = 0 } = added;
    const ofPool = this.#byName.get(poolName) ?? new Map<string, NodePoolUsage>();
    this.#byName.set(poolName, ofPool);
    const known = ofPool.get(nodeName);
    ofPool.set(nodeName, {
      poolName,
      nodeName,
      blocks: (known?.blocks ?? 0) + blocks,
      inUse: (known?.inUse ?? 0) + inUse,
      borrowed: (known?.borrowed ?? 0) + borrowed,
      leased: (known?.leased ?? 0) + leased,
    });
  }

  sorted(): NodePoolUsage[] {
    const text = ({ poolName, nodeName }: NodePoolUsage): string => `${poolName}/${nodeName}`;
    return [...this.#byName.values()]
      .flatMap((ofPool) => [...ofPool.values()])
      .sort((a, b) => compareTexts(text(a), text(b)));
  }
}
