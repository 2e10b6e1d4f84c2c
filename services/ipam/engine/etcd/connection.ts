import { rootCertificates } from 'node:tls';

import { InterceptingCall, status, type CallOptions, type ChannelOptions, type Interceptor } from '@grpc/grpc-js';
import { failureOfSignal } from '@podwire/shared/failure/signal';
import { omitAddressesAsServerNames } from '@podwire/shared/tls/server-name';
import type { Clock } from '@podwire/shared/runtime/clock';
import {
  Etcd3,
  type IDuplexStream,
  type IOptions,
  type IResponseHeader,
  type IWatchCreateRequest,
  type IWatchRequest,
  type IWatchResponse,
} from 'etcd3';

import type { Credentials } from './credentials.js';
import { failureOfEtcd, timeoutFailure, type RevisionGone } from './failure.js';

/**
 * Bytes that etcd may send before this process has read them, per stream and in total. With HTTP/2's default of 64 KiB, a page of a list or
 * one large transaction takes a turn of the event loop per 64 KiB, and under load the watch falls seconds behind.
 */
const WINDOW_BYTES = 8 * 1024 * 1024;

/**
 * A list of many records exceeds gRPC's default limit. Keepalive pings respect etcd's minimum of 5 s and detect an
 * unreachable server. Reconnecting to a restarted server takes at most 0.5 s.
 */
const CHANNEL: ChannelOptions = {
  'grpc.max_receive_message_length': -1,
  'grpc.max_send_message_length': -1,
  'grpc-node.flow_control_window': WINDOW_BYTES,
  'grpc.keepalive_time_ms': 10_000,
  'grpc.keepalive_timeout_ms': 5_000,
  'grpc.initial_reconnect_backoff_ms': 50,
  'grpc.min_reconnect_backoff_ms': 50,
  'grpc.max_reconnect_backoff_ms': 500,
  'grpc.service_config_disable_resolution': 1,
  'grpc.enable_retries': 0,
  // Channelz counters are not read, and cost time with each call.
  'grpc.enable_channelz': 0,
  'grpc.enable_http_proxy': 0,
};

export interface EtcdResponse {
  readonly header: IResponseHeader;
}

type WatchStream = IDuplexStream<IWatchRequest, IWatchResponse>;

/** Sends one request; must pass the options to the client's method. */
export type SendRequest<Response extends EtcdResponse> = (client: Etcd3, options: CallOptions) => Promise<Response>;

interface CallBounds {
  readonly signal: AbortSignal;
  readonly timeoutMs: number;
}

/**
 * One server of the cluster. Only this file depends on how etcd3 works inside. It uses etcd3's messages, stubs and
 * channel. It replaces etcd3's fault handling ({@link NoFaultHandling}), tokens ({@link UserToken}), and watcher
 * ({@link WatchResponses}), and adds the cancellation of a request ({@link CancellableCall}).
 */
export class EtcdEndpoint {
  readonly url: string;
  readonly #clock: Clock;
  #credentials: Credentials;
  #client: Etcd3;
  /** Undefined without a user. */
  #token: UserToken | undefined;

  constructor(url: string, { credentials, clock }: { readonly credentials: Credentials; readonly clock: Clock }) {
    this.url = url;
    this.#clock = clock;
    this.#credentials = credentials;
    this.#client = connect(url, credentials);
    this.#token = credentials.user && new UserToken(credentials.user);
  }

  /** Uses new credentials. Requests in flight are not affected. */
  renew(credentials: Credentials): void {
    this.#client.close();
    this.#credentials = credentials;
    this.#client = connect(this.url, credentials);
    this.#token = credentials.user && new UserToken(credentials.user);
  }

