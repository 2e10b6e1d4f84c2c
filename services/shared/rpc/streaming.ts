import type { handleServerStreamingCall, MethodDefinition, ServerWritableStream } from '@grpc/grpc-js';
import { context } from '@opentelemetry/api';

import { Failure } from '../failure/failure.js';
import { failureOfSignal } from '../failure/signal.js';
import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import { checkAccess, type AccessControl } from './access.js';
import { openCall, type Call, type ServedCall } from './border.js';

/**
 * Answers one request with any number of messages. The next message is pulled only after the previous one was handed to
 * the connection, so a slow reader slows the sender, and at most one message is buffered. The handler ends when the
 * signal fires. Its iterator is closed when the stream ends.
 */
export type StreamHandler<Request, Response> = (request: Request, call: Call) => AsyncIterable<Response>;

/** Converts handlers of server-streaming methods to gRPC's. One per server. */
export type Streaming = <Request, Response>(
  method: MethodDefinition<Request, Response>,
  handler: StreamHandler<Request, Response>,
) => handleServerStreamingCall<Request, Response>;

export interface StreamsOptions {
  readonly log: Logger;
  readonly clock: Clock;
  /** Maximum number of open streams; a further one is refused with TOO_MANY_STREAMS. Range: 1 and more. */
  readonly maxStreamsCount: number;
  /** Undefined where every caller that reaches the server may call everything. */
  readonly access?: AccessControl | undefined;
}

/**
 * The open streams of a server. A stream has no timeout except its caller's deadline. It ends when the caller cancels, when its
 * handler ends, and when the server drains.
 */
export class Streams {
  readonly #options: StreamsOptions;
  readonly #open = new Set<ServedCall>();
  #draining = false;

  constructor(options: StreamsOptions) {
    this.#options = options;
  }

  /** Number of open streams. */
  get count(): number {
    return this.#open.size;
  }

  readonly handlers: Streaming = (method, handler) => (call) => {
    const { access, ...options } = this.#options;
    const { path, requestSerialize } = method;
    const served = openCall(call, { path, defaultTimeoutMs: undefined, ...options });
    void context.with(served.context, async () => {
      try {
        if (access) await checkAccess(access, call, { path, encodeRequest: () => requestSerialize(call.request) });
        this.#admit(served);
        for await (const response of handler(call.request, served)) await sendMessage(call, response, served.signal);
        if (served.signal.aborted) throw failureOfSignal(served.signal);
        served.succeed();
        call.end();
      } catch (error) {
        const expected = served.signal.aborted ? ({ expected: true } as const) : undefined;
        call.emit('error', served.fail(expected ? failureOfSignal(served.signal) : error, expected));
      } finally {
        this.#open.delete(served);
        served.release();
      }
    });
  };

  /** Ends every stream with UNREACHABLE, later ones too. */
  drain(): void {
    this.#draining = true;
    for (const served of this.#open) served.abort(stoppingFailure());
  }

  /** @throws Failure TOO_MANY_STREAMS, or UNREACHABLE while the server drains */
  #admit(served: ServedCall): void {
    if (this.#draining) throw stoppingFailure();
    const { maxStreamsCount } = this.#options;
    if (this.#open.size >= maxStreamsCount)
      throw new Failure(
        'TOO_MANY_STREAMS',
        `stream limit of ${maxStreamsCount} reached; close streams, or call another replica`,
      );
    this.#open.add(served);
  }
}

/**
 * Hands a message to the connection.
 * @throws Failure of the signal, also when the connection accepts no more messages
 */
function sendMessage<Response>(
  call: ServerWritableStream<unknown, Response>,
  response: Response,
  signal: AbortSignal,
): Promise<void> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => reject(failureOfSignal(signal));
    if (signal.aborted) {
      onAbort();
      return;
    }
    signal.addEventListener('abort', onAbort, { once: true });
    // gRPC drops the callback of a message written after the end of the call; the signal covers that case.
    call.write(response, () => {
      signal.removeEventListener('abort', onAbort);
      resolve();
    });
  });
}

/** A server-streaming method whose messages are already encoded, so that many streams can share them. */
export function preparedMethod<Request, Response>(
  method: MethodDefinition<Request, Response>,
): MethodDefinition<Request, Uint8Array> {
  return { ...method, responseSerialize: bufferOf, responseDeserialize: (bytes) => bytes };
}

function bufferOf(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function stoppingFailure(): Failure {
  return new Failure('UNREACHABLE', 'the server is stopping; retry, or call another replica');
}
