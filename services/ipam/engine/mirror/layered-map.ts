/**
 * A map that lies over another one, which it shows with its own changes. The lower map stays as it is, and must not
 * change while the upper one is in use.
 */
export class LayeredMap<Key, Value extends object> {
  readonly #lower: LayeredMap<Key, Value> | undefined;
  /** In a map over another one, undefined is a deletion. */
  readonly #own = new Map<Key, Value | undefined>();

  /** @param lower - default: an empty map */
  constructor(lower?: LayeredMap<Key, Value>) {
    this.#lower = lower;
  }

  get(key: Key): Value | undefined {
    const own = this.#own.get(key);
    if (own !== undefined || !this.#lower) return own;
    return this.#own.has(key) ? undefined : this.#lower.get(key);
  }

  set(key: Key, value: Value): void {
    this.#own.set(key, value);
  }

  delete(key: Key): void {
    if (this.#lower) this.#own.set(key, undefined);
    else this.#own.delete(key);
  }

  /** In no order. */
  *entries(): Generator<readonly [Key, Value], void, void> {
    if (this.#lower) for (const entry of this.#lower.entries()) if (!this.#own.has(entry[0])) yield entry;
    for (const [key, value] of this.#own) if (value !== undefined) yield [key, value];
  }

  *values(): Generator<Value, void, void> {
    for (const [, value] of this.entries()) yield value;
  }
}
