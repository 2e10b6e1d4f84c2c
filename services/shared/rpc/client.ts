import { Metadata, status, type ClientReadableStream, type MethodDefinition, type ServiceError } from '@grpc/grpc-js';
import {
  SpanKind,
  trace,
  context,
  isSpanContextValid,
  type Attributes,
  type Context,
  type Span,
} from '@opentelemetry/api';

import { FAILURE_CODES } from '../failure/codes.js';
import { Failure } from '../failure/failure.js';
import { failureOfSignal } from '../failure/signal.js';
import { failureOfError } from '../failure/status.js';
import { systemClock } from '../runtime/clock.js';
import { recordService } from '../telemetry/intervals.js';
import { markFailed } from '../telemetry/span.js';
import type { ClientTls } from '../tls/certificate-source.js';
import { TOKEN_KEY, TOKEN_SCHEME } from './access.js';
import { Connection } from './connection.js';
import { RELEASE, writeRelease } from './release.js';
import {
  askForTiming,
  injectContext,
  methodName,
  recordCall,
  rpcAttributes,
  serverAttributes,
  timingOf,
} from './tracing.js';

/** Limits of one call. */
export interface CallLimits {
  /** Deadline, in epoch milliseconds. It is sent to the server. */
  readonly deadlineMs: number;
  readonly signal?: AbortSignal;
}

export interface PeerOptions {
  /** This side's release, sent with each call; the service may reject it. Default: {@link RELEASE}. */
  readonly release?: number | undefined;
  /** TLS; undefined for a connection in plain text. */
  readonly tls?: ClientTls | undefined;
  /** The token that proves this side, sent with each call. Default: none. */
  readonly token?: (() => string) | undefined;
}

/** Client of one service, over a channel that connects and reconnects automatically. */
export class Peer {
  /** Name of the service: `podwire-ipam`. */
  readonly service: string;
  /** Description for messages: `podwire-ipam at unix:/run/podwire/ipam.sock`. */
  readonly description: string;
  readonly #connection: Connection;
  readonly #release: number;
  readonly #token: PeerOptions['token'];
  readonly #serverAttributes: Attributes;
  #closed = false;

  constructor(service: string, address: string, { release = RELEASE, tls, token }: PeerOptions = {}) {
    this.service = service;
    this.description = `${service} at ${address}`;
    this.#release = release;
    this.#token = token;
    this.#serverAttributes = serverAttributes(address);
    this.#connection = new Connection(address, { tls });
  }

  /** Whether there is a connection now. The next call reconnects. */
  get isConnected(): boolean {
    return !this.#closed && this.#connection.isConnected;
  }

  /**
   * Calls a method and waits for its answer. While the service is down, waits until the deadline.
   *
   * Returns when the message arrives, without waiting for the status. The server writes the status one turn of its event
   * loop later. It adds nothing, because a server sends a message only with success.
   * @throws Failure of the service, or UNREACHABLE, DEADLINE_EXCEEDED, CANCELLED, UNIMPLEMENTED
   */
  call<Request, Response>(
    method: MethodDefinition<Request, Response>,
    request: Request,
    limits: CallLimits,
  ): Promise<Response> {
    const span = this.#startSpan(method.path);
    return new Promise((resolve, reject) => {
      if (this.#closed) {
        reject(
          this.#failed(span, new Failure('CANCELLED', `${this.description}: the channel was closed before the call`)),
        );
        return;
      }
      let isAnswered = false;
      const startedMs = systemClock.monotonicMs();
      const answered = (code: status): void => {
        isAnswered = true;
        recordCall('client', { path: method.path, code, durationMs: systemClock.monotonicMs() - startedMs });
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
      // The server returns its intervals before the call ends.
      const endService = recordService(this.service);
      const { path, requestSerialize } = method;
      const metadata = this.#metadata(trace.setSpan(context.active(), span));
      if (endService) askForTiming(metadata);
      const options = { deadline: limits.deadlineMs };
      const { client } = this.#connection;
      const call = client.makeUnaryRequest(path, requestSerialize, receive, request, metadata, options, ended);
      const cancel = (): void => call.cancel();
      if (endService) call.on('metadata', (received) => endService(timingOf(received)));
      limits.signal?.addEventListener('abort', cancel, { once: true });
      if (limits.signal?.aborted) cancel();
    });
  }

  /**
   * Opens a stream; waits while the service is down. The iteration applies backpressure. The stream ends when the signal
   * fires or the iteration ends.
   * @param opened - receives the function that sends later messages, of a method that takes them. After the end it does nothing
   * @throws Failure of the service, or UNREACHABLE, CANCELLED, UNIMPLEMENTED; messages received before remain valid
   */
  async *stream<Request, Response>(
    method: MethodDefinition<Request, Response>,
    request: Request,
    signal: AbortSignal,
    opened?: (send: (request: Request) => void) => void,
  ): AsyncGenerator<Response, void, void> {
    if (this.#closed || signal.aborted) throw failureOfSignal(signal);
    const { path, requestSerialize, responseDeserialize } = method;
    const span = this.#startSpan(path);
    const metadata = this.#metadata(trace.setSpan(context.active(), span));
    const { client } = this.#connection;
    let call: ClientReadableStream<Response>;
    if (method.requestStream) {
      const duplex = client.makeBidiStreamRequest(path, requestSerialize, responseDeserialize, metadata);
      duplex.write(request);
      opened?.((later) => void duplex.write(later));
      call = duplex;
    } else call = client.makeServerStreamRequest(path, requestSerialize, responseDeserialize, request, metadata);
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

  /** Closes the channel; calls in flight fail. Idempotent. */
  close(): void {
    this.#closed = true;
    this.#connection.close();
  }

  /** @param from - context of the trace that the call belongs to */
  #metadata(from: Context): Metadata {
    const metadata = new Metadata({ waitForReady: true });
    writeRelease(metadata, this.#release);
    if (this.#token) metadata.set(TOKEN_KEY, TOKEN_SCHEME + this.#token());
    injectContext(from, metadata);
    return metadata;
  }

  #noMessage(): Failure {
    return new Failure('INTERNAL', `${this.description}: answered with success, but without a message`);
  }

  /** Converts an error to a failure. RELEASE_MISMATCH gets the service's name, which its message lacks. */
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

  #startSpan(path: string): Span {
    const span = trace
      .getTracer('podwire')
      .startSpan(methodName(path), { kind: SpanKind.CLIENT, attributes: rpcAttributes(path) });
    return span.setAttributes(this.#serverAttributes).setAttribute('podwire.rpc.connected', this.isConnected);
  }

  #failed(span: Span, failure: Failure): Failure {
    // NOT_FOUND is an answer: an undo, for example, reads an object before its removal.
    if (FAILURE_CODES[failure.code].status !== 'NOT_FOUND') markFailed(span, failure);
    span.end();
    return failure;
  }
}

/** Whether grpc-js reports a success without a message, for which it uses the status UNIMPLEMENTED. */
function isWithoutMessage({ code, details }: ServiceError): boolean {
  return code === status.UNIMPLEMENTED && details === 'No message received';
}

function isServiceError(error: unknown): error is ServiceError {
  return error instanceof Error && 'metadata' in error && error.metadata instanceof Metadata;
}
