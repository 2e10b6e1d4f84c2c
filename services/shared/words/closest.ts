/** Names that differ from a misspelled one by at most this many characters are suggested. */
const MAX_DISTANCE = 3;

/** `; did you mean "cidr"?`, or nothing where no name is close. */
export function suggestion(word: string, names: readonly string[]): string {
  const limit = Math.min(MAX_DISTANCE, Math.floor(word.length / 2));
  const ranked = names.map((name) => ({ name, distance: distanceOf(word.toLowerCase(), name.toLowerCase()) }));
  const [best] = ranked.filter(({ distance }) => distance <= limit).sort((a, b) => a.distance - b.distance);
  return best ? `; did you mean "${best.name}"?` : '';
}

/** The number of inserted, deleted and replaced characters between two words (Levenshtein). */
function distanceOf(from: string, to: string): number {
  let row = Array.from({ length: to.length + 1 }, (_, at) => at);
  for (const [at, character] of Array.from(from).entries()) {
    const next = [at + 1];
    for (const [place, other] of Array.from(to).entries()) {
      const replaced = (row[place] ?? 0) + (character === other ? 0 : 1);
      next.push(Math.min(replaced, (row[place + 1] ?? 0) + 1, (next[place] ?? 0) + 1));
    }
    row = next;
  }
  return row.at(-1) ?? 0;
}
