import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process';
import { accessSync, constants, statSync } from 'node:fs';
import { join } from 'node:path';

import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { codeOf, messageOf } from '@podwire/shared/failure/thrown';
import { parseJson } from '@podwire/shared/json/parse';
import { familyBits, formatAddress } from '@podwire/shared/net/address';
import { splitCidr } from '@podwire/shared/net/prefix';
import type { Clock } from '@podwire/shared/runtime/clock';
import { killProcessGroup } from '@podwire/shared/runtime/process-group';
import { z } from 'zod';

import type { Limits } from '../clients/clients.js';
import type { Command, Variables } from '../cni/environment.js';
import { askedDns, DNS, type Dns } from '../cni/requested.js';
import { resultSchema, type Result } from '../cni/result.js';
import { readVersion, type CniVersion } from '../cni/version.js';
import type { Delegate } from './mode.js';

/** What another IPAM plugin gave. */
interface DelegatedAddresses {
  /** As CIDRs of full length, at least one. */
  readonly addresses: readonly string[];
  /** DNS settings to pass on; undefined where there are none. */
  readonly dns: Dns | undefined;
}

/** Most time for a call, in milliseconds: an ADD has to have some left for the wire. */
const TIMEOUT_MS = 10_000;

/** CNI codes whose meaning is the caller's, too (specification 1.1.0, section 2 "Error"). Others are the delegate's own. */
const CODE_OF: Readonly<Record<number, FailureCode>> = {
  1: 'INCOMPATIBLE_CNI_VERSION',
  2: 'INVALID_CONFIG',
  4: 'INVALID_ENVIRONMENT',
  6: 'CONFIG_NOT_JSON',
  7: 'INVALID_CONFIG',
  11: 'DELEGATE_UNAVAILABLE',
  50: 'NOT_READY',
  51: 'PODS_AT_RISK',
};

const ERROR = z.looseObject({ code: z.int(), msg: z.string(), details: z.string().default('') });

/** As much of a program's words as an error repeats. */
const MAX_QUOTED_CHARACTERS = 300;

export interface DelegateTools {
  readonly clock: Clock;
  readonly limits: Limits;
}

/**
 * ADD of the delegate.
 * @throws Failure, as {@link callDelegate}; DELEGATE_FAILED when the answer is no result with addresses. It may hold some then.
 */
export async function addByDelegate(delegate: Delegate, tools: DelegateTools): Promise<DelegatedAddresses> {
  const { stdout } = await callDelegate(delegate, 'ADD', tools);
  const { ips, rest } = readResult(delegate, stdout);
  const addresses = ips.map(({ address }) => {
    const parts = splitCidr(address);
    if (!parts) throw failed(delegate, 'ADD', `gave the address ${quoted(address)}, which is no CIDR`);
    return `${formatAddress(parts.address)}/${familyBits(parts.address.family)}`;
  });
  if (addresses.length === 0) throw failed(delegate, 'ADD', 'gave no address');
  return { addresses, dns: askedDns(DNS.safeParse(rest.dns).data) };
}

/**
 * Runs the delegate with the whole configuration.
 * @throws Failure with the delegate's name: its own error under its own code where that is the specification's; DELEGATE_UNAVAILABLE
 * when it takes too long; DELEGATE_FAILED otherwise
 */
export async function callDelegate(delegate: Delegate, command: Command, tools: DelegateTools): Promise<Outcome> {
  const { clock, limits } = tools;
  const { configuration } = delegate;
  const path = programOf(delegate, command);
  const variables = { ...delegate.variables, CNI_COMMAND: command };
  const within = { signal: limits.signal, deadlineMs: Math.min(limits.deadlineMs, clock.nowMs() + TIMEOUT_MS) };
  const begunMs = clock.nowMs();
  const outcome = await named(delegate, command, () =>
    execute({ path, variables, stdin: configuration }, within, clock),
  ).finally(() => {
    const method = { service: `IPAM plugin ${delegate.type}`, method: `${delegate.type} ${command}` };
    limits.noteDuration?.(method, clock.nowMs() - begunMs);
  });
  if (outcome.exitCode !== 0) throw errorOf(delegate, command, outcome);
  return outcome;
}