  /**
   * Sends one request, and again if etcd refuses its token, as it was not executed. It is cancelled by the signal or the timeout.
   * @throws Failure, {@link RevisionGone}
   */
  call<Response extends EtcdResponse>(
    send: SendRequest<Response>,
    { signal, timeoutMs }: CallBounds,
  ): Promise<Response> {
    if (signal.aborted) return Promise.reject(failureOfSignal(signal));
    const call = new CancellableCall();
    return new Promise((resolve, reject) => {
      const onAbort = (): void => abandon(failureOfSignal(signal));
      const cancelTimeout = this.#clock.after(timeoutMs, () => abandon(timeoutFailure(this.url, timeoutMs)));
      const cleanUp = (): void => {
        cancelTimeout();
        signal.removeEventListener('abort', onAbort);
      };
      const abandon = (failure: Error): void => {
        cleanUp();
        call.cancel();
        reject(failure);
      };
      signal.addEventListener('abort', onAbort);
      this.#send(send, call.interceptor).then(
        (answer) => {
          cleanUp();
          resolve(answer);
        },
        (error: unknown) => {
          cleanUp();
          reject(this.failure(error));
        },
      );
    });
  }

  /**
   * Opens a stream for watches. It requires a leader, so that it ends instead of stalling when the server loses it.
   * @param ends - ends the iteration of its responses
   */
  async openWatch(ends: AbortSignal): Promise<WatchResponses> {
    const token = await this.#token?.get(this.#client);
    const interceptors = [requireLeader, ...(token === undefined ? [] : [withToken(token)])];
    return new WatchResponses(await this.#client.watchClient.watch({ interceptors }), ends);
  }

  failure(error: unknown): Error | RevisionGone {
    const certificate = this.#credentials.tls.identity?.certificate;
    return failureOfEtcd(error, this.url, certificate && { certificate, nowMs: this.#clock.nowMs() });
  }

  close(): void {
    this.#client.close();
  }

  async #send<Response extends EtcdResponse>(send: SendRequest<Response>, interceptor: Interceptor): Promise<Response> {
    const [client, token] = [this.#client, this.#token];
    if (!token) return await send(client, { interceptors: [interceptor] });
    const first = token.get(client);
    try {
      return await send(client, { interceptors: [interceptor, withToken(await first)] });
    } catch (error) {
      if (!isStaleTokenError(error)) throw error;
      token.forget(first);
      return await send(client, { interceptors: [interceptor, withToken(await token.get(client))] });
    }
  }
}

type FaultHandling = NonNullable<NonNullable<IOptions['faultHandling']>['global']>;

const noEvents: FaultHandling['onSuccess'] & FaultHandling['onFailure'] = () => ({ dispose: () => undefined });

/** Each request is sent once. etcd3's own repeats transactions, and selects servers without checking for a leader. */
class NoFaultHandling implements FaultHandling {
  /** Exists in the type only. */
  declare readonly _altReturn: never;
  readonly onSuccess = noEvents;
  readonly onFailure = noEvents;
  readonly #signal = new AbortController().signal;

  async execute<T>(request: (context: { signal: AbortSignal }) => PromiseLike<T> | T): Promise<T> {
    return await request({ signal: this.#signal });
  }
}

function connect(url: string, { tls: { ca, identity } }: Credentials): Etcd3 {
  omitAddressesAsServerNames();
  return new Etcd3({
    hosts: url,
    grpcOptions: CHANNEL,
    faultHandling: { global: new NoFaultHandling(), host: () => new NoFaultHandling() },
    // Without files, the scheme of the URL alone selects TLS.
    ...((ca ?? identity) && {
      credentials: {
        rootCertificate: ca ?? Buffer.from(rootCertificates.join('\n')),
        ...(identity && { privateKey: identity.key, certChain: identity.certificate }),
      },
    }),
  });
}

/**
 * The gRPC status of an abandoned call, which only etcd3 sees: on CANCELLED it considers the server faulty and closes
 * the channel, with all requests that wait for a connection.
 */
const ABANDONED = status.FAILED_PRECONDITION;

/** etcd3 returns no call object, so an interceptor captures it. */
class CancellableCall {
  #call: InterceptingCall | undefined;
  #isCancelled = false;

  readonly interceptor: Interceptor = (options, nextCall) => {
    const call = new InterceptingCall(nextCall(options));
    // Abandoned while waiting for its token: it must not be sent.
    if (this.#isCancelled) call.cancelWithStatus(ABANDONED, 'abandoned before it was sent');
    this.#call = call;
    return call;
  };

  cancel(): void {
    this.#isCancelled = true;
    this.#call?.cancelWithStatus(ABANDONED, 'abandoned');
  }
}

const requireLeader: Interceptor = (options, nextCall) =>
  new InterceptingCall(nextCall(options), {
    start: (metadata, listener, next) => {
      // etcd3 uses one object for all calls.
      const own = metadata.clone();
      own.set('hasleader', 'true');
      next(own, listener);
    },
  });

/**
 * How etcd refuses a token that it issued (api/v3rpc/rpctypes/error.go): it has expired, or was lost with a restart or
 * a new password; or, for a JSON web token, users or roles have changed since. The request has not been executed.
 */
const STALE_TEXTS = ['etcdserver: invalid auth token', 'etcdserver: revision of auth store is old'];

/** Replaces etcd's own text for an invalid token: etcd3 retries a call that fails with that exact text, without end. */
const STALE_TOKEN_MESSAGE = 'etcd rejects the token';

/**
 * A user's token, sent with every request. It replaces etcd3's own, which is kept until etcd reports it as invalid, and
 * is fetched on a separate connection without a timeout and through any proxy in the environment.
 */
class UserToken {
  readonly #user: NonNullable<Credentials['user']>;
  #latest: Promise<string> | undefined;

  constructor(user: NonNullable<Credentials['user']>) {
    this.#user = user;
  }

  /** The current token; requests one if there is none. @throws Error of etcd3 */
  get({ auth }: Etcd3): Promise<string> {
    const { name, password } = this.#user;
    if (this.#latest) return this.#latest;
    const pending = auth.authenticate({ name, password }).then(({ token }) => token);
    this.#latest = pending;
    pending.catch(() => this.forget(pending));
    return pending;
  }

  /** Drops a refused token, so that the next call requests a new one. */
  forget(pending: Promise<string>): void {
    if (this.#latest === pending) this.#latest = undefined;
  }
}

/** Whether a request failed only because of its token. */
function isStaleTokenError(error: unknown): boolean {
  return error instanceof Error && [STALE_TOKEN_MESSAGE, ...STALE_TEXTS].some((text) => error.message.includes(text));
}

/** Adds a token to each call. */
function withToken(token: string): Interceptor {
  return (options, nextCall) =>
    new InterceptingCall(nextCall(options), {
      start: (metadata, _listener, next) => {
        // etcd3 uses one object for all calls.
        const own = metadata.clone();
        own.set('token', token);
        next(own, {
          onReceiveStatus: (status, forward) => {
            const isStale = STALE_TEXTS.some((text) => status.details.includes(text));
            forward(isStale ? { ...status, details: STALE_TOKEN_MESSAGE } : status);
          },
        });
      },
    });
}

/**
 * The responses of one watch stream, for one iteration. Ends when the signal fires; fails when the stream does, or when the
 * server ends it, after the buffered responses.
 */
class WatchResponses implements AsyncIterable<IWatchResponse> {
  readonly #stream: WatchStream;
  readonly #ends: AbortSignal;
  readonly #buffered: IWatchResponse[] = [];
  #failure: Error | undefined;
  #wake = (): void => undefined;
  readonly #onAbort = (): void => this.#wake();

  constructor(stream: WatchStream, ends: AbortSignal) {
    this.#stream = stream;
    this.#ends = ends;
    stream.on('data', (response) => {
      this.#buffered.push(response);
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
      const response = this.#buffered.shift();
      if (response) yield response;
      else if (this.#failure) throw this.#failure;
      else await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  /** Idempotent. */
  close(): void {
    this.#ends.removeEventListener('abort', this.#onAbort);
    // Ended first: etcd3 attributes the error of a cancelled open stream to the server and drops the connection.
    this.#stream.end();
    this.#stream.cancel();
  }

  #fail(error: Error): void {
    this.#failure ??= error;
    this.#wake();
  }
}
