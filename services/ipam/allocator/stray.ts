import { cannotRead, expectNoBlock } from './absence.js';
import { usedCount } from './block.js';
import { sameOwner } from './demand.js';
import { outOfUse, poolOf } from './pools.js';
import type { Affinity } from './records.js';
import { collect, type Search } from './search.js';
import { matches } from './selector/selector.js';
import type { Change } from './view.js';

/** At most so many are given up along with a claim; the others' turn comes with the next. */
const STRAYS_PER_CLAIM = 4;

/**
 * Gives up empty blocks of the node in pools that do not select it any more, along with a claim of another, so that the nodes that
 * are selected can have them. Only the node's selection counts: pools that are passed over for another reason may serve
 * the node's next request, and those that are out of use are their operator's business.
 */
export function strayChanges(search: Search): Change[] {
  const { view, demand } = search;
  if (demand.owner.kind !== 'host') return [];
  const changes: Change[] = [];
  for (const affinity of view.affinitiesOf(demand.owner)) {
    if (changes.length >= 2 * STRAYS_PER_CLAIM) break;
    if (isDeselected(search, affinity)) changes.push(...giveUp(search, affinity));
  }
  return changes;
}

function isDeselected({ view, demand }: Search, { block }: Affinity): boolean {
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
