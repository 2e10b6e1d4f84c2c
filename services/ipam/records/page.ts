/**
 * The smallest items of many, in order: for a page of what is kept in no order. Keeps no more than the page, and compares most items
 * once, with the largest of it.
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
    let low = 0;
    for (let high = kept.length; low < high;) {
      const middle = (low + high) >>> 1;
      const other = kept[middle];
      if (other !== undefined && compare(other, item) <= 0) low = middle + 1;
      else high = middle;
    }
    kept.splice(low, 0, item);
    if (kept.length > count) kept.pop();
  }
  return kept;
}

/** What is read without changing anything. */

/** One page of a list. */
export interface Page<Item> {
  readonly items: readonly Item[];
  /** Whether there is something behind the last item. */
  readonly more: boolean;
}
