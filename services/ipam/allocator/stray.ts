import { sameOwner } from '../blocks/demand.js';
import { collect, type Search } from '../blocks/search.js';
import { outOfUse, poolOf } from '../pools/pools.js';
import { cannotRead, expectNoBlock } from '../records/absence.js';
import { usedCount } from '../records/block.js';
import type { Change } from '../records/view.js';
import { matches } from '../selectors/selector.js';
import type { Affinity } from './records.js';

/** At most so many are given up along with one allocation; the next one gives up further ones. */
const STRAYS_PER_ALLOCATION = 4;

/**
 * Gives up empty blocks of the node in pools that do not select it any more, along with the node's next allocation, so that the nodes
 * that are selected can have them. Only the node's selection counts: pools that are passed over for another reason may serve
 * the node's next request, and those that are out of use are their operator's business. Blocks of the other family are left to the
 * search of that family, which may take an address from them.
 * @param affinities - the node's; those of full blocks need not be among them
 */
export function strayChanges(search: Search, affinities: readonly Affinity[]): Change[] {
  if (search.demand.owner.kind !== 'host') return [];
  const changes: Change[] = [];
  for (const affinity of affinities) {
    if (changes.length >= 2 * STRAYS_PER_ALLOCATION) break;
    if (isDeselected(search, affinity)) changes.push(...giveUp(search, affinity));
  }
  return changes;
}

function isDeselected({ view, demand, pools }: Search, { block }: Affinity): boolean {
  if (block.family !== demand.family || poolOf(pools, block)) return false;
  const pool = poolOf(view.pools(), block);
  if (!pool || outOfUse(pool) !== undefined) return false;
  const { matches: selected, fault } = matches(pool.nodeSelector, demand.nodeLabels);
  return !selected && fault === undefined;
}

function giveUp(search: Search, affinity: Affinity): Change[] {
  const stored = search.view.block(affinity.block);
  const blockName = { kind: 'block', prefix: affinity.block } as const;
  const dropped: Change = { type: 'delete', record: { kind: 'affinity', value: affinity } };
  // A claim writes block and affinity; the view may have only one of the two as they are now.
  if (!stored) return cannotRead(search.view, blockName) ? [] : [dropped, expectNoBlock(affinity.block)];
  if (!sameOwner(stored.owner, affinity.owner))
    return [dropped, { type: 'expect', record: { kind: 'block', value: stored } }];
  if (usedCount(collect(search, stored)) > 0) return [];
  return [dropped, { type: 'delete', record: { kind: 'block', value: stored } }];
}
