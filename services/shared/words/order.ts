/**
 * The order of texts by their UTF-16 code units, as `sort` wants it: one on every machine, where that of `localeCompare` depends on a locale.
 */
export function compareTexts(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

/** {@link compareTexts} of names. */
export function compareNames(a: { readonly name: string }, b: { readonly name: string }): number {
  return compareTexts(a.name, b.name);
}
