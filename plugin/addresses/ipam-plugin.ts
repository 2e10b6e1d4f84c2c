import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { parseJson } from '@podwire/shared/json/parse';
import { familyBits, formatAddress } from '@podwire/shared/net/address';
import { splitCidr } from '@podwire/shared/net/prefix';
import type { Clock } from '@podwire/shared/runtime/clock';
import { z } from 'zod';

import type { Limits } from '../clients/clients.js';
import { askedDns, DNS, type Dns } from '../cni/dns.js';
import type { Command } from '../cni/environment.js';
import { resultSchema, type Result } from '../cni/result-form.js';
import { readVersion, type CniVersion } from '../cni/version.js';
import { execute, findProgram, type Outcome } from '../delegate/program.js';
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
