import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { run } from './programs.js';
import { PROBE, ROOT } from './root.js';

/** The two processes of Podwire on one machine. */
export type ProcessName = 'ipam' | 'node';

const PROCESSES: readonly ProcessName[] = ['ipam', 'node'];

const MAIN: Record<ProcessName, string> = {
  ipam: 'services/ipam/dist/main.js',
  node: 'services/node/dist/main.js',
};

/** Time for a process to answer at its socket, in milliseconds: a machine under load takes seconds to load the modules. */
const START_TIMEOUT_MS = 30_000;

export interface StackOptions {
  /** Settings beside the ones that join the processes: `PODWIRE_IPAM_DEFAULT_POOL_CIDR` and the like. */
  readonly env?: Readonly<Record<string, string>>;
  /** Path of the socket of a podwire-ipam that the stack does not run; its own when undefined. */
  readonly ipamSocket?: string | undefined;
}

/** Files of /proc that name the boot of a machine; all processes of the machine see the same. */
const BOOT_FILES = { id: '/proc/sys/kernel/random/boot_id', stat: '/proc/stat' } as const;

/** Covers them for one process and its children. `/run/netns` stays shared: the process sees the namespaces of later pods. */
const SHOW_BOOT = `mount --bind "$0/id" ${BOOT_FILES.id} && mount --bind "$0/stat" ${BOOT_FILES.stat} && exec "$@"`;

/**
 * Time limits of commands: tests check the results of a DEL, and on a busy machine services take longer than the seconds after
 * which the journal completes it. Tests of these limits set their own.
 */
const COMMAND_TIMES = {
  PODWIRE_NODE_ADD_TIMEOUT_MS: '60000',
  PODWIRE_NODE_DEL_TIMEOUT_MS: '60000',
  PODWIRE_NODE_DEL_SERVICE_TIMEOUT_MS: '25000',
};

/** Environment of podwire-node, as the chart and the systemd units set it. */
const NODE_ENVIRONMENT = { NODE_OPTIONS: '--max-semi-space-size=4', UV_THREADPOOL_SIZE: '32' };

/** The node's own address in its network namespace, from the range for benchmarks between networks (RFC 2544). */
export const NODE_ADDRESS = '198.18.0.1';

let stacks = 0;

/**
 * Podwire as on one machine: two processes on the embedded datastore, with sockets and store in a folder of their
 * own, and a network namespace that is the node. Every process can be killed, stopped and started again.
 */
