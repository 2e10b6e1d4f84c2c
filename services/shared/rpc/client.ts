import { Metadata, status, type MethodDefinition, type ServiceError } from '@grpc/grpc-js';
import { SpanKind, trace, context, isSpanContextValid, type Context, type Span } from '@opentelemetry/api';

import { Failure } from '../failure/failure.js';
import { failureOfSignal } from '../failure/signal.js';
import { failureOfError } from '../failure/status.js';
import { markFailed } from '../runtime/span.js';
import { CallAhead } from './call-ahead.js';
import { Connection } from './connection.js';
import { RELEASE, writeRelease } from './release.js';
import { injectContext, methodName, rpcAttributes } from './tracing.js';

/** How one call is limited. */
export interface CallLimits {
  /** When the caller no longer wants the answer, in epoch milliseconds. The server sees it too. */
  readonly deadlineMs: number;
  readonly signal?: AbortSignal;
}

/** A call whose request is still to come. */
export interface OpenedCall<Request, Response> {
  /** Calls as {@link Peer.call} does: the first time over what was opened, unless it has failed or grown old meanwhile. */
  send(request: Request, limits: CallLimits): Promise<Response>;
  /** Gives up what was opened and not used. Idempotent. */
  close(): void;
}

interface Exchange<Request, Response> {
  readonly method: MethodDefinition<Request, Response>;
  readonly request: Request;
  readonly limits: CallLimits;
  readonly opened?: CallAhead<Request, Response> | undefined;
}

/** Client of one service, over a channel that connects and reconnects automatically. */
export class Peer {
  /** Its name: `podwire-ipam`. */
  readonly service: string;
  /** For messages: `podwire-ipam at unix:/run/podwire/ipam.sock`. */
  readonly description: string;
  readonly #connection: Connection;
  readonly #release: number;
  #closed = false;

  /** @param release - this side's release, sent with each call; the service may reject it */
  constructor(service: string, address: string, release = RELEASE) {
    this.service = service;
    this.description = `${service} at ${address}`;
    this.#release = release;
    this.#connection = new Connection(address);
  }

  /** Whether there is a connection now. One that was ended comes back with the next call. */
  get isConnected(): boolean {
    return !this.#closed && this.#connection.isConnected;
  }

  /**
   * Calls a method and waits for its answer; while the service is down, waits for it until the deadline.
   *
   * The call returns as soon as the message arrives. The status follows in a separate write, one turn of the server's
   * event loop later, and adds nothing: a server sends a message only with success.
   * @throws Failure the service's own, or UNREACHABLE, DEADLINE_EXCEEDED, CANCELLED, UNIMPLEMENTED
   */
  call<Request, Response>(
    method: MethodDefinition<Request, Response>,
    request: Request,
    limits: CallLimits,
  ): Promise<Response> {
    return this.#exchange({ method, request, limits });
  }

  /**
   * Opens a call whose request comes later: what a call costs before its request is known, at both ends, is done while its caller waits
   * for something else.
   *
   * A trace that is recorded shows calls as long as they take; there nothing is opened, and the call is made with its request.
   */
  open<Request, Response>(
    method: MethodDefinition<Request, Response>,
    { deadlineMs }: Pick<CallLimits, 'deadlineMs'>,
  ): OpenedCall<Request, Response> {
    const opened = this.#closed || trace.getActiveSpan()?.isRecording() ? undefined : this.#open(method, deadlineMs);
    return {
      send: (request, limits) => this.#exchange({ method, request, limits, opened }),
      close: () => opened?.close(),
    };
  }

