import { setMaxListeners } from 'node:events';

import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';
import { backoffMs, type BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { RecordKeys } from '../../records/json/keys.js';
import { requireUnlocked } from '../../records/datastore-lock.js';
import type { Change, View } from '../../records/view.js';
import type { Mirror } from '../mirror/mirror.js';
import type { CommitResult, LostComparison, Store, StoreTraits } from '../store.js';
import { Draft, type DraftedTransaction } from './draft.js';
import { FreshView } from './fresh-view.js';
import { Lane } from './lane.js';
import {
  makeRequest,
  withCommitSpan,
  type Decide,
  type UpdateRequest,
  type TransactionLimits,
} from './update-request.js';

export type { Decide } from './update-request.js';

export interface UpdaterOptions extends Partial<Omit<StoreTraits, 'hasLock' | 'settlement'>> {
  readonly store: Store;
  readonly mirror: Mirror;
  readonly keys: RecordKeys;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** Estimated size above which a transaction takes no further request; etcd refuses 1.5 MiB. Default: 1 MiB. */
  readonly maxTransactionBytes?: number;
  /** Maximum transactions in flight. Range: 1 and more. Default: 2. */
  readonly maxInFlightCount?: number;
  /** Maximum decisions of a request before it fails with CONFLICT. Range: 1 and more. Default: 40. */
  readonly maxAttemptsCount?: number;
  /** How long a transaction may take before its outcome counts as unknown. Default: 10,000. */
  readonly commitTimeoutMs?: number;
  /** Whether history entries are written for released addresses and changed objects. Default: true. */
  readonly keepsHistory?: boolean;
}

const DEFAULTS = {
  maxOperationsCount: 128,
  maxTransactionBytes: 2 ** 20,
  maxInFlightCount: 2,
  maxAttemptsCount: 40,
  commitTimeoutMs: 10_000,
  marksReleases: false,
  isExclusiveWriter: false,
  keepsHistory: true,
} as const;
/** Lost attempts that a request repeats immediately, on the records they met; waiting would miss the next turn too. */
const PROMPT_ATTEMPTS = 10;
const CONFLICT_BACKOFF: BackoffBounds = { baseMs: 2, maxMs: 50 };
/** Maximum time for which a lane yields to other replicas, in milliseconds. */
const MAX_TURN_MS = 50;

interface UpdateOptions {
  readonly signal: AbortSignal;
  /** Whether even the first decision must see everything that any replica has acknowledged. Default: false. */
  readonly isFresh?: boolean;
}

/** Requests whose changes are committed together, by the lanes they are from. */
type Group = ReadonlyMap<Lane, readonly UpdateRequest[]>;

/**
 * The only compare-and-swap loop. A request is a decision: it runs on a view of the datastore, and its changes are
 * committed on the condition that no record it named has changed since; else it runs again. What makes it hard:
 *
 * - A transaction costs more than a decision. So waiting requests of all lanes are folded, each seeing the changes of
 *   those before it, and committed together while earlier transactions are in flight. But one lost comparison loses all
 *   of them.
 * - Requests of one lane (usually one node) want the same block: while some are being committed, the rest wait, or they
 *   would lose to them. Lanes do not wait for each other. A lane that loses to another replica commits alone for a
 *   while.
 * - Replicas that want the same block take turns: a transaction that loses returns the records it met, and is decided
 *   again on them immediately, in time for the next turn; a replica that wins after a loss leaves that turn to the
 *   other replicas. Waiting longer would only lose: a decision from before another replica's transaction is out of date
 *   after it.
 * - An answer may depend on an uncommitted change: a repeated allocation finds the first one's addresses in the draft.
 *   It has nothing to write, but must wait for the transaction, and be decided again if that loses.
 * - A result that is not compared (nothing to release, no pool with room, a repeat) may be out of date where other
 *   replicas write. It is decided again on a view with everything they have acknowledged before it is answered.
 * - The same holds for a transaction in flight whose caller has given up, as a killed ADD does before its DEL: a
 *   decision without changes waits for it, and is decided again.
 * - A failing decision must leave nothing in the draft that later ones are folded on: its changes are taken over all or
 *   none, after everything that can fail.
 * - A caller may give up at any moment. Before its transaction is sent, it leaves no trace; after that the outcome
 *   stands without a receiver. Folding and sending happen in one turn of the event loop, so there is no moment between.
 * - A commit may fail with its outcome unknown. Its requests fail, as a repeat could act twice; the mirror then reads
 *   again what the commit may have changed before the next decision.
 */
export class Updater {
  readonly #options: Required<UpdaterOptions>;
  readonly #limits: TransactionLimits;
  readonly #lanes = new Map<string, Lane>();
  readonly #stop = new AbortController();
  readonly #fresh: FreshView;
  /** Running work: transactions, and waits for fresh views and back-offs. */
  readonly #running = new Set<Promise<void>>();
  /** Reusable controllers of finished commits: Node creates them slowly. */
  readonly #timeouts: AbortController[] = [];
  /** Transactions in flight, with their requests. */
  readonly #committing = new Map<Promise<void>, readonly UpdateRequest[]>();
  readonly #changeLog = {
    nextMs: () => (this.#changeMs = Math.max(this.#options.clock.nowMs(), this.#changeMs + 1)),
    newId: () => Math.floor(this.#options.random() * 2 ** 32).toString(16),
  };
  /** Time of the latest recorded changes. */
  #changeMs = 0;
  #inFlight = 0;
  #isScheduled = false;
  #isResolving = false;

  constructor(options: UpdaterOptions) {
    this.#options = { ...DEFAULTS, ...options };
    const { maxOperationsCount: operationsCount, maxTransactionBytes: bytes } = this.#options;
    this.#limits = { operationsCount, bytes };
    this.#fresh = new FreshView(options, this.#stop.signal);
    // Every waiter listens to it; Node reports more than ten listeners as a leak on standard error.
    setMaxListeners(0, this.#stop.signal);
  }

  /**
   * Decides, commits, and answers once it is durable. A decision without changes is answered without a commit, from a view that
   * has everything that any replica has acknowledged before.
   * @param lane - requests with the same text are committed in the order in which they came
   * @throws what the decision throws; Failure CONFLICT, STORE_UNAVAILABLE, or the signal's
   */
  update<Outcome>(lane: string, decide: Decide<Outcome>, { signal, isFresh = false }: UpdateOptions): Promise<Outcome> {
    if (signal.aborted) return Promise.reject(failureOfSignal(signal));
    if (this.#stop.signal.aborted) return Promise.reject(closedFailure());
    return new Promise((resolve, reject) => {
      const waits = this.#lanes.get(lane)?.isOccupied ?? false;
      const limits = this.#limits;
      const request = makeRequest({
        decide,
        resolve,
        reject,
        signal,
        waits,
        isFresh: this.#options.isExclusiveWriter,
        limits,
      });
      if (isFresh && !request.isFresh) this.#run(this.#requeueWhenFresh(lane, request));
      else this.#enqueue(lane, request);
    });
  }

  /**
   * Reads a view with everything that any replica has acknowledged before the call.
   * @throws what `look` throws; Failure STORE_UNAVAILABLE, or the signal's
   */
  async read<Result>(query: (view: View) => Result, { signal }: { readonly signal: AbortSignal }): Promise<Result> {
    if (signal.aborted) throw failureOfSignal(signal);
    if (this.#stop.signal.aborted) throw closedFailure();
    const { mirror, isExclusiveWriter } = this.#options;
    if (!isExclusiveWriter) await this.#fresh.reach(signal);
    if (mirror.hasDoubts) await mirror.resolveDoubts(signal);
    return query(mirror.view);
  }

  /** Reads the current view, which may lack changes of other replicas: for hints. */
  peek<Result>(query: (view: View) => Result): Promise<Result> {
    return Promise.resolve(this.#options.mirror.view).then(query);
  }

  /**
   * The loop for one dry run: each decision sees the changes of the earlier ones, and nothing is committed. They are
   * folded again each time, as a draft is valid for one turn of the event loop.
   */
  preview(): Pick<Updater, 'update' | 'read' | 'peek'> {
    const { mirror, keys } = this.#options;
    const earlier: (readonly Change[])[] = [];
    const draftNow = (): Draft => {
      const draft = new Draft(mirror, keys, { ...this.#options, isPreview: true });
      for (const changes of earlier) draft.fold(changes);
      return draft;
    };
    const decideNow = <Outcome>(decide: Decide<Outcome>): Outcome => {
      const draft = draftNow();
      const { changes, outcome } = decide(draft.view);
      requireUnlocked(draft.view, changes);
      draft.fold(changes);
      earlier.push(changes);
      return outcome;
    };
    return {
      peek: (query) => Promise.resolve().then(() => query(draftNow().view)),
      read: (query, options) => this.read(() => query(draftNow().view), options),
      update: (_, decide, options) => this.read(() => decideNow(decide), options),
    };
  }

  /** Fails all requests that wait, and waits for the transactions in flight. Idempotent. */
  async close(): Promise<void> {
    this.#stop.abort();
    while (this.#running.size > 0) await Promise.all(this.#running);
    this.#failWaiting(closedFailure());
  }

  #enqueue(name: string, request: UpdateRequest): void {
    if (this.#stop.signal.aborted) {
      request.fail(closedFailure());
      return;
    }
    const lane = this.#lanes.get(name) ?? new Lane(name);
    this.#lanes.set(name, lane);
    lane.add(request);
    this.#schedule();
  }

  /** Requests of the same turn of the event loop go into the same transaction. */
  #schedule(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    setImmediate(() => {
      this.#isScheduled = false;
      this.#serve();
    });
  }

  #serve(): void {
    if (this.#stop.signal.aborted) {
      this.#failWaiting(closedFailure());
      return;
    }
    if (this.#options.mirror.hasDoubts) {
      if (!this.#isResolving) this.#run(this.#resolveDoubts());
      return;
    }
    while (this.#inFlight < this.#options.maxInFlightCount && this.#hasReadyLane()) {
      const draft = new Draft(this.#options.mirror, this.#options.keys, {
        ...this.#options,
        changeLog: this.#changeLog,
      });
      const group = this.#fold(draft);
      if (group.size === 0) return;
      const requests = [...group.values()].flat();
      const committing = this.#commitGroup(draft, group, requests).then(() => void this.#committing.delete(committing));
      this.#committing.set(committing, requests);
      this.#run(committing);
    }
  }

  #hasReadyLane(): boolean {
    for (const lane of this.#lanes.values()) if (lane.isReady) return true;
    return false;
  }

  /** Keeps a promise, which does not reject, for {@link close} to wait for. */
  #run(running: Promise<void>): void {
    this.#running.add(running);
    void running.then(() => this.#running.delete(running));
  }

  async #resolveDoubts(): Promise<void> {
    this.#isResolving = true;
    try {
      await this.#options.mirror.resolveDoubts(this.#stop.signal);
      this.#schedule();
    } catch (error) {
      // The next request is the next attempt: a store that fails at once would be asked without end.
      this.#failWaiting(error);
    } finally {
      this.#isResolving = false;
    }
  }

  #failWaiting(error: unknown): void {
    for (const lane of this.#lanes.values()) for (const request of lane.takeAll()) request.fail(error);
  }

  /** Takes requests off their lanes while the transaction has room. */
  #fold(draft: Draft): Group {
    const group = new Map<Lane, UpdateRequest[]>();
    const nowMs = this.#options.clock.monotonicMs();
    for (const lane of this.#lanes.values()) {
      const isExclusive = lane.isExclusive(nowMs);
      if (lane.isIdle && !isExclusive) this.#lanes.delete(lane.name);
      if (!lane.isReady || (isExclusive && group.size > 0)) continue;
      const { requests, isFull } = this.#foldLane(draft, lane);
      if (requests.length > 0) group.set(lane, requests);
      if (isFull || (isExclusive && group.size > 0)) break;
    }
    return group;
  }

  #foldLane(draft: Draft, lane: Lane): { readonly requests: UpdateRequest[]; readonly isFull: boolean } {
    const requests: UpdateRequest[] = [];
    for (let request = lane.first(); request; request = lane.first()) {
      const folded = request.decide(draft);
      if (folded === 'full') return { requests, isFull: true };
      lane.takeFirst();
      request.endWait();
      if (folded === 'unsure') this.#run(this.#requeueWhenFresh(lane.name, request));
      else if (folded === 'failed') continue;
      else if (folded === 'unchanged' && this.#waitsForAbandoned(lane.name, request)) continue;
      else if (draft.isEmpty) request.succeed();
      else requests.push(request);
    }
    return { requests, isFull: false };
  }

  async #requeueWhenFresh(lane: string, request: UpdateRequest): Promise<void> {
    try {
      await this.#fresh.reach(request.signal);
      request.isFresh = true;
      this.#enqueue(lane, request);
    } catch (error) {
      request.fail(this.#stop.signal.aborted ? closedFailure() : error);
    }
  }

  /** Requeues a request after the in-flight transactions of aborted callers. @returns false if there is none */
  #waitsForAbandoned(lane: string, request: UpdateRequest): boolean {
    const abandoned = [...this.#committing].flatMap(([committing, requests]) =>
      requests.some(({ isAnswered }) => isAnswered) ? [committing] : [],
    );
    if (request.hasWaited || abandoned.length === 0) return false;
    request.hasWaited = true;
    this.#run(Promise.all(abandoned).then(() => this.#enqueue(lane, request)));
    return true;
  }

  async #commitGroup(draft: Draft, group: Group, requests: readonly UpdateRequest[]): Promise<void> {
    this.#inFlight++;
    for (const lane of group.keys()) lane.isBusy = true;
    let drafted: DraftedTransaction | undefined;
    const { mirror, clock } = this.#options;
    const beganMs = clock.monotonicMs();
    try {
      drafted = draft.build();
      const { transaction, writes, doubtful } = drafted;
      mirror.own.markSent(writes);
      const contexts = requests.map(({ context }) => context);
      const result = await withCommitSpan(transaction, contexts, () => this.#commitWithTimeout(transaction));
      if (result.committed) {
        mirror.applyOwn(result.revision, writes, { poolsCompared: doubtful.pools });
        for (const request of requests) request.succeed();
        for (const lane of group.keys()) if (lane.markCommitted()) this.#yieldTurn(lane, clock.monotonicMs() - beganMs);
      } else this.#handleLost(drafted, group, result);
    } catch (error) {
      mirror.commitFailed(error);
      if (drafted) mirror.markDoubtful(drafted.doubtful);
      for (const request of requests) request.fail(error);
    } finally {
      if (drafted) mirror.own.markAnswered(drafted.writes);
      for (const lane of group.keys()) lane.isBusy = false;
      this.#inFlight--;
      this.#schedule();
    }
  }

  async #commitWithTimeout(transaction: DraftedTransaction['transaction']): Promise<CommitResult> {
    const { store, clock, commitTimeoutMs } = this.#options;
    const timeout = this.#timeouts.pop() ?? new AbortController();
    const cancelTimeout = clock.after(commitTimeoutMs, () => timeout.abort(timeoutFailure(commitTimeoutMs)));
    try {
      return await store.commit(transaction, timeout.signal);
    } finally {
      cancelTimeout();
      if (!timeout.signal.aborted) this.#timeouts.push(timeout);
    }
  }

  /**
   * Puts the requests back, to be decided again on the records that the transaction has met. Those whose records have
   * changed are committed alone from then on; immediately, unless they have lost before.
   */
  #handleLost({ doubtful }: DraftedTransaction, group: Group, conflict: LostComparison): void {
    const { mirror, maxAttemptsCount } = this.#options;
    const requests = [...group.values()].flat();
    mirror.applyConflict(conflict, { poolsCompared: doubtful.pools });
    const changed = new Set([...conflict.changed.map(({ key }) => key), ...conflict.missing]);
    const lost = requests.filter(({ keys }) => keys.some((key) => changed.has(key)));
    // Without a record that shows the cause (a new pool, or no reason of the store), all requests count as the
    // cause.
    const losers = new Set(lost.length > 0 ? lost : requests);
    for (const request of losers) {
      if (++request.attempts >= maxAttemptsCount) request.fail(conflictFailure(request.attempts));
    }
    for (const [lane, own] of group) {
      lane.putBack(own);
      const attempts = own.filter((request) => losers.has(request)).map((request) => request.attempts);
      if (attempts.length > 0) this.#backOff(lane, Math.max(...attempts) - 1);
    }
  }

  #backOff(lane: Lane, attempt: number): void {
    const { clock, random } = this.#options;
    lane.markLost(clock.monotonicMs());
    if (attempt < PROMPT_ATTEMPTS) return;
    this.#pause(lane, backoffMs(attempt - PROMPT_ATTEMPTS, CONFLICT_BACKOFF, random()));
  }

  /** Replicas that lost to it retry immediately; they would lose again if it continued. */
  #yieldTurn(lane: Lane, transactionMs: number): void {
    this.#pause(lane, Math.min(MAX_TURN_MS, transactionMs * (0.5 + this.#options.random())));
  }

  #pause(lane: Lane, delayMs: number): void {
    const { clock } = this.#options;
    lane.pause();
    this.#run(
      clock.sleep(delayMs, this.#stop.signal).then(() => {
        lane.resume();
        this.#schedule();
      }),
    );
  }
}

function conflictFailure(attempts: number): Failure {
  return new Failure('CONFLICT', `transaction conflict after ${attempts} attempts; repeat the request`);
}

function timeoutFailure(timeoutMs: number): Failure {
  return new Failure(
    'STORE_UNAVAILABLE',
    `the datastore has not answered a transaction within ${timeoutMs} ms, so its outcome is unknown; check the datastore and repeat the request`,
  );
}

function closedFailure(): Failure {
  return new Failure('STORE_UNAVAILABLE', 'the service is shutting down; repeat the request');
}
