import { lastIndex } from '@podwire/shared/words/order';

import { RevisionCompacted, type RevisionChanges, type WatchRequest } from './store.js';

/** Maximum size of the kept values. */
const MAX_BYTES = 8 * 2 ** 20;

/** The recent changes of an in-process store, and their watchers. */
export class ChangeLog {
  readonly #capacity: number;
  /** Size of the values in {@link #recent}. */
  #bytes = 0;
  /** In the order of the revisions. */
  #recent: RevisionChanges[] = [];
  /** Changes up to this revision are not kept. */
  #compacted: number;
  #closedBy: Error | undefined;
  readonly #waiters = new Set<() => void>();

  /**
   * @param revision - the store's revision; changes after it follow
   * @param capacity - minimum number of kept revisions, while their values fit into {@link MAX_BYTES}
   */
  constructor(revision: number, capacity: number) {
    this.#compacted = revision;
    this.#capacity = capacity;
  }

  append(changes: RevisionChanges): void {
    this.#recent.push(changes);
    this.#bytes += bytesOf(changes);
    // Dropped in bulk: one splice for every `capacity` appends, or for half of the bytes.
    if (this.#recent.length > 2 * this.#capacity) this.#drop(this.#recent.length - this.#capacity);
    if (this.#bytes > MAX_BYTES) this.#drop(Math.ceil(this.#recent.length / 2));
    this.#wake();
  }

  /** Forgets all changes so far. */
  compact(): void {
    this.#drop(this.#recent.length);
    this.#wake();
  }

  /** Ends every watch, present and future, with a failure. */
  close(failure: Error): void {
    this.#closedBy ??= failure;
    this.#wake();
  }

  /** See `Store.watch`. */
  async *watch(
    { prefix, afterRevision }: WatchRequest,
    signal: AbortSignal,
  ): AsyncGenerator<RevisionChanges, void, void> {
    for (let position = afterRevision; !signal.aborted;) {
      if (this.#closedBy) throw this.#closedBy;
      if (position < this.#compacted) throw new RevisionCompacted(position, this.#compacted + 1);
      const next = this.#recent[lastIndex(this.#recent, ({ revision }) => revision <= position) + 1];
      if (!next) {
        await this.#sleep(signal);
        continue;
      }
      position = next.revision;
      const changes = next.changes.filter(({ key }) => key.startsWith(prefix));
      if (changes.length > 0) yield { revision: next.revision, changes };
    }
  }

  #drop(count: number): void {
    const dropped = this.#recent.splice(0, count);
    for (const changes of dropped) this.#bytes -= bytesOf(changes);
    const last = dropped.at(-1);
    if (last) this.#compacted = last.revision;
  }

  #wake(): void {
    for (const wake of this.#waiters) wake();
  }

  #sleep(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const wake = (): void => {
        this.#waiters.delete(wake);
        signal.removeEventListener('abort', wake);
        resolve();
      };
      this.#waiters.add(wake);
      signal.addEventListener('abort', wake);
    });
  }
}

function bytesOf({ changes }: RevisionChanges): number {
  return changes.reduce(
    (sum, change) => sum + change.key.length + (change.type === 'put' ? change.value.length : 0),
    0,
  );
}
