import { FAILURE_CODES } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';

/** What a plugin answers when it fails (CNI specification 1.1.0, section 2 "Error"). */
export interface CniError {
  readonly cniVersion: string;
  readonly code: number;
  /** The object, the reason and the next step. */
  readonly msg: string;
  /** What helps to find the cause: name of the failure, its facts, the trace under which the logs have more. */
  readonly details: string;
}

export interface ErrorContext {
  /** The version that the request states. */
  readonly cniVersion: string;
  /** Trace of the request, as 32 hexadecimal digits, where it has one. */
  readonly traceId?: string | undefined;
}

/**
 * containerd takes a DEL whose error holds one of these for done (go-cni, `Remove`), and the pod's address would leak. Texts
 * of the kernel and of other processes come with them.
 */
const MISREAD: readonly (readonly [RegExp, string])[] = [
  [/not found/gi, 'missing'],
  [/no such file or directory/gi, 'path is missing'],
];

/**
 * The border failure → CNI error. What is no {@link Failure} is a defect: outside it becomes a neutral text, its detail
 * belongs into the log.
 */
export function cniErrorOf(error: unknown, { cniVersion, traceId }: ErrorContext): CniError {
  const failure =
    error instanceof Failure
      ? error
      : new Failure('INTERNAL', 'internal error: see the log of podwire-plugin, and please report it');
  const facts = Object.entries(failure.details).map(([name, value]) => `${name}: ${value}`);
  const trace = traceId === undefined ? [] : [`trace: ${traceId}`];
  return {
    cniVersion,
    code: FAILURE_CODES[failure.code].cni,
    msg: unmistakable(failure.message),
    details: unmistakable([failure.code, ...facts, ...trace].join('; ')),
  };
}

function unmistakable(text: string): string {
  return MISREAD.reduce((result, [phrase, replacement]) => result.replaceAll(phrase, replacement), text);
}
