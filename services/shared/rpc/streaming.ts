import type { MethodDefinition, ServerDuplexStream, ServerWritableStream } from '@grpc/grpc-js';
import { context } from '@opentelemetry/api';

import { Failure } from '../failure/failure.js';
import { failureOfSignal } from '../failure/signal.js';
import { messageOf } from '../failure/thrown.js';
import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import { formatCaller } from '../tls/caller.js';
import { admitCall, type Admission, type ProvenCaller } from './access.js';
import { openCall, requireDecoded, type Call, type ServedCall } from './border.js';
import type { QueueEvents } from './request-queue.js';

/** A call of a streaming method. */
export interface StreamCall<Request> extends Call {
  /**
   * Calls a function with each further request, if the method has a stream of requests. An error that it throws ends the call.
   * To be called once.
   */
  readonly onRequest: (act: (request: Request) => void) => void;
}

/**
 * Answers a first request with any number of messages. The next message is pulled only after the previous one was handed to
 * the connection, so a slow reader slows the sender, and at most one message is buffered. The handler ends when the
 * signal fires. Its iterator is closed when the stream ends.
 */
export type StreamHandler<Request, Response> = (request: Request, call: StreamCall<Request>) => AsyncIterable<Response>;

/** A call of a method with one request, or with a stream of requests. */
type IncomingStream<Request, Response> =
  ServerWritableStream<Request, Response> | ServerDuplexStream<Request, Response>;

/** Converts handlers of methods with a stream of responses to gRPC's. One per server. */
export type Streaming = <Request, Response>(
  method: MethodDefinition<Request, Response>,
  handler: StreamHandler<Request, Response>,
) => (call: IncomingStream<Request, Response>) => void;

export interface StreamsOptions {
  readonly log: Logger;
  readonly clock: Clock;
  /** Maximum number of open streams; a further one is refused with TOO_MANY_STREAMS. Range: 1 and more. */
  readonly maxStreamsCount: number;
  readonly admission: Admission;
  readonly events: Pick<QueueEvents, 'refused'>;
}

/**
 * Maximum number of open streams of a caller over the network. A node has one to three; streams of a connection that was
 * cut without notice stay until its keepalive timeout.
 */
export const MAX_STREAMS_PER_CALLER = 32;

/** Interval between two checks of the callers' proofs, in milliseconds. */
const CHECK_INTERVAL_MS = 5000;

interface OpenStream {
  /** Name of the caller. */
  readonly name: string;
  readonly check: ProvenCaller['check'];
}

/**
 * The open streams of a server. A stream has no timeout except its caller's deadline. It ends when the caller cancels, when its
 * handler ends, when its caller's proof of identity ends, and when the server drains.
 */
export class Streams {
  readonly #options: StreamsOptions;
  readonly #open = new Map<ServedCall, OpenStream>();
  /** Calls without a request yet. */
  readonly #waiting = new Set<ServedCall>();
  #draining = false;
  /** Cancels the next check; undefined without a stream over the network. */
  #cancelCheck: (() => void) | undefined;

  constructor(options: StreamsOptions) {
    this.#options = options;
  }

  /** Number of open streams. */
  get count(): number {
    return this.#open.size;
  }

