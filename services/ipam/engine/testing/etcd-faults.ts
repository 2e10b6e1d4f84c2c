import { randomUUID } from 'node:crypto';
import { once, setMaxListeners } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

import { Failure } from '@podwire/shared/failure/failure';
import { expect } from 'vitest';

import type { ClusterEvent } from '../etcd/cluster.js';
import { EtcdStore, type EtcdStoreOptions } from '../etcd/etcd-store.js';
import { RevisionCompacted, type RevisionChanges, type Store, type Transaction } from '../store.js';
import { EtcdServer } from './etcd-server.js';

/** Fixtures of the tests of a failing etcd. */

export const never: AbortSignal = new AbortController().signal;
setMaxListeners(0, never);
export const UNAVAILABLE = { code: 'STORE_UNAVAILABLE' };

/** The servers, stores and watches of one test; all end with it. */
export class EtcdFixture {
  readonly events: ClusterEvent[] = [];
  readonly #cleanups: (() => unknown)[] = [];

  async start(...args: Parameters<typeof EtcdServer.start>): Promise<EtcdServer> {
    const server = await EtcdServer.start(...args);
    this.onEnd(() => server.dispose());
    return server;
  }

  async startCluster(size: number): Promise<EtcdServer[]> {
    const servers = await EtcdServer.startCluster(size);
    for (const server of servers) this.onEnd(() => server.dispose());
    return servers;
  }

  async open(servers: readonly Pick<EtcdServer, 'url'>[], options: Partial<EtcdStoreOptions> = {}): Promise<EtcdStore> {
    const report = (event: ClusterEvent): number => this.events.push(event);
    const store = await openEtcdStore(servers, { report, ...options });
    this.onEnd(() => store.close());
    return store;
  }

  watch(store: Store, prefix: string, afterRevision: number): WatchRecorder {
    const watching = new WatchRecorder(store, { prefix, afterRevision });
    this.onEnd(() => watching.end());
    return watching;
  }

  onEnd(clean: () => unknown): void {
    this.#cleanups.push(clean);
  }

  async end(): Promise<void> {
    for (const clean of this.#cleanups.splice(0).reverse()) await clean();
  }
}

export function put(key: string, value = '1', modRevision?: number): Transaction {
  const comparisons = modRevision === undefined ? [] : [{ type: 'record' as const, key, modRevision }];
  return { comparisons, puts: [{ key, value: Buffer.from(value) }], deletes: [] };
}

export async function commit(store: Store, transaction: Transaction): Promise<number> {
  const result = await store.commit(transaction, never);
  if (!result.committed) throw new Error('the comparison was lost');
  return result.revision;
}

/** Repeats what fails as the datastore does not answer. */
export async function untilAnswered<Result>(ask: () => Promise<Result>): Promise<Result> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof Failure && error.retryable) || attempt === 50) throw error;
      await sleep(100);
    }
  }
}

/** Records the items of a watch until it is ended. Resumes a failed watch, as the mirror does. */
class WatchRecorder {
  readonly items: RevisionChanges[] = [];
  readonly failures: unknown[] = [];
  readonly #stop = new AbortController();
  readonly #done: Promise<void>;

  constructor(store: Store, request: { readonly prefix: string; readonly afterRevision: number }) {
    this.#done = this.#follow(store, request);
  }

  get position(): number {
    return this.items.at(-1)?.revision ?? 0;
  }

  async waitForRevision(revision: number): Promise<void> {
    await expect.poll(() => this.position, { timeout: 45_000, interval: 20 }).toBeGreaterThanOrEqual(revision);
  }

  /** Revision and keys of each item with changes. */
  get seen(): [revision: number, ...keys: string[]][] {
    return this.items
      .filter(({ changes }) => changes.length > 0)
      .map(({ revision, changes }) => [revision, ...changes.map(({ key }) => key)]);
  }

  async end(): Promise<void> {
    this.#stop.abort();
    await this.#done;
  }

  async #follow(
    store: Store,
    { prefix, afterRevision }: { readonly prefix: string; readonly afterRevision: number },
  ): Promise<void> {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      try {
        const after = Math.max(afterRevision, this.position);
        for await (const item of store.watch({ prefix, afterRevision: after }, signal)) this.items.push(item);
      } catch (error) {
        this.failures.push(error);
        if (error instanceof RevisionCompacted || this.failures.length > 100) return;
        await sleep(50);
      }
    }
  }
}

const NO_CREDENTIALS = {
  caFile: undefined,
  certFile: undefined,
  keyFile: undefined,
  username: undefined,
  passwordFile: undefined,
};

/** A store on servers of a test, with etcd's own limits, and time for a disk that other processes write to. */
export function openEtcdStore(
  servers: readonly Pick<EtcdServer, 'url'>[],
  options: Partial<EtcdStoreOptions> = {},
): Promise<EtcdStore> {
  return EtcdStore.open({
    endpoints: servers.map(({ url }) => url),
    credentials: NO_CREDENTIALS,
    requestTimeoutMs: 20_000,
    dialTimeoutMs: 20_000,
    maxOperationsCount: 128,
    maxRequestBytes: 1_572_864,
    keyPrefix: '/calico',
    uid: randomUUID(),
    ...options,
  });
}

/** A way to a server on which what clients send can be held back, and be let through long after they have given up. */
export class HoldingProxy {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  /** Held bytes, each with the socket that they go to. */
  #held: { readonly to: Socket; readonly bytes: Buffer }[] = [];
  #state: 'open' | 'holding' | 'frozen' = 'open';

  private constructor(server: Server) {
    this.#server = server;
  }

  /** @param port - 0 for a free one */
  static async start(targetPort: number, port = 0): Promise<HoldingProxy> {
    const server = createServer();
    const proxy = new HoldingProxy(server);
    server.on('connection', (client) => proxy.#serve(client, connect(targetPort, '127.0.0.1')));
    server.listen(port, '127.0.0.1');
    await once(server, 'listening');
    return proxy;
  }

  get url(): string {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('the proxy is closed');
    return `http://127.0.0.1:${address.port}`;
  }

  /** From now on, holds the bytes of clients; bytes of servers pass. */
  hold(): void {
    this.#state = 'holding';
  }

  /** Whether the held bytes contain the text. */
  holds(text: string): boolean {
    return Buffer.concat(this.#held.map(({ bytes }) => bytes)).includes(text);
  }

  /** From now on, what clients send is lost, their farewells too. */
  freeze(): void {
    this.#state = 'frozen';
  }

  /** Delivers the held bytes. @returns their number */
  deliver(): number {
    const held = this.#held.splice(0);
    for (const { to, bytes } of held) to.write(bytes);
    return held.reduce((sum, { bytes }) => sum + bytes.length, 0);
  }

  async close(): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  #serve(client: Socket, target: Socket): void {
    for (const socket of [client, target]) {
      this.#sockets.add(socket);
      socket.on('error', () => undefined);
      socket.on('close', () => this.#sockets.delete(socket));
    }
    client.on('data', (bytes) => {
      if (this.#state === 'open') target.write(bytes);
      else if (this.#state === 'holding') this.#held.push({ to: target, bytes });
    });
    client.on('close', () => {
      if (this.#state === 'open') target.end();
    });
    target.on('data', (bytes) => client.write(bytes));
    target.on('close', () => client.destroy());
  }
}
