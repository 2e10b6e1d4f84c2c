import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { ROOT } from '../../support/root.js';

/** Longest time for a process to answer at its socket, in milliseconds. */
const START_TIMEOUT_MS = 120_000;

/** A folder for sockets, stores and logs, deleted by {@link Place.remove}. */
export class Place {
  readonly folder: string;

  /** @param parent - where the folder is made. Default: where temporary files are */
  constructor(parent: string = tmpdir()) {
    this.folder = mkdtempSync(join(parent, 'podwire-bench-'));
  }

  path(name: string): string {
    return join(this.folder, name);
  }

  remove(): void {
    rmSync(this.folder, { recursive: true, force: true });
  }
}

export interface ProcessOptions {
  /** Its address: the path of a unix socket, or a port of the loopback interface. */
  readonly endpoint: string | number;
  readonly logFile: string;
  readonly env?: Readonly<Record<string, string>>;
}

/** A process that serves at a socket. */
export class ServingProcess {
  readonly #child: ChildProcess;
  readonly #options: ProcessOptions;

  private constructor(child: ChildProcess, options: ProcessOptions) {
    this.#child = child;
    this.#options = options;
  }

  /** Starts a program and waits until it answers. @throws Error with its log when it does not */
  static async start([program = '', ...args]: readonly string[], options: ProcessOptions): Promise<ServingProcess> {
    const log = openSync(options.logFile, 'a', 0o600);
    const own = Object.entries(process.env).filter(([name]) => !/^(PODWIRE|OTEL)_/.test(name));
    const env = { ...Object.fromEntries(own), ...options.env };
    const started = new ServingProcess(spawn(program, args, { env, stdio: ['ignore', log, log] }), options);
    await started.#untilAnswering();
    return started;
  }

  /** Resident memory in MiB, with the pages of files that are mapped. */
  residentMib(): number {
    return this.#memoryMib('VmRSS');
  }

  /** Resident memory in MiB of the process itself: without pages of files, which the kernel drops on demand. */
  residentOwnMib(): number {
    return this.#memoryMib('RssAnon');
  }

  #memoryMib(name: string): number {
    const status = readFileSync(`/proc/${this.#child.pid}/status`, 'utf8');
    return Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(status)?.[1]) / 1024;
  }

  /** Processor time so far, in milliseconds, to 10 ms. */
  processorMs(): number {
    const fields = readFileSync(`/proc/${this.#child.pid}/stat`, 'utf8')
      .replace(/^.*\) /, '')
      .split(' ');
    // Fields 14 and 15 of proc(5): user and system time in ticks of 10 ms, counted here from the third.
    return (Number(fields[11]) + Number(fields[12])) * 10;
  }

  async stop(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const exited = once(this.#child, 'exit');
    this.#child.kill('SIGTERM');
    await exited;
  }

  async #untilAnswering(): Promise<void> {
    const { endpoint, logFile } = this.#options;
    for (let waitedMs = 0; !(await answers(endpoint)); waitedMs += 10) {
      if (waitedMs > START_TIMEOUT_MS || this.#child.exitCode !== null) {
        await this.stop();
        throw new Error(`nothing answers at ${endpoint}:\n${readFileSync(logFile, 'utf8').slice(-4000)}`);
      }
      await sleep(10);
    }
  }
}

function answers(endpoint: string | number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = typeof endpoint === 'string' ? connect(endpoint) : connect(endpoint, '127.0.0.1');
    const done = (answered: boolean) => {
      socket.destroy();
      resolve(answered);
    };
    socket.once('connect', () => done(true)).once('error', () => done(false));
  });
}

let services = 0;

export interface IpamProcess {
  readonly process: ServingProcess;
  /** Path of the socket it serves at. */
  readonly socket: string;
}

export interface IpamPlace {
  /** `host:port` to listen at besides the socket. */
  readonly network?: string;
  /** A program with arguments that executes podwire-ipam in its place. */
  readonly launcher?: readonly string[];
}

/** Starts podwire-ipam with a pool larger than any measurement needs. */
export async function startIpam(
  place: Place,
  env: Readonly<Record<string, string>>,
  { network, launcher = [] }: IpamPlace = {},
): Promise<IpamProcess> {
  const name = `ipam-${services++}`;
  const run = place.path('run');
  mkdirSync(run, { recursive: true, mode: 0o700 });
  const socket = join(run, `${name}.sock`);
  const process_ = await ServingProcess.start(
    [...launcher, process.execPath, join(ROOT, 'services/ipam/dist/main.js')],
    {
      endpoint: socket,
      logFile: place.path(`${name}.log`),
      env: {
        // The socket last, as it is waited for.
        PODWIRE_IPAM_LISTEN: [...(network === undefined ? [] : [network]), `unix:${socket}`].join(','),
        PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.0.0.0/8',
        PODWIRE_IPAM_UNKNOWN_NODES: 'register',
        ...env,
      },
    },
  );
  return { process: process_, socket };
}
