import { prefixContains } from '@podwire/shared/net/prefix';

import type { Change, View } from '../records/view.js';
import type { Affinity, Block, Pool } from './records.js';

/**
 * How a pool that is being deleted ends: whoever gives back the last address of a block removes the block, and with the last
 * block the pool, in the transaction of the release. What that leaves (two releases of the last two blocks at the same moment do
 * not see each other; an address cools down; a block of an older version) the deletion's own steps remove, which are repeated
 * for as long as there are such pools.
 */

/**
 * The pools that are being deleted and have nothing left once these blocks are removed: they are to be removed in the same
 * transaction. Only where that is known for certain; else the pool stays for a later step.
 */
export function poolsEmptiedBy(view: View, removed: readonly Block[]): Pool[] {
  if (removed.length === 0) return [];
  return view
    .pools()
    .filter(
      (pool) =>
        pool.deletionTimeMs !== undefined &&
        removed.some(({ prefix }) => prefixContains(pool.prefix, prefix)) &&
        view.showsAllBefore({ kind: 'pool', value: pool }) &&
        isNothingLeft(view, pool, removed),
    );
}

function isNothingLeft(view: View, pool: Pool, removed: readonly Block[]): boolean {
  const values = new Set(removed.map(({ prefix }) => prefix.value));
  if (view.unreadableBlock(pool.prefix)) return false;
  for (const { prefix } of view.blocksIn(pool.prefix)) if (!values.has(prefix.value)) return false;
  return strayAffinities(view, pool, removed).length === 0;
}

/** Affinities within a pool that do not go with these blocks: another writer's claims that did not end. */
export function strayAffinities(view: View, pool: Pool, removed: readonly Block[]): Affinity[] {
  const owned = new Set(removed.flatMap(({ owner, prefix }) => (owner ? [affinityId({ owner, block: prefix })] : [])));
  return [...view.affinities()].filter(
    (affinity) => prefixContains(pool.prefix, affinity.block) && !owned.has(affinityId(affinity)),
  );
}

function affinityId({ owner, block }: Pick<Affinity, 'owner' | 'block'>): string {
  return `${owner.kind}:${owner.name} ${block.family}/${block.value}/${block.length}`;
}

export function removePool(value: Pool): Change {
  return { type: 'delete', record: { kind: 'pool', value } };
}
