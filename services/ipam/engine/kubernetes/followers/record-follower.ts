import { Failure } from '@podwire/shared/failure/failure';
import { isAborted } from '@podwire/shared/failure/signal';
import { exponentialBackoff, WorkQueue, type NextRun } from '@podwire/shared/reconcile/work-queue';
import type { Clock } from '@podwire/shared/runtime/clock';

import { RevisionCompacted, type RecordChange, type Store } from '../../store.js';

/** Dependencies of every follower. */
export interface FollowerDeps {
  /** Called before each write. Throws a Failure while this process must not write. Default: nothing. */
  readonly authorizeWrite?: () => void;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** Receives each failure, which is retried. Must not throw. */
  readonly report: (failure: Failure) => void;
}

export interface RecordFollowerOptions extends FollowerDeps {
  readonly store: Pick<Store, 'revision' | 'scan' | 'watch'>;
  /** The followed records are under it. */
  readonly prefix: string;
  /** Called before the records are read, at the start and after changes were missed. */
  readonly begin: (signal: AbortSignal) => Promise<void>;
  /** Called when all records have been read. Must not throw. */
  readonly whenRead?: () => void;
  /** Receives each record, and then each change, some of them repeatedly. Must not throw. */
  readonly changed: (change: RecordChange) => void;
  /** Brings the object of a name up to date. Idempotent. A failure is retried. */
  readonly write: (name: string, signal: AbortSignal) => Promise<void>;
  /** Pause after each write, in milliseconds. */
  readonly pauseMs: number;
}

/** Records of a page. Between two pages, transactions have their turn. */
const PAGE_SIZE = 1000;

const BACKOFF = { baseMs: 500, maxMs: 60_000 };

/** A write that has failed waits for the writes of other objects. */
const RETRY_MS = 10_000;

/** Follows committed records, and writes objects that depend on them later, one at a time. No transaction waits for it. */
export class RecordFollower {
  readonly #options: RecordFollowerOptions;
  readonly #queue: WorkQueue<'follow' | 'write'>;
  /** Due times of the waiting names by the delay of their request. The names of one delay are in the order of these times. */
  readonly #waiting = new Map<number, Map<string, number>>();

  /** The creator stops it before it closes the store. */
  constructor(options: RecordFollowerOptions) {
    this.#options = options;
    const { clock, random, report } = options;
    this.#queue = new WorkQueue({
      reconcile: (work, signal) => (work === 'follow' ? this.#follow(signal) : this.#writeNext(signal)),
      retryInMs: exponentialBackoff(BACKOFF, random),
      onFailure: (error) => {
        if (!(error instanceof Failure)) throw error;
        report(error);
      },
      clock,
    });
    this.#queue.request('follow');
  }

  /** Number of names whose objects wait to be written. */
  get waitingCount(): number {
    return [...this.#waiting.values()].reduce((sum, names) => sum + names.size, 0);
  }

  /** Requests a write after this time; an earlier request stays. */
  request(name: string, delayMs = 0): void {
    const dueMs = this.#options.clock.monotonicMs() + delayMs;
    for (const names of this.#waiting.values()) {
      const knownMs = names.get(name);
      if (knownMs !== undefined && knownMs <= dueMs) return;
      names.delete(name);
    }
    const names = this.#waiting.get(delayMs) ?? new Map<string, number>();
    this.#waiting.set(delayMs, names.set(name, dueMs));
    this.#queue.request('write', delayMs);
  }

  cancel(name: string): void {
    for (const names of this.#waiting.values()) names.delete(name);
  }

  /** Idempotent. */
  stop(): Promise<void> {
    return this.#queue.stop();
  }

  async #follow(signal: AbortSignal): Promise<NextRun | undefined> {
    const { store, prefix, begin, changed } = this.#options;
    try {
      const afterRevision = await store.revision(signal);
      await begin(signal);
      let after: string | undefined;
      for (let more = true; more;) {
        const page = await store.scan({ prefix, after, limit: PAGE_SIZE }, signal);
        for (const { key, value } of page.records) changed({ type: 'put', key, value });
        ({ more } = page);
        after = page.records.at(-1)?.key;
      }
      this.#options.whenRead?.();
      for await (const { changes } of store.watch({ prefix, afterRevision }, signal)) changes.forEach(changed);
      return isAborted(signal) ? undefined : { inMs: 0 };
    } catch (error) {
      if (error instanceof RevisionCompacted) return { inMs: 0 };
      throw error;
    }
  }

  async #writeNext(signal: AbortSignal): Promise<NextRun | undefined> {
    const { authorizeWrite, write, pauseMs, clock } = this.#options;
    const next = this.#next();
    if (!next) return undefined;
    const waitMs = next.dueMs - clock.monotonicMs();
    if (waitMs > 0) return { inMs: waitMs };
    this.cancel(next.name);
    try {
      authorizeWrite?.();
      await write(next.name, signal);
    } catch (error) {
      this.request(next.name, RETRY_MS);
      throw error;
    }
    return { inMs: pauseMs };
  }

  /** The request that is due first. */
  #next(): { readonly name: string; readonly dueMs: number } | undefined {
    let first: { readonly name: string; readonly dueMs: number } | undefined;
    for (const names of this.#waiting.values()) {
      const [entry] = names;
      if (entry && (!first || entry[1] < first.dueMs)) first = { name: entry[0], dueMs: entry[1] };
    }
    return first;
  }
}
