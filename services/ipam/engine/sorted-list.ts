import { compareTexts, lastIndex } from '@podwire/shared/words/order';

/** Order of the items of a list by their keys, and sums over many items. */
export interface ListOrder<Item, Key, Sum> {
  readonly keyOf: (item: Item) => Key;
  readonly compare: (a: Key, b: Key) => number;
  /** The sum over no items. */
  readonly empty: Sum;
  readonly add: (sum: Sum, item: Item) => Sum;
  readonly subtract: (sum: Sum, item: Item) => Sum;
}

/** Consecutive items of a list, never none, with their sum. */
export interface Run<Item, Sum> {
  readonly items: readonly Item[];
  readonly sum: Sum;
}

/** A change copies the items of one run, and the list of runs. */
const MAX_RUN_COUNT = 256;

/** For lists of which no sums are needed. */
export const WITHOUT_SUM = { empty: undefined, add: () => undefined, subtract: () => undefined } as const;

export const TEXT_ORDER: ListOrder<string, string, undefined> = {
  ...WITHOUT_SUM,
  keyOf: (text) => text,
  compare: compareTexts,
};

/**
 * An immutable list of items in the order of their keys, each key once. A changed list shares all items but one run
 * with the list it was made from, so that keeping both is cheap.
 */
export class SortedList<Item, Key, Sum> {
  readonly #order: ListOrder<Item, Key, Sum>;
  /** In order. */
  readonly #runs: readonly Run<Item, Sum>[];

  constructor(order: ListOrder<Item, Key, Sum>, runs: readonly Run<Item, Sum>[] = []) {
    this.#order = order;
    this.#runs = runs;
  }

  /** The list with an item, which replaces the one of the same key. */
  with(item: Item): SortedList<Item, Key, Sum> {
    const { keyOf, add, subtract, empty } = this.#order;
    const key = keyOf(item);
    const runIndex = Math.max(0, this.#runOf(key));
    const run = this.#runs[runIndex];
    if (!run) return new SortedList(this.#order, [{ items: [item], sum: add(empty, item) }]);
    const index = this.#lastAtMost(run, key);
    const known = index >= 0 ? run.items[index] : undefined;
    const replaced = known !== undefined && this.#order.compare(keyOf(known), key) === 0;
    const items = replaced ? run.items.with(index, item) : run.items.toSpliced(index + 1, 0, item);
    const sum = add(replaced ? subtract(run.sum, known) : run.sum, item);
    return this.#replace(runIndex, items.length > MAX_RUN_COUNT ? this.#halves(items) : [{ items, sum }]);
  }

  /** The list without the item of a key; itself if there is none. */
  without(key: Key): SortedList<Item, Key, Sum> {
    const runIndex = this.#runOf(key);
    const run = this.#runs[runIndex];
    const index = run ? this.#lastAtMost(run, key) : -1;
    const known = run?.items[index];
    if (!run || known === undefined || this.#order.compare(this.#order.keyOf(known), key) !== 0) return this;
    const items = run.items.toSpliced(index, 1);
    return this.#replace(runIndex, items.length === 0 ? [] : [{ items, sum: this.#order.subtract(run.sum, known) }]);
  }

  /** The item of a key. */
  get(key: Key): Item | undefined {
    const run = this.#runs[this.#runOf(key)];
    const found = run?.items[this.#lastAtMost(run, key)];
    return found !== undefined && this.#order.compare(this.#order.keyOf(found), key) === 0 ? found : undefined;
  }

  /** The items whose keys are not before a key, in order. */
  *from(key: Key): Generator<Item, void, void> {
    for (const { run, start } of this.runsFrom(key)) yield* start === 0 ? run.items : run.items.slice(start);
  }

  /** The runs of {@link from}, each with the index of its first such item. */
  *runsFrom(key: Key): Generator<{ readonly run: Run<Item, Sum>; readonly start: number }, void, void> {
    const first = Math.max(0, this.#runOf(key));
    for (let index = first; index < this.#runs.length; index++) {
      const run = this.#runs[index];
      const start = run && index === first ? this.#firstAtLeast(run, key) : 0;
      if (run && start < run.items.length) yield { run, start };
    }
  }

  #replace(runIndex: number, runs: readonly Run<Item, Sum>[]): SortedList<Item, Key, Sum> {
    return new SortedList(this.#order, this.#runs.toSpliced(runIndex, 1, ...runs));
  }

  #halves(items: readonly Item[]): readonly Run<Item, Sum>[] {
    const { add, empty } = this.#order;
    const middle = items.length >>> 1;
    return [items.slice(0, middle), items.slice(middle)].map((half) => ({ items: half, sum: half.reduce(add, empty) }));
  }

  /** Index of the run that may have the key; -1 if all runs follow it. */
  #runOf(key: Key): number {
    const { compare, keyOf } = this.#order;
    return lastIndex(this.#runs, ({ items }) => items[0] !== undefined && compare(keyOf(items[0]), key) <= 0);
  }

  #lastAtMost({ items }: Run<Item, Sum>, key: Key): number {
    const { compare, keyOf } = this.#order;
    return lastIndex(items, (item) => compare(keyOf(item), key) <= 0);
  }

  #firstAtLeast({ items }: Run<Item, Sum>, key: Key): number {
    const { compare, keyOf } = this.#order;
    return lastIndex(items, (item) => compare(keyOf(item), key) < 0) + 1;
  }
}
