import { mkdirSync } from 'node:fs';
import { basename, dirname } from 'node:path';

import { Failure } from '../failure/failure.js';
import { failureOfSignal } from '../failure/signal.js';
import { messageOf } from '../failure/thrown.js';
import type { Clock } from '../runtime/clock.js';
import { tryLockDirectory, type DirectoryLock, type LockRequest } from '../runtime/directory-lock.js';
import { prepareAddresses, UNIX } from './listen.js';

export interface ExclusiveOptions {
  /** What is kept to one process, for messages: `podwire-dataplane`. */
  readonly program: string;
  /** The settings that name its places, for messages. */
  readonly settings: string;
  readonly stateDirectory: string;
  /** Where it will listen: `unix:/absolute/path` or `host:port`. */
  readonly addresses: readonly string[];
  /** Shown to a process that finds the lock held. */
  readonly owner: string;
  readonly clock: Clock;
  /** Ends the wait for another process; with a Failure as its reason, or with CANCELLED. */
  readonly signal?: AbortSignal | undefined;
  /** Told once for whom this process waits. Must not throw. */
  readonly onWait?: (message: string) => void;
  /** Told why the state directory cannot be locked, where that is no reason not to start: its sockets alone are, then. Must not throw. */
  readonly onUnlockable?: (failure: Failure) => void;
}

/**
 * One that ends may have calls under way, and one that starts may be refused: so long is waited for it, in milliseconds. It is more than any
 * of Podwire's processes takes to end; one that does not even say who it is, as it is frozen, is not waited for as long.
 */
const WAIT_MS = 130_000;
const WAIT_FOR_SILENT_MS = 10_000;
const PAUSE_MS = 100;

/** Paths of the lock's own sockets are short. */
const NAME_LENGTH_MAX = 64;

const DIRECTORY_MODE = 0o700;

/**
 * Locks a program's records and sockets for this process until it releases them or dies. A free socket is not enough:
 * of two processes that start at the same moment, one waits here before it reads a record, and fails once the other
 * listens.
 * @throws Failure INVALID_SETTINGS when another process listens at one of the addresses, or holds the records for
 *   longer than a shutdown takes; CANCELLED where the signal fired; STATE_IO when they cannot be locked, but for {@link
 *   SoleOptions.onUnlockable}
 */
export async function acquireExclusive(options: ExclusiveOptions): Promise<DirectoryLock> {
  const { addresses, clock, program, settings, signal = NEVER, onWait } = options;
  const begunMs = clock.nowMs();
  for (let isTold = false; ; isTold = true) {
    if (signal.aborted) throw failureOfSignal(signal);
    await prepareAddresses(addresses);
    const taken = await tryAll(options);
    if ('lock' in taken) return taken.lock;
    const { holder, isSilent, directory } = taken;
    const other = `another ${program} (process ${holder}${isSilent ? ', which does not answer' : ''}) has ${directory}`;
    if (clock.nowMs() - begunMs >= (isSilent ? WAIT_FOR_SILENT_MS : WAIT_MS)) {
      throw new Failure('INVALID_SETTINGS', `${other}: stop it first, or set ${settings} to places of its own`);
    }
    if (!isTold) onWait?.(`${other}: waiting for its end`);
    await clock.sleep(PAUSE_MS, signal);
  }
}

const NEVER = new AbortController().signal;

async function tryAll(options: ExclusiveOptions) {
  const locks: DirectoryLock[] = [];
  const release = (): void => locks.forEach((lock) => lock.release());
  for (const request of requestsOf(options)) {
    const outcome = await tryLock(request, options).catch((error: unknown) => refusal(error, request, options));
    if (!outcome) continue;
    if ('holder' in outcome) {
      release();
      return { directory: request.directory, ...outcome };
    }
    locks.push(outcome.lock);
  }
  return { lock: { release } };
}

function requestsOf({ stateDirectory, addresses, owner }: ExclusiveOptions): LockRequest[] {
  const sockets = addresses.filter((address) => address.startsWith(UNIX)).map((address) => address.slice(UNIX.length));
  return [
    { directory: stateDirectory, name: 'lock', owner },
    ...sockets.map((path) => ({
      directory: dirname(path),
      name: `.${basename(path)}`.slice(0, NAME_LENGTH_MAX),
      owner,
    })),
  ];
}

/** @returns undefined where it is no reason not to start. @throws the failure else */
function refusal(
  error: unknown,
  { directory }: LockRequest,
  { stateDirectory, onUnlockable }: ExclusiveOptions,
): undefined {
  if (!(error instanceof Failure) || !onUnlockable || directory !== stateDirectory) throw error;
  onUnlockable(error);
}

async function tryLock(request: LockRequest, { settings }: ExclusiveOptions) {
  const { directory } = request;
  try {
    mkdirSync(directory, { recursive: true, mode: DIRECTORY_MODE });
    return await tryLockDirectory(request);
  } catch (cause) {
    throw new Failure(
      'STATE_IO',
      `cannot lock ${directory} (${messageOf(cause)}): let this process write there, or set ${settings}`,
      { details: { directory }, cause },
    );
  }
}
