/** Texts in their order (that of UTF-16 code units), each once. */
export class SortedTexts {
  /** Runs of texts in order, none empty. Short ones, as a text that is added moves those behind it in its run. */
  readonly #runs: string[][] = [];

  /** Nothing changes when it is there already. */
  add(text: string): void {
    const lastRun = this.#runs.at(-1);
    const last = lastRun?.at(-1);
    // Lists come in order.
    if (lastRun && last !== undefined && last < text && lastRun.length < LONGEST_RUN) {
      lastRun.push(text);
      return;
    }
    const runIndex = Math.max(0, lastAtMost(this.#runs, text, first));
    const run = this.#runs[runIndex];
    if (!run) {
      this.#runs.push([text]);
      return;
    }
    const index = lastAtMost(run, text, itself);
    if (run[index] === text) return;
    run.splice(index + 1, 0, text);
    if (run.length > LONGEST_RUN) this.#runs.splice(runIndex + 1, 0, run.splice(LONGEST_RUN / 2));
  }

  /** Nothing changes when it is not there. */
  delete(text: string): void {
    const runIndex = lastAtMost(this.#runs, text, first);
    const run = this.#runs[runIndex];
    const index = run ? lastAtMost(run, text, itself) : -1;
    if (run?.[index] !== text) return;
    run.splice(index, 1);
    if (run.length === 0) this.#runs.splice(runIndex, 1);
  }

  /** Every text behind the given one, which need not be there. Must not be changed meanwhile. */
  *behind(text: string): Generator<string, void, void> {
    const runIndex = Math.max(0, lastAtMost(this.#runs, text, first));
    const index = lastAtMost(this.#runs[runIndex] ?? [], text, itself) + 1;
    for (let run = runIndex; run < this.#runs.length; run++) {
      const texts = this.#runs[run] ?? [];
      for (let at = run === runIndex ? index : 0; at < texts.length; at++) {
        const found = texts[at];
        if (found !== undefined) yield found;
      }
    }
  }
}

const LONGEST_RUN = 512;

function first(run: readonly string[]): string {
  return run[0] ?? '';
}

function itself(text: string): string {
  return text;
}

/** Index of the last item whose text does not come behind the given one; -1 when all do. */
function lastAtMost<Item>(items: readonly Item[], text: string, textOf: (item: Item) => string): number {
  let low = 0;
  for (let high = items.length; low < high;) {
    const middle = (low + high) >>> 1;
    const item = items[middle];
    if (item !== undefined && textOf(item) <= text) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
