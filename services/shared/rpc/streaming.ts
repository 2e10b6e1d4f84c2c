import type { handleServerStreamingCall, MethodDefinition, ServerWritableStream } from '@grpc/grpc-js';
import { context } from '@opentelemetry/api';

import { Failure } from '../failure/failure.js';
import { failureOfSignal } from '../failure/signal.js';
import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import { openCall, type Call, type ServedCall } from './border.js';

/**
 * Answers one request with any number of messages. The next message is pulled only after the previous one was handed to
 * the connection, so a slow reader slows the sender, and at most one message is buffered. The iteration ends when the
 * signal fires; it is closed whenever the stream ends.
 */
export type StreamHandler<Request, Response> = (request: Request, call: Call) => AsyncIterable<Response>;

/** Makes gRPC handlers of server-streaming methods out of functions of ours. One for each server. */
export type Streaming = <Request, Response>(
  method: MethodDefinition<Request, Response>,
  handler: StreamHandler<Request, Response>,
) => handleServerStreamingCall<Request, Response>;

export interface StreamsOptions {
  readonly log: Logger;
  readonly clock: Clock;
  /** Streams that may be open at once; one more is refused with TOO_MANY_STREAMS. Range: 1 and more. */
  readonly maxStreamsCount: number;
}

/**
 * The open streams of a server, behind the same border as its other calls. A stream has no time limit but its caller's; it ends
 * when the caller gives up, when its handler is done, and when the server drains.
 */
export class Streams {
  readonly #options: StreamsOptions;
  readonly #open = new Set<ServedCall>();
  #draining = false;

  constructor(options: StreamsOptions) {
    this.#options = options;
  }

  /** How many streams are open. */
  get count(): number {
    return this.#open.size;
  }

  readonly handlers: Streaming = (method, handler) => (call) => {
    const served = openCall(call, { path: method.path, defaultTimeoutMs: undefined, ...this.#options });
    void context.with(served.context, async () => {
      try {
        this.#admit(served);
        for await (const response of handler(call.request, served)) await sent(call, response, served.signal);
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

  /** Ends every stream with UNREACHABLE, those too that come from now on. */
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
        `${maxStreamsCount} streams are open, which is all that this server may have; close some, or call another replica`,
      );
    this.#open.add(served);
  }
}

/**
 * Hands a message to the connection.
 * @throws Failure of the signal, also when the connection takes nothing any more
 */
function sent<Response>(
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

/** A server-streaming method whose messages are bytes already, so that many streams can share what was encoded once. */
export function preparedMethod<Request, Response>(
  method: MethodDefinition<Request, Response>,
): MethodDefinition<Request, Uint8Array> {
  return { ...method, responseSerialize: bufferOf, responseDeserialize: (bytes) => bytes };
}

function bufferOf(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function stoppingFailure(): Failure {
  return new Failure('UNREACHABLE', 'the server is stopping; call again, or another replica');
}
