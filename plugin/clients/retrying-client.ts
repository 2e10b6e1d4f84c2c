import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { retry } from '@podwire/shared/retry/retry';
import type { BackoffBounds } from '@podwire/shared/retry/schedule';
import type { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { CallToCome, Limits } from './clients.js';

/** Short against a pod's start, long against a service's request. */
const BACKOFF: BackoffBounds = { baseMs: 20, maxMs: 500 };

export interface PeerOptions {
  readonly peer: Peer;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
}

type Method<Request, Response> = Parameters<typeof Peer.prototype.call<Request, Response>>[0];

/** Codes that mean the service did not answer. */
const SILENCES: readonly FailureCode[] = ['DEADLINE_EXCEEDED', 'UNREACHABLE'];

/** That the time is over says nothing of why it was not enough; what was said before does. The code stays: the outcome is open. */
function withAnswer(failure: unknown, answered: Failure): unknown {
  if (!(failure instanceof Failure && failure.code === 'DEADLINE_EXCEEDED')) return failure;
  const { code, message, details, traceId } = failure;
  const options = { details, traceId, cause: failure };
  return new Failure(code, `${message}; the attempt before failed: ${answered.message}`, options);
}

/** Client of a service whose methods are all idempotent: transient failures are retried until the deadline. */
export class RepeatingPeer {
  readonly #options: PeerOptions;

  constructor(options: PeerOptions) {
    this.#options = options;
  }

  /** @throws Failure of the last attempt, or the reason of the signal that ended it */
  call<Request, Response>(method: Method<Request, Response>, request: Request, limits: Limits): Promise<Response> {
    return this.#repeat(method, limits, () => this.#options.peer.call(method, request, limits));
  }

  /** Opens a call whose request is still to come, as {@link Peer.open} does. */
  open<Request, Response>(method: Method<Request, Response>, limits: Limits): CallToCome<Request, Response> {
    const opened = this.#options.peer.open(method, limits);
    return {
      make: (request, within) => this.#repeat(method, within, () => opened.send(request, within)),
      close: () => opened.close(),
    };
  }

  async #repeat<Request, Response>(
    { path }: Method<Request, Response>,
    limits: Limits,
    attempt: () => Promise<Response>,
  ): Promise<Response> {
    const { peer, clock, random } = this.#options;
    const begunMs = clock.nowMs();
    const inTime = () => clock.nowMs() < limits.deadlineMs;
    let answered: Failure | undefined;
    const mayPass = (failure: unknown): boolean => {
      if (!(failure instanceof Failure)) return false;
      if (!SILENCES.includes(failure.code)) answered = failure;
      return failure.retryable && inTime();
    };
    try {
      return await retry(attempt, {
        attempts: Number.POSITIVE_INFINITY,
        backoff: BACKOFF,
        clock,
        random,
        signal: limits.signal,
        retryable: mayPass,
      });
    } catch (failure) {
      limits.signal.throwIfAborted();
      throw answered ? withAnswer(failure, answered) : failure;
    } finally {
      const method = { service: peer.service, method: path.split('/').at(-1) ?? '' };
      limits.noteDuration?.(method, clock.nowMs() - begunMs);
    }
  }

  /** What an answer has to hold by the contract. @throws Failure INTERNAL when it does not */
  required<Value>(value: Value | undefined, name: string): Value {
    if (value !== undefined) return value;
    throw new Failure('INTERNAL', `${this.#options.peer.description}: answered without ${name}, against the contract`);
  }
}
