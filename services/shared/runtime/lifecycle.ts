import console from 'node:console';
import process from 'node:process';
import { format } from 'node:util';

import { Failure } from '../failure/failure.js';
import type { Logger } from './log.js';
import { readRelease } from './process-release.js';

/** Something that runs until it is stopped. */
export interface Running {
  /** Stops accepting requests, finishes requests in flight, and releases all resources. Called once. */
  stop(): Promise<void>;
}

export interface ProcessOptions {
  readonly log: Logger;
  /**
   * Starts the process's work; a failure here ends the process with exit code 1.
   * @param signal - fires on SIGTERM or SIGINT, which have to abort a slow start
   */
  readonly start: (signal: AbortSignal) => Promise<Running>;
  /** Timeout of the stop after a signal, in milliseconds. Then the process exits with code 1. */
  readonly stopTimeoutMs: number;
  /**
   * Arguments of the program that it has not parsed itself. Default: all arguments. With any, the process answers or rejects them, and
   * does not start.
   */
  readonly args?: readonly string[];
  /** The text of `--help`. Default: usage without arguments. */
  readonly usage?: () => string;
}

const INVALID_USAGE = 2;

const CONSOLE_LEVELS = [
  ['debug', 'debug'],
  ['log', 'info'],
  ['info', 'info'],
  ['warn', 'warn'],
  ['error', 'error'],
] as const;

/** The umask, so that sockets, stores and logs are accessible to root only from their creation. */
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
  if (args.length > 0) return answerArguments(args, options);
  process.umask(OWNER_ONLY);
  const end = (error: unknown, message: string): never => {
    log.fatal({ err: error }, error instanceof Failure ? error.message : message);
    process.exit(1);
  };
  for (const event of ['uncaughtException', 'unhandledRejection'] as const) {
    process.on(event, (error: unknown) => end(error, 'process ended by a defect; please report it with this line'));
  }
  // Node.js's own listener would write plain text between the JSON lines.
  process.removeAllListeners('warning');
  process.on('warning', (warning) => log.warn({ err: warning }, `Node.js warning: ${warning.message}`));
  redirectConsole(log);
  const stopped = new AbortController();
  const stopSignal = firstSignal().then((signal) => {
    log.info(`stopping: ${signal} received`);
    stopped.abort();
    setTimeout(() => {
      log.error(`stop timed out after ${stopTimeoutMs} ms: exiting`);
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
    if (phase === 'stop' || !stopped.signal.aborted) end(error, `${phase} failed`);
  }
  log.info('stopped');
  process.exit(0);
}

/** Redirects the console to the log. Only libraries write there, such as lmdb when a disk is full. */
function redirectConsole(log: Logger): void {
  for (const [method, level] of CONSOLE_LEVELS) {
    console[method] = (...values: unknown[]) => {
      const [err] = values.filter((value) => value instanceof Error);
      log[level](err ? { err } : {}, `console output of a library: ${err ? err.message : format(...values)}`);
    };
  }
}

async function answerArguments(args: readonly string[], { log, usage }: ProcessOptions): Promise<never> {
  const name = String(log.bindings().service);
  if (args.some((arg) => arg === '--help' || arg === '-h')) {
    process.stdout.write(usage?.() ?? `usage: ${name}\n\nSettings are environment variables.\n`);
  } else if (args.length === 1 && args[0] === '--version') {
    process.stdout.write(`${name} ${await readRelease()}\n`);
  } else {
    process.stderr.write(`${name}: unknown argument: ${args.join(' ')}\ntry: ${name} --help\n`);
    process.exit(INVALID_USAGE);
  }
  process.exit(0);
}

function firstSignal(): Promise<NodeJS.Signals> {
  return new Promise((resolve) => {
    for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => resolve(signal));
  });
}
