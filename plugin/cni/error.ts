import { FAILURE_CODES } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';

/** The error document of a plugin (CNI specification 1.1.0, section 2 "Error"). */
export interface CniError {
  readonly cniVersion: string;
  readonly code: number;
  /** The object, the reason and the next step. */
  readonly msg: string;
  /** Failure code, its details, and the trace ID for the logs. */
  readonly details: string;
}

export interface ErrorContext {
  /** The version that the request states. */
  readonly cniVersion: string;
  /** Trace ID of the request: 32 hexadecimal digits. */
  readonly traceId?: string | undefined;
}

/**
 * Phrases that make containerd treat a failed DEL as done (go-cni, `Remove`), so that the pod's address would leak. Errors of
 * the kernel and of other processes contain them.
 */
const MISREAD: readonly (readonly [RegExp, string])[] = [
  [/not found/gi, 'missing'],
  [/no such file or directory/gi, 'path is missing'],
];

/**
 * Converts an error to a CNI error. An error that is not a {@link Failure} is a defect: the caller gets a generic text, and
 * the log has the details.
 */
export function cniErrorOf(error: unknown, { cniVersion, traceId }: ErrorContext): CniError {
  const failure =
    error instanceof Failure
      ? error
      : new Failure('INTERNAL', 'internal error: see the log of podwire-node, and please report it');
  const facts = Object.entries(failure.details).map(([name, value]) => `${name}: ${value}`);
  const trace = traceId === undefined ? [] : [`trace: ${traceId}`];
  return {
    cniVersion,
    code: FAILURE_CODES[failure.code].cni,
    msg: withoutMisreadPhrases(failure.message),
    details: withoutMisreadPhrases([failure.code, ...facts, ...trace].join('; ')),
  };
}

function withoutMisreadPhrases(text: string): string {
  return MISREAD.reduce((result, [phrase, replacement]) => result.replaceAll(phrase, replacement), text);
}
