import {
  Client,
  connectivityState,
  credentials,
  experimental,
  type ChannelCredentials,
  type ChannelOptions,
} from '@grpc/grpc-js';

import type { CertificateSource, ClientTls } from '../tls/certificate-source.js';

/** Largest request, in bytes. The largest request of the contract, an AttachPod with many routes, is far smaller. */
export const MAX_REQUEST_BYTES = 1024 * 1024;

/** Timeouts of a connection. */
export interface ConnectionTimeouts {
  /** Interval between keepalive pings over TCP, in milliseconds; they are also sent without a call in flight. */
  readonly keepaliveIntervalMs: number;
  /** Timeout for the answer to a keepalive ping, in milliseconds. */
  readonly keepaliveTimeoutMs: number;
  /** Timeout for a connect, including gRPC's HTTP/2 handshake, in milliseconds. It doubles with each failure, up to six times. */
  readonly connectTimeoutMs: number;
}

const MAX_CONNECT_FACTOR = 6;

/** Keepalive interval and timeout are in total less than the 15 s of an ADD, so that a lost request can be retried in time. */
const DEFAULT_TIMEOUTS: ConnectionTimeouts = {
  keepaliveIntervalMs: 7000,
  keepaliveTimeoutMs: 5000,
  connectTimeoutMs: 5000,
};

/**
 * Flow control window per stream and per connection. With HTTP/2's default of 64 KiB, each message of a long snapshot takes several
 * turns of both event loops, which wait for each other: 10,000 blocks took twice as long.
 */
const WINDOW_BYTES = 4 * 1024 * 1024;

/**
 * Short reconnect back-off: a service restarts within two seconds. With gRPC's longer default, pods would wait although
 * the service is running.
 */
const CHANNEL: ChannelOptions = {
  'grpc-node.flow_control_window': WINDOW_BYTES,
  'grpc.initial_reconnect_backoff_ms': 50,
  'grpc.min_reconnect_backoff_ms': 50,
  'grpc.max_reconnect_backoff_ms': 500,
  'grpc.service_config_disable_resolution': 1,
  // Pods must not wait for a proxy that the environment names for other purposes.
  'grpc.enable_http_proxy': 0,
  // Channelz statistics are not used, and cost time per call.
  'grpc.enable_channelz': 0,
  // The service's refusal would not distinguish a too large request from other causes.
  'grpc.max_send_message_length': MAX_REQUEST_BYTES,
};

/** Longer than the calls of an ADD and a DEL with their default timeouts, in milliseconds. */
const LONGEST_CALL_MS = 30_000;

interface ConnectionOptions {
  readonly tls?: ClientTls | undefined;
  readonly timeouts?: ConnectionTimeouts | undefined;
}

function tlsCredentials({ certificates }: ClientTls): ChannelCredentials {
  return experimental.createCertificateProviderChannelCredentials(
    certificates,
    certificates.hasIdentity ? certificates : null,
  );
}

/**
 * The gRPC client of one address; connects and reconnects automatically.
 *
 * A power failure or a network partition closes no TCP connection: the kernel retransmits for 15 minutes and waits two
 * minutes for a connect, while the address may lead to another replica by then. So keepalive pings check the peer, and
 * a client whose connect hangs, for which gRPC has no timeout, is replaced. Calls in flight then fail with UNAVAILABLE.
 * A unix socket needs no pings: the kernel always reports the end of the peer.
 *
 * The service refuses calls on a connection whose certificate has expired since it was made. So a client with a renewed
 * certificate replaces the current one as soon as it is connected: a certificate that the service does not accept changes
 * nothing. Calls in flight end on the former client; a stream that outlives them is to be opened again.
 *
 * Closing a client does not end its pending connect: it stays until the kernel gives up (tcp(7), `tcp_syn_retries`), or
 * until the peer closes. So the connect timeout grows with each attempt, to limit the number of pending connects.
 */
