import { lastIndex } from '@podwire/shared/words/order';

/**
 * The smallest items, sorted: a page of an unordered collection. Keeps only the page in memory, and compares most items
 * once, with the page's largest.
 */
export function smallestItems<Item>(
  items: Iterable<Item>,
  count: number,
  compare: (a: Item, b: Item) => number,
): Item[] {
  const kept: Item[] = [];
  for (const item of items) {
    const last = kept[count - 1];
    if (last !== undefined && compare(item, last) >= 0) continue;
    kept.splice(lastIndex(kept, (other) => compare(other, item) <= 0) + 1, 0, item);
    if (kept.length > count) kept.pop();
  }
  return kept;
}

/** A request for a page of a list in the order of names. */
export interface PageQuery {
  /** The last name of the previous page; empty for the first page. */
  readonly after: string;
  readonly limit: number;
}

/** A page of items that are in the order of their names. */
export function pageOf<Item extends { readonly name: string }>(
  items: readonly Item[],
  { after, limit }: PageQuery,
): Page<Item> {
  const start = lastIndex(items, ({ name }) => name <= after) + 1;
  return { items: items.slice(start, start + limit), more: items.length > start + limit };
}

/** One page of a list. */
export interface Page<Item> {
  readonly items: readonly Item[];
  /** Whether further items follow the last one. */
  readonly more: boolean;
}
