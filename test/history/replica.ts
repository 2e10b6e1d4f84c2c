import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { openSync, closeSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { AddressServiceService } from '@podwire/proto/podwire/ipam/v1/address';
import { Peer } from '@podwire/shared/rpc/client';
import { afterAll, beforeAll } from 'vitest';

import { ROOT } from '../support/root.js';

export interface ReplicaOptions {
  readonly name: string;
  /** Folder of its sockets and logs. */
  readonly folder: string;
  /** Settings that connect it to its datastore. */
  readonly env: Readonly<Record<string, string>>;
  /** The offset of its clock from the machine's, in milliseconds; negative when behind. */
  readonly clockSkewMs?: number;
}

/** The connection to a podwire-ipam. */
export type ReplicaClient = Pick<Replica, 'name' | 'peer'>;

/** One podwire-ipam process of several on one datastore, with a client. */
export class Replica {
  readonly name: string;
  readonly #options: ReplicaOptions;
  /** Path of its unix socket. */
  readonly socket: string;
  readonly #logFile: string;
  #child: ChildProcess | undefined;
  #peer: Peer | undefined;

  constructor(options: ReplicaOptions) {
    this.#options = options;
    this.name = options.name;
    this.socket = join(options.folder, `${options.name}.sock`);
    this.#logFile = join(options.folder, `${options.name}.log`);
  }

  /** Calls wait for the process while it is down. */
  get peer(): Peer {
    this.#peer ??= new Peer(`podwire-ipam ${this.name}`, `unix:${this.socket}`);
    return this.#peer;
  }

  start(): void {
    const log = openSync(this.#logFile, 'a', 0o600);
    const { env, clockSkewMs = 0 } = this.#options;
    const skew = clockSkewMs === 0 ? [] : ['--import', join(ROOT, 'test/history/skewed-clock.mjs')];
    this.#child = spawn(process.execPath, [...skew, join(ROOT, 'services/ipam/dist/main.js')], {
      env: {
        ...Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(PODWIRE|OTEL)_/.test(name))),
        PODWIRE_IPAM_LISTEN: `unix:${this.socket}`,
        CLOCK_SKEW_MS: String(clockSkewMs),
        ...env,
      },
      stdio: ['ignore', log, log],
    });
    closeSync(log);
  }

  /** Waits until the process answers. @throws Error with its log when it ends instead, or takes too long */
  async ready(timeoutMs: number): Promise<void> {
    const ask = {
      attachment: { network: 'probe', containerId: 'probe', interfaceName: 'eth0' },
    };
    try {
      await this.peer.call(AddressServiceService.release, ask, { deadlineMs: Date.now() + timeoutMs });
    } catch (error) {
      throw new Error(`replica ${this.name} does not answer:\n${this.log()}`, { cause: error });
    }
  }

  /** Kills the process, like a crash. */
  async kill(): Promise<void> {
    await this.#end('SIGKILL');
  }

  /** Lets the process stand still, as on a machine without a free processor. */
  pause(): void {
    this.#child?.kill('SIGSTOP');
  }

  resume(): void {
    this.#child?.kill('SIGCONT');
  }

  /** Stops the process as an operator does. */
  async end(): Promise<void> {
    await this.#end('SIGTERM');
  }

  /** Starts a process that ended by itself. */
  startAgain(): void {
    if (this.#child?.exitCode !== null) this.start();
  }

  /** Stops the process as an operator does, and closes its client. */
  async stop(): Promise<void> {
    await this.end();
    this.#peer?.close();
  }

  log(): string {
    return readFileSync(this.#logFile, 'utf8');
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const child = this.#child;
    this.#child = undefined;
    if (child?.exitCode !== null || child.signalCode !== null) return;
    const exited = once(child, 'exit');
    child.kill(signal);
    await exited;
  }
}

const START_TIMEOUT_MS = 60_000;

/**
 * The only process of an embedded store, which runs during the tests of a file or a `describe`.
 * @param poolCidr - its pool, in blocks of 8 addresses
 */
export function useEmbeddedReplica(poolCidr: string) {
  const folder = mkdtempSync(join(tmpdir(), 'podwire-history-'));
  const directory = join(folder, 'store');
  const env = {
    PODWIRE_IPAM_STORE: 'embedded',
    PODWIRE_IPAM_STORE_DIRECTORY: directory,
    PODWIRE_IPAM_UNKNOWN_NODES: 'register',
    PODWIRE_IPAM_DEFAULT_POOL_CIDR: poolCidr,
    PODWIRE_IPAM_DEFAULT_POOL_BLOCK_SIZE: '29',
  };
  const replica = new Replica({ name: 'embedded', folder, env });
  beforeAll(async () => {
    replica.start();
    await replica.ready(START_TIMEOUT_MS);
  }, START_TIMEOUT_MS);
  afterAll(async () => {
    await replica.stop();
    rmSync(folder, { recursive: true, force: true });
  });
  return { replica, folder, directory };
}
