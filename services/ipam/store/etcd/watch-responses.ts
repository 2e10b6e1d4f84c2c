import type { IWatchCreateRequest, IWatchResponse } from 'etcd3';

import type { WatchStream } from '../../engine/etcd/connection.js';

/**
 * The responses of one stream of watches, to be iterated once. Ends when the signal fires; fails when the stream does, or when the
 * server ends it. What came before that is given out first.
 */
export class WatchResponses implements AsyncIterable<IWatchResponse> {
  readonly #stream: WatchStream;
  readonly #ends: AbortSignal;
  readonly #waiting: IWatchResponse[] = [];
  #failure: Error | undefined;
  #wake = (): void => undefined;
  readonly #onAbort = (): void => this.#wake();

  constructor(stream: WatchStream, ends: AbortSignal) {
    this.#stream = stream;
    this.#ends = ends;
    stream.on('data', (response) => {
      this.#waiting.push(response);
      this.#wake();
    });
    stream.on('error', (error) => this.#fail(error));
    stream.on('end', () => this.#fail(new Error('the server has ended the watch')));
    ends.addEventListener('abort', this.#onAbort);
  }

  create(request: IWatchCreateRequest): void {
    this.#stream.write({ create_request: request });
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<IWatchResponse, void, void> {
    while (!this.#ends.aborted) {
      const response = this.#waiting.shift();
      if (response) yield response;
      else if (this.#failure) throw this.#failure;
      else await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  /** Idempotent. */
  close(): void {
    this.#ends.removeEventListener('abort', this.#onAbort);
    // Ended first: etcd3 takes the error of a stream that is cancelled while it is open for a server's, and drops the connection.
    this.#stream.end();
    this.#stream.cancel();
  }

  #fail(error: Error): void {
    this.#failure ??= error;
    this.#wake();
  }
}