  readonly handlers: Streaming = (method, handler) => (call) => {
    const { admission, ...options } = this.#options;
    const { path, requestSerialize } = method;
    const served = openCall(call, { path, defaultTimeoutMs: undefined, ...options });
    void context.with(served.context, async () => {
      try {
        const request = 'request' in call ? call.request : await this.#firstRequest(call, served);
        const encodeRequest = (): Buffer => requestSerialize(requireDecoded(request));
        const admitted = await admitCall(admission, call, { path, encodeRequest, signal: served.signal });
        // An open stream executes only while it makes a message, at the pace of its reader.
        admitted.leave();
        this.#add(served, admitted);
        const onRequest: StreamCall<typeof request>['onRequest'] = (act) => actOnRequests(call, served, act);
        const responses = handler(requireDecoded(request), { signal: served.signal, onRequest });
        for await (const response of responses) await sendMessage(call, response, served.signal);
        if (served.signal.aborted) throw failureOfSignal(served.signal);
        served.succeed();
        call.end();
      } catch (error) {
        const isRefused = error instanceof Failure && error.code === 'TOO_MANY_STREAMS';
        const expected = served.signal.aborted || isRefused ? ({ expected: true } as const) : undefined;
        call.emit('error', served.fail(served.signal.aborted ? failureOfSignal(served.signal) : error, expected));
      } finally {
        this.#open.delete(served);
        if (this.#open.size === 0) this.#stopChecks();
        served.release();
      }
    });
  };

  /** Ends every stream with UNREACHABLE, later ones too. */
  drain(): void {
    this.#draining = true;
    for (const served of [...this.#waiting, ...this.#open.keys()]) served.abort(stoppingFailure());
  }

  async #firstRequest<Request, Response>(
    call: ServerDuplexStream<Request, Response>,
    served: ServedCall,
  ): Promise<Request> {
    if (this.#draining) throw stoppingFailure();
    this.#waiting.add(served);
    try {
      return await firstRequest(call, served.signal);
    } finally {
      this.#waiting.delete(served);
    }
  }

  /** @throws Failure TOO_MANY_STREAMS, or UNREACHABLE while the server drains */
  #add(served: ServedCall, { caller, check }: ProvenCaller): void {
    if (this.#draining) throw stoppingFailure();
    const { maxStreamsCount, events } = this.#options;
    if (this.#open.size >= maxStreamsCount)
      throw new Failure(
        'TOO_MANY_STREAMS',
        `stream limit of ${maxStreamsCount} reached; close streams, or call another replica`,
      );
    const name = formatCaller(caller);
    if (caller.kind !== 'local' && this.#countOf(name) >= MAX_STREAMS_PER_CALLER) {
      events.refused(name, caller.role, 'streams');
      throw new Failure('TOO_MANY_STREAMS', `${name}: it has ${MAX_STREAMS_PER_CALLER} open streams; close streams`);
    }
    this.#open.set(served, { name, check });
    if (caller.kind !== 'local') this.#cancelCheck ??= this.#checkLater();
  }

  #countOf(name: string): number {
    let count = 0;
    for (const other of this.#open.values()) if (other.name === name) count++;
    return count;
  }

  #checkLater(): () => void {
    return this.#options.clock.after(CHECK_INTERVAL_MS, () => {
      for (const [served, { check }] of this.#open) void endUnproven(served, check);
      this.#cancelCheck = this.#checkLater();
    });
  }

  #stopChecks(): void {
    this.#cancelCheck?.();
    this.#cancelCheck = undefined;
  }
}

/** @throws Failure of the signal, or INVALID_REQUEST for a call that ends without a request */
function firstRequest<Request, Response>(
  call: ServerDuplexStream<Request, Response>,
  signal: AbortSignal,
): Promise<Request> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => reject(failureOfSignal(signal));
    if (signal.aborted) onAbort();
    signal.addEventListener('abort', onAbort, { once: true });
    call.once('end', () => reject(new Failure('INVALID_REQUEST', 'the call ended without a request; send one')));
    call.once('data', (request: Request) => {
      // Further requests wait for the handler.
      call.pause();
      signal.removeEventListener('abort', onAbort);
      resolve(request);
    });
  });
}

function actOnRequests<Request, Response>(
  call: IncomingStream<Request, Response>,
  served: ServedCall,
  act: (request: Request) => void,
): void {
  if ('request' in call) return;
  call.on('data', (request: Request) => {
    try {
      act(requireDecoded(request));
    } catch (error) {
      served.abort(streamFailure(error));
    }
  });
  call.resume();
}

function streamFailure(error: unknown): Failure {
  return error instanceof Failure ? error : new Failure('INTERNAL', messageOf(error), { cause: error });
}

async function endUnproven(served: ServedCall, check: ProvenCaller['check']): Promise<void> {
  try {
    await check();
  } catch (error) {
    served.abort(streamFailure(error));
  }
}

/**
 * Hands a message to the connection.
 * @throws Failure of the signal, also when the connection accepts no more messages
 */
function sendMessage<Response>(
  call: Pick<ServerWritableStream<unknown, Response>, 'write'>,
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

/** A method with a stream of responses, whose messages are already encoded, so that many streams can share them. */
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