  #exchange<Request, Response>({ method, request, limits, opened }: Exchange<Request, Response>): Promise<Response> {
    const options = { kind: SpanKind.CLIENT, attributes: rpcAttributes(method.path) };
    const span = trace.getTracer('podwire').startSpan(methodName(method.path), options);
    return new Promise((resolve, reject) => {
      if (this.#closed) {
        reject(
          this.#failed(span, new Failure('CANCELLED', `${this.description}: the channel was closed before the call`)),
        );
        return;
      }
      let isAnswered = false;
      const answered = (code: status): void => {
        isAnswered = true;
        limits.signal?.removeEventListener('abort', cancel);
        span.setAttribute('rpc.response.status_code', status[code]);
      };
      const receive = (message: Buffer): Response => {
        const response = method.responseDeserialize(message);
        answered(status.OK);
        span.end();
        resolve(response);
        return response;
      };
      const ended = (error: ServiceError | null): void => {
        if (isAnswered) return;
        answered(error?.code ?? status.OK);
        reject(
          this.#failed(span, error && !isWithoutMessage(error) ? this.#failureOf(error, span) : this.#noMessage()),
        );
      };
      const begin = (): (() => void) => {
        const { path, requestSerialize } = method;
        const metadata = this.#metadata(trace.setSpan(context.active(), span));
        const options = { deadline: limits.deadlineMs };
        const call = this.#connection.client.makeUnaryRequest(
          path,
          requestSerialize,
          receive,
          request,
          metadata,
          options,
          ended,
        );
        return () => call.cancel();
      };
      const cancel = opened?.send(request, { receive, ended }) ?? begin();
      limits.signal?.addEventListener('abort', cancel, { once: true });
      if (limits.signal?.aborted) cancel();
    });
  }

  /**
   * Opens a stream; waits while the service is down. It is read at the pace of the iteration, and ends when the signal
   * fires or the iteration is left.
   * @throws Failure the service's own, or UNREACHABLE, CANCELLED, UNIMPLEMENTED; messages received before remain valid
   */
  async *stream<Request, Response>(
    method: MethodDefinition<Request, Response>,
    request: Request,
    signal: AbortSignal,
  ): AsyncGenerator<Response, void, void> {
    if (this.#closed || signal.aborted) throw failureOfSignal(signal);
    const { path, requestSerialize, responseDeserialize } = method;
    const options = { kind: SpanKind.CLIENT, attributes: rpcAttributes(path) };
    const span = trace.getTracer('podwire').startSpan(methodName(path), options);
    const metadata = this.#metadata(trace.setSpan(context.active(), span));
    const call = this.#connection.client.makeServerStreamRequest(
      path,
      requestSerialize,
      responseDeserialize,
      request,
      metadata,
    );
    const cancel = (): void => call.cancel();
    signal.addEventListener('abort', cancel, { once: true });
    try {
      for await (const response of call) yield response;
      span.end();
    } catch (error) {
      throw this.#failed(span, isServiceError(error) ? this.#failureOf(error, span) : failureOfSignal(signal));
    } finally {
      signal.removeEventListener('abort', cancel);
      call.cancel();
    }
  }

  /** Ends the channel; calls under way fail. Idempotent. */
  close(): void {
    this.#closed = true;
    this.#connection.close();
  }

  #open<Request, Response>(
    { path, requestSerialize }: MethodDefinition<Request, Response>,
    deadlineMs: number,
  ): CallAhead<Request, Response> {
    const options = { deadline: deadlineMs };
    return new CallAhead(({ receive, ended }) => {
      // Closed in the meantime: gRPC would throw, and the error would be uncaught.
      if (this.#closed) return undefined;
      const metadata = this.#metadata(context.active());
      const stream = this.#connection.client.makeClientStreamRequest(
        path,
        requestSerialize,
        receive,
        metadata,
        options,
        ended,
      );
      // `ended` reports the error.
      return stream.on('error', () => undefined);
    });
  }

  /** @param from - whose trace the call belongs to */
  #metadata(from: Context): Metadata {
    const metadata = new Metadata({ waitForReady: true });
    writeRelease(metadata, this.#release);
    injectContext(from, metadata);
    return metadata;
  }

  #noMessage(): Failure {
    return new Failure('INTERNAL', `${this.description}: answered with success, but without a message`);
  }

  /** The service's failure. That it is of another release is of no use without which service it is. */
  #failureOf(error: ServiceError, span: Span): Failure {
    const { traceId } = span.spanContext();
    const failure = failureOfError(
      error,
      this.description,
      isSpanContextValid(span.spanContext()) ? traceId : undefined,
    );
    if (failure.code !== 'RELEASE_MISMATCH') return failure;
    return new Failure(failure.code, `${this.description}: ${failure.message}`, { cause: failure });
  }

  #failed(span: Span, failure: Failure): Failure {
    markFailed(span, failure);
    span.end();
    return failure;
  }
}

/** Whether grpc-js reports a success without a message: it does so with a status that otherwise means something else. */
function isWithoutMessage({ code, details }: ServiceError): boolean {
  return code === status.UNIMPLEMENTED && details === 'No message received';
}

function isServiceError(error: unknown): error is ServiceError {
  return error instanceof Error && 'metadata' in error && error.metadata instanceof Metadata;
}
