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
import { nonEmptyDns, DNS, type Dns } from '../cni/request-sources.js';
import { resultSchema, type Result } from '../cni/result.js';
import { readVersion, type CniVersion } from '../cni/version.js';
import type { Delegate } from './mode.js';

/** Result of a delegated ADD. */
interface DelegatedAddresses {
  /** As CIDRs of full length, at least one. */
  readonly addresses: readonly string[];
  /** DNS settings for the result; undefined if there are none. */
  readonly dns: Dns | undefined;
}

/** Timeout of a call, in milliseconds: an ADD needs the rest of its time for the wire. */
const TIMEOUT_MS = 10_000;

/** Failure codes for the CNI codes of the specification (1.1.0, section 2 "Error"). Other codes are the delegate's own. */
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

/** Most characters of a program's output that an error quotes. */
const MAX_QUOTED_CHARACTERS = 300;

export interface DelegateTools {
  readonly clock: Clock;
  readonly limits: Limits;
}

/**
 * ADD of the delegate.
 * @throws Failure, as {@link callDelegate}; DELEGATE_FAILED when the result is invalid or has no address. The delegate may
 *   hold addresses all the same.
 */
export async function addByDelegate(delegate: Delegate, tools: DelegateTools): Promise<DelegatedAddresses> {
  const { stdout } = await callDelegate(delegate, 'ADD', tools);
  const { ips, rest } = readResult(delegate, stdout);
  const addresses = ips.map(({ address }) => {
    const parts = splitCidr(address);
    if (!parts) throw delegateFailure(delegate, 'ADD', `returned the address ${quote(address)}, which is not a CIDR`);
    return `${formatAddress(parts.address)}/${familyBits(parts.address.family)}`;
  });
  if (addresses.length === 0) throw delegateFailure(delegate, 'ADD', 'returned no address');
  return { addresses, dns: nonEmptyDns(DNS.safeParse(rest.dns).data) };
}

/**
 * Runs the delegate with the whole configuration.
 * @throws Failure with the delegate's name: its own error, under its code if the specification has it; DELEGATE_UNAVAILABLE
 *   on timeout; DELEGATE_FAILED otherwise
 */
export async function callDelegate(delegate: Delegate, command: Command, tools: DelegateTools): Promise<Outcome> {
  const { clock, limits } = tools;
  const { configuration } = delegate;
  const path = programOf(delegate, command);
  const variables = { ...delegate.variables, CNI_COMMAND: command };
  const callLimits = { signal: limits.signal, deadlineMs: Math.min(limits.deadlineMs, clock.nowMs() + TIMEOUT_MS) };
  const interval = limits.recorder?.begin(`IPAM plugin ${delegate.type} ${command}`, 'delegate');
  const outcome = await withDelegateName(delegate, command, () =>
    execute({ path, variables, stdin: configuration }, callLimits, clock),
  ).finally(() => {
    if (interval) limits.recorder?.end(interval);
  });
  if (outcome.exitCode !== 0) throw errorOf(delegate, command, outcome);
  return outcome;
}

/** Path of the delegate's program. @throws Failure DELEGATE_FAILED if there is none; nothing was called then */
export function programOf(delegate: Delegate, command: Command): string {
  const cniPath = delegate.variables.CNI_PATH ?? '';
  const path = findProgram(delegate.type, cniPath);
  if (path !== undefined) return path;
  const reason = `is not an executable in any directory of CNI_PATH (${quote(cniPath)}); install it there`;
  throw delegateFailure(delegate, command, reason);
}

