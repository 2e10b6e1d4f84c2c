/** How many keys are remembered: the blocks of some hundred nodes with all else that their last allocations wrote. */
const CAPACITY = 1024;

/**
 * The modRevisions of what was written last. A node's block is compared with each address that is given from it, and to have lmdb read
 * all of it for eight bytes takes a twentieth of an allocation.
 */
export class RecentRevisions {
  readonly #revisions = new Map<string, number>();

  /** @returns 0 for what was deleted; undefined for what is not known */
  get(key: string): number | undefined {
    return this.#revisions.get(key);
  }

  /** @param revision - 0 for what was deleted */
  set(key: string, revision: number): void {
    // At the end, behind those that were written before.
    this.#revisions.delete(key);
    this.#revisions.set(key, revision);
    if (this.#revisions.size <= CAPACITY) return;
    const [oldest] = this.#revisions.keys();
    if (oldest !== undefined) this.#revisions.delete(oldest);
  }
}
