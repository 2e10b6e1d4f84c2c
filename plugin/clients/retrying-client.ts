import { trace } from '@opentelemetry/api';
import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { retry } from '@podwire/shared/reconcile/retry';
import type { BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';
import { recordInterval } from '@podwire/shared/telemetry/intervals';

import type { Limits } from './clients.js';

/** Short compared with a pod's start, long compared with a service's request. */
const BACKOFF: BackoffBounds = { baseMs: 20, maxMs: 500 };

export interface PeerOptions {
  readonly peer: Peer;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
}

type Method<Request, Response> = Parameters<typeof Peer.prototype.call<Request, Response>>[0];

/** Codes that mean the service did not answer. */
const NO_ANSWER_CODES: readonly FailureCode[] = ['DEADLINE_EXCEEDED', 'UNREACHABLE'];

/** Adds the last answer to a timeout, as it explains the retries. The code stays DEADLINE_EXCEEDED: the outcome is unknown. */
function withLastAnswer(failure: unknown, lastAnswer: Failure): unknown {
  if (!(failure instanceof Failure && failure.code === 'DEADLINE_EXCEEDED')) return failure;
  const { code, message, details, traceId } = failure;
  const options = { details, traceId, cause: failure };
  return new Failure(code, `${message}; the attempt before failed: ${lastAnswer.message}`, options);
}

/** Client of a service whose methods are all idempotent: transient failures are retried until the deadline. */
export class RetryingPeer {
  readonly #options: PeerOptions;

  constructor(options: PeerOptions) {
    this.#options = options;
  }

  /** @throws Failure of the last attempt, or the reason of the signal that ended it */
  call<Request, Response>(method: Method<Request, Response>, request: Request, limits: Limits): Promise<Response> {
    const { peer } = this.#options;
    const name = `${peer.service} ${method.path.split('/').at(-1)}`;
    return recordInterval(name, 'rpc', () => this.#retried(() => peer.call(method, request, limits), limits));
  }

  async #retried<Response>(attempt: () => Promise<Response>, limits: Limits): Promise<Response> {
    const { clock, random } = this.#options;
    const isInTime = () => clock.nowMs() < limits.deadlineMs;
    let lastAnswer: Failure | undefined;
    const isRetryable = (failure: unknown): boolean => {
      if (!(failure instanceof Failure)) return false;
      if (!NO_ANSWER_CODES.includes(failure.code)) lastAnswer = failure;
      const isRetried = failure.retryable && isInTime();
      if (isRetried) trace.getActiveSpan()?.addEvent('podwire.retry', { 'error.type': failure.code });
      return isRetried;
    };
    try {
      return await retry(attempt, {
        attempts: Number.POSITIVE_INFINITY,
        backoff: BACKOFF,
        clock,
        random,
        signal: limits.signal,
        retryable: isRetryable,
      });
    } catch (failure) {
      limits.signal.throwIfAborted();
      throw lastAnswer ? withLastAnswer(failure, lastAnswer) : failure;
    }
  }

  /** Returns a field that the contract requires. @throws Failure INTERNAL when it is missing */
  required<Value>(value: Value | undefined, name: string): Value {
    if (value !== undefined) return value;
    throw new Failure(
      'INTERNAL',
      `${this.#options.peer.description}: the response lacks ${name}, which the contract requires`,
    );
  }
}
