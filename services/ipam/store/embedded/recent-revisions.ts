/** So many keys are remembered at least, and twice as many at most: the blocks of some hundred nodes, with all else that they wrote last. */
const CAPACITY = 1024;

/**
 * The modRevisions of what was written last. A node's block is compared with each address that is given from it, and to have lmdb read
 * all of it for eight bytes takes a twentieth of an allocation.
 */
export class RecentRevisions {
  /** What was written since {@link #older} was full. The older go all at once: to look for the oldest one takes longer. */
  #newer = new Map<string, number>();
  #older: ReadonlyMap<string, number> = new Map();

  /** @returns 0 for what was deleted; undefined for what is not known */
  get(key: string): number | undefined {
    return this.#newer.get(key) ?? this.#older.get(key);
  }

  /** @param revision - 0 for what was deleted */
  set(key: string, revision: number): void {
    this.#newer.set(key, revision);
    if (this.#newer.size < CAPACITY) return;
    this.#older = this.#newer;
    this.#newer = new Map();
  }
}
