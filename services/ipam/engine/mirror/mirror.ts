import { Failure } from '@podwire/shared/failure/failure';
import { isAborted, untilAborted } from '@podwire/shared/failure/signal';
import { backoffMs, type BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { RecordKeys } from '../../records/json/keys.js';
import { decodeRecord, type DecodedRecord } from '../../records/json/registry.js';
import type { RecordValue } from '../../records/view.js';
import {
  RevisionCompacted,
  type LostComparison,
  type RecordChange,
  type Snapshot as StoredSnapshot,
  type Store,
} from '../store.js';
import { isPermanent, throwIfAborted } from '../transaction.js';
import { OwnWrites, type OwnWrite } from './own-writes.js';
import { listInParts } from './pages.js';
import { ReachableClock } from './reachable-clock.js';
import { Snapshot, type CheckPools } from './snapshot.js';

interface MirrorOptions {
  readonly store: Store;
  readonly keys: RecordKeys;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** Reports events for the operator. Must not throw. */
  readonly report: (event: MirrorEvent) => void;
  /**
   * Receives the contents of the datastore, and then each revision in order, already applied. Must not throw or reject.
   * The mirror waits only for the promise of a list. Default: no observer.
   */
  readonly observe?: (observed: Observed) => Promise<void> | undefined;
  /** Default: pools are as stored. */
  readonly checkPools?: CheckPools | undefined;
}

export type MirrorEvent =
  /** A record cannot be read. Decisions do not see it and cannot write its key. */
  | { readonly type: 'unreadable'; readonly key: string; readonly failure: Failure }
  /** The watch failed. It is retried after the wait; until then other replicas' changes are not seen. */
  | { readonly type: 'watchFailed'; readonly error: unknown; readonly retryInMs: number }
  /** The watch had fallen too far behind, and everything was listed again. */
  | { readonly type: 'listedAgain'; readonly revision: number };

/** The known state of a key. The revision is that of its last known change, deletions included. */
type Entry =
  | { readonly state: 'present'; readonly revision: number; readonly decoded: DecodedRecord; readonly bytes: number }
  | { readonly state: 'unreadable'; readonly revision: number; readonly failure: Failure }
  | { readonly state: 'deleted'; readonly revision: number };

/** The part of a transaction that an unknown outcome puts in question. */
export interface DoubtfulRecords {
  readonly keys: readonly string[];
  readonly pools: boolean;
}

interface RevisionWaiter {
  readonly revision: number;
  readonly resolve: () => void;
  readonly reject: (failure: Failure) => void;
}

/** Failures of all commits, and not of one because of its contents. */
const UNREACHABLE_CODES: ReadonlySet<string> = new Set(['STORE_UNAVAILABLE', 'STORE_FULL', 'STORE_DENIED']);

const WATCH_BACKOFF: BackoffBounds = { baseMs: 100, maxMs: 5_000 };

/**
 * The datastore as this process knows it. It is listed once, then updated by the watch, by this process's own commits,
 * by the records that lost commits have met, and by reads of records in doubt. What makes it hard:
 *
 * - The sources overtake each other. An own commit is applied before the watch reports it, and before older changes of
 *   other replicas; met or read records may be older or newer than both. So each key keeps the revision of its last
 *   known change, and nothing older is applied. The same holds for deleted keys until the watch has passed them.
 * - A commit may fail with an unknown outcome. The records it may have changed are in doubt until they are read again,
 *   and no decision is made before ({@link resolveDoubts}): a release that finds nothing must not be answered from before the
 *   allocation.
 * - Unreadable records stay known by key, so that they are not overwritten.
 */
export class Mirror {
  readonly view: Snapshot;
  /** The commits in flight, from before they are sent until their outcome is known. */
  readonly own = new OwnWrites();
  /** Keys of known and recently deleted records. */
  readonly knownKeys = (): Iterable<string> => this.#entries.keys();
  readonly #options: MirrorOptions;
  /** Clock of the view, which decides by it whether a node is silent. */
  readonly #clock: ReachableClock;
  readonly #entries = new Map<string, Entry>();
  /** Keys of the entries in state `deleted`. */
  readonly #deleted = new Set<string>();
  readonly #marks = new ReleaseRevisions();
  /** Revisions by key, of changes that lost commits and reads have brought, and the watch has not yet. */
  readonly #met = new Map<string, number>();
  readonly #stop = new AbortController();
  #position = 0;
  /** Every change of a pool up to this revision is applied. */
  #poolsPosition = 0;
  readonly #revisionWaiters = new Set<RevisionWaiter>();
  /** Why the watch has ended although the mirror is open: nothing more will be applied. */
  #permanentFailure: Failure | undefined;
  #doubtful: DoubtfulRecords = { keys: [], pools: false };
  #resolving: Promise<void> | undefined;
  #watching: Promise<void> = Promise.resolve();

  private constructor(options: MirrorOptions) {
    this.#options = options;
    this.#clock = new ReachableClock(options.clock);
    this.view = new Snapshot(
      options.keys,
      (key) => this.showsAllBefore(key),
      () => this.#clock.nowMs(),
      options.checkPools,
    );
  }

  /**
   * Lists the datastore and begins to watch it. The caller closes the mirror before the store.
   * @throws Failure of the list
   */
  static async start(options: MirrorOptions, signal: AbortSignal): Promise<Mirror> {
    const mirror = new Mirror(options);
    await mirror.#listAll(signal);
    mirror.#watching = mirror.#watchLoop();
    return mirror;
  }

  /** Ends the watch. Idempotent. */
  async close(): Promise<void> {
    this.#stop.abort();
    await this.#watching;
  }

  /**
   * Stops the view's clock until the returned function is called: a process that does not serve yet hears of no node.
   */
  holdClock(): () => void {
    return this.#clock.hold();
  }

  /** Revision of the record's last change as known here; 0 when there is no record. */
  modRevision(key: string): number {
    const entry = this.#entries.get(key);
    if (!entry && this.#isMark(key)) return this.#marks.of(key);
    return !entry || entry.state === 'deleted' ? 0 : entry.revision;
  }

  /** Whether all commits before the last write of the key's record are applied. */
  showsAllBefore(key: string): boolean {
    return this.modRevision(key) <= this.#position;
  }

  /**
   * The revision at which the record is known before the watch has brought it: the view may lack older changes of other records.
   * 0 if it is not.
   */
  metRevision(key: string): number {
    return this.#met.get(key) ?? 0;
  }

  /** All changes up to it are applied. */
  get position(): number {
    return this.#position;
  }

  /**
   * Waits until everything up to the revision is applied.
   * @throws Failure of the signal; STORE_CORRUPT when the datastore was replaced
   */
  async reach(revision: number, signal: AbortSignal): Promise<void> {
    if (this.#position >= revision) return;
    if (this.#permanentFailure) throw this.#permanentFailure;
    const reached = new Promise<void>((resolve, reject) => {
      this.#revisionWaiters.add({ revision, resolve, reject });
    });
    await untilAborted(reached, signal);
  }

  /** Revision up to which every pool change is known. */
  get poolsRevision(): number {
    return Math.max(this.#position, this.#poolsPosition);
  }

  /**
   * The record that is stored under the key.
   * @throws Failure STORE_CORRUPT when the record cannot be read
   */
  stored(key: string): DecodedRecord | undefined {
    const entry = this.#entries.get(key);
    if (entry?.state === 'unreadable') throw entry.failure;
    return entry?.state === 'present' ? entry.decoded : undefined;
  }

  /** Size of the value that is stored under the key; 0 when there is none. */
  storedBytes(key: string): number {
    const entry = this.#entries.get(key);
    return entry?.state === 'present' ? entry.bytes : 0;
  }

  /**
   * Applies a commit of this process.
   * @param poolsCompared - whether it was committed on the condition that no pool had changed
   */
  applyOwn(
    revision: number,
    writes: readonly OwnWrite[],
    { poolsCompared }: { readonly poolsCompared: boolean },
  ): void {
    for (const { key, decoded, value } of writes) {
      const bytes = value?.length ?? 0;
      this.#apply(key, decoded ? { state: 'present', revision, decoded, bytes } : { state: 'deleted', revision });
    }
    if (this.#options.observe && revision > this.#position) this.own.addCommit(revision, writes);
    if (poolsCompared) this.#poolsPosition = Math.max(this.#poolsPosition, revision);
  }

  /**
   * Applies the records that a lost comparison has met, as the watch will bring them. The view then shows these records
   * as of the comparison, and possibly older states of other records, until the watch has caught up.
   * @param poolsCompared - whether the transaction required that no pool had changed
   */
  applyConflict(conflict: LostComparison, { poolsCompared }: { readonly poolsCompared: boolean }): void {
    this.#applyAhead({ records: conflict.changed, revision: conflict.revision }, conflict.missing);
    if (poolsCompared) this.#poolsPosition = Math.max(this.#poolsPosition, conflict.revision);
  }

  /**
   * Reads the doubtful records again and applies them.
   * @throws Failure of the store
   */
  async refresh(doubtful: DoubtfulRecords, signal: AbortSignal): Promise<void> {
    const { store, keys } = this.#options;
    const [records, pools] = await Promise.all([
      doubtful.keys.length > 0 ? store.read(doubtful.keys, signal) : undefined,
      doubtful.pools ? store.list(keys.pools, signal) : undefined,
    ]);
    if (records) this.#applyAhead(records, doubtful.keys);
    if (!pools) return;
    this.#applySnapshot(
      pools,
      [...this.#entries.keys()].filter((key) => key.startsWith(keys.pools)),
    );
    this.#poolsPosition = Math.max(this.#poolsPosition, pools.revision);
  }

  /** Blocks decisions until these records are read again: a commit of them failed with an unknown outcome. */
  markDoubtful(doubtful: DoubtfulRecords): void {
    this.#doubtful = {
      keys: [...new Set([...this.#doubtful.keys, ...doubtful.keys])],
      pools: this.#doubtful.pools || doubtful.pools,
    };
  }

  /** A commit failed: nodes cannot be heard of while the datastore executes none. */
  commitFailed(error: unknown): void {
    if (error instanceof Failure && UNREACHABLE_CODES.has(error.code)) this.#clock.failed();
  }

  get hasDoubts(): boolean {
    return this.#doubtful.keys.length > 0 || this.#doubtful.pools;
  }

  /**
   * Waits until nothing is in doubt.
   * @throws Failure of the store, or the signal's
   */
  async resolveDoubts(signal: AbortSignal): Promise<void> {
    while (this.hasDoubts) {
      throwIfAborted(signal);
      // Shared by all waiters, so only the mirror's own signal ends it.
      this.#resolving ??= this.#readDoubtful().finally(() => (this.#resolving = undefined));
      await untilAborted(this.#resolving, signal);
    }
  }

  async #readDoubtful(): Promise<void> {
    const previous = this.#doubtful;
    await this.refresh(previous, this.#stop.signal);
    const resolved = new Set(previous.keys);
    const added = this.#doubtful !== previous;
    this.#doubtful = {
      keys: added ? this.#doubtful.keys : this.#doubtful.keys.filter((key) => !resolved.has(key)),
      pools: added && this.#doubtful.pools,
    };
  }

  async #watchLoop(): Promise<void> {
    const { signal } = this.#stop;
    for (let attempt = 0; !signal.aborted; attempt++) {
      try {
        await this.#catchUp(() => (attempt = 0));
      } catch (error) {
        if (isAborted(signal)) return;
        this.#clock.failed();
        if (isPermanent(error)) {
          this.#failWaiters(error);
          return;
        }
        const retryInMs = backoffMs(attempt, WATCH_BACKOFF, this.#options.random());
        this.#options.report({ type: 'watchFailed', error, retryInMs });
        await this.#options.clock.sleep(retryInMs, signal);
      }
    }
  }

  #failWaiters(failure: Failure): void {
    this.#permanentFailure = failure;
    for (const { reject } of this.#revisionWaiters) reject(failure);
    this.#revisionWaiters.clear();
  }

  async #catchUp(onProgress: () => void): Promise<void> {
    const { store, keys } = this.#options;
    const { signal } = this.#stop;
    try {
      for await (const { revision, changes } of store.watch(
        { prefix: keys.root, afterRevision: this.#position },
        signal,
      )) {
        for (const change of changes) {
          if (change.type === 'put') this.#applyStored(change.key, change.value, revision);
          else this.#apply(change.key, { state: 'deleted', revision });
        }
        this.#advance(revision);
        this.#observeChanges(revision, changes);
        this.own.dropUpTo(revision);
        onProgress();
      }
    } catch (error) {
      if (!(error instanceof RevisionCompacted)) throw error;
      await this.#listAll(signal);
      this.#options.report({ type: 'listedAgain', revision: this.#position });
    }
  }

  async #listAll(signal: AbortSignal): Promise<void> {
    const { store, keys, observe } = this.#options;
    let revision = 0;
    let observed: ObservedRecord[] = [];
    // Needed only if records are known, which may be missing from the list.
    let listed: Set<string> | undefined;
    for await (const part of listInParts(store, keys.root, signal)) {
      if (part.isFirst) [observed, listed] = [[], this.#entries.size > 0 ? new Set() : undefined];
      revision = part.revision;
      this.#applySnapshot(part, []);
      for (const { key, value, modRevision } of part.records) {
        listed?.add(key);
        if (!observe || keys.isOfHandle(key)) continue;
        observed.push({ key, record: this.#recordAt(key, value, modRevision) });
      }
    }
    for (const key of listed ? [...this.#entries.keys()] : [])
      if (!listed?.has(key)) this.#apply(key, { state: 'deleted', revision });
    this.#advance(revision);
    this.own.dropUpTo(revision);
    await observe?.({ type: 'listed', revision, records: observed });
  }

  #observeChanges(revision: number, changes: readonly RecordChange[]): void {
    if (!this.#options.observe) return;
    const observed = changes.map((change) => ({
      key: change.key,
      record: change.type === 'put' ? this.#recordAt(change.key, change.value, revision) : undefined,
    }));
    void this.#options.observe({ type: 'changed', revision, changes: observed });
  }

  /** The record at the revision; decoded again only if the mirror knows a later state and another replica wrote it. */
  #recordAt(key: string, value: Uint8Array, revision: number): RecordValue | undefined {
    const entry = this.#entries.get(key);
    if (entry?.revision === revision) return entry.state === 'present' ? entry.decoded.record : undefined;
    const own = this.own.findCommitted(revision, key);
    if (own) return own.record;
    const name = this.#options.keys.parse(key);
    if (!name) return undefined;
    try {
      return decodeRecord(key, name, value).record;
    } catch (error) {
      if (error instanceof Failure) return undefined;
      throw error;
    }
  }

  /** Applies what the watch may not have brought yet. */
  #applyAhead(snapshot: StoredSnapshot, covered: readonly string[]): void {
    this.#applySnapshot(snapshot, covered);
    for (const key of [...snapshot.records.map((record) => record.key), ...covered]) {
      const revision = this.#entries.get(key)?.revision ?? 0;
      if (revision > this.#position) this.#met.set(key, revision);
    }
  }

  /** @param covered - keys that the snapshot would show if they existed */
  #applySnapshot({ records, revision }: StoredSnapshot, covered: readonly string[]): void {
    const present = covered.length > 0 ? new Set<string>() : undefined;
    for (const { key, value, modRevision } of records) {
      present?.add(key);
      if (this.#isMark(key)) this.#marks.keep(key, modRevision);
      else this.#applyStored(key, value, modRevision);
    }
    for (const key of covered) {
      if (this.#isMark(key)) {
        if (!present?.has(key)) this.#marks.delete(key);
      } else if (!present?.has(key)) this.#apply(key, { state: 'deleted', revision });
    }
  }

  #isMark(key: string): boolean {
    return key.startsWith(this.#options.keys.releases);
  }

  #applyStored(key: string, value: Uint8Array, revision: number): void {
    if (this.#knownUpTo(key) >= revision) return;
    const name = this.#options.keys.parse(key);
    if (!name) return;
    try {
      const decoded = this.own.decoded(key, value) ?? decodeRecord(key, name, value);
      this.#apply(key, { state: 'present', revision, decoded, bytes: value.length });
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      this.#apply(key, { state: 'unreadable', revision, failure: error });
      this.#options.report({ type: 'unreadable', key, failure: error });
    }
  }

  #apply(key: string, entry: Entry): void {
    if (this.#knownUpTo(key) >= entry.revision) return;
    this.#entries.set(key, entry);
    if (entry.state === 'deleted') this.#deleted.add(key);
    else if (this.#deleted.size > 0) this.#deleted.delete(key);
    this.#updateView(key, entry);
  }

  #updateView(key: string, entry: Entry): void {
    const name = entry.state === 'unreadable' ? this.#options.keys.parse(key) : undefined;
    if (entry.state === 'present') this.view.set(key, entry.decoded.record);
    else if (entry.state === 'unreadable' && name)
      this.view.setUnreadable({ key, name, reason: entry.failure.details.reason ?? entry.failure.message });
    else this.view.delete(key);
  }

  /** A key without an entry had no record at the position. */
  #knownUpTo(key: string): number {
    return this.#entries.get(key)?.revision ?? this.#position;
  }

  /** Advances the position and forgets deletions that the watch has passed. */
  #advance(revision: number): void {
    this.#position = Math.max(this.#position, revision);
    for (const waiter of this.#revisionWaiters) {
      if (waiter.revision > this.#position) continue;
      this.#revisionWaiters.delete(waiter);
      waiter.resolve();
    }
    for (const [key, met] of this.#met) if (met <= this.#position) this.#met.delete(key);
    for (const key of this.#deleted) {
      if ((this.#entries.get(key)?.revision ?? 0) > this.#position) continue;
      this.#entries.delete(key);
      this.#deleted.delete(key);
    }
  }
}

/**
 * A report of a mirror: durable, and exactly the state at the revision. The view may be ahead of it by own commits and
 * reads.
 */
export type Observed =
  | ObservedList
  /** Empty `changes`: there were none up to the revision. */
  | { readonly type: 'changed'; readonly revision: number; readonly changes: readonly ObservedRecord[] };

/** Without the handles, which are half of all records and are not watched. */
export interface ObservedList {
  readonly type: 'listed';
  readonly revision: number;
  readonly records: readonly ObservedRecord[];
}

export interface ObservedRecord {
  readonly key: string;
  /** The record; undefined if it is absent, unreadable, or has no meaning here. */
  readonly record: RecordValue | undefined;
}

const MAX_COUNT = 10_000;

/** Revisions of the release marks that a lost comparison has brought; all missing ones are assumed not to exist. */
class ReleaseRevisions {
  readonly #revisions = new Map<string, number>();

  /** 0 for a mark that is not known. */
  of(key: string): number {
    return this.#revisions.get(key) ?? 0;
  }

  /** The oldest are dropped; a transaction that misses one loses a comparison and reads it again. */
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