/** Prefixes the failures of running the delegate with its name. */
async function withDelegateName<Value>(
  delegate: Delegate,
  command: Command,
  work: () => Promise<Value>,
): Promise<Value> {
  try {
    return await work();
  } catch (error) {
    const isRunFailure =
      error instanceof Failure && (error.code === 'DELEGATE_FAILED' || error.code === 'DELEGATE_UNAVAILABLE');
    if (!isRunFailure) throw error;
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
  const end = signal === null ? `exited with code ${exitCode ?? 'unknown'}` : `was killed by ${signal}`;
  const outputs = [stdout, stderr].map((text) => text.trim()).filter((text) => text !== '');
  return delegateFailure(
    delegate,
    command,
    `${end} and printed ${outputs.length > 0 ? outputs.map(quote).join(', ') : 'nothing'}`,
  );
}

/** Whether a failure is an error that the delegate returned, not a timeout or an invalid answer. */
export function isRefusal(error: unknown, delegate: Delegate | undefined): boolean {
  return error instanceof Failure && delegate !== undefined && error.details.delegate === delegate.type;
}

function readResult(delegate: Delegate, stdout: string): Result {
  const read = resultSchema(versionOf(delegate)).safeParse(parseJson(stdout));
  if (read.success && read.data) return read.data;
  const faults = read.error?.issues.map(({ path, message }) => `${path.join('.')} ${message}`.trim()) ?? [
    'is not JSON',
  ];
  throw delegateFailure(delegate, 'ADD', `returned an invalid CNI result (${faults.join('; ')}): ${quote(stdout)}`);
}

const STATED = z.object({ cniVersion: z.unknown() });

/** The version of the configuration, which was validated before. */
function versionOf({ configuration }: Delegate): CniVersion {
  return readVersion(STATED.safeParse(parseJson(configuration)).data?.cniVersion);
}

function delegateFailure({ type }: Delegate, command: Command, reason: string): Failure {
  return new Failure('DELEGATE_FAILED', `IPAM plugin ${type}: ${command}: ${type} ${reason}`);
}

function quote(text: string): string {
  const isLong = text.length > MAX_QUOTED_CHARACTERS;
  return JSON.stringify(isLong ? `${text.slice(0, MAX_QUOTED_CHARACTERS)}…` : text);
}

/** Exit and output of a program. */
interface Outcome {
  /** Null if a signal ended it. */
  readonly exitCode: number | null;
  readonly signal: string | null;
  readonly stdout: string;
  /** Cut off at {@link MAX_STDERR_BYTES}. */
  readonly stderr: string;
}

interface Execution {
  /** Absolute path. */
  readonly path: string;
  /** The whole environment, beside {@link PATH}. */
  readonly variables: Variables;
  readonly stdin: string;
}

/** The delegate inherits nothing else of the resident's environment. */
const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

/** More than any result of an IPAM plugin. */
const MAX_STDOUT_BYTES = 1024 * 1024;
const MAX_STDERR_BYTES = 16 * 1024;

/** Pause before a retry while the program's file is being written (ETXTBSY). */
const BUSY_PAUSE_MS = 20;

/**
 * Finds a program as libcni does: the first of that name in the directories of CNI_PATH. Skips relative directories, which
 * would be relative to the resident.
 * @param name - without a slash
 * @returns undefined when no executable has that name
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
    const outcome = await executeOnce(execution, limits, clock);
    if (outcome !== 'busy') return outcome;
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
  // Not AbortSignal.any: Node.js 20 keeps it as long as its sources live, and one may live as long as the process.
  const onAbort = (): void => ended.abort();
  limits.signal.addEventListener('abort', onAbort, { once: true });
  try {
    const timer = clock.sleep(limits.deadlineMs - clock.nowMs(), ended.signal);
    const expired = timer.then((outcome): never => {
      if (outcome === 'aborted') limits.signal.throwIfAborted();
      throw new Failure('DELEGATE_UNAVAILABLE', `${path} timed out and was killed`);
    });
    expired.catch(() => undefined);
    child.stdin.on('error', () => undefined).end(stdin);
    return await Promise.race([outcomeOf(child, path), expired]);
  } catch (error) {
    if (child.pid !== undefined) killProcessGroup(child.pid);
    for (const stream of [child.stdin, child.stdout, child.stderr]) stream.destroy();
    throw error;
  } finally {
    limits.signal.removeEventListener('abort', onAbort);
    ended.abort();
  }
}

function start(path: string, variables: Variables): ChildProcessWithoutNullStreams | undefined {
  try {
    return spawn(path, [], { env: { ...variables, PATH }, cwd: '/', detached: true, stdio: 'pipe' });
  } catch (error) {
    if (codeOf(error) === 'ETXTBSY') return undefined;
    throw spawnFailure(path, error);
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
      else reject(new Failure('DELEGATE_FAILED', `${path} printed more than ${MAX_STDOUT_BYTES} bytes and was killed`));
    });
    child.stderr.on('data', (chunk: Buffer) => {
      if (stderrBytes < MAX_STDERR_BYTES) stderr.push(chunk.subarray(0, MAX_STDERR_BYTES - stderrBytes));
      stderrBytes += chunk.length;
    });
    child.once('error', (error) => {
      if (codeOf(error) === 'ETXTBSY') resolve('busy');
      else reject(spawnFailure(path, error));
    });
    child.once('close', (exitCode, signal) => {
      const text = (chunks: readonly Buffer[]) => Buffer.concat(chunks).toString();
      resolve({ exitCode, signal, stdout: text(stdout), stderr: text(stderr) });
    });
  });
}

function spawnFailure(path: string, cause: unknown): Failure {
  const reason = messageOf(cause);
  return new Failure('DELEGATE_FAILED', `${path} cannot be run: ${reason}`, { cause });
}
