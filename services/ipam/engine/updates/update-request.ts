import { context, SpanKind, trace, type Context, type Span } from '@opentelemetry/api';
import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';
import { authorIn } from '@podwire/shared/rpc/access';
import { beginInterval } from '@podwire/shared/telemetry/intervals';
import { startOperation, withSpan } from '@podwire/shared/telemetry/span';

import { requireUnlocked } from '../../records/datastore-lock.js';
import type { Decision, View } from '../../records/view.js';
import type { CommitResult, Transaction } from '../store.js';
import type { Draft } from './draft.js';

/** Pure: depends only on the view, and may run several times. A throw fails only its own request. */
export type Decide<Outcome> = (view: View) => Decision<Outcome>;

/** Result of deciding a request on a draft. */
type Folded =
  /** Its changes are in the draft. */
  | 'folded'
  /** It has nothing to commit. Its result may depend on changes in the draft. */
  | 'unchanged'
  /** Its caller has received the failure. */
  | 'failed'
  /** The transaction has no room for its changes. */
  | 'full'
  /** Its result may be out of date, and no comparison protects it, or not from all that matters. */
  | 'unsure';

/** Limits of a transaction. */
export interface TransactionLimits {
  readonly operationsCount: number;
  readonly bytes: number;
}

/** A queued request. Only its closures know the type of its outcome. */
export interface UpdateRequest {
  /** Decides on the draft, and folds the changes into it. */
  readonly decide: (draft: Draft) => Folded;
  /** Reports the outcome of the newest decision to the caller. */
  readonly succeed: () => void;
  readonly fail: (error: unknown) => void;
  /** Ends the span of the wait. */
  readonly endWait: () => void;
  /** True once the caller knows its answer. */
  isAnswered: boolean;
  /** Whether the mirror has everything acknowledged before the request arrived. */
  isFresh: boolean;
  /** The mirror's position has passed it, or everything up to it was listed. */
  awaitedRevision: number;
  /** Whether it has waited for the in-flight transactions of aborted callers. */
  hasWaited: boolean;
  attempts: number;
  /** Keys that its newest decision named. */
  keys: readonly string[];
  readonly signal: AbortSignal;
  readonly context: Context;
}

interface RequestInput<Outcome> {
  readonly decide: Decide<Outcome>;
  readonly resolve: (outcome: Outcome) => void;
  readonly reject: (error: unknown) => void;
  readonly signal: AbortSignal;
  readonly waits: boolean;
  readonly isFresh: boolean;
  readonly limits: TransactionLimits;
}

export function makeRequest<Outcome>(caller: RequestInput<Outcome>): UpdateRequest {
  const { decide, signal, limits } = caller;
  const author = authorIn(context.active());
  const endWait = caller.waits ? startWaitSpan() : () => undefined;
  let answer = (): void => undefined;
  const finish = (notify: () => void): void => {
    if (request.isAnswered) return;
    request.isAnswered = true;
    signal.removeEventListener('abort', onAbort);
    endWait();
    notify();
  };
  const fail = (error: unknown): void => finish(() => caller.reject(error));
  const onAbort = (): void => fail(failureOfSignal(signal));
  const request: UpdateRequest = {
    isAnswered: false,
    isFresh: caller.isFresh,
    awaitedRevision: 0,
    hasWaited: false,
    attempts: 0,
    keys: [],
    signal,
    context: context.active(),
    endWait,
    succeed: () => finish(answer),
    fail,
    decide: (draft) => {
      try {
        const { changes, outcome } = decide(draft.view);
        requireUnlocked(draft.view, changes);
        const isCompared = changes.some((change) => draft.isCompared(change));
        if (!isCompared && !request.isFresh) return 'unsure';
        const awaitedRevision = draft.awaitedRevision(changes);
        if (awaitedRevision > request.awaitedRevision) {
          request.awaitedRevision = awaitedRevision;
          return 'unsure';
        }
        const keys = foldWithin(draft, { changes, author }, limits);
        if (!keys) return 'full';
        request.keys = keys;
        answer = () => caller.resolve(outcome);
        return isCompared ? 'folded' : 'unchanged';
      } catch (error) {
        if (!request.isFresh && error instanceof Failure) return 'unsure';
        fail(error);
        return 'failed';
      }
    },
  };
  signal.addEventListener('abort', onAbort);
  return request;
}

/** @returns the keys of the records that the changes name; undefined when the transaction has no room for them */
function foldWithin(
  draft: Draft,
  { changes, author }: Pick<Decision<unknown>, 'changes'> & { readonly author: string | undefined },
  { operationsCount, bytes }: TransactionLimits,
): readonly string[] | undefined {
  const operations = draft.operationsWith(changes);
  const isTooLarge = operations > operationsCount;
  if (!draft.isEmpty && (isTooLarge || draft.bytesWith(changes) > bytes)) return undefined;
  if (isTooLarge)
    throw new Failure(
      'INTERNAL',
      `the request needs ${operations} operations in one transaction and the datastore allows ${operationsCount}: raise the limit there and here, or request fewer addresses at once`,
    );
  return draft.fold(changes, author);
}

/** Spans of the update loop. Without a recorder of the trace they are not made: a span costs as much as a decision. */

const LANE_WAIT = 'podwire.ipam.lane_wait';
const COMMIT = 'podwire.store.commit';

/** Starts the span and the interval of a request's wait. @returns a function that ends them; idempotent */
export function startWaitSpan(): () => void {
  const ends = [beginInterval(context.active(), LANE_WAIT, 'ipam_queue'), startOperation('ipam.lane_wait')];
  if (trace.getActiveSpan()?.isRecording() === true) {
    const waited = new Promise<void>((resolve) => ends.push(resolve));
    void withSpan(LANE_WAIT, {}, () => waited);
  }
  return () => {
    for (const end of ends.splice(0)) end();
  };
}

/**
 * Runs a commit as an interval of each request, and in a span of the first recorded trace; that span and the remaining
 * traces link to each other.
 * @param requests - the contexts of the requests whose changes are committed
 */
export async function withCommitSpan(
  transaction: Transaction,
  requests: readonly Context[],
  commit: () => Promise<CommitResult>,
): Promise<CommitResult> {
  const endIntervals = requests.map((each) => beginInterval(each, COMMIT, 'datastore'));
  try {
    return await inSpan(transaction, requests, commit);
  } finally {
    for (const end of endIntervals) end();
  }
}

function inSpan(
  { puts, deletes, comparisons }: Transaction,
  requests: readonly Context[],
  commit: () => Promise<CommitResult>,
): Promise<CommitResult> {
  const recorded = requests.filter((each) => trace.getSpan(each)?.isRecording() === true);
  const [first, ...rest] = [...recorded, ...requests.filter((each) => !trace.getSpan(each))];
  if (!first) return commit();
  const attributes = {
    'db.operation.name': 'txn',
    'podwire.store.puts': puts.length,
    'podwire.store.deletes': deletes.length,
    'podwire.store.comparisons': comparisons.length,
    'podwire.store.group_size': requests.length,
  };
  const work = async (span: Span): Promise<CommitResult> => {
    for (const other of rest.flatMap((each) => trace.getSpan(each) ?? [])) {
      span.addLink({ context: other.spanContext() });
      other.addLink({ context: span.spanContext() });
    }
    const result = await commit();
    span.setAttribute('podwire.store.committed', result.committed);
    return result;
  };
  return context.with(first, () => withSpan(COMMIT, attributes, work, { kind: SpanKind.CLIENT }));
}
