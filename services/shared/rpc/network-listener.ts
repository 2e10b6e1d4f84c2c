import { createServer, type Server, type Socket } from 'node:net';

import { ServerInterceptingCall, ServerListenerBuilder, type ServerInterceptor } from '@grpc/grpc-js';

import { Failure } from '../failure/failure.js';
import { statusOfError } from '../failure/status.js';
import type { Clock } from '../runtime/clock.js';
import { sourceOf } from '../sockets/source-counts.js';
import { formatCaller, type NetworkCaller } from '../tls/caller.js';
import { markNetworkCall, type IdentifiableCall } from './access.js';
import type { RefusalReason } from './request-queue.js';

interface RateLimit {
  /** How many may come at once. */
  readonly burst: number;
  readonly perSecond: number;
}

/** Limits of one caller. A source is an address, whose limits hold until a call proves its caller. */
export interface NetworkLimits {
  readonly connectionsPerCaller: number;
  readonly connectionsPerSource: number;
  /** New connections of a source. */
  readonly handshakes: RateLimit;
  readonly openCalls: number;
  /** Started calls: one that is cancelled at once costs as well. */
  readonly calls: RateLimit;
}

/**
 * Limits of this release. A node has one to three connections, and leftovers of a power failure; an operator's tools have one
 * each. A handshake takes a millisecond of processor time, and nodes may reach the service through one proxy.
 */
export const NETWORK_LIMITS: NetworkLimits = {
  connectionsPerCaller: 16,
  connectionsPerSource: 64,
  handshakes: { burst: 10, perSecond: 50 },
  openCalls: 128,
  calls: { burst: 500, perSecond: 200 },
};

/** A connection beyond a limit is closed this much later, in milliseconds, so that its client does not try again at once. */
const REFUSED_CLOSE_MS = 1000;
const MAX_REFUSED = 1000;

/** A connection without a call ends after this time, in milliseconds: clients connect when they call. */
const CALL_WITHIN_MS = 10_000;

interface NetworkListenerOptions {
  /** `host:port`. */
  readonly address: string;
  readonly clock: Clock;
  readonly limits: NetworkLimits;
  readonly prove: Prove;
  /** A connection or a call was refused. @param name - the caller, or the address of one that is not known yet */
  readonly refused: (name: string, role: Role, reason: RefusalReason) => void;
}

type Role = NetworkCaller['role'] | 'none';

/** Recognises who makes a call. @throws Failure ACCESS_DENIED where nothing proves it, UNREACHABLE, or the signal's */
export type Prove = (call: IdentifiableCall, signal: AbortSignal) => Promise<NetworkCaller>;

interface Connection {
  readonly socket: Socket;
  /** Owner of the limits of the connection: its caller's once a call has proven it, until then its source's. */
  user: CallerUse;
  isProven: boolean;
  hasCalled: boolean;
  isRefused: boolean;
}

/**
 * Accepts connections over the network and limits what one caller can take of the service: connections, handshakes, open and
 * started calls. Everything is decided before it costs much: a connection before its handshake, by its source; a connection
 * of a known caller at its first call; a call before its request is read. A revoked certificate uses no limit of its caller.
 */
export class NetworkListener {
  readonly #options: NetworkListenerOptions;
  readonly #server: Server;
  /** Use by source and by caller. */
  readonly #users = new Map<string, CallerUse>();
  /** Connections by the peer's `address:port`, as gRPC names it. */
  readonly #connections = new Map<string, Connection>();
  #take: (socket: Socket) => void = () => undefined;
  #refusedCount = 0;

  constructor(options: NetworkListenerOptions) {
    this.#options = options;
    this.#server = createServer({ noDelay: true }, (socket) => this.#accept(socket));
  }

