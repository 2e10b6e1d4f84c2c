/** Deletions that are remembered: more than happen while a request is answered or a report is on its way. */
const MAX_COUNT = 10_000;

/**
 * Last versions of the objects that were deleted last. By them a report or an answer that is older than the deletion is recognized:
 * it must not bring the object back.
 */
export class DeletedVersions {
  readonly #versions = new Map<string, string>();
  readonly #maxCount: number;

  constructor(maxCount = MAX_COUNT) {
    this.#maxCount = maxCount;
  }

  /** The last version of a deleted object; undefined if it is not known. */
  of(id: string): string | undefined {
    return this.#versions.get(id);
  }

  /** Replaces the version of an earlier object of the same name, and discards the oldest deletion if there are too many. */
  add(id: string, version: string): void {
    this.#versions.delete(id);
    this.#versions.set(id, version);
    const [oldest] = this.#versions.keys();
    if (oldest !== undefined && this.#versions.size > this.#maxCount) this.#versions.delete(oldest);
  }
}
