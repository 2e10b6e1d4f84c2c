import { sameOwner } from '../blocks/demand.js';
import { canConfirm, type Search } from '../blocks/search.js';
import { cannotRead } from '../records/absence.js';
import { usedCount } from '../records/block.js';
import type { View } from '../records/view.js';
import type { Block } from './records.js';
import { hasRoom } from './reserved.js';

/**
 * Empty blocks of other nodes, which are taken when no pool has a possible block left that nobody has. In one transaction the
 * block names its new owner, the old one's affinity goes, and the new one's is confirmed: whoever takes an address of it at the
 * same moment makes that lose its comparison, and is not disturbed.
 */

/** So long a node keeps a block that it has claimed and not used yet, in milliseconds: its first address may be on its way. */
const SPARED_MS = 60_000;

/** @param block - without the addresses that have cooled down; one that still cools keeps the block where it is */
export function isReclaimable(search: Search, block: Block): boolean {
  const { view, demand, reserved } = search;
  const { owner, claimTimeMs, prefix } = block;
  if (owner?.kind !== 'host' || sameOwner(owner, demand.owner)) return false;
  if (usedCount(block) > 0 || isSpared(claimTimeMs, demand.nowMs) || !hasRoom(block, reserved)) return false;
  return canConfirm(search, prefix) && !cannotRead(view, { kind: 'affinity', owner, block: prefix });
}

/** A claim of the future is another replica's clock, and tells nothing. Old blocks do not tell when they were claimed. */
export function isSpared(claimTimeMs: number | undefined, nowMs: number): boolean {
  return claimTimeMs !== undefined && Math.abs(nowMs - claimTimeMs) < SPARED_MS;
}

/** Among so many the block of a node that is gone is looked for; more would cost more than it is worth. */
const COMPARED_COUNT = 64;

/** Of the first ones the blocks of nodes that are gone come first: nobody will miss them. Then the others. Lazy. */
export function* reclaimOrder<Item extends { readonly block: Block }>(
  { view }: Search,
  items: Iterable<Item>,
): Generator<Item, void, void> {
  const first: Item[] = [];
  const all = items[Symbol.iterator]();
  for (let next = all.next(); !next.done; next = all.next()) {
    first.push(next.value);
    if (first.length === COMPARED_COUNT) break;
  }
  yield* first.filter(({ block }) => isGone(view, block));
  yield* first.filter(({ block }) => !isGone(view, block));
  for (let next = all.next(); !next.done; next = all.next()) yield next.value;
}

function isGone(view: View, { owner }: Block): boolean {
  const node = owner && view.node(owner.name);
  if (node) return node.deletionTimeMs !== undefined;
  return !owner || !cannotRead(view, { kind: 'node', name: owner.name });
}
