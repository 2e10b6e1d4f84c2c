/**
 * Compares texts by UTF-16 code units, for `sort`. The order is the same on every machine; the order of `localeCompare` depends on the
 * locale.
 */
export function compareTexts(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

/** Compares objects by name, see {@link compareTexts}. */
export function compareNames(a: { readonly name: string }, b: { readonly name: string }): number {
  return compareTexts(a.name, b.name);
}

/**
 * Index of the last item for which a condition holds; -1 if there is none.
 * @param holds - true for all items up to some, and false for the rest
 */
export function lastIndex<Item>(items: readonly Item[], holds: (item: Item, index: number) => boolean): number {
  let low = 0;
  for (let high = items.length; low < high;) {
    const middle = (low + high) >>> 1;
    const item = items[middle];
    if (item !== undefined && holds(item, middle)) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
