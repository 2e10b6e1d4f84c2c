import type { Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

import {
  experimental,
  Server,
  ServerCredentials,
  type ServiceDefinition,
  type UntypedServiceImplementation,
} from '@grpc/grpc-js';
import { HealthImplementation } from 'grpc-health-check';

import { Failure } from '../failure/failure.js';
import { messageOf } from '../failure/thrown.js';
import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import { UNIX } from '../sockets/listen.js';
import { UnixListener } from '../sockets/unix-listener.js';
import type { CertificateSource } from '../tls/certificate-source.js';
import { proveCaller, type Admission, type Authorize } from './access.js';
import { serveUnknownMethods, withUndecodable } from './border.js';
import { MAX_REQUEST_BYTES } from './connection.js';
import { NETWORK_LIMITS, NetworkListener, type NetworkLimits, type Prove } from './network-listener.js';
import { addReflection } from './reflection.js';
import { RELEASE, releaseInterceptor } from './release.js';
import { RequestQueue, STREAM_QUEUE_LIMITS, type QueueLimits } from './request-queue.js';
import { RpcEvents } from './rpc-events.js';
import { Streams, type Streaming } from './streaming.js';
import { unaryHandlers, type Unary } from './unary.js';

/** A gRPC service with its implementation. */
export interface RpcService {
  /** Full name, as in the contract: `podwire.ipam.v1.PoolService`. */
  readonly name: string;
  readonly definition: ServiceDefinition;
  readonly implementation: UntypedServiceImplementation;
}

export interface RpcServerOptions {
  /** Addresses to listen at: `unix:/absolute/path` or `host:port`. */
  readonly addresses: readonly string[];
  readonly log: Logger;
  readonly clock: Clock;
  /** Timeout of a call without a deadline, in milliseconds. */
  readonly defaultCallTimeoutMs: number;
  /** Timeout for calls in flight after {@link RpcServer.stop}, in milliseconds. */
  readonly drainTimeoutMs: number;
  /** Maximum number of open streams. Range: 1 and more. Default: 30,000. */
  readonly maxStreamsCount?: number;
  /** Release of the server. Default: {@link RELEASE}. */
  readonly release?: number;
  /**
   * Certificate of this server and the authorities of its clients, for every address that is not a unix socket. Undefined
   * for plain text, which only a loopback address may have.
   */
  readonly certificates?: CertificateSource | undefined;
  /** Default: clients over the network have to show a certificate, and none is revoked. */
  readonly proofs?: Pick<Admission, 'tokens' | 'isRevoked'>;
  /** Limits of the requests of clients with certificates. Default: {@link QUEUE_LIMITS}. */
  readonly queueLimits?: QueueLimits;
  /** Limits of a caller over the network. Default: {@link NETWORK_LIMITS}. */
  readonly networkLimits?: NetworkLimits;
  /** Decides over the calls of clients with certificates. Default: they may call everything. */
  readonly authorize?: Authorize;
  /** Makes the services out of the server's ways to make handlers. */
  readonly services: (unary: Unary, streaming: Streaming) => readonly RpcService[];
}

/** HTTP/2 begins with `PRI` (RFC 9113, section 3.4). */
const HEALTH_REQUEST = Buffer.from('GET /healthz ');

type ConnectionInjector = ReturnType<Server['createConnectionInjector']>;

/** Three of each of 5,000 nodes, twice: the service may not have noticed the end of the ones before. */
const DEFAULT_MAX_STREAMS_COUNT = 30_000;

/**
 * Maximum number of calls that a connection may have open; the client delays further ones. Twice as many as execute, so that
 * the next ones are there when some end. All that a client sends at once take processor time in one turn of the event loop.
 */
const MAX_CALLS_PER_CONNECTION = 64;

/** A connection whose peer vanished without closing it, as by a power failure, ends within the sum of both. */
const KEEPALIVE = { 'grpc.keepalive_time_ms': 30_000, 'grpc.keepalive_timeout_ms': 10_000 } as const;

/**
 * A gRPC server with health (grpc.health.v1) and reflection. Not serving until {@link RpcServer.setServing}. A deleted
 * unix socket is created again without interrupting connections and calls.
 */
export class RpcServer {
  readonly #options: RpcServerOptions;
  readonly #server: Server;
  readonly #health = new HealthImplementation();
  readonly #streams: Streams;
  readonly #services: readonly RpcService[];
  readonly #events: RpcEvents;
  readonly #admission: Admission;
  readonly #listeners: Pick<UnixListener, 'close' | 'ended'>[] = [];
  #isStopping = false;
  #isServing = false;

  constructor(options: RpcServerOptions) {
    this.#options = options;
    const {
      log,
      clock,
      defaultCallTimeoutMs,
      maxStreamsCount = DEFAULT_MAX_STREAMS_COUNT,
      release = RELEASE,
      authorize,
      queueLimits: limits,
      proofs,
    } = options;
    const events = new RpcEvents({ log, clock });
    this.#events = events;
    const queue = new RequestQueue({ clock, events, limits });
    const admission = { authorize, clock, queue, ...proofs };
    this.#admission = admission;
    this.#server = new Server({
      'grpc.max_receive_message_length': MAX_REQUEST_BYTES,
      'grpc.max_concurrent_streams': MAX_CALLS_PER_CONNECTION,
      ...KEEPALIVE,
      interceptors: [releaseInterceptor(release)],
    });
    const streamQueue = new RequestQueue({ clock, events, limits: STREAM_QUEUE_LIMITS });
    this.#streams = new Streams({
      log,
      clock,
      maxStreamsCount,
      admission: { ...admission, queue: streamQueue },
      events,
    });
    this.#services = options.services(
      unaryHandlers({ log, clock, defaultTimeoutMs: defaultCallTimeoutMs, admission }),
      this.#streams.handlers,
    );
    for (const { definition, implementation } of this.#services)
      this.#server.addService(withUndecodable(definition), implementation);
    this.#health.addToServer(this.#server);
    addReflection(this.#server, this.#names());
    serveUnknownMethods(this.#server);
    this.#setHealth('NOT_SERVING');
  }

  /**
   * Listens at every address, or at some of them. Unix sockets are accessible to their owner only.
   * @returns the addresses, with the actual port in place of port 0
   * @throws Failure INVALID_SETTINGS when an address is in use or cannot be bound
   */
  async listen(addresses = this.#options.addresses): Promise<readonly string[]> {
    const bound: string[] = [];
    for (const requestedAddress of addresses) {
      const address = await this.#listenAt(requestedAddress);
      this.#options.log.info({ address }, `listening at ${address}`);
      bound.push(address);
    }
    return bound;
  }

  /** Sets the health status to SERVING. */
  setServing(): void {
    if (!this.#isStopping) this.#setHealth('SERVING');
  }

  /** Sets the health status to NOT_SERVING. The services still answer. */
  setNotServing(): void {
    this.#setHealth('NOT_SERVING');
  }

  /** The health status. */
  get isServing(): boolean {
    return this.#isServing;
  }

  /** Number of open streams. */
  get streamsCount(): number {
    return this.#streams.count;
  }

  /**
   * Accepts no more calls, ends the streams, waits for calls in flight up to the drain timeout, and then cancels them. A client that
   * watches the health status counts as a call in flight.
   */
  async stop(): Promise<void> {
    this.#isStopping = true;
    this.#setHealth('NOT_SERVING');
    this.#streams.drain();
    for (const listener of this.#listeners) listener.close();
    const shutDown = new Promise<void>((resolve) => this.#server.tryShutdown(() => resolve()));
    // Since Node.js 24 gRPC does not wait for injected connections.
    const drained = Promise.all([shutDown, ...this.#listeners.map((listener) => listener.ended())]);
    const overdue = new AbortController();
    const timeout = sleep(this.#options.drainTimeoutMs, 'overdue', { signal: overdue.signal }).catch(() => undefined);
    if ((await Promise.race([drained, timeout])) === 'overdue') this.#server.forceShutdown();
    overdue.abort();
  }

  async #listenAt(address: string): Promise<string> {
    if (!address.startsWith(UNIX)) return address.replace(/\d+$/, String(await this.#listenAtPort(address)));
    const { log, clock } = this.#options;
    const injector = this.#server.createConnectionInjector(ServerCredentials.createInsecure());
    const listener = new UnixListener({
      path: address.slice(UNIX.length),
      log,
      clock,
      take: (connection) => this.#begin(connection, injector),
    });
    this.#listeners.push(listener);
    await listener.listen();
    return address;
  }

  /** A connection that begins with `GET /healthz` asks for the health: the probe of containers does not speak HTTP/2. */
  #begin(connection: Socket, injector: ConnectionInjector): void {
    const closeSilently = (): void => undefined;
    connection.once('error', closeSilently);
    connection.once('readable', () => {
      const bytes: unknown = connection.read();
      if (!(bytes instanceof Buffer)) return;
      if (bytes.subarray(0, HEALTH_REQUEST.length).equals(HEALTH_REQUEST)) {
        const status = this.#isServing ? '200 OK' : '503 Service Unavailable';
        connection.end(`HTTP/1.1 ${status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n`).resume();
        // A stop does not wait for a client that keeps its end open.
        connection.once('finish', () => connection.destroy());
      } else {
        connection.unshift(bytes);
        connection.off('error', closeSilently);
        injector.injectConnection(connection);
      }
    });
  }

  #names(): string[] {
    return this.#services.map((service) => service.name);
  }

  #setHealth(status: 'SERVING' | 'NOT_SERVING'): void {
    this.#isServing = status === 'SERVING';
    for (const service of ['', ...this.#names()]) this.#health.setStatus(service, status);
  }

  async #listenAtPort(address: string): Promise<number> {
    const { certificates, clock, networkLimits: limits = NETWORK_LIMITS } = this.#options;
    try {
      if (!certificates) return await this.#bind(address);
      const refused: RpcEvents['refused'] = (...refusal) => this.#events.refused(...refusal);
      const prove: Prove = (call, signal) => proveCaller(this.#admission, call, signal);
      const listener = new NetworkListener({ address, clock, limits, prove, refused });
      const credentials = this.#networkCredentials(certificates, listener);
      const injector = this.#server.createConnectionInjector(credentials);
      const port = await listener.listen((connection) => injector.injectConnection(connection));
      this.#listeners.push(listener);
      return port;
    } catch (error) {
      throw new Failure('INVALID_SETTINGS', `cannot listen at ${address}: ${messageOf(error)}`, { cause: error });
    }
  }

  #networkCredentials(certificates: CertificateSource, { interceptor }: NetworkListener): ServerCredentials {
    const { createCertificateProviderServerCredentials, createServerCredentialsWithInterceptors } = experimental;
    // The first argument gives the server's own certificate, the second the authorities of clients.
    const tls = createCertificateProviderServerCredentials(certificates, certificates, !this.#admission.tokens);
    return createServerCredentialsWithInterceptors(tls, [interceptor]);
  }

  /** Listens in plain text. */
  #bind(address: string): Promise<number> {
    return new Promise((resolve, reject) => {
      this.#server.bindAsync(address, ServerCredentials.createInsecure(), (error, port) => {
        if (error) reject(error);
        else resolve(port);
      });
    });
  }
}
