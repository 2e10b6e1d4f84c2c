import { rootCertificates } from 'node:tls';

import { InterceptingCall, status, type CallOptions, type ChannelOptions, type Interceptor } from '@grpc/grpc-js';
import { failureOfSignal } from '@podwire/shared/failure/signal';
import type { Clock } from '@podwire/shared/runtime/clock';
import {
  Etcd3,
  type IDuplexStream,
  type IOptions,
  type IResponseHeader,
  type IWatchRequest,
  type IWatchResponse,
} from 'etcd3';

import { withToken, isStaleTokenError, UserToken, type Credentials } from './credentials.js';
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

export type WatchStream = IDuplexStream<IWatchRequest, IWatchResponse>;

/** Sends one request; must pass the options to the client's method. */
export type SendRequest<Response extends EtcdResponse> = (client: Etcd3, options: CallOptions) => Promise<Response>;

interface CallBounds {
  readonly signal: AbortSignal;
  readonly timeoutMs: number;
}

/**
 * One server of the cluster. etcd3's own fault handling is disabled: it repeats transactions, and selects servers without checking
 * for a leader.
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

  /** Opens a stream for watches. It requires a leader, so that it ends instead of stalling when the server loses it. */
  async openWatch(): Promise<WatchStream> {
    const token = await this.#token?.get(this.#client);
    const interceptors = [requireLeader, ...(token === undefined ? [] : [withToken(token)])];
    return await this.#client.watchClient.watch({ interceptors });
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

/** Each request is executed once, whatever its result. */
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
