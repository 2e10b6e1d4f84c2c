/** A power of two: with 10,000 entries a change copies some 40 of them. */
const BUCKET_COUNT = 256;

type Bucket<Value> = ReadonlyMap<string, Value>;

const NO_ENTRIES: Bucket<never> = new Map<string, never>();

/**
 * A map that never changes: a change makes another one, which shares all buckets that the change did not touch. In no particular
 * order.
 */
export class BucketMap<Value> implements ReadonlyMap<string, Value> {
  readonly size: number;
  readonly #buckets: readonly Bucket<Value>[];

  private constructor(buckets: readonly Bucket<Value>[], size: number) {
    this.#buckets = buckets;
    this.size = size;
  }

  static empty<Value>(): BucketMap<Value> {
    return new BucketMap<Value>(
      Array.from({ length: BUCKET_COUNT }, () => NO_ENTRIES),
      0,
    );
  }

  /**
   * The map after changes. Copies each bucket that they touch once.
   * @param changes - what a key is to have; undefined: it goes
   */
  with(changes: ReadonlyMap<string, Value | undefined>): BucketMap<Value> {
    if (changes.size === 0) return this;
    const buckets = [...this.#buckets];
    const copied = new Map<number, Map<string, Value>>();
    let { size } = this;
    for (const [key, value] of changes) {
      const place = placeOf(key);
      const bucket = copied.get(place) ?? new Map(this.#buckets[place]);
      copied.set(place, bucket);
      buckets[place] = bucket;
      size -= bucket.size;
      if (value === undefined) bucket.delete(key);
      else bucket.set(key, value);
      size += bucket.size;
    }
    return new BucketMap(buckets, size);
  }

  get(key: string): Value | undefined {
    return this.#buckets[placeOf(key)]?.get(key);
  }

  has(key: string): boolean {
    return this.#buckets[placeOf(key)]?.has(key) === true;
  }

  *entries(): Generator<[string, Value], undefined> {
    for (const bucket of this.#buckets) yield* bucket;
    return undefined;
  }

  *keys(): Generator<string, undefined> {
    for (const bucket of this.#buckets) yield* bucket.keys();
    return undefined;
  }

  *values(): Generator<Value, undefined> {
    for (const bucket of this.#buckets) yield* bucket.values();
    return undefined;
  }

  [Symbol.iterator](): Generator<[string, Value], undefined> {
    return this.entries();
  }

  forEach(callback: (value: Value, key: string, map: ReadonlyMap<string, Value>) => void): void {
    for (const [key, value] of this) callback(value, key, this);
  }
}

/** FNV-1a of the UTF-16 units. */
function placeOf(key: string): number {
  let hash = 0x811c9dc5;
  for (let place = 0; place < key.length; place++) hash = Math.imul(hash ^ key.charCodeAt(place), 0x01000193);
  // The low bits alone vary too little for keys that differ in their last characters.
  return (hash ^ (hash >>> 16)) & (BUCKET_COUNT - 1);
}
