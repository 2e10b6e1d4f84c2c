import type { Clock } from '@podwire/shared/runtime/clock';

import type { Catalog } from './catalog.js';
import type { RecentChange } from './recent-changes.js';
import { matchesQuery, KINDS_WITHOUT_NODE, scopeOf, type Stream, type WatchQuery } from './watched-objects.js';

/** A stream that has been sent all there is. */
export interface WaitRequest extends Stream {
  /** Number of the first recent change that it may lack. */
  readonly number: number;
}

export interface WaitResult {
  readonly reason: 'changes' | 'bookmark' | 'aborted';
  /** Nothing before this number concerns the waiter. */
  readonly number: number;
}

interface WaitingStream {
  readonly wake: (reason: WaitResult['reason']) => void;
  readonly sinceMs: number;
}

/** All streams that wait and ask for the same. */
interface Group {
  readonly query: WatchQuery;
  readonly waiting: Set<WaitingStream>;
}

export interface WaitersOptions {
  readonly catalog: Catalog;
  readonly clock: Clock;
  readonly bookmarkAfterMs: number;
}

/** How long the streams of one round keep the event loop, each, at most: the next round comes not before as long again. */
const ROUND_MS_PER_STREAM = 0.1;
const MAX_PAUSE_MS = 1_000;
const BOOKMARK_ROUND_MS = 1_000;
/** Streams that get their bookmarks in one round, as a part of all, so that they do not come all at once. */
const BOOKMARK_ROUND_PART = 1 / 10;

/**
 * The streams that wait for a change that they want. Each new change is looked at once for each different question, and where
 * they ask for one node, only for those of the nodes it concerns. Rounds of waking have pauses between them that grow with the
 * number of streams, in which requests are served, and further changes gather.
 */
export class WaitQueue {
  readonly #options: WaitersOptions;
  /** By the node they ask for, empty for all nodes; then by the whole question. */
  readonly #groups = new Map<string, Map<string, Group>>();
  /** The one that has been waiting for longest comes first. */
  readonly #all = new Set<WaitingStream>();
  readonly #stop = new AbortController();
  /** Number of the first recent change that the waiting streams were not woken for. */
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

  /** Waits until there is something for the waiter, until it is to have a bookmark, or until the signal fires. */
  wait({ query, key, number }: WaitRequest, signal: AbortSignal): Promise<WaitResult> {
    // Streams that come between two rounds are woken for what the next round finds, which may be less than they lack.
    if (number < this.#nextUnseen) return Promise.resolve({ reason: 'changes', number });
    if (!this.#isBookmarkScheduled) this.#scheduleBookmarks();
    return new Promise((resolve) => {
      const group = this.#groupOf(query, key);
      const waiting: WaitingStream = {
        sinceMs: this.#options.clock.nowMs(),
        wake: (reason) => {
          signal.removeEventListener('abort', onAbort);
          this.#all.delete(waiting);
          group.waiting.delete(waiting);
          if (group.waiting.size === 0) this.#removeGroup(query.nodeName, key);
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

  /** There may be new changes: waiting streams are woken soon. */
  notify(): void {
    if (this.#roundIsDue || this.#options.catalog.recent?.nextNumber === this.#nextUnseen) return;
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
    const { recent } = this.#options.catalog;
    const end = recent?.nextNumber ?? 0;
    const affected = new Set<Group>();
    const hasWaiters = this.#groups.size > 0;
    for (let number = Math.max(this.#nextUnseen, recent?.firstNumber ?? 0); hasWaiters && number < end; number++) {
      const entry = recent?.at(number);
      if (entry) this.#collectAffected(entry, affected);
    }
    let count = 0;
    for (const group of affected) {
      for (const { wake } of [...group.waiting]) {
        wake('changes');
        count++;
      }
    }
    this.#nextUnseen = end;
    this.#pauseMs = Math.min(count * ROUND_MS_PER_STREAM, MAX_PAUSE_MS);
  }

  #collectAffected(entry: RecentChange, affected: Set<Group>): void {
    const { kind, item, formerScopes } = entry;
    const scopes = item ? [scopeOf(item.object), ...formerScopes] : formerScopes;
    const nodeNames = KINDS_WITHOUT_NODE.has(kind)
      ? this.#groups.keys()
      : new Set(['', ...scopes.map(({ nodeName }) => nodeName)]);
    for (const nodeName of nodeNames) {
      for (const group of this.#groups.get(nodeName)?.values() ?? []) {
        if (scopes.some((scope) => matchesQuery(group.query, kind, scope))) affected.add(group);
      }
    }
  }

  #groupOf(query: WatchQuery, key: string): Group {
    const groups = this.#groups.get(query.nodeName) ?? new Map<string, Group>();
    this.#groups.set(query.nodeName, groups);
    const group = groups.get(key) ?? { query, waiting: new Set<WaitingStream>() };
    groups.set(key, group);
    return group;
  }

  #removeGroup(nodeName: string, key: string): void {
    const groups = this.#groups.get(nodeName);
    groups?.delete(key);
    if (groups?.size === 0) this.#groups.delete(nodeName);
  }

  /** Sends bookmarks while streams wait. */
  #scheduleBookmarks(): void {
    this.#isBookmarkScheduled = true;
    const { clock, bookmarkAfterMs } = this.#options;
    void clock.sleep(Math.min(BOOKMARK_ROUND_MS, bookmarkAfterMs), this.#stop.signal).then((end) => {
      this.#isBookmarkScheduled = false;
      if (end === 'aborted' || this.#all.size === 0) return;
      this.#scheduleBookmarks();
      const dueMs = clock.nowMs() - bookmarkAfterMs;
      let room = Math.ceil(this.#all.size * BOOKMARK_ROUND_PART);
      for (const { sinceMs, wake } of this.#all) {
        if (sinceMs > dueMs || room-- === 0) return;
        wake('bookmark');
      }
    });
  }
}
