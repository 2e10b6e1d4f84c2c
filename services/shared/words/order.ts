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
