/** Who has something that one alone can have, of several that were given it: whoever was given it last. */
export class Holders {
  readonly #given = new Map<string, readonly Given[]>();

  /** Given again, only the last time counts. */
  give(thing: string, key: string, atMs: number): void {
    const others = this.#given.get(thing)?.filter((given) => given.key !== key) ?? [];
    const given = [...others, { key, atMs }].sort((a, b) => a.atMs - b.atMs);
    this.#given.set(thing, given);
  }

  take(thing: string, key: string): void {
    const others = this.#given.get(thing)?.filter((given) => given.key !== key) ?? [];
    if (others.length > 0) this.#given.set(thing, others);
    else this.#given.delete(thing);
  }

  /** Undefined: nobody has it. */
  holder(thing: string): string | undefined {
    return this.#given.get(thing)?.at(-1)?.key;
  }

  /** When it was given last, in epoch milliseconds; undefined: nobody has it. */
  givenAtMs(thing: string): number | undefined {
    return this.#given.get(thing)?.at(-1)?.atMs;
  }

  /** The things that several were given, with them, the holder last. */
  *shared(): Generator<readonly [thing: string, keys: readonly string[]]> {
    for (const [thing, given] of this.#given) if (given.length > 1) yield [thing, given.map(({ key }) => key)];
  }
}

interface Given {
  readonly key: string;
  readonly atMs: number;
}