  /**
   * @param take - gets each accepted connection
   * @returns the port
   * @throws Error of the operating system
   */
  async listen(take: (socket: Socket) => void): Promise<number> {
    this.#take = take;
    const [, host = '', port = ''] = /^\[?(.*?)\]?:(\d+)$/.exec(this.#options.address) ?? [];
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject).listen(Number(port), host, () => resolve());
    });
    const bound = this.#server.address();
    return typeof bound === 'object' && bound ? bound.port : Number(port);
  }

  /** Accepts no more connections, and closes connections without a call, which gRPC does not know of during their handshake. */
  close(): void {
    this.#server.close();
    for (const { socket, hasCalled } of this.#connections.values()) if (!hasCalled) socket.destroy();
  }

  /** Resolves when every accepted connection has ended. To be called after {@link close}. */
  async ended(): Promise<void> {
    const open = [...this.#connections.values()].map(({ socket }) => socket);
    await Promise.all(open.map((socket) => new Promise((resolve) => socket.once('close', resolve))));
  }

  /** Marks and counts calls, and answers calls beyond the limits and calls of an unproven caller. */
  readonly interceptor: ServerInterceptor = (_, call) => {
    const peer = call.getPeer();
    const connection = this.#connections.get(peer);
    if (!connection || !this.#mayStart(connection)) return new ServerInterceptingCall(call, { start: () => undefined });
    const ended = new AbortController();
    let user: CallerUse | undefined;
    const start = (): void => {
      if (ended.signal.aborted) return;
      this.#requireOpenCall(connection.user);
      user = connection.user;
      user.openCallCount++;
    };
    const refuse = (error: unknown): void => call.sendStatus(statusOfError(error));
    const listener = new ServerListenerBuilder()
      .withOnReceiveMetadata((metadata, pass) => {
        markNetworkCall(metadata, peer);
        const proven = { getAuthContext: () => call.getAuthContext(), metadata };
        void this.#prove(connection, proven, ended.signal)
          .then(start)
          .then(() => pass(metadata), refuse);
      })
      // gRPC calls it at the end of every call, answered ones included.
      .withOnCancel(() => {
        ended.abort();
        if (user) user.openCallCount--;
      })
      .build();
    return new ServerInterceptingCall(call, { start: (next) => next(listener) });
  };

  #accept(socket: Socket): void {
    const { limits, clock } = this.#options;
    const source = `client at ${sourceOf(socket.remoteAddress ?? '')}`;
    const user = this.#userOf(source);
    const isOver = user.connectionCount >= limits.connectionsPerSource;
    if (isOver || !user.handshakes.take(clock.monotonicMs())) {
      this.#refuse(socket, source);
      return;
    }
    const connection: Connection = { socket, user, isProven: false, hasCalled: false, isRefused: false };
    const peer = `${socket.remoteAddress}:${socket.remotePort}`;
    this.#connections.set(peer, connection);
    user.connectionCount++;
    const cancel = clock.after(CALL_WITHIN_MS, () => {
      if (!connection.hasCalled) socket.destroy();
    });
    socket.once('close', () => {
      cancel();
      this.#connections.delete(peer);
      connection.user.connectionCount--;
    });
    this.#take(socket);
  }

  /** Holds the socket unread for a moment. */
  #refuse(socket: Socket, source: string): void {
    this.#options.refused(source, 'none', 'connections');
    socket.on('error', () => undefined);
    if (this.#refusedCount >= MAX_REFUSED) {
      socket.destroy();
      return;
    }
    this.#refusedCount++;
    const cancel = this.#options.clock.after(REFUSED_CLOSE_MS, () => socket.destroy());
    socket.once('close', () => {
      this.#refusedCount--;
      cancel();
    });
    socket.pause();
  }

  /** Whether a call may start. If calls start too fast, the connection ends. */
  #mayStart(connection: Connection): boolean {
    if (connection.isRefused) return false;
    connection.hasCalled = true;
    const { user } = connection;
    if (user.calls.take(this.#options.clock.monotonicMs())) return true;
    this.#options.refused(user.name, user.role, 'calls');
    this.#end(connection);
    return false;
  }

  /** @throws Failure TOO_MANY_REQUESTS */
  #requireOpenCall({ name, role, openCallCount }: CallerUse): void {
    const { limits, refused } = this.#options;
    if (openCallCount < limits.openCalls) return;
    refused(name, role, 'requests');
    const text = `${name}: it has ${limits.openCalls} open calls; send fewer at once, and retry later`;
    throw new Failure('TOO_MANY_REQUESTS', text);
  }

  /** @throws Failure ACCESS_DENIED, UNREACHABLE, or TOO_MANY_REQUESTS for a connection beyond the caller's */
  async #prove(connection: Connection, call: IdentifiableCall, signal: AbortSignal): Promise<void> {
    if (connection.isProven) return;
    const { prove, refused } = this.#options;
    const caller = await prove(call, signal).catch((error: unknown) => {
      const isDenied = error instanceof Failure && error.code === 'ACCESS_DENIED';
      if (isDenied) refused(connection.user.name, 'none', 'identity');
      throw error;
    });
    this.#countFor(connection, caller);
  }

  /** Counts a connection for its caller from now on. Several of its calls may prove it at once. */
  #countFor(connection: Connection, caller: NetworkCaller): void {
    if (connection.isProven || connection.socket.destroyed) return;
    const { limits, refused } = this.#options;
    const name = formatCaller(caller);
    const user = this.#userOf(name, caller.role);
    if (user.connectionCount >= limits.connectionsPerCaller) {
      refused(name, caller.role, 'connections');
      this.#end(connection);
      throw new Failure('TOO_MANY_REQUESTS', `${name}: it has ${limits.connectionsPerCaller} connections; close some`);
    }
    connection.user.connectionCount--;
    user.connectionCount++;
    connection.user = user;
    connection.isProven = true;
  }

  #end(connection: Connection): void {
    connection.isRefused = true;
    connection.socket.destroy();
  }

  #userOf(name: string, role: Role = 'none'): CallerUse {
    const known = this.#users.get(name);
    if (known) return known;
    const nowMs = this.#options.clock.monotonicMs();
    for (const [other, user] of this.#users) if (user.isIdle(nowMs)) this.#users.delete(other);
    const user = new CallerUse(name, role, this.#options.limits);
    this.#users.set(name, user);
    return user;
  }
}

