import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process';
import { accessSync, constants, statSync } from 'node:fs';
import { join } from 'node:path';

import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { codeOf, messageOf } from '@podwire/shared/failure/thrown';
import { parseJson } from '@podwire/shared/json/parse';
import { splitCidr } from '@podwire/shared/net/prefix';
import type { Clock } from '@podwire/shared/runtime/clock';
import { killProcessGroup } from '@podwire/shared/runtime/process-group';
import { recordInterval } from '@podwire/shared/telemetry/intervals';
import { z } from 'zod';

import type { Limits } from '../clients/clients.js';
import { statedVersion } from '../cni/config.js';
import type { Command, Variables } from '../cni/environment.js';
import { nonEmptyDns, DNS } from '../cni/request-sources.js';
import { resultSchema, type Result } from '../cni/result.js';
import { readVersion } from '../cni/version.js';

/** Another IPAM plugin and its full input. A later process needs the same input to release the addresses. */
export interface Delegate {
  /** `ipam.type`: name of its program. */
  readonly type: string;
  /** The CNI variables as the runtime set them; its program is looked for in `CNI_PATH`. */
  readonly variables: Variables;
  /** The whole network configuration, JSON in UTF-8. */
  readonly configuration: string;
}

export type PluginName = `IPAM plugin ${string}`;

