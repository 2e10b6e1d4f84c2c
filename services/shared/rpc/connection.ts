import { Client, connectivityState, credentials, type ChannelOptions } from '@grpc/grpc-js';

import { MAX_REQUEST_BYTES } from './message-size.js';

/** How long the other side of a TCP connection may say nothing. */
export interface ConnectionTimeouts {
  /** Interval between keepalive pings, in milliseconds; they are sent also without a call in flight. */
  readonly keepaliveIntervalMs: number;
  /** For its answer, in milliseconds. */
  readonly keepaliveTimeoutMs: number;
  /** For a connection to come about, gRPC's greeting included, in milliseconds; the next one has twice that, up to six times. */
  readonly connectTimeoutMs: number;
}

const MAX_CONNECT_FACTOR = 6;

/** In total less than the 15 s of an ADD, so that a request lost on a dead connection can be retried on another in time. */
const DEFAULT_TIMEOUTS: ConnectionTimeouts = {
  keepaliveIntervalMs: 7000,
  keepaliveTimeoutMs: 5000,
  connectTimeoutMs: 5000,
};

/**
 * What a service may send on a stream, and on all of them, before this process has read it. With HTTP/2's 64 KiB each message of a long snapshot takes
 * several turns of both event loops, which wait for each other: 10,000 blocks took twice as long.
 */
const WINDOW_BYTES = 4 * 1024 * 1024;

/**
 * A service restarts within a second or two; a channel that backs off for longer, as is gRPC's default, would
 * keep pods waiting for a service that is there.
 */
const CHANNEL: ChannelOptions = {
  'grpc-node.flow_control_window': WINDOW_BYTES,
  'grpc.initial_reconnect_backoff_ms': 50,
  'grpc.min_reconnect_backoff_ms': 50,
  'grpc.max_reconnect_backoff_ms': 500,
  'grpc.service_config_disable_resolution': 1,
  // Pods must not wait for a proxy that the environment names for other purposes.
  'grpc.enable_http_proxy': 0,
  // Nobody asks for what it counts with each call.
  'grpc.enable_channelz': 0,
  // A service would refuse it without telling a request that is too large from other causes.
  'grpc.max_send_message_length': MAX_REQUEST_BYTES,
};

/**
 * The gRPC client of one address; connects and reconnects automatically.
 *
 * A power failure or a network partition closes no TCP connection: the kernel retransmits for 15 minutes and waits two
 * minutes for a connect, while the address may lead to another replica by then. So keepalive pings check the peer, and
 * a client whose connect hangs, for which gRPC has no timeout, is replaced. Calls in flight then fail with UNAVAILABLE.
 * The end of a process behind a unix socket is always reported.
 *
 * gRPC drops a pending connection only when the kernel does (tcp(7), `tcp_syn_retries`), or when the process that
 * accepted it and sends nothing does. So the connect timeout grows with the number of pending connections.
 */
export class Connection {
  readonly #address: string;
  readonly #timeouts: ConnectionTimeouts | undefined;
  #client: Client;
  #isClosed = false;
  #connectTimer: NodeJS.Timeout | undefined;
  #connectFactor = 1;

  constructor(address: string, timeouts = DEFAULT_TIMEOUTS) {
    this.#address = address;
    this.#timeouts = address.startsWith('unix:') ? undefined : timeouts;
    this.#client = this.#open();
  }

  /** To be asked for with each call. */
  get client(): Client {
    return this.#client;
  }

  /** Whether the other side has greeted, and has not gone since. Asking makes no connection. */
  get isConnected(): boolean {
    return this.#client.getChannel().getConnectivityState(false) === connectivityState.READY;
  }

  /** Calls under way fail. Idempotent. */
  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#connectTimer);
    this.#client.close();
  }

  #open(): Client {
    const timeouts = this.#timeouts;
    if (!timeouts) return new Client(this.#address, credentials.createInsecure(), CHANNEL);
    const client = new Client(this.#address, credentials.createInsecure(), {
      'grpc.keepalive_time_ms': timeouts.keepaliveIntervalMs,
      'grpc.keepalive_timeout_ms': timeouts.keepaliveTimeoutMs,
      'grpc.keepalive_permit_without_calls': 1,
      // One that another client is still making would be taken over.
      'grpc.use_local_subchannel_pool': 1,
      ...CHANNEL,
    });
    this.#limitConnecting(client, timeouts.connectTimeoutMs);
    return client;
  }

  #limitConnecting(client: Client, connectMs: number): void {
    const channel = client.getChannel();
    const watch = (): void => {
      if (this.#isClosed || client !== this.#client) return;
      const state = channel.getConnectivityState(false);
      clearTimeout(this.#connectTimer);
      if (state === connectivityState.READY) this.#connectFactor = 1;
      if (state === connectivityState.CONNECTING) {
        this.#connectTimer = setTimeout(() => this.#renew(), connectMs * this.#connectFactor).unref();
      }
      channel.watchConnectivityState(state, Infinity, watch);
    };
    // Once it is the one in use.
    queueMicrotask(watch);
  }

  #renew(): void {
    this.#connectFactor = Math.min(2 * this.#connectFactor, MAX_CONNECT_FACTOR);
    const hanging = this.#client;
    this.#client = this.#open();
    hanging.close();
  }
}
