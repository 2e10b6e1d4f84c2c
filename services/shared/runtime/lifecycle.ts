import process from 'node:process';

import { Failure } from '../failure/failure.js';
import type { Logger } from './log.js';

/** Something that runs until it is stopped. */
export interface Running {
  /** Stops taking requests, finishes those under way, lets go of everything. Called once. */
  stop(): Promise<void>;
}

export interface ProcessOptions {
  readonly log: Logger;
  /** Starts the process's work; a failure here ends the process with exit code 1. */
  readonly start: () => Promise<Running>;
  /** How long stopping may take before the process ends all the same, in milliseconds. */
  readonly stopTimeoutMs: number;
}

/** Sockets, stores and logs of Podwire are root's alone from the moment they exist. */
const OWNER_ONLY = 0o077;

/** Runs a process from start to the first SIGTERM or SIGINT, and ends it: exit code 0 after a clean stop, 1 otherwise. */
export async function runProcess({ log, start, stopTimeoutMs }: ProcessOptions): Promise<void> {
  process.umask(OWNER_ONLY);
  const stopSignal = firstSignal();
  process.on('uncaughtException', (error) => {
    log.fatal({ err: error }, 'ended by a defect: please report it with this line');
    process.exit(1);
  });
  let running: Running;
  try {
    running = await start();
  } catch (error) {
    log.fatal({ err: error }, error instanceof Failure ? error.message : 'could not start');
    process.exit(1);
  }
  log.info(`stopping: ${await stopSignal} received`);
  const overdue = setTimeout(() => {
    log.error(`stopping took longer than ${stopTimeoutMs} ms: ending all the same`);
    process.exit(1);
  }, stopTimeoutMs);
  await running.stop();
  clearTimeout(overdue);
  log.info('stopped');
  process.exit(0);
}

function firstSignal(): Promise<NodeJS.Signals> {
  return new Promise((resolve) => {
    for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => resolve(signal));
  });
}
