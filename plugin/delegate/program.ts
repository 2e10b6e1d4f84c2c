import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process';
import { accessSync, constants, statSync } from 'node:fs';
import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { codeOf, messageOf } from '@podwire/shared/failure/thrown';
import type { Clock } from '@podwire/shared/runtime/clock';
import { killProcessGroup } from '@podwire/shared/runtime/process-group';

import type { Limits } from '../clients/clients.js';
import type { Variables } from '../cni/environment.js';

/** What a plugin does and prints. */
export interface Outcome {
  /** Null where a signal ended it. */
  readonly exitCode: number | null;
  readonly signal: string | null;
  readonly stdout: string;
  /** The beginning of it. */
  readonly stderr: string;
}

export interface Execution {
  /** Absolute path. */
  readonly path: string;
  /** Its whole environment, beside {@link PATH}. */
  readonly variables: Variables;
  /** For its standard input. */
  readonly stdin: string;
}

/** A plugin that looks for programs finds the system's, and none of the resident's surroundings. */
const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

/** More than any result of an IPAM plugin. */
const MAX_STDOUT_BYTES = 1024 * 1024;
const MAX_STDERR_BYTES = 16 * 1024;

/** What is let be given for a moment in which the program's file is being replaced. */
const BUSY_PAUSE_MS = 20;

/**
 * Finds a plugin's program as libcni does: the first of that name in the directories of CNI_PATH. Relative directories are passed over,
 * as they would be the resident's.
 * @param name - a program's name, without a slash
 * @returns undefined when there is none that can be executed
 */
export function findProgram(name: string, cniPath: string): string | undefined {
  const directories = cniPath.split(':').filter((directory) => directory.startsWith('/'));
  return directories.map((directory) => join(directory, name)).find(isProgram);
}

function isProgram(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}

/**
 * Runs a plugin to its end, without a shell, in a process group of its own that is killed when the time is up, nobody waits any
 * more, or it prints too much.
 * @throws Failure DELEGATE_UNAVAILABLE when it takes too long, DELEGATE_FAILED when it cannot be run or prints too much, or the reason of
 * the signal
 */
export async function execute(execution: Execution, limits: Limits, clock: Clock): Promise<Outcome> {
  for (;;) {
    limits.signal.throwIfAborted();
    const found = await executeOnce(execution, limits, clock);
    if (found !== 'busy') return found;
    if (clock.nowMs() >= limits.deadlineMs)
      throw new Failure('DELEGATE_UNAVAILABLE', `${execution.path} is being written`);
    await clock.sleep(BUSY_PAUSE_MS, limits.signal);
  }
}

async function executeOnce(
  { path, variables, stdin }: Execution,
  limits: Limits,
  clock: Clock,
): Promise<Outcome | 'busy'> {
  const ended = new AbortController();
  const child = start(path, variables);
  if (!child) return 'busy';
  // No AbortSignal.any: Node.js 20 keeps each for as long as a signal that it was made of lives, which may be the process's own.
  const cutOff = (): void => ended.abort();
  limits.signal.addEventListener('abort', cutOff, { once: true });
  try {
    const timeUp = clock.sleep(limits.deadlineMs - clock.nowMs(), ended.signal);
    const cut = timeUp.then((how): never => {
      if (how === 'aborted') limits.signal.throwIfAborted();
      throw new Failure('DELEGATE_UNAVAILABLE', `${path} has not ended in its time, and was killed`);
    });
    cut.catch(() => undefined);
    child.stdin.on('error', () => undefined).end(stdin);
    return await Promise.race([outcomeOf(child, path), cut]);
  } catch (error) {
    if (child.pid !== undefined) killProcessGroup(child.pid);
    for (const stream of [child.stdin, child.stdout, child.stderr]) stream.destroy();
    throw error;
  } finally {
    limits.signal.removeEventListener('abort', cutOff);
    ended.abort();
  }
}

function start(path: string, variables: Variables): ChildProcessWithoutNullStreams | undefined {
  try {
    return spawn(path, [], { env: { ...variables, PATH }, cwd: '/', detached: true, stdio: 'pipe' });
  } catch (error) {
    if (codeOf(error) === 'ETXTBSY') return undefined;
    throw unrunnable(path, error);
  }
}

function outcomeOf(child: ChildProcessWithoutNullStreams, path: string): Promise<Outcome | 'busy'> {
  return new Promise((resolve, reject) => {
    const stdout: Buffer[] = [];
    const stderr: Buffer[] = [];
    let [stdoutBytes, stderrBytes] = [0, 0];
    child.stdout.on('data', (chunk: Buffer) => {
      stdoutBytes += chunk.length;
      if (stdoutBytes <= MAX_STDOUT_BYTES) stdout.push(chunk);
      else reject(new Failure('DELEGATE_FAILED', `${path} prints more than ${MAX_STDOUT_BYTES} bytes, and was killed`));
    });
    child.stderr.on('data', (chunk: Buffer) => {
      if (stderrBytes < MAX_STDERR_BYTES) stderr.push(chunk.subarray(0, MAX_STDERR_BYTES - stderrBytes));
      stderrBytes += chunk.length;
    });
    child.once('error', (error) => {
      if (codeOf(error) === 'ETXTBSY') resolve('busy');
      else reject(unrunnable(path, error));
    });
    child.once('close', (exitCode, signal) => {
      const text = (chunks: readonly Buffer[]) => Buffer.concat(chunks).toString();
      resolve({ exitCode, signal, stdout: text(stdout), stderr: text(stderr) });
    });
  });
}

function unrunnable(path: string, cause: unknown): Failure {
  const reason = messageOf(cause);
  return new Failure('DELEGATE_FAILED', `${path} cannot be run: ${reason}`, { cause });
}
