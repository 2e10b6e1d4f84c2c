import { execFileSync, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { systemClock } from '@podwire/shared/runtime/clock';
import { createLogger } from '@podwire/shared/runtime/log';

import { BirdEvents } from '../bird/bird-events.js';
import { Bird, type BirdSettings } from '../bird/bird.js';
import { FULL_MESH, type PeerPlan } from '../bird/peers-file.js';
import type { ClusterChange, ClusterView } from '../cluster/cluster.js';

/** Real BIRDs in network namespaces that share a bridge. */

export const ALL: ClusterChange = { blocks: 'all', hasOtherChanges: true };

export interface NodeOptions {
  readonly plan?: PeerPlan;
  readonly run?: BirdSettings['run'];
  readonly pollMs?: number;
}

/** One node: a namespace `NAME` with 192.0.2.X and 2001:db8::X on eth0, a BIRD, and Podwire's follower of the cluster. */
export class BirdNode {
  readonly name: string;
  readonly directory: string;
  readonly configPath: string;
  readonly socketPath: string;
  #daemon: ChildProcess | undefined;
  #bird: Bird | undefined;
  readonly logged: string[] = [];

  constructor(name: string, host: number) {
    this.name = name;
    this.directory = mkdtempSync(join(tmpdir(), `podwire-bird-${name}-`));
    this.configPath = join(this.directory, 'bird.conf');
    this.socketPath = join(this.directory, 'bird.ctl');
    run('ip', 'netns', 'add', name);
    run('ip', 'link', 'add', `br-${name}`, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', name);
    run('ip', 'link', 'set', `br-${name}`, 'master', 'br-bird', 'up');
    this.ip('link', 'set', 'lo', 'up');
    this.ip('address', 'add', `192.0.2.${host}/24`, 'dev', 'eth0');
    this.ip('address', 'add', `2001:db8::${host}/64`, 'dev', 'eth0', 'nodad');
    this.ip('link', 'set', 'eth0', 'up');
    writeFileSync(this.program, `#!/bin/sh\nexec ip netns exec ${name} bird "$@"\n`, { mode: 0o755 });
  }

  /** `bird` in the node's namespace. */
  get program(): string {
    return join(this.directory, 'bird');
  }

  get bird(): Bird {
    if (!this.#bird) throw new Error(`${this.name} has no follower`);
    return this.#bird;
  }

  ip(...args: readonly string[]): string {
    return run('ip', '-n', this.name, ...args);
  }

  /** Routes of BIRD's in the kernel: `10.0.2.0/26 via 192.0.2.2 dev eth0`, in order. */
  routes(): string[] {
    const lines = ['-4', '-6'].flatMap((family) => this.ip(family, 'route', 'show', 'proto', 'bird').split('\n'));
    return lines
      .map((line) => line.replace(/ (metric|pref) .*$/, '').trim())
      .filter((line) => line !== '')
      .sort();
  }

  /**
   * Starts the daemon as an operator does: with the existing configuration, or an empty one.
   * @param options - `-R`: in recovery from a graceful restart
   */
  async startDaemon(...options: readonly '-R'[]): Promise<void> {
    if (!existsSync(this.configPath)) writeFileSync(this.configPath, 'router id 192.0.2.99;\nprotocol device {}\n');
    const args = ['-f', ...options, '-c', this.configPath, '-s', this.socketPath];
    const daemon = spawn(this.program, args, { stdio: 'ignore' });
    await once(daemon, 'spawn');
    this.#daemon = daemon;
  }

  async killDaemon(): Promise<void> {
    const daemon = this.#daemon;
    this.#daemon = undefined;
    if (daemon?.exitCode !== null) return;
    daemon.kill('SIGKILL');
    await once(daemon, 'exit');
  }

  /** Starts a new follower, as a restart of the service does. */
  async follow(
    view: ClusterView,
    { plan = FULL_MESH, run: how = 'external', pollMs = 200 }: NodeOptions = {},
  ): Promise<void> {
    await this.#bird?.stop();
    const log = createLogger({
      service: 'test',
      level: 'info',
      destination: { write: (line) => this.logged.push(line) },
    });
    this.#bird = new Bird({
      settings: {
        asNumber: 64_512,
        plan,
        run: how,
        pollMs,
        files: { program: this.program, configPath: this.configPath, socketPath: this.socketPath },
      },
      clock: systemClock,
      events: new BirdEvents(log),
    });
    this.#bird.follow(view, ALL);
  }

  async stopFollowing(): Promise<void> {
    await this.#bird?.stop();
    this.#bird = undefined;
  }

  /** `node b at ADDRESS: established` or `…: down`, in order of the sessions' names. */
  sessions(): string[] {
    return this.bird.status().sessions.map(({ session, state }) => {
      return `${session.about} at ${session.neighbour}: ${state?.isEstablished === true ? 'established' : 'down'}`;
    });
  }

  async remove(): Promise<void> {
    await this.stopFollowing();
    await this.killDaemon();
    // The namespace removes it too, but later than the next test creates one of the same name.
    run('ip', 'link', 'delete', `br-${this.name}`);
    run('ip', 'netns', 'delete', this.name);
    rmSync(this.directory, { recursive: true, force: true });
  }
}

/** @throws Error outside a namespace for tests (test/support/isolated.mjs), or with the program's error output */
export function run(program: string, ...args: readonly string[]): string {
  if (!/^tmpfs \/run\/netns tmpfs /m.test(readFileSync('/proc/self/mounts', 'utf8'))) {
    throw new Error('run kernel tests as `node test/support/isolated.mjs vitest run …`, in namespaces of their own');
  }
  return execFileSync(program, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
}

export function addBridge(): void {
  run('ip', 'link', 'add', 'br-bird', 'type', 'bridge');
  run('ip', 'link', 'set', 'br-bird', 'up');
}

export function removeBridge(): void {
  run('ip', 'link', 'delete', 'br-bird');
}
