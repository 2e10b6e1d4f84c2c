import type { Clock } from '@podwire/shared/runtime/clock';

import type { RecentChanges } from './recent-changes.js';
import type { Stream, StreamQuery } from './stream.js';

/** A stream that has received all changes. */
export interface WaitRequest extends Stream {
  /** Number of the first recent change that the stream may lack. */
  readonly number: number;
}

export interface WaitResult {
  readonly reason: 'changes' | 'bookmark' | 'aborted';
  /** No earlier change concerns the stream. */
  readonly number: number;
}

interface WaitingStream {
  readonly wake: (reason: WaitResult['reason']) => void;
  readonly sinceMs: number;
}

/** All waiting streams with the same query. */
interface Group {
  readonly query: StreamQuery;
  readonly waiting: Set<WaitingStream>;
}

export interface WaitersOptions {
  readonly recent: RecentChanges;
  readonly clock: Clock;
  readonly bookmarkAfterMs: number;
}

/** Event-loop time per woken stream; the next round waits as long as the last one took. */
const ROUND_MS_PER_STREAM = 0.1;
const MAX_PAUSE_MS = 1_000;
const BOOKMARK_ROUND_MS = 1_000;
/** Fraction of the streams that get a bookmark in one round, to spread the load. */
const BOOKMARK_ROUND_PART = 1 / 10;

/**
 * The streams that wait for a matching change. Each new change is checked once for each distinct query. The pauses
 * between wake-up rounds grow with the number of streams; meanwhile requests are served and further changes accumulate.
 */
export class WaitQueue {
  readonly #options: WaitersOptions;
  /** Groups by the query key. */
  readonly #groups = new Map<string, Group>();
  /** In the order of their waiting time, longest first. */
  readonly #all = new Set<WaitingStream>();
  readonly #stop = new AbortController();
  /** Number of the first recent change that no round has handled yet. */
  #nextUnseen = 0;
  #roundIsDue = false;
  #pauseMs = 0;
  #isBookmarkScheduled = false;

  constructor(options: WaitersOptions) {
    this.#options = options;
  }

  get count(): number {
    return this.#all.size;
  }

  close(): void {
    this.#stop.abort();
  }

  /** Waits for a matching change, a due bookmark, or the signal. */
  wait({ query, key, number }: WaitRequest, signal: AbortSignal): Promise<WaitResult> {
    // The next round would not find changes that earlier rounds have handled.
    if (number < this.#nextUnseen) return Promise.resolve({ reason: 'changes', number });
    if (!this.#isBookmarkScheduled) this.#scheduleBookmarks();
    return new Promise((resolve) => {
      const group = this.#groupOf(query, key);
      const waiting: WaitingStream = {
        sinceMs: this.#options.clock.monotonicMs(),
        wake: (reason) => {
          signal.removeEventListener('abort', onAbort);
          this.#all.delete(waiting);
          group.waiting.delete(waiting);
          if (group.waiting.size === 0) this.#groups.delete(key);
          resolve({ reason, number: Math.max(number, this.#nextUnseen) });
        },
      };
      const onAbort = (): void => waiting.wake('aborted');
      this.#all.add(waiting);
      group.waiting.add(waiting);
      signal.addEventListener('abort', onAbort);
      if (signal.aborted) onAbort();
    });
  }

  /** Schedules a round that wakes the streams with new matching changes. */
  notify(): void {
    if (this.#roundIsDue || this.#options.recent.nextNumber === this.#nextUnseen) return;
    if (this.#all.size === 0 && this.#pauseMs === 0) {
      this.#wakeRound();
      return;
    }
    this.#roundIsDue = true;
    void this.#options.clock.sleep(this.#pauseMs, this.#stop.signal).then(() => {
      this.#roundIsDue = false;
      if (!this.#stop.signal.aborted) this.#wakeRound();
    });
  }

  #wakeRound(): void {
    const { recent } = this.#options;
    const hasWaiters = this.#groups.size > 0;
    // Changes that are no longer kept may concern every stream: each needs a snapshot.
    const hasMissed = this.#nextUnseen < recent.firstNumber;
    const affected = new Set(hasMissed ? this.#groups.values() : []);
    for (let number = this.#nextUnseen; hasWaiters && !hasMissed && number < recent.nextNumber; number++) {
      const entry = recent.at(number);
      for (const group of entry ? this.#groups.values() : [])
        if (entry?.kind === undefined || group.query.has(entry.kind)) affected.add(group);
    }
    let count = 0;
    for (const group of affected) {
      for (const { wake } of [...group.waiting]) {
        wake('changes');
        count++;
      }
    }
    this.#nextUnseen = recent.nextNumber;
    this.#pauseMs = Math.min(count * ROUND_MS_PER_STREAM, MAX_PAUSE_MS);
  }

  #groupOf(query: StreamQuery, key: string): Group {
    const group = this.#groups.get(key) ?? { query, waiting: new Set<WaitingStream>() };
    this.#groups.set(key, group);
    return group;
  }

  /** Sends bookmarks while streams wait. */
  #scheduleBookmarks(): void {
    this.#isBookmarkScheduled = true;
    const { clock, bookmarkAfterMs } = this.#options;
    void clock.sleep(Math.min(BOOKMARK_ROUND_MS, bookmarkAfterMs), this.#stop.signal).then((end) => {
      this.#isBookmarkScheduled = false;
      if (end === 'aborted' || this.#all.size === 0) return;
      this.#scheduleBookmarks();
      const dueMs = clock.monotonicMs() - bookmarkAfterMs;
      let room = Math.ceil(this.#all.size * BOOKMARK_ROUND_PART);
      for (const { sinceMs, wake } of this.#all) {
        if (sinceMs > dueMs || room-- === 0) return;
        wake('bookmark');
      }
    });
  }
}