export class Connection {
  readonly #address: string;
  readonly #timeouts: ConnectionTimeouts;
  readonly #credentials: ChannelCredentials;
  readonly #serverName: ChannelOptions;
  #client: Client;
  #isClosed = false;
  /** Connects with a renewed certificate, to replace the current client. */
  #next: Client | undefined;
  /** Clients of former certificates, for the calls in flight. */
  readonly #former = new Set<Client>();
  /** Ends the notifications of renewed certificates. */
  #unfollow: () => void = () => undefined;
  #connectTimer: NodeJS.Timeout | undefined;
  #connectFactor = 1;

  /** @param options - without `tls`, the connection is in plain text */
  constructor(address: string, { tls, timeouts = DEFAULT_TIMEOUTS }: ConnectionOptions = {}) {
    this.#address = address;
    this.#serverName = tls ? { 'grpc.ssl_target_name_override': tls.serverName } : {};
    this.#credentials = tls ? tlsCredentials(tls) : credentials.createInsecure();
    this.#timeouts = timeouts;
    this.#client = this.#open();
    if (tls?.certificates.hasIdentity === true) this.#follow(tls.certificates);
  }

  /** The current client. It may be replaced, so callers must get it for each call. */
  get client(): Client {
    return this.#client;
  }

  /** Whether there is a connection. Does not start one. */
  get isConnected(): boolean {
    return this.#client.getChannel().getConnectivityState(false) === connectivityState.READY;
  }

  /** Closes the connection; calls in flight fail. Idempotent. */
  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#connectTimer);
    this.#unfollow();
    this.#next?.close();
    for (const client of [this.#client, ...this.#former]) client.close();
    this.#former.clear();
  }

  #follow(certificates: CertificateSource): void {
    let isFirst = true;
    const listener = (): void => {
      // The first one says what there is. gRPC's own listener takes a later one in the same turn.
      if (!isFirst) queueMicrotask(() => this.#renew());
      isFirst = false;
    };
    certificates.addIdentityCertificateListener(listener);
    this.#unfollow = () => certificates.removeIdentityCertificateListener(listener);
  }

  #renew(): void {
    if (this.#isClosed) return;
    this.#next?.close();
    const next = this.#open();
    this.#next = next;
    next.waitForReady(Infinity, (error) => {
      if (error || this.#isClosed || this.#next !== next) return;
      this.#next = undefined;
      this.#retire(this.#client);
      this.#client = next;
      this.#limitConnecting(next);
    });
  }

  #retire(client: Client): void {
    this.#former.add(client);
    const close = (): void => {
      if (this.#former.delete(client)) client.close();
    };
    setTimeout(close, LONGEST_CALL_MS).unref();
  }

  #open(): Client {
    const { keepaliveIntervalMs, keepaliveTimeoutMs } = this.#timeouts;
    const client = new Client(this.#address, this.#credentials, {
      ...(!this.#address.startsWith('unix:') && {
        'grpc.keepalive_time_ms': keepaliveIntervalMs,
        'grpc.keepalive_timeout_ms': keepaliveTimeoutMs,
        'grpc.keepalive_permit_without_calls': 1,
      }),
      // A shared pool would hand the stalled connect of the replaced client to the new one.
      'grpc.use_local_subchannel_pool': 1,
      ...this.#serverName,
      ...CHANNEL,
    });
    this.#limitConnecting(client);
    return client;
  }

  #limitConnecting(client: Client): void {
    const { connectTimeoutMs } = this.#timeouts;
    const channel = client.getChannel();
    const watch = (): void => {
      if (this.#isClosed || client !== this.#client) return;
      const state = channel.getConnectivityState(false);
      clearTimeout(this.#connectTimer);
      if (state === connectivityState.READY) this.#connectFactor = 1;
      if (state === connectivityState.CONNECTING) {
        this.#connectTimer = setTimeout(() => this.#reconnect(), connectTimeoutMs * this.#connectFactor).unref();
      }
      channel.watchConnectivityState(state, Infinity, watch);
    };
    // This follows the assignment to #client.
    queueMicrotask(watch);
  }

  #reconnect(): void {
    this.#connectFactor = Math.min(2 * this.#connectFactor, MAX_CONNECT_FACTOR);
    const stalledClient = this.#client;
    this.#client = this.#open();
    stalledClient.close();
  }
}
