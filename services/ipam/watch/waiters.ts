import type { Clock } from '@podwire/shared/runtime/clock';

import type { Catalog } from './catalog.js';
import type { Recent } from './recent.js';
import { isWanted, OF_NO_NODE, scopeOf, type Stream, type WatchQuery } from './watched.js';

/** A stream that has been sent all there is. */
export interface Waiter extends Stream {
  /** Number of the first recent change that it may lack. */
  readonly number: number;
}

export interface Woken {
  readonly reason: 'changes' | 'bookmark' | 'aborted';
  /** Nothing before this number concerns the waiter. */
  readonly number: number;
}

interface Waiting {
  readonly wake: (reason: Woken['reason']) => void;
  readonly sinceMs: number;
}

/** All streams that wait and ask for the same. */
interface Group {
  readonly query: WatchQuery;
  readonly waiting: Set<Waiting>;
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
export class Waiters {
  readonly #options: WaitersOptions;
  /** By the node they ask for, empty for all nodes; then by the whole question. */
  readonly #groups = new Map<string, Map<string, Group>>();
  /** The one that has been waiting for longest comes first. */
  readonly #all = new Set<Waiting>();
  readonly #stop = new AbortController();
  /** Number of the first recent change that the waiting streams were not woken for. */
  #seen = 0;
  #roundIsDue = false;
  #pauseMs = 0;
  #ticking = false;

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
  wait({ query, key, number }: Waiter, signal: AbortSignal): Promise<Woken> {
    // Streams that come between two rounds are woken for what the next round finds, which may be less than they lack.
    if (number < this.#seen) return Promise.resolve({ reason: 'changes', number });
    if (!this.#ticking) this.#tick();
    return new Promise((resolve) => {
      const group = this.#groupOf(query, key);
      const waiting: Waiting = {
        sinceMs: this.#options.clock.nowMs(),
        wake: (reason) => {
          signal.removeEventListener('abort', onAbort);
          this.#all.delete(waiting);
          group.waiting.delete(waiting);
          if (group.waiting.size === 0) this.#removeGroup(query.nodeName, key);
          resolve({ reason, number: Math.max(number, this.#seen) });
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
    if (this.#roundIsDue || this.#options.catalog.recent?.nextNumber === this.#seen) return;
    if (this.#all.size === 0 && this.#pauseMs === 0) {
      this.#round();
      return;
    }
    this.#roundIsDue = true;
    void this.#options.clock.sleep(this.#pauseMs, this.#stop.signal).then(() => {
      this.#roundIsDue = false;
      if (!this.#stop.signal.aborted) this.#round();
    });
  }

  #round(): void {
    const { recent } = this.#options.catalog;
    const end = recent?.nextNumber ?? 0;
    const woken = new Set<Group>();
    const isWaitedFor = this.#groups.size > 0;
    for (let number = Math.max(this.#seen, recent?.firstNumber ?? 0); isWaitedFor && number < end; number++) {
      const entry = recent?.at(number);
      if (entry) this.#addConcerned(entry, woken);
    }
    let count = 0;
    for (const group of woken) {
      for (const { wake } of [...group.waiting]) {
        wake('changes');
        count++;
      }
    }
    this.#seen = end;
    this.#pauseMs = Math.min(count * ROUND_MS_PER_STREAM, MAX_PAUSE_MS);
  }

  #addConcerned(entry: Recent, woken: Set<Group>): void {
    const { kind, item, formerScopes } = entry;
    const scopes = item ? [scopeOf(item.object), ...formerScopes] : formerScopes;
    const nodeNames = OF_NO_NODE.has(kind)
      ? this.#groups.keys()
      : new Set(['', ...scopes.map(({ nodeName }) => nodeName)]);
    for (const nodeName of nodeNames) {
      for (const group of this.#groups.get(nodeName)?.values() ?? []) {
        if (scopes.some((scope) => isWanted(group.query, kind, scope))) woken.add(group);
      }
    }
  }

  #groupOf(query: WatchQuery, key: string): Group {
    const groups = this.#groups.get(query.nodeName) ?? new Map<string, Group>();
    this.#groups.set(query.nodeName, groups);
    const group = groups.get(key) ?? { query, waiting: new Set<Waiting>() };
    groups.set(key, group);
    return group;
  }

  #removeGroup(nodeName: string, key: string): void {
    const groups = this.#groups.get(nodeName);
    groups?.delete(key);
    if (groups?.size === 0) this.#groups.delete(nodeName);
  }

  /** Sends bookmarks while streams wait. */
  #tick(): void {
    this.#ticking = true;
    const { clock, bookmarkAfterMs } = this.#options;
    void clock.sleep(Math.min(BOOKMARK_ROUND_MS, bookmarkAfterMs), this.#stop.signal).then((end) => {
      this.#ticking = false;
      if (end === 'aborted' || this.#all.size === 0) return;
      this.#tick();
      const dueMs = clock.nowMs() - bookmarkAfterMs;
      let room = Math.ceil(this.#all.size * BOOKMARK_ROUND_PART);
      for (const { sinceMs, wake } of this.#all) {
        if (sinceMs > dueMs || room-- === 0) return;
        wake('bookmark');
      }
    });
  }
}
