import { setMaxListeners } from 'node:events';

import { context, trace, type Context } from '@opentelemetry/api';
import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';
import { backoffMs, type BackoffBounds } from '@podwire/shared/retry/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';
import { withSpan } from '@podwire/shared/runtime/span';

import type { Decision, View } from '../allocator/view.js';
import { Draft, type DraftedTransaction } from './draft.js';
import type { Mirror } from './mirror.js';
import type { RecordKeys } from './record/keys.js';
import type { CommitResult, Store } from './store.js';

/** Pure: looks at nothing but the view, and may run several times. A throw fails its own request alone. */
export type Decide<Outcome> = (view: View) => Decision<Outcome>;

export interface UpdaterOptions {
  readonly store: Store;
  readonly mirror: Mirror;
  readonly keys: RecordKeys;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** Operations that one transaction may have; etcd's default limit. Range: 1 and more. Default: 128. */
  readonly maxOperationsCount?: number;
  /** How often a request is decided at most before it fails with CONFLICT. Range: 1 and more. Default: 20. */
  readonly maxAttemptsCount?: number;
  /** How long a transaction may take before its outcome counts as unknown. Default: 10,000. */
  readonly commitTimeoutMs?: number;
  /**
   * Whether the store may execute a transaction after it was given up; then releases leave a mark that makes such an allocation
   * lose, for one put with each release and one comparison with each allocation. Default: false.
   */
  readonly marksReleases?: boolean;
}

const DEFAULT_MAX_OPERATIONS_COUNT = 128;
const DEFAULT_MAX_ATTEMPTS_COUNT = 20;
const DEFAULT_COMMIT_TIMEOUT_MS = 10_000;
const CONFLICT_BACKOFF: BackoffBounds = { baseMs: 2, maxMs: 200 };

/** A request in its lane. Its outcome's type is known to its closures alone. */
interface Request {
  /**
   * Decides against the draft and folds the changes into it.
   * @returns what came of it; a failed decision has told its caller already
   */
  readonly decide: (draft: Draft) => 'folded' | 'unchanged' | 'failed' | 'full';
  /** Tells the caller the outcome of the newest decision. */
  readonly succeed: () => void;
  readonly fail: (error: unknown) => void;
  /** Ends the span of the wait. */
  readonly started: () => void;
  /** True once the caller knows its answer. */
  isAnswered: boolean;
  attempts: number;
  readonly context: Context;
}

/**
 * The one compare-and-swap loop. A request is a decision: it is run on a view of the datastore, and its changes are committed on
 * the condition that no record it named has changed since; else it is run again. What makes it hard:
 *
 * - Requests of one lane (one node, as a rule) want the same block. Each for itself, all but one would lose every comparison. So
 *   those that arrive while a transaction is in flight are folded, each seeing the changes of those before it, and committed
 *   together in the next one. Lanes do not wait for each other; between them the comparison decides.
 * - An answer may rest on a change that is not committed yet: the repeat of an allocation finds the first one's in the draft. It
 *   has nothing to write, but must wait for the transaction, and be decided anew if that loses.
 * - A decision that fails must leave nothing in the draft that others are folded on: its changes are taken over at once or not
 *   at all, after all that can fail has been tried.
 * - A caller may give up at any moment. Before its transaction is sent, it leaves no trace; after that the outcome stands, even
 *   though nobody hears of it. Folding and sending happen in one turn of the event loop, so there is no moment between.
 * - A commit may fail with its outcome unknown. Its requests fail, as a repeat could act twice; the mirror then reads again what
 *   the commit may have changed before anything else is decided.
 */
export class Updater {
  readonly #options: Required<UpdaterOptions>;
  readonly #lanes = new Map<string, Lane>();
  readonly #stop = new AbortController();

  constructor(options: UpdaterOptions) {
    this.#options = {
      maxOperationsCount: DEFAULT_MAX_OPERATIONS_COUNT,
      maxAttemptsCount: DEFAULT_MAX_ATTEMPTS_COUNT,
      commitTimeoutMs: DEFAULT_COMMIT_TIMEOUT_MS,
      marksReleases: false,
      ...options,
    };
    // Every lane that waits listens to it; Node would take more than ten for a leak, and say so on standard error.
    setMaxListeners(0, this.#stop.signal);
  }

