const MAX_COUNT = 10_000;

/** Revisions of the marks of releases that a lost comparison has brought here; all others are taken to be missing. */
export class ReleaseRevisions {
  readonly #revisions = new Map<string, number>();

  /** 0 for a mark that is not known. */
  of(key: string): number {
    return this.#revisions.get(key) ?? 0;
  }

  /** The oldest go; whoever misses one loses a comparison, and reads it again. */
  keep(key: string, revision: number): void {
    const newest = Math.max(revision, this.of(key));
    this.#revisions.delete(key);
    this.#revisions.set(key, newest);
    const [oldest] = this.#revisions.keys();
    if (oldest !== undefined && this.#revisions.size > MAX_COUNT) this.#revisions.delete(oldest);
  }

  delete(key: string): void {
    this.#revisions.delete(key);
  }
}
