import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { until } from '../../support/until.js';

export const ETCD_URL = 'http://127.0.0.1:2379';
const PEER_URL = 'http://127.0.0.1:2380';

/** An etcd in a node's own network namespace, at {@link ETCD_URL} there, with etcd's own settings: each commit is synced to the disk. */
export class NodeEtcd {
  readonly #folder = mkdtempSync(join(tmpdir(), 'podwire-etcd-'));
  readonly #netnsPath: string;
  #process: ChildProcess | undefined;

  constructor(netnsPath: string) {
    this.#netnsPath = netnsPath;
  }

  /** Waits until it answers. */
  async start(): Promise<void> {
    const settings = [
      `--data-dir=${join(this.#folder, 'data')}`,
      `--listen-client-urls=${ETCD_URL}`,
      `--advertise-client-urls=${ETCD_URL}`,
      `--listen-peer-urls=${PEER_URL}`,
      `--initial-advertise-peer-urls=${PEER_URL}`,
      `--initial-cluster=default=${PEER_URL}`,
      '--log-level=error',
    ];
    const command = [`--net=${this.#netnsPath}`, 'etcd', ...settings];
    const logFile = join(this.#folder, 'etcd.log');
    const log = openSync(logFile, 'a', 0o600);
    this.#process = spawn('nsenter', command, { stdio: ['ignore', log, log] });
    await until(
      () => this.#answers(),
      () => `etcd does not answer at ${ETCD_URL}:\n${readFileSync(logFile, 'utf8')}`,
    );
  }

  /** Ends it and removes its data. */
  async destroy(): Promise<void> {
    const child = this.#process;
    if (child?.exitCode === null && child.signalCode === null) {
      const exited = once(child, 'exit');
      child.kill('SIGTERM');
      await exited;
    }
    rmSync(this.#folder, { recursive: true, force: true });
  }

  #answers(): boolean {
    const command = [`--net=${this.#netnsPath}`, 'etcdctl', `--endpoints=${ETCD_URL}`, 'endpoint', 'health'];
    return spawnSync('nsenter', command, { env: { ...process.env, ETCDCTL_API: '3' } }).status === 0;
  }
}
