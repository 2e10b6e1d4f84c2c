import { mkdirSync } from 'node:fs';
import { basename, dirname } from 'node:path';

import { Failure } from '../failure/failure.js';
import { failureOfSignal } from '../failure/signal.js';
import { messageOf } from '../failure/thrown.js';
import { tryLockDirectory, type DirectoryLock, type LockRequest } from '../files/directory-lock.js';
import type { Clock } from '../runtime/clock.js';
import { prepareAddresses, prepareDirectories, UNIX } from './listen.js';

export interface ExclusiveOptions {
  /** Name of the program, for messages: `podwire-node`. */
  readonly program: string;
  /** The settings of its directories and addresses, for messages. */
  readonly settings: string;
  /** The directories of its records. */
  readonly directories: readonly LockedDirectory[];
  /** Addresses that the program listens at: `unix:/absolute/path` or `host:port`. */
  readonly addresses: readonly string[];
  /** Shown to a process that finds the lock held. */
  readonly owner: string;
  readonly clock: Clock;
  /** Ends the wait for another process, with the Failure that is its reason, or with CANCELLED. */
  readonly signal?: AbortSignal | undefined;
  /** Called once when this process waits for another one. Must not throw. */
  readonly onWait?: (message: string) => void;
}

export interface LockedDirectory {
  readonly path: string;
  /**
   * Called when the directory cannot be locked. The program then starts without that lock. Default: it does not start. Must not
   * throw.
   */
  readonly onUnlockable?: (failure: Failure) => void;
}

/**
 * Timeout of the wait for another process, in milliseconds: longer than any of Podwire's processes takes to stop with
 * calls in flight, and than Kubernetes takes to stop the old pod of an update once the new one is ready.
 */
const WAIT_MS = 130_000;
const PAUSE_MS = 100;

/** Name of the lock of a directory. */
const DIRECTORY_LOCK = 'lock';

const DIRECTORY_MODE = 0o700;

/**
 * Locks a program's directories and sockets for this process until it releases them or dies. A successor that starts while
 * its predecessor still serves waits here, before it reads a record: in an update the new process is loaded before the old one
 * ends.
 * @throws Failure INVALID_SETTINGS when a process without the locks listens at one of the addresses, or another process holds the
 *   locks for too long; CANCELLED when the signal fires; STATE_IO when a directory cannot be locked, see {@link
 *   LockedDirectory.onUnlockable}
 */
export async function acquireExclusive(options: ExclusiveOptions): Promise<DirectoryLock> {
  const { addresses, clock, program, settings, signal = NEVER, onWait } = options;
  const startMs = clock.monotonicMs();
  for (let isReported = false; ; isReported = true) {
    if (signal.aborted) throw failureOfSignal(signal);
    prepareDirectories(addresses);
    const outcome = tryLockAll(options);
    if ('lock' in outcome) return withSockets(outcome.lock, options);
    const { holder, directory } = outcome;
    const holderText = `another ${program} (process ${holder}) uses ${directory}`;
    if (clock.monotonicMs() - startMs >= WAIT_MS) {
      throw new Failure('INVALID_SETTINGS', `${holderText}: stop it first, or set ${settings} to other paths`);
    }
    if (!isReported) onWait?.(`${holderText}: waiting until it ends`);
    await clock.sleep(PAUSE_MS, signal);
  }
}

/** Pauses for the sockets of a killed process to close: the kernel may close its locks first. */
const CLOSING_PAUSES_MS = [10, 40, 150];

/** Removes the sockets of a dead predecessor. Releases the lock when a process listens there. */
async function withSockets(
  lock: DirectoryLock,
  { addresses, clock, signal = NEVER }: ExclusiveOptions,
): Promise<DirectoryLock> {
  for (let attempt = 0; ; attempt++) {
    try {
      await prepareAddresses(addresses);
      return lock;
    } catch (error) {
      const pauseMs = CLOSING_PAUSES_MS[attempt];
      if (pauseMs === undefined || (await clock.sleep(pauseMs, signal)) === 'aborted') {
        lock.release();
        throw error;
      }
    }
  }
}

const NEVER = new AbortController().signal;

function tryLockAll(options: ExclusiveOptions) {
  const locks: DirectoryLock[] = [];
  const release = (): void => locks.forEach((lock) => lock.release());
  for (const request of requestsOf(options)) {
    const outcome = tryLock(request, options);
    if (!outcome) continue;
    if ('holder' in outcome) {
      release();
      return { directory: request.directory, ...outcome };
    }
    locks.push(outcome.lock);
  }
  return { lock: { release } };
}

function requestsOf({ directories, addresses, owner }: ExclusiveOptions): LockRequest[] {
  const sockets = addresses.filter((address) => address.startsWith(UNIX)).map((address) => address.slice(UNIX.length));
  return [
    ...directories.map(({ path }) => ({ directory: path, name: DIRECTORY_LOCK, owner })),
    ...sockets.map((path) => ({
      directory: dirname(path),
      name: `.${basename(path)}`,
      owner,
    })),
  ];
}

/** Reports that a directory cannot be locked. @throws the failure, where the program must not start */
function reportUnlockable(failure: Failure, { directory, name }: LockRequest, { directories }: ExclusiveOptions): void {
  const locked = name === DIRECTORY_LOCK ? directories.find(({ path }) => path === directory) : undefined;
  if (!locked?.onUnlockable) throw failure;
  locked.onUnlockable(failure);
}

function tryLock(request: LockRequest, options: ExclusiveOptions) {
  const { directory } = request;
  try {
    mkdirSync(directory, { recursive: true, mode: DIRECTORY_MODE });
    return tryLockDirectory(request);
  } catch (cause) {
    const text = `cannot lock ${directory} (${messageOf(cause)}): grant this process write access, or set ${options.settings}`;
    reportUnlockable(new Failure('STATE_IO', text, { details: { directory }, cause }), request, options);
    return undefined;
  }
}
