import type { ServiceError } from '@grpc/grpc-js';

/** What an exchange hears of its call. */
export interface CallHandler<Response> {
  /** Takes the answer's message. @throws what reading it throws */
  readonly receive: (message: Buffer) => Response;
  /** Called once at the call's end, in every case. */
  readonly ended: (error: ServiceError | null) => void;
}

/** A call under way, as gRPC has it. */
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
export class CallAhead<Request, Response> {
  readonly #begin: (answering: CallHandler<Response>) => OpenCall<Request> | undefined;
  readonly #opening: NodeJS.Immediate;
  #ageing: NodeJS.Timeout | undefined;
  #call: OpenCall<Request> | undefined;
  #answering: CallHandler<Response> | undefined;

  /**
   * @param begin - opens the call, or gives undefined where that cannot be done any more; not run in this turn of the event loop, so that
   * what its caller sends now goes first
   */
  constructor(begin: (answering: CallHandler<Response>) => OpenCall<Request> | undefined) {
    this.#begin = begin;
    this.#opening = setImmediate(() => this.#open());
  }

  /**
   * Sends the request; once.
   * @returns how to cancel it; undefined when the call cannot be used (any more), and nothing was sent
   */
  send(request: Request, answering: CallHandler<Response>): (() => void) | undefined {
    const call = this.#take();
    if (!call) return undefined;
    this.#answering = answering;
    call.write(request);
    call.end();
    return () => call.cancel();
  }

  /** Gives up a call whose request was not sent. Idempotent. */
  close(): void {
    this.#take()?.cancel();
  }

  #take(): OpenCall<Request> | undefined {
    clearImmediate(this.#opening);
    clearTimeout(this.#ageing);
    const call = this.#call;
    this.#call = undefined;
    return call;
  }

  #open(): void {
    this.#ageing = setTimeout(() => this.close(), MAX_OPEN_MS).unref();
    this.#call = this.#begin({
      receive: (message) => {
        if (!this.#answering) throw new Error('an answer came before its request');
        return this.#answering.receive(message);
      },
      ended: (error) => {
        // Ended before the request: the sender opens a new call, which reports the reason.
        this.#call = undefined;
        this.#answering?.ended(error);
      },
    });
  }
}
