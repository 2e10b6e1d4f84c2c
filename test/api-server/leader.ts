import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';

import { Caller } from '@podwire/ipam/testing/service';
import { Peer } from '@podwire/shared/rpc/client';

import type { Replica } from '../history/replica.js';

/** Health of a process that serves (grpc.health.v1). */
const SERVING = 1;

/** The Service of podwire-ipam: forwards new connections to the process that serves. */
export class LeaderService {
  readonly name = 'leader';
  readonly socket: string;
  readonly peer: Peer;
  readonly #callers: readonly { readonly replica: Replica; readonly caller: Caller }[];
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  private constructor(replicas: readonly Replica[], socket: string) {
    this.socket = socket;
    this.peer = new Peer('podwire-ipam', `unix:${socket}`);
    this.#callers = replicas.map((replica) => ({ replica, caller: new Caller(`unix:${replica.socket}`) }));
    this.#server = createServer({ allowHalfOpen: true }, (near) => void this.#accept(near));
  }

  static async start(replicas: readonly Replica[], socket: string): Promise<LeaderService> {
    const service = new LeaderService(replicas, socket);
    service.#server.listen(socket);
    await once(service.#server, 'listening');
    return service;
  }

  /** The process that serves; undefined while none does. */
  async leader(): Promise<Replica | undefined> {
    const healths = await Promise.all(
      this.#callers.map(async ({ replica, caller }) => {
        const health = await Promise.race([
          caller.health().catch(() => 0),
          new Promise((end) => setTimeout(end, 300, 0)),
        ]);
        return { replica, isServing: health === SERVING };
      }),
    );
    return healths.find(({ isServing }) => isServing)?.replica;
  }

  async close(): Promise<void> {
    this.peer.close();
    for (const { caller } of this.#callers) caller.close();
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
    await once(this.#server, 'close');
  }

  async #accept(near: Socket): Promise<void> {
    this.#sockets.add(near);
    near.on('error', () => undefined);
    near.on('close', () => this.#sockets.delete(near));
    const leader = await this.leader();
    if (!leader || near.destroyed) {
      near.destroy();
      return;
    }
    const far = connect({ path: leader.socket, allowHalfOpen: true });
    for (const [from, to] of [
      [near, far],
      [far, near],
    ] as const) {
      from.pipe(to);
      from.on('error', () => to.destroy());
      from.on('close', () => to.destroy());
    }
  }
}
