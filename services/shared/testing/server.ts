import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import {
  Pool,
  PoolServiceService,
  type GetPoolRequest,
  type GetPoolResponse,
} from '@podwire/proto/podwire/ipam/v1/pool';

import { Peer, type PeerOptions } from '../rpc/client.js';
import { RpcServer, type RpcServerOptions } from '../rpc/server.js';
import type { Handler } from '../rpc/unary.js';
import { systemClock } from '../runtime/clock.js';
import { createLogger, type Logger } from '../runtime/log.js';

export type GetPool = Handler<GetPoolRequest, GetPoolResponse>;

export const { getPool: GET_POOL, listPools: LIST_POOLS } = PoolServiceService;

export const pool = (name: string): Pool => Pool.fromPartial({ name, cidr: '10.65.0.0/16', createTime: new Date(0) });

/** A promise that is resolved from outside. */
export class Gate {
  open: () => void = () => undefined;
  readonly opened = new Promise<void>((resolve) => {
    this.open = resolve;
  });
}

/** Answers with a pool of the requested name. */
export const echoPool: GetPool = ({ name }) => Promise.resolve({ pool: pool(name) });

export const callLimits = (durationMs = 10_000) => ({ deadlineMs: Date.now() + durationMs });

/** A logger, and the lines that it wrote. */
export function recordingLog(): { readonly log: Logger; readonly lines: Record<string, unknown>[] } {
  const lines: Record<string, unknown>[] = [];
  const destination = { write: (line: string) => void lines.push(JSON.parse(line)) };
  return { log: createLogger({ service: 'test', level: 'info', destination }), lines };
}

type ServerSettings = Partial<Pick<RpcServerOptions, OfferedOption>> & { readonly getPool?: GetPool };

type OfferedOption =
  'addresses' | 'defaultCallTimeoutMs' | 'drainTimeoutMs' | 'release' | 'certificates' | 'proofs' | 'authorize';

/** Real servers in a temporary folder, with clients. {@link TestServers.clear} stops all of them. */
export class TestServers {
  readonly folder = mkdtempSync(join(tmpdir(), 'podwire-rpc-'));
  readonly #servers: RpcServer[] = [];
  readonly #peers: Peer[] = [];

  /** A socket address below the folder. */
  address(name = 'ipam'): string {
    return `unix:${join(this.folder, 'run', `${name}.sock`)}`;
  }

  /** Starts a server that implements only GetPool of podwire.ipam.v1.PoolService. */
  async serve({ getPool = echoPool, ...settings }: ServerSettings = {}) {
    const { log, lines } = recordingLog();
    const server = new RpcServer({
      addresses: [this.address()],
      defaultCallTimeoutMs: 5000,
      drainTimeoutMs: 5000,
      ...settings,
      log,
      clock: systemClock,
      services: (unary) => [
        {
          name: 'podwire.ipam.v1.PoolService',
          definition: PoolServiceService,
          implementation: { getPool: unary(GET_POOL, getPool) },
        },
      ],
    });
    const addresses = await server.listen();
    this.#servers.push(server);
    return { server, addresses, lines };
  }

  peer(address = this.address(), options: PeerOptions = {}): Peer {
    const peer = new Peer('podwire-ipam', address, options);
    this.#peers.push(peer);
    return peer;
  }

  async clear(): Promise<void> {
    for (const peer of this.#peers) peer.close();
    await Promise.all(this.#servers.map((server) => server.stop()));
    rmSync(this.folder, { recursive: true });
  }
}