/** Use by a caller or a source. */
class CallerUse {
  readonly name: string;
  readonly role: Role;
  connectionCount = 0;
  openCallCount = 0;
  readonly handshakes: Tokens;
  readonly calls: Tokens;

  constructor(name: string, role: Role, { handshakes, calls }: NetworkLimits) {
    this.name = name;
    this.role = role;
    this.handshakes = new Tokens(handshakes);
    this.calls = new Tokens(calls);
  }

  /** Whether it may be forgotten. */
  isIdle(nowMs: number): boolean {
    return this.connectionCount + this.openCallCount === 0 && this.handshakes.isFull(nowMs) && this.calls.isFull(nowMs);
  }
}

/** Limits a rate: a token for each event, and tokens come back with time. */
class Tokens {
  readonly #limit: RateLimit;
  #count: number;
  #atMs = -Infinity;

  constructor(limit: RateLimit) {
    this.#limit = limit;
    this.#count = limit.burst;
  }

  isFull(nowMs: number): boolean {
    return this.#countAt(nowMs) >= this.#limit.burst;
  }

  /** @returns false when there is none */
  take(nowMs: number): boolean {
    const count = this.#countAt(nowMs);
    if (count < 1) return false;
    this.#count = count - 1;
    this.#atMs = nowMs;
    return true;
  }

  #countAt(nowMs: number): number {
    const { burst, perSecond } = this.#limit;
    return Math.min(burst, this.#count + ((nowMs - this.#atMs) / 1000) * perSecond);
  }
}
