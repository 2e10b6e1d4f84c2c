/** A word may be wrong in a third of its letters, and be meant still. */
const LETTERS_PER_FAULT = 3;

/**
 * The known word that was meant with another, as far as one can tell.
 * @returns undefined where none is near
 */
export function nearest(word: string, known: readonly string[]): string | undefined {
  const near = known
    .map((each) => ({ each, faults: faultsBetween(word, each) }))
    .filter(({ each, faults }) => faults <= Math.ceil(Math.max(word.length, each.length) / LETTERS_PER_FAULT))
    .sort((a, b) => a.faults - b.faults);
  return near[0]?.each ?? known.find((each) => word.length > 1 && each.startsWith(word));
}

/** How many letters are missing, too many, wrong or swapped with their neighbour (the optimal string alignment). */
function faultsBetween(a: string, b: string): number {
  let before: number[] = [];
  let previous = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const isSame = a[i - 1] === b[j - 1];
      const isSwapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      const replaced = (previous[j - 1] ?? 0) + (isSame ? 0 : 1);
      const swapped = isSwapped ? (before[j - 2] ?? 0) + 1 : Infinity;
      row.push(Math.min((previous[j] ?? 0) + 1, (row[j - 1] ?? 0) + 1, replaced, swapped));
    }
    [before, previous] = [previous, row];
  }
  return previous[b.length] ?? 0;
}
