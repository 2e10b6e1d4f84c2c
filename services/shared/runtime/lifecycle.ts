import console from 'node:console';
import process from 'node:process';
import { format } from 'node:util';

import { Failure } from '../failure/failure.js';
import type { Logger } from './log.js';
import { readOwnPackage } from './own-package.js';

/** Something that runs until it is stopped. */
export interface Running {
  /** Stops taking requests, finishes those under way, lets go of everything. Called once. */
  stop(): Promise<void>;
}

export interface ProcessOptions {
  readonly log: Logger;
  /**
   * Starts the process's work; a failure here ends the process with exit code 1.
   * @param signal - fires on SIGTERM or SIGINT; a slow start has to abort then
   */
  readonly start: (signal: AbortSignal) => Promise<Running>;
  /** How long a signal may wait for the process to end, in milliseconds; then it ends all the same, with exit code 1. */
  readonly stopTimeoutMs: number;
  /**
   * What stands behind the program's name, without what the program has read of it. Default: all of it. Something that is
   * left is answered or refused, and the process does not start.
   */
  readonly args?: readonly string[];
  /** The text of `--help`. Default: that there are no arguments. */
  readonly usage?: () => Promise<string>;
}

const NOT_UNDERSTOOD = 2;

const CONSOLE_LEVELS = [
  ['debug', 'debug'],
  ['log', 'info'],
  ['info', 'info'],
  ['warn', 'warn'],
  ['error', 'error'],
] as const;

/** Sockets, stores and logs of Podwire are root's alone from the moment they exist. */
const OWNER_ONLY = 0o077;

/**
 * Runs a process until the first SIGTERM or SIGINT, and ends it: exit code 0 after a clean stop, 1 otherwise. A signal
 * during startup takes effect once the process has started or aborted; an uncaught error ends the process. Node.js
 * warnings and console output of libraries become log lines.
 *
 * Settings are environment variables. `--help` and `--version` are answered; any other argument is rejected with exit
 * code 2.
 */
export async function runProcess(options: ProcessOptions): Promise<void> {
  const { log, start, stopTimeoutMs, args = process.argv.slice(2) } = options;
  if (args.length > 0) return answer(args, options);
  process.umask(OWNER_ONLY);
  const end = (error: unknown, message: string): never => {
    log.fatal({ err: error }, error instanceof Failure ? error.message : message);
    process.exit(1);
  };
  for (const event of ['uncaughtException', 'unhandledRejection'] as const) {
    process.on(event, (error: unknown) => end(error, 'ended by a defect: please report it with this line'));
  }
  // Node.js's own listener writes plain text between the lines of log.
  process.removeAllListeners('warning');
  process.on('warning', (warning) => log.warn({ err: warning }, `Node.js warns: ${warning.message}`));
  takeConsole(log);
  const stopped = new AbortController();
  const stopSignal = firstSignal().then((signal) => {
    log.info(`stopping: ${signal} received`);
    stopped.abort();
    setTimeout(() => {
      log.error(`stopping took longer than ${stopTimeoutMs} ms: ending all the same`);
      process.exit(1);
    }, stopTimeoutMs);
  });
  let phase = 'start';
  try {
    const running = await start(stopped.signal);
    await stopSignal;
    phase = 'stop';
    await running.stop();
  } catch (error) {
    if (phase === 'stop' || !stopped.signal.aborted) end(error, `could not ${phase}`);
  }
  log.info('stopped');
  process.exit(0);
}

/** Podwire itself does not use the console; what a library writes there, as lmdb where a disk is full, becomes lines of log. */
function takeConsole(log: Logger): void {
  for (const [method, level] of CONSOLE_LEVELS) {
    console[method] = (...values: unknown[]) => {
      const [err] = values.filter((value) => value instanceof Error);
      log[level](err ? { err } : {}, `a library says: ${err ? err.message : format(...values)}`);
    };
  }
}

async function answer(args: readonly string[], { log, usage }: ProcessOptions): Promise<never> {
  const name = String(log.bindings().service);
  if (args.some((arg) => arg === '--help' || arg === '-h')) {
    process.stdout.write((await usage?.()) ?? `usage: ${name}\n\nSettings are environment variables.\n`);
  } else if (args.length === 1 && args[0] === '--version') {
    // Podwire's packages have one version.
    process.stdout.write(`${name} ${(await readOwnPackage(import.meta.url, '@podwire/shared')).version}\n`);
  } else {
    process.stderr.write(`${name}: takes no arguments, and was given ${args.join(' ')}\ntry: ${name} --help\n`);
    process.exit(NOT_UNDERSTOOD);
  }
  process.exit(0);
}

function firstSignal(): Promise<NodeJS.Signals> {
  return new Promise((resolve) => {
    for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => resolve(signal));
  });
}
