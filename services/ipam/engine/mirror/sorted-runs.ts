import { comparePrefixes, prefixContains, prefixSize, type Prefix } from '@podwire/shared/net/prefix';

/** Prefixes of one family in the order of their addresses, each once. */
export class SortedPrefixes {
  /** Runs in order, none empty. Short, because an insertion moves the following prefixes of its run. */
  readonly #runs: Prefix[][] = [];

  /** No effect when it exists already. */
  add(prefix: Prefix): void {
    const runIndex = Math.max(0, this.#runOf(prefix));
    const run = this.#runs[runIndex];
    if (!run) {
      this.#runs.push([prefix]);
      return;
    }
    const index = lastAtMost(run, prefix);
    const known = run[index];
    if (known && comparePrefixes(known, prefix) === 0) return;
    run.splice(index + 1, 0, prefix);
    if (run.length > LONGEST_RUN) this.#runs.splice(runIndex + 1, 0, run.splice(LONGEST_RUN / 2));
  }

  /** No effect when it is missing. */
  delete(prefix: Prefix): void {
    const runIndex = this.#runOf(prefix);
    const run = this.#runs[runIndex];
    if (!run) return;
    const index = lastAtMost(run, prefix);
    const known = run[index];
    if (!known || comparePrefixes(known, prefix) !== 0) return;
    run.splice(index, 1);
    if (run.length === 0) this.#runs.splice(runIndex, 1);
  }

  /** The prefixes in a range. Must not change during the iteration. */
  *within(range: Prefix): Generator<Prefix, void, void> {
    const first = Math.max(0, this.#runOf(range));
    for (let runIndex = first; runIndex < this.#runs.length; runIndex++) {
      const run = this.#runs[runIndex] ?? [];
      for (let index = runIndex === first ? firstAtLeast(run, range) : 0; index < run.length; index++) {
        const prefix = run[index];
        if (!prefix || !prefixContains(range, prefix)) return;
        yield prefix;
      }
    }
  }

  /**
   * Number of consecutive prefixes from this one on, itself included; 0 when it is missing. All must have one size.
   * Costs a comparison for every {@link LONGEST_RUN} of them or so: a run has no gap if its last lies where it then would.
   */
  consecutiveFrom(first: Prefix): number {
    const firstRun = this.#runOf(first);
    const size = prefixSize(first);
    let count = 0;
    for (let runIndex = firstRun; runIndex >= 0 && runIndex < this.#runs.length; runIndex++) {
      const run = this.#runs[runIndex] ?? [];
      const start = runIndex === firstRun ? lastAtMost(run, first) : 0;
      if (run[start]?.value !== first.value + BigInt(count) * size) return count;
      const length = consecutive(run, start, size);
      count += length;
      if (start + length < run.length) return count;
    }
    return count;
  }

  /** Index of the run that may have the prefix; -1 when all runs follow it. */
  #runOf(prefix: Prefix): number {
    let low = 0;
    for (let high = this.#runs.length; low < high;) {
      const middle = (low + high) >>> 1;
      const first = this.#runs[middle]?.[0];
      if (first && comparePrefixes(first, prefix) <= 0) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }
}

const LONGEST_RUN = 512;

/** Number of consecutive prefixes in a run from an index on. */
function consecutive(run: readonly Prefix[], start: number, size: bigint): number {
  const from = run[start]?.value ?? 0n;
  const isUnbroken = (index: number): boolean => run[index]?.value === from + BigInt(index - start) * size;
  if (isUnbroken(run.length - 1)) return run.length - start;
  let low = start;
  for (let high = run.length - 1; low + 1 < high;) {
    const middle = (low + high) >>> 1;
    if (isUnbroken(middle)) low = middle;
    else high = middle;
  }
  return low - start + 1;
}

/** Index of the last one not after the prefix; -1 when all are after it. */
function lastAtMost(prefixes: readonly Prefix[], prefix: Prefix): number {
  let low = 0;
  for (let high = prefixes.length; low < high;) {
    const middle = (low + high) >>> 1;
    const item = prefixes[middle];
    if (item && comparePrefixes(item, prefix) <= 0) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Index of the first one not before the prefix. */
function firstAtLeast(prefixes: readonly Prefix[], prefix: Prefix): number {
  const index = lastAtMost(prefixes, prefix);
  const item = prefixes[index];
  return item && comparePrefixes(item, prefix) === 0 ? index : index + 1;
}

/** Texts in their order (that of UTF-16 code units), each once. */
export class SortedTexts {
  /** Runs of texts in order, none empty. Short, because an insertion moves the following texts of its run. */
  readonly #runs: string[][] = [];

  /** No effect when it exists already. */
  add(text: string): void {
    const lastRun = this.#runs.at(-1);
    const last = lastRun?.at(-1);
    // Fast path: lists are ordered.
    if (lastRun && last !== undefined && last < text && lastRun.length < LONGEST_TEXT_RUN) {
      lastRun.push(text);
      return;
    }
    const runIndex = Math.max(0, lastTextAtMost(this.#runs, text, first));
    const run = this.#runs[runIndex];
    if (!run) {
      this.#runs.push([text]);
      return;
    }
    const index = lastTextAtMost(run, text, itself);
    if (run[index] === text) return;
    run.splice(index + 1, 0, text);
    if (run.length > LONGEST_TEXT_RUN) this.#runs.splice(runIndex + 1, 0, run.splice(LONGEST_TEXT_RUN / 2));
  }

  /** No effect when it is missing. */
  delete(text: string): void {
    const runIndex = lastTextAtMost(this.#runs, text, first);
    const run = this.#runs[runIndex];
    const index = run ? lastTextAtMost(run, text, itself) : -1;
    if (run?.[index] !== text) return;
    run.splice(index, 1);
    if (run.length === 0) this.#runs.splice(runIndex, 1);
  }

  /** Every text after the given one, which may be missing. Must not change during the iteration. */
  *behind(text: string): Generator<string, void, void> {
    const runIndex = Math.max(0, lastTextAtMost(this.#runs, text, first));
    const index = lastTextAtMost(this.#runs[runIndex] ?? [], text, itself) + 1;
    for (let run = runIndex; run < this.#runs.length; run++) {
      const texts = this.#runs[run] ?? [];
      for (let at = run === runIndex ? index : 0; at < texts.length; at++) {
        const found = texts[at];
        if (found !== undefined) yield found;
      }
    }
  }
}

const LONGEST_TEXT_RUN = 512;

function first(run: readonly string[]): string {
  return run[0] ?? '';
}

function itself(text: string): string {
  return text;
}

/** Index of the last item whose text is not after the given one; -1 when all are after it. */
function lastTextAtMost<Item>(items: readonly Item[], text: string, textOf: (item: Item) => string): number {
  let low = 0;
  for (let high = items.length; low < high;) {
    const middle = (low + high) >>> 1;
    const item = items[middle];
    if (item !== undefined && textOf(item) <= text) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