/** Path of the delegate's program. @throws Failure DELEGATE_FAILED where there is none: nothing has been asked of it then */
export function programOf(delegate: Delegate, command: Command): string {
  const cniPath = delegate.variables.CNI_PATH ?? '';
  const path = findProgram(delegate.type, cniPath);
  if (path !== undefined) return path;
  const reason = `is in none of the directories of CNI_PATH (${quoted(cniPath)}) as a program; install it there`;
  throw failed(delegate, command, reason);
}

/** Puts the delegate's name before what running it fails with. */
async function named<Value>(delegate: Delegate, command: Command, work: () => Promise<Value>): Promise<Value> {
  try {
    return await work();
  } catch (error) {
    const isOfDelegate =
      error instanceof Failure && (error.code === 'DELEGATE_FAILED' || error.code === 'DELEGATE_UNAVAILABLE');
    if (!isOfDelegate) throw error;
    throw new Failure(error.code, `IPAM plugin ${delegate.type}: ${command}: ${error.message}`, { cause: error });
  }
}

function errorOf(delegate: Delegate, command: Command, outcome: Outcome): Failure {
  const { exitCode, signal, stdout, stderr } = outcome;
  const error = ERROR.safeParse(parseJson(stdout)).data;
  if (error) {
    const code = CODE_OF[error.code] ?? 'DELEGATE_FAILED';
    return new Failure(code, `IPAM plugin ${delegate.type}: ${command}: ${error.msg}`, {
      details: {
        delegate: delegate.type,
        code: String(error.code),
        ...(error.details !== '' && { said: error.details }),
      },
    });
  }
  const end = signal === null ? `ended with exit code ${exitCode ?? 'unknown'}` : `was ended by ${signal}`;
  const words = [stdout, stderr].map((text) => text.trim()).filter((text) => text !== '');
  return failed(
    delegate,
    command,
    `${end}, and printed ${words.length > 0 ? words.map(quoted).join(', ') : 'nothing'}`,
  );
}

/** Whether a failure is the delegate's own answer, and not that it did not answer, or answered nonsense. */
export function isRefusal(error: unknown, delegate: Delegate | undefined): boolean {
  return error instanceof Failure && delegate !== undefined && error.details.delegate === delegate.type;
}

function readResult(delegate: Delegate, stdout: string): Result {
  const read = resultSchema(versionOf(delegate)).safeParse(parseJson(stdout));
  if (read.success && read.data) return read.data;
  const faults = read.error?.issues.map(({ path, message }) => `${path.join('.')} ${message}`.trim()) ?? ['is no JSON'];
  throw failed(delegate, 'ADD', `answered what is no CNI result (${faults.join('; ')}): ${quoted(stdout)}`);
}

const STATED = z.object({ cniVersion: z.unknown() });

/** The version of the configuration, which has been read before. */
function versionOf({ configuration }: Delegate): CniVersion {
  return readVersion(STATED.safeParse(parseJson(configuration)).data?.cniVersion);
}

function failed({ type }: Delegate, command: Command, reason: string): Failure {
  return new Failure('DELEGATE_FAILED', `IPAM plugin ${type}: ${command}: ${type} ${reason}`);
}

function quoted(text: string): string {
  const isLong = text.length > MAX_QUOTED_CHARACTERS;
  return JSON.stringify(isLong ? `${text.slice(0, MAX_QUOTED_CHARACTERS)}…` : text);
}

/** What a plugin does and prints. */
interface Outcome {
  /** Null where a signal ended it. */
  readonly exitCode: number | null;
  readonly signal: string | null;
  readonly stdout: string;
  /** The beginning of it. */
  readonly stderr: string;
}

interface Execution {
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
 * Runs a plugin to completion, without a shell, in its own process group. The group is killed on timeout, cancellation
 * or excessive output.
 * @throws Failure DELEGATE_UNAVAILABLE on timeout; DELEGATE_FAILED when it cannot be run or prints too much; or the
 *   reason of the signal
 */
async function execute(execution: Execution, limits: Limits, clock: Clock): Promise<Outcome> {
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