  /**
   * Decides, commits, and answers once it is durable. A decision without changes is answered without a commit, from a view that
   * has everything this process has acknowledged.
   * @param lane - requests with the same text are committed in groups, in the order in which they came
   * @throws what the decision throws; Failure CONFLICT, STORE_UNAVAILABLE, or the signal's
   */
  update<Outcome>(
    lane: string,
    decide: Decide<Outcome>,
    { signal }: { readonly signal: AbortSignal },
  ): Promise<Outcome> {
    if (signal.aborted) return Promise.reject(failureOfSignal(signal));
    if (this.#stop.signal.aborted) return Promise.reject(closedFailure());
    return new Promise((resolve, reject) => {
      const existing = this.#lanes.get(lane);
      const request = this.#request(decide, { resolve, reject, signal, waits: existing !== undefined });
      if (existing) existing.add(request);
      else this.#open(lane, request);
    });
  }

  /** Fails all requests that wait, and waits for the transactions in flight. Idempotent. */
  async close(): Promise<void> {
    this.#stop.abort();
    await Promise.all([...this.#lanes.values()].map(({ done }) => done));
  }

  #open(name: string, request: Request): void {
    const lane = new Lane(this.#options, this.#stop.signal);
    this.#lanes.set(name, lane);
    lane.add(request);
    lane.run(() => this.#lanes.delete(name));
  }

  #request<Outcome>(decide: Decide<Outcome>, caller: Caller<Outcome>): Request {
    const wait = caller.waits ? startWait() : () => undefined;
    let answer = (): void => undefined;
    const finish = (tell: () => void): void => {
      if (request.isAnswered) return;
      request.isAnswered = true;
      caller.signal.removeEventListener('abort', onAbort);
      wait();
      tell();
    };
    const fail = (error: unknown): void => finish(() => caller.reject(error));
    const onAbort = (): void => fail(failureOfSignal(caller.signal));
    const request: Request = {
      isAnswered: false,
      attempts: 0,
      context: context.active(),
      started: wait,
      succeed: () => finish(answer),
      fail,
      decide: (draft) => {
        try {
          const { changes, outcome } = decide(draft);
          const folded = foldWithin(draft, changes, this.#options.maxOperationsCount);
          if (folded) answer = () => caller.resolve(outcome);
          return !folded ? 'full' : changes.length > 0 ? 'folded' : 'unchanged';
        } catch (error) {
          fail(error);
          return 'failed';
        }
      },
    };
    caller.signal.addEventListener('abort', onAbort);
    return request;
  }
}

interface Caller<Outcome> {
  readonly resolve: (outcome: Outcome) => void;
  readonly reject: (error: unknown) => void;
  readonly signal: AbortSignal;
  readonly waits: boolean;
}

/** @returns false when the transaction has no room for the changes */
function foldWithin(draft: Draft, changes: Decision<unknown>['changes'], maxOperationsCount: number): boolean {
  const operations = draft.operationsWith(changes);
  if (operations > maxOperationsCount) {
    if (!draft.isEmpty) return false;
    throw new Failure(
      'INTERNAL',
      `the request needs ${operations} operations in one transaction and the datastore allows ${maxOperationsCount}: split the request, or raise the limit there and here`,
    );
  }
  draft.fold(changes);
  return true;
}

/** The requests of one lane, and the loop that serves them until there are none. */
class Lane {
  readonly #options: Required<UpdaterOptions>;
  readonly #stop: AbortSignal;
  #queue: Request[] = [];
  done: Promise<void> = Promise.resolve();

  constructor(options: Required<UpdaterOptions>, stop: AbortSignal) {
    this.#options = options;
    this.#stop = stop;
  }

  add(request: Request): void {
    this.#queue.push(request);
  }

  run(onIdle: () => void): void {
    this.done = this.#serve(onIdle);
  }

  async #serve(onIdle: () => void): Promise<void> {
    // Requests of the same turn of the event loop go into the same transaction.
    await Promise.resolve();
    while (this.#dropAnswered()) {
      if (this.#stop.aborted) this.#failAll(closedFailure());
      else if (await this.#settled()) await this.#serveGroup();
    }
    onIdle();
  }

  #dropAnswered(): boolean {
    this.#queue = this.#queue.filter(({ isAnswered }) => !isAnswered);
    return this.#queue.length > 0;
  }

  async #settled(): Promise<boolean> {
    if (!this.#options.mirror.inDoubt) return true;
    try {
      await this.#options.mirror.settle(this.#stop);
      return true;
    } catch (error) {
      this.#failAll(error);
      return false;
    }
  }

  #failAll(error: unknown): void {
    for (const request of this.#queue.splice(0)) request.fail(error);
  }

  async #serveGroup(): Promise<void> {
    const draft = new Draft(this.#options.mirror, this.#options.keys, this.#options);
    const group = this.#fold(draft);
    if (group.length === 0) return;
    let drafted: DraftedTransaction | undefined;
    try {
      drafted = draft.build();
      const result = await this.#commit(drafted, group);
      if (!result.committed) {
        await this.#lost(drafted, group);
        return;
      }
      const poolsCompared = drafted.questioned.pools;
      this.#options.mirror.applyOwn(result.revision, drafted.writes, { poolsCompared });
      for (const request of group) request.succeed();
    } catch (error) {
      if (drafted) this.#options.mirror.doubt(drafted.questioned);
      for (const request of group) request.fail(error);
    }
  }

  /** Takes requests off the queue for as long as the transaction has room. @returns those that wait for its commit */
  #fold(draft: Draft): Request[] {
    const group: Request[] = [];
    let taken = 0;
    for (const request of this.#queue) {
      if (request.isAnswered) {
        taken++;
        continue;
      }
      const result = request.decide(draft);
      if (result === 'full') break;
      taken++;
      request.started();
      if (result === 'failed') continue;
      if (draft.isEmpty) request.succeed();
      else group.push(request);
    }
    this.#queue.splice(0, taken);
    return group;
  }

  #commit({ transaction }: DraftedTransaction, group: readonly Request[]): Promise<CommitResult> {
    const { puts, deletes, comparisons } = transaction;
    const attributes = {
      'podwire.store.puts': puts.length,
      'podwire.store.deletes': deletes.length,
      'podwire.store.comparisons': comparisons.length,
      'podwire.store.group_size': group.length,
    };
    // The span belongs to the trace of the first request; the others' traces and it point to each other.
    return context.with(group[0]?.context ?? context.active(), () =>
      withSpan('podwire.store.commit', attributes, async (span) => {
        for (const other of group.slice(1)) {
          const parent = trace.getSpan(other.context);
          if (!parent) continue;
          span.addLink({ context: parent.spanContext() });
          parent.addLink({ context: span.spanContext() });
        }
        const result = await this.#commitInTime(transaction);
        span.setAttribute('podwire.store.committed', result.committed);
        return result;
      }),
    );
  }

  async #commitInTime(transaction: DraftedTransaction['transaction']): Promise<CommitResult> {
    const { store, clock, commitTimeoutMs } = this.#options;
    const timeout = new AbortController();
    const answered = new AbortController();
    void clock.sleep(commitTimeoutMs, answered.signal).then((end) => {
      if (end === 'elapsed') timeout.abort(timeoutFailure(commitTimeoutMs));
    });
    try {
      return await store.commit(transaction, timeout.signal);
    } finally {
      answered.abort(null);
    }
  }

  /**
   * Puts the requests back, to be decided anew once it is known what has changed.
   * @throws Failure of the store when it cannot be asked
   */
  async #lost({ questioned }: DraftedTransaction, group: readonly Request[]): Promise<void> {
    const { mirror, clock, random, maxAttemptsCount } = this.#options;
    for (const request of group) {
      if (++request.attempts >= maxAttemptsCount) request.fail(conflictFailure(request.attempts));
    }
    this.#queue.unshift(...group);
    if (!this.#dropAnswered()) return;
    const attempt = Math.max(...group.map(({ attempts }) => attempts)) - 1;
    await clock.sleep(backoffMs(attempt, CONFLICT_BACKOFF, random()), this.#stop);
    await mirror.refresh(questioned, this.#stop);
  }
}

/** Begins the span of a request's wait. @returns what ends it; may be called again */
function startWait(): () => void {
  let end = (): void => undefined;
  const waited = new Promise<void>((resolve) => {
    end = resolve;
  });
  void withSpan('podwire.ipam.lane_wait', {}, () => waited);
  return end;
}

function conflictFailure(attempts: number): Failure {
  return new Failure(
    'CONFLICT',
    `the same records were changed by others at each of ${attempts} attempts; repeat the request`,
  );
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
