import type { Metadata, ServiceError } from '@grpc/grpc-js';

/** Callbacks of a call. */
export interface CallHandler<Response> {
  /** Decodes the answer. @throws errors of decoding */
  readonly receive: (message: Buffer) => Response;
  /** Called exactly once, at the end of the call. */
  readonly ended: (error: ServiceError | null) => void;
  /** Receives the metadata of the response, before the answer. */
  readonly receiveTiming: (metadata: Metadata) => void;
}

/** An open call of gRPC. */
export interface OpenCall<Request> {
  write(request: Request): unknown;
  end(): unknown;
  cancel(): void;
}

/**
 * How long a call stays open for its request. The gRPC deadline counts from the opening, a stopping server waits for
 * the call, and a longer wait gains nothing.
 */
const MAX_OPEN_MS = 250;

/** A call that is opened before its request is known. */
export class PreopenedCall<Request, Response> {
  readonly #begin: (handler: CallHandler<Response>) => OpenCall<Request> | undefined;
  readonly #opening: NodeJS.Immediate;
  #expiryTimer: NodeJS.Timeout | undefined;
  #call: OpenCall<Request> | undefined;
  #handler: CallHandler<Response> | undefined;

  /**
   * @param begin - opens the call; returns undefined when the channel is closed. It runs in the next turn of the event loop, so that
   * other messages of the caller are sent first
   */
  constructor(begin: (handler: CallHandler<Response>) => OpenCall<Request> | undefined) {
    this.#begin = begin;
    this.#opening = setImmediate(() => this.#open());
  }

  /**
   * Sends the request. Only the first request is sent.
   * @returns a function that cancels the call; undefined when the call is not usable, and nothing was sent
   */
  send(request: Request, handler: CallHandler<Response>): (() => void) | undefined {
    const call = this.#take();
    if (!call) return undefined;
    this.#handler = handler;
    call.write(request);
    call.end();
    return () => call.cancel();
  }

  /** Cancels the call if its request was not sent. Idempotent. */
  close(): void {
    this.#take()?.cancel();
  }

  #take(): OpenCall<Request> | undefined {
    clearImmediate(this.#opening);
    clearTimeout(this.#expiryTimer);
    const call = this.#call;
    this.#call = undefined;
    return call;
  }

  #open(): void {
    this.#expiryTimer = setTimeout(() => this.close(), MAX_OPEN_MS).unref();
    this.#call = this.#begin({
      receive: (message) => {
        if (!this.#handler) throw new Error('the call was answered before its request was sent');
        return this.#handler.receive(message);
      },
      ended: (error) => {
        // Ended before the request: the sender opens a new call, which reports the reason.
        this.#call = undefined;
        this.#handler?.ended(error);
      },
      receiveTiming: (metadata) => this.#handler?.receiveTiming(metadata),
    });
  }
}