export class Stack {
  /** Name of the node's network namespace, for `ip -n` and `ip netns exec`. */
  readonly netns = `node-${process.pid}-${stacks++}`;
  readonly folder = mkdtempSync(join(tmpdir(), 'podwire-stack-'));
  readonly #run = join(this.folder, 'run');
  /** Sockets of each process, and of the dataplane's gRPC API; `node` is for the CNI commands. */
  readonly sockets: Record<ProcessName | 'dataplane', string> = {
    ipam: join(this.#run, 'ipam.sock'),
    node: join(this.#run, 'cni.sock'),
    dataplane: join(this.#run, 'dataplane.sock'),
  };
  /** One file for each attachment. */
  readonly recordsDirectory = join(this.#run, 'attachments');
  /** The embedded datastore. */
  readonly storeDirectory = join(this.folder, 'store');
  #env: NodeJS.ProcessEnv;
  /** Folder with the files of the machine's boot; undefined for the real one. */
  #boot: string | undefined;
  readonly #processes = new Map<ProcessName, ChildProcess>();

  constructor({ env = {}, ipamSocket }: StackOptions = {}) {
    mkdirSync(this.#run);
    this.#mountRun();
    this.#makeNode();
    if (ipamSocket !== undefined) this.sockets.ipam = ipamSocket;
    this.#env = {
      ...Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(PODWIRE|OTEL)_/.test(name))),
      PODWIRE_IPAM_LISTEN: `unix:${this.sockets.ipam}`,
      PODWIRE_IPAM_STORE_DIRECTORY: this.storeDirectory,
      PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.65.0.0/16',
      PODWIRE_NODE_NAME: 'node-1',
      PODWIRE_NODE_IPAM_ADDRESS: `unix:${this.sockets.ipam}`,
      PODWIRE_NODE_CNI_SOCKET: this.sockets.node,
      PODWIRE_NODE_LISTEN: `unix:${this.sockets.dataplane}`,
      // The address is on the loopback, which automatic detection would not select.
      PODWIRE_NODE_IPV4: `${NODE_ADDRESS}/32`,
      PODWIRE_NODE_RECORDS_DIRECTORY: this.recordsDirectory,
      PODWIRE_NODE_STATE_DIRECTORY: join(this.folder, 'journal'),
      PODWIRE_BIRD_CONFIG_FILE: join(this.#run, 'bird.conf'),
      PODWIRE_BIRD_CONTROL_SOCKET: join(this.#run, 'bird.ctl'),
      ...COMMAND_TIMES,
      ...env,
    };
  }

  async start(...names: readonly ProcessName[]): Promise<void> {
    const wanted = names.length > 0 ? names : PROCESSES;
    for (const name of wanted) this.#spawn(name);
    await Promise.all(wanted.map((name) => this.#untilAnswering(name)));
  }

  /** Changes settings of the processes that start from now on. */
  configure(env: Readonly<Record<string, string>>): void {
    this.#env = { ...this.#env, ...env };
  }

  /** Runs a command of podwire-ipam on the stack's datastore: `export`, `import`. @throws Error when it fails */
  ipamCommand(...args: readonly string[]): void {
    const { status, stderr } = spawnSync(process.execPath, [join(ROOT, MAIN.ipam), ...args], {
      encoding: 'utf8',
      env: this.#env,
    });
    if (status !== 0) throw new Error(`podwire-ipam ${args.join(' ')}: ${stderr}`);
  }

  /** Kills a process, like a crash. */
  async kill(name: ProcessName): Promise<void> {
    await this.#end(name, 'SIGKILL');
  }

  /** Stops a process as an operator does. @returns its exit code */
  async stop(name: ProcessName): Promise<number | null> {
    return this.#end(name, 'SIGTERM');
  }

  /**
   * Starts a successor while the process serves, as an update with `maxSurge: 1` does, and ends the process once the successor
   * waits for it. The successor has a mount namespace of its own, as a container has. Resolves when it answers.
   */
  async handOver(name: ProcessName): Promise<void> {
    const predecessor = this.#processes.get(name);
    if (!predecessor) throw new Error(`${name} does not run`);
    const waits = this.#countWaits(name);
    this.#spawn(name, ['unshare', '--mount']);
    await this.#until(name, () => this.#countWaits(name) > waits);
    const exited = once(predecessor, 'exit');
    predecessor.kill('SIGTERM');
    await exited;
    await this.untilServing(name);
  }

  /** Waits until the probe of the image finds that a process is serving. */
  async untilServing(name: ProcessName): Promise<void> {
    await this.#until(name, () => spawnSync(PROBE, [this.sockets[name]]).status === 0);
  }

  /** The log of a process, for assertions and for the report of a failed test. */
  log(name: ProcessName): string {
    return readFileSync(this.#logFile(name), 'utf8');
  }

  pid(name: ProcessName): number {
    const pid = this.#processes.get(name)?.pid;
    if (pid === undefined) throw new Error(`${name} does not run`);
    return pid;
  }

  /** Runs `ip` on the node. */
  ip(...args: readonly string[]): string {
    return run('ip', '-n', this.netns, ...args);
  }

  /** Path of the node's network namespace. */
  get netnsPath(): string {
    return `/run/netns/${this.netns}`;
  }

  /**
   * Removes what a reboot of the node removes: its processes, sockets and network namespace. Records stay, and the identity of
   * the boot, which namespaces do not separate. The processes have to be started again.
   */
  async reboot(): Promise<void> {
    for (const name of [...this.#processes.keys()]) await this.kill(name);
    for (const socket of Object.values(this.sockets)) rmSync(socket, { force: true });
    run('ip', 'netns', 'delete', this.netns);
    this.#makeNode();
  }

  /**
   * Same as {@link reboot} for a machine with an empty /run afterwards, on which podwire-node sees a later boot. The pods' own
   * namespaces are the test's to remove.
   */
  async powerCycle(): Promise<void> {
    await this.reboot();
    run('umount', '--lazy', this.#run);
    this.#mountRun();
    this.#boot = mkdtempSync(join(this.folder, 'boot-'));
    writeFileSync(join(this.#boot, 'id'), `${randomUUID()}\n`);
    const stat = readFileSync(BOOT_FILES.stat, 'utf8');
    // Whole seconds: everything before the power failure is before the boot.
    writeFileSync(join(this.#boot, 'stat'), stat.replace(/^btime .*$/m, `btime ${Math.ceil(Date.now() / 1000)}`));
  }

  /** Identity of the boot that podwire-node sees. */
  get bootId(): string {
    return readFileSync(this.#boot === undefined ? BOOT_FILES.id : join(this.#boot, 'id'), 'utf8').trim();
  }

  /** Ends everything and removes the folder and the node. */
  async destroy(): Promise<void> {
    for (const name of [...this.#processes.keys()].reverse()) await this.stop(name);
    run('umount', '--lazy', this.#run);
    rmSync(this.folder, { recursive: true, force: true });
    run('ip', 'netns', 'delete', this.netns);
  }

  /** Mounts a file system in memory, as /run is. */
  #mountRun(): void {
    run('mount', '-t', 'tmpfs', '-o', 'mode=700', 'tmpfs', this.#run);
  }

  #makeNode(): void {
    run('ip', 'netns', 'add', this.netns);
    this.ip('link', 'set', 'lo', 'up');
    this.ip('address', 'add', `${NODE_ADDRESS}/32`, 'dev', 'lo');
  }

  #logFile(name: ProcessName): string {
    return join(this.folder, `${name}.log`);
  }

  #countWaits(name: ProcessName): number {
    return this.log(name).split('waiting until it ends').length;
  }

  #spawn(name: ProcessName, within: readonly string[] = []): void {
    const log = openSync(this.#logFile(name), 'a', 0o600);
    const boot = name === 'node' && this.#boot !== undefined ? showing(this.#boot) : [];
    const command = [`--net=${this.netnsPath}`, ...boot, ...within, process.execPath, join(ROOT, MAIN[name])];
    const env = { ...(name === 'node' && NODE_ENVIRONMENT), ...this.#env };
    const child = spawn('nsenter', command, { env, stdio: ['ignore', log, log] });
    this.#processes.set(name, child);
  }

  async #end(name: ProcessName, signal: NodeJS.Signals): Promise<number | null> {
    const child = this.#processes.get(name);
    this.#processes.delete(name);
    if (child?.exitCode !== null || child.signalCode !== null) return child?.exitCode ?? null;
    const exited = once(child, 'exit');
    child.kill(signal);
    await exited;
    return child.exitCode;
  }

  async #untilAnswering(name: ProcessName): Promise<void> {
    await this.#until(name, () => answers(this.sockets[name]));
  }

  async #until(name: ProcessName, holds: () => boolean | Promise<boolean>): Promise<void> {
    for (let waitedMs = 0; !(await holds()); waitedMs += 20) {
      const ended = this.#processes.get(name)?.exitCode;
      if (waitedMs > START_TIMEOUT_MS || typeof ended === 'number') {
        throw new Error(`${name} does not answer at ${this.sockets[name]}:\n${this.log(name)}`);
      }
      await sleep(20);
    }
  }
}

/** Command line that runs the rest of it on a machine of another boot. */
function showing(boot: string): string[] {
  return ['unshare', '--mount', '--propagation', 'slave', 'sh', '-c', SHOW_BOOT, boot];
}

function answers(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path);
    const done = (answered: boolean) => {
      socket.destroy();
      resolve(answered);
    };
    socket.once('connect', () => done(true)).once('error', () => done(false));
  });
}