export function pluginName({ type }: Pick<Delegate, 'type'>): PluginName {
  return `IPAM plugin ${type}`;
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

interface DelegateTools {
  readonly clock: Clock;
  readonly limits: Limits;
}

/**
 * ADD of the delegate.
 * @returns the addresses, at least one, and DNS settings for the result, if there are any
 * @throws Failure, as {@link callDelegate}; DELEGATE_FAILED when the result is invalid or has no address. The delegate may
 *   hold addresses all the same.
 */
export async function addByDelegate(delegate: Delegate, tools: DelegateTools) {
  const { stdout } = await callDelegate(delegate, 'ADD', tools);
  const { ips, rest } = readResult(delegate, stdout);
  const addresses = ips.map(({ address: cidr }) => {
    const address = splitCidr(cidr)?.address;
    if (address) return address;
    throw delegateFailure(delegate, 'ADD', `returned the address ${quote(cidr)}, which is not a CIDR`);
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
  const path = programOf(delegate, command);
  const execution = {
    path,
    label: `${pluginName(delegate)}: ${command}: ${path}`,
    variables: { ...delegate.variables, CNI_COMMAND: command },
    stdin: delegate.configuration,
  };
  const callLimits = { signal: limits.signal, deadlineMs: Math.min(limits.deadlineMs, clock.nowMs() + TIMEOUT_MS) };
  const interval = `${pluginName(delegate)} ${command}`;
  const outcome = await recordInterval(interval, 'delegate', () => execute(execution, callLimits, clock));
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

function errorOf(delegate: Delegate, command: Command, outcome: Outcome): Failure {
  const { exitCode, signal, stdout, stderr } = outcome;
  const error = ERROR.safeParse(parseJson(stdout)).data;
  if (error) {
    const code = CODE_OF[error.code] ?? 'DELEGATE_FAILED';
    return new Failure(code, `${pluginName(delegate)}: ${command}: ${error.msg}`, {
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

/** Codes of CNI for a request that fails whenever it is repeated: a version, a configuration or a variable is wrong. */
const PERMANENT_CODES: ReadonlySet<string | undefined> = new Set(['1', '2', '4', '6', '7']);

/** Whether a failure is a delegate's error that the same call would return again. */
export function isPermanentRefusal({ details }: Failure): boolean {
  return details.delegate !== undefined && PERMANENT_CODES.has(details.code);
}

/** Whether a failure is an error that the delegate returned, not a timeout or an invalid answer. */
export function isRefusal(error: unknown, { type }: Delegate): boolean {
  return error instanceof Failure && error.details.delegate === type;
}

function readResult(delegate: Delegate, stdout: string): Result {
  const version = readVersion(statedVersion(delegate.configuration));
  const read = resultSchema(version).safeParse(parseJson(stdout));
  if (read.success && read.data) return read.data;
  const faults = read.error?.issues.map(({ path, message }) => `${path.join('.')} ${message}`.trim()) ?? [
    'is not JSON',
  ];
  throw delegateFailure(delegate, 'ADD', `returned an invalid CNI result (${faults.join('; ')}): ${quote(stdout)}`);
}

function delegateFailure(delegate: Delegate, command: Command, reason: string): Failure {
  return new Failure('DELEGATE_FAILED', `${pluginName(delegate)}: ${command}: ${delegate.type} ${reason}`);
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
  /** Label for failures. */
  readonly label: string;
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
      throw new Failure('DELEGATE_UNAVAILABLE', `${execution.label} is being written`);
    await clock.sleep(BUSY_PAUSE_MS, limits.signal);
  }
}

async function executeOnce(execution: Execution, limits: Limits, clock: Clock): Promise<Outcome | 'busy'> {
  const { label, stdin } = execution;
  const ended = new AbortController();
  const child = start(execution);
  if (!child) return 'busy';
  // Not AbortSignal.any: Node.js 20 keeps it as long as its sources live, and one may live as long as the process.
  const onAbort = (): void => ended.abort();
  limits.signal.addEventListener('abort', onAbort, { once: true });
  try {
    const timer = clock.sleep(limits.deadlineMs - clock.nowMs(), ended.signal);
    const expired = timer.then((outcome): never => {
      if (outcome === 'aborted') limits.signal.throwIfAborted();
      throw new Failure('DELEGATE_UNAVAILABLE', `${label} timed out and was killed`);
    });
    expired.catch(() => undefined);
    child.stdin.on('error', () => undefined).end(stdin);
    return await Promise.race([outcomeOf(child, label), expired]);
  } catch (error) {
    if (child.pid !== undefined) killProcessGroup(child.pid);
    for (const stream of [child.stdin, child.stdout, child.stderr]) stream.destroy();
    throw error;
  } finally {
    limits.signal.removeEventListener('abort', onAbort);
    ended.abort();
  }
}

function start({ path, label, variables }: Execution): ChildProcessWithoutNullStreams | undefined {
  try {
    return spawn(path, [], { env: { ...variables, PATH }, cwd: '/', detached: true, stdio: 'pipe' });
  } catch (error) {
    if (codeOf(error) === 'ETXTBSY') return undefined;
    throw spawnFailure(label, error);
  }
}

function outcomeOf(child: ChildProcessWithoutNullStreams, label: string): Promise<Outcome | 'busy'> {
  return new Promise((resolve, reject) => {
    const stdout: Buffer[] = [];
    const stderr: Buffer[] = [];
    let [stdoutBytes, stderrBytes] = [0, 0];
    child.stdout.on('data', (chunk: Buffer) => {
      stdoutBytes += chunk.length;
      if (stdoutBytes <= MAX_STDOUT_BYTES) stdout.push(chunk);
      else
        reject(new Failure('DELEGATE_FAILED', `${label} printed more than ${MAX_STDOUT_BYTES} bytes and was killed`));
    });
    child.stderr.on('data', (chunk: Buffer) => {
      if (stderrBytes < MAX_STDERR_BYTES) stderr.push(chunk.subarray(0, MAX_STDERR_BYTES - stderrBytes));
      stderrBytes += chunk.length;
    });
    child.once('error', (error) => {
      if (codeOf(error) === 'ETXTBSY') resolve('busy');
      else reject(spawnFailure(label, error));
    });
    child.once('close', (exitCode, signal) => {
      const text = (chunks: readonly Buffer[]) => Buffer.concat(chunks).toString();
      resolve({ exitCode, signal, stdout: text(stdout), stderr: text(stderr) });
    });
  });
}

function spawnFailure(label: string, cause: unknown): Failure {
  const reason = messageOf(cause);
  return new Failure('DELEGATE_FAILED', `${label} cannot be run: ${reason}`, { cause });
}

/** How long a circuit stays open after a timeout, in milliseconds. The journal retries within that time and closes it. */
const OPEN_MS = 30_000;

/**
 * Delegated IPAM plugins whose last call timed out. DEL leaves their addresses to the journal instead of waiting again; the
 * journal calls such a plugin once a round. Kept by network, as a plugin's back end depends on the network configuration.
 */
export class IpamCircuitBreaker {
  readonly #clock: Clock;
  /** When a call timed out, by network and type, by the monotonic clock. */
  readonly #timeouts = new Map<string, Map<string, number>>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Types of the plugins of a network whose circuit is open. */
  openFor(network: string): readonly string[] {
    const nowMs = this.#clock.monotonicMs();
    const timeouts = [...(this.#timeouts.get(network) ?? [])];
    return timeouts.flatMap(([type, atMs]) => (nowMs < atMs + OPEN_MS ? [type] : []));
  }

  /** Calls a plugin. Opens its circuit on a timeout, closes it on any answer. @throws what the call throws */
  async run(network: string, delegate: Delegate, call: () => Promise<unknown>): Promise<void> {
    try {
      await call();
      this.#close(network, delegate);
    } catch (error) {
      if (isTimeout(error, delegate)) this.#open(network, delegate);
      else if (isRefusal(error, delegate)) this.#close(network, delegate);
      throw error;
    }
  }

  #open(network: string, { type }: Delegate): void {
    const timeouts = this.#timeouts.get(network) ?? new Map<string, number>();
    this.#timeouts.set(network, timeouts.set(type, this.#clock.monotonicMs()));
  }

  #close(network: string, { type }: Delegate): void {
    const timeouts = this.#timeouts.get(network);
    if (timeouts?.delete(type) && timeouts.size === 0) this.#timeouts.delete(network);
  }
}

/** Whether the call timed out. An answer with the retryable code 11 is not a timeout. */
function isTimeout(error: unknown, delegate: Delegate): boolean {
  return error instanceof Failure && error.code === 'DELEGATE_UNAVAILABLE' && !isRefusal(error, delegate);
}
