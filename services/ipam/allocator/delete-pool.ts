import { Failure } from '@podwire/shared/failure/failure';
import { formatPrefix } from '@podwire/shared/net/prefix';

import { usedCount } from './block.js';
import { poolVersion, requirePool } from './pools.js';
import type { Block, Pool } from './records.js';
import type { Change, Decision, View } from './view.js';

/**
 * Deleting a pool, in steps of one transaction each. The first disables the pool. Whoever claims a block expects the pool's
 * record as it was seen, so no block can be made in it from then on, and no address be given: a block that the second step does
 * not see does not exist. The following ones remove blocks, and the last the pool with them. Several, because a transaction of
 * etcd has at most 128 operations.
 */

/** Blocks removed by one step: each takes two operations, its own and its affinity's. */
const BLOCKS_PER_STEP = 50;

/** At most so many nodes are named in a refusal. */
const NAMED_NODES = 8;

export interface PoolDeletion {
  readonly name: string;
  /** Delete only if the pool still is of this version; empty for any. */
  readonly resourceVersion: string;
}

/**
 * The first step: checks, and disables the pool.
 * @returns the pool as it was before
 * @throws Failure POOL_NOT_FOUND, STALE_VERSION, or POOL_IN_USE when addresses of it are in use
 */
export function beginPoolDeletion(view: View, { name, resourceVersion }: PoolDeletion): Decision<Pool> {
  const pool = requirePool(view, name);
  if (resourceVersion !== '' && resourceVersion !== poolVersion(pool)) {
    const text = `pool "${name}" was changed since resource version ${resourceVersion}; read it again and decide anew`;
    throw new Failure('STALE_VERSION', text, { details: { pool: name } });
  }
  const refused = inUse(view, pool);
  if (refused) throw refused;
  return { changes: pool.disabled ? [] : [putPool({ ...pool, disabled: true })], outcome: pool };
}

/** What one further step came to. */
export type PoolDeletionStep =
  | { readonly state: 'done'; readonly removedBlocks: number }
  | { readonly state: 'more'; readonly removedBlocks: number }
  /** An address was given before the pool was disabled. The pool is as it was before the first step. */
  | { readonly state: 'refused'; readonly failure: Failure };

/**
 * A step after the first: removes empty blocks, and the pool with the last of them.
 * @param original - what {@link beginPoolDeletion} returned
 * @throws Failure CONFLICT when somebody enabled the pool again meanwhile
 */
export function continuePoolDeletion(view: View, original: Pool): Decision<PoolDeletionStep> {
  const pool = view.pool(original.name);
  if (pool?.uid !== original.uid) return { changes: [], outcome: { state: 'done', removedBlocks: 0 } };
  if (!pool.disabled) {
    const text = `pool "${pool.name}" was enabled again while it was being deleted; delete it once more`;
    throw new Failure('CONFLICT', text, { details: { pool: pool.name } });
  }
  const failure = inUse(view, pool);
  if (failure) {
    const changes = original.disabled ? [] : [putPool({ ...pool, disabled: false })];
    return { changes, outcome: { state: 'refused', failure } };
  }
  const blocks = firstBlocks(view, pool);
  const step = blocks.slice(0, BLOCKS_PER_STEP);
  const removal = step.flatMap((block) => removeBlock(view, block));
  return blocks.length > step.length
    ? { changes: removal, outcome: { state: 'more', removedBlocks: step.length } }
    : {
        changes: [...removal, { type: 'delete', record: { kind: 'pool', value: pool } }],
        outcome: { state: 'done', removedBlocks: step.length },
      };
}

function putPool(value: Pool): Change {
  return { type: 'put', record: { kind: 'pool', value } };
}

/** One block more than a step removes, so that it is known whether there are more. */
function firstBlocks(view: View, { prefix }: Pool): Block[] {
  const blocks: Block[] = [];
  for (const block of view.blocksIn(prefix)) {
    blocks.push(block);
    if (blocks.length > BLOCKS_PER_STEP) break;
  }
  return blocks;
}

function removeBlock(view: View, block: Block): Change[] {
  const affinity = block.owner && view.affinity(block.owner, block.prefix);
  return [
    { type: 'delete', record: { kind: 'block', value: block } },
    ...(affinity ? ([{ type: 'delete', record: { kind: 'affinity', value: affinity } }] as const) : []),
  ];
}

function inUse(view: View, pool: Pool): Failure | undefined {
  const perNode = new Map<string, number>();
  let total = 0;
  for (const block of view.blocksIn(pool.prefix)) {
    if (usedCount(block) === 0) continue;
    total += usedCount(block);
    for (const index of block.allocations) {
      if (index === null) continue;
      const node = block.attributes[index]?.owner.node ?? block.owner?.name ?? 'unknown';
      perNode.set(node, (perNode.get(node) ?? 0) + 1);
    }
  }
  if (total === 0) return undefined;
  const nodes = [...perNode].sort(([a], [b]) => (a < b ? -1 : 1));
  const named = nodes.slice(0, NAMED_NODES).map(([node, count]) => `${count} on node ${node}`);
  const more = nodes.length > NAMED_NODES ? [`and more on ${nodes.length - NAMED_NODES} other nodes`] : [];
  const text = `pool "${pool.name}" ${formatPrefix(pool.prefix)} cannot be deleted: addresses of it are in use (${[...named, ...more].join(', ')}); release them first`;
  return new Failure('POOL_IN_USE', text, { details: { pool: pool.name, allocated: String(total) } });
}
