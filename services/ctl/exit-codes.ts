import { status } from '@grpc/grpc-js';
import { FAILURE_CODES, type FailureCode } from '@podwire/shared/failure/codes';

export const DONE = 0;
export const FAILED = 1;
export const NOT_UNDERSTOOD = 2;
export const NOT_FOUND = 3;
export const FOUND_WRONG = 4;
const NO_ANSWER = 5;

/** How podwirectl ends, for scripts. */
export const EXIT_CODES = [
  { code: DONE, about: 'done' },
  { code: FAILED, about: 'failed or refused' },
  { code: NOT_UNDERSTOOD, about: 'not understood, or not confirmed with --yes' },
  { code: NOT_FOUND, about: 'what was named does not exist' },
  { code: FOUND_WRONG, about: 'something is not as it should be' },
  { code: NO_ANSWER, about: 'a service did not answer' },
] as const;

const OF_STATUS: Partial<Record<status, number>> = {
  [status.INVALID_ARGUMENT]: NOT_UNDERSTOOD,
  [status.NOT_FOUND]: NOT_FOUND,
  [status.UNAVAILABLE]: NO_ANSWER,
  [status.DEADLINE_EXCEEDED]: NO_ANSWER,
};

export function exitCodeOf(code: FailureCode): number {
  return OF_STATUS[FAILURE_CODES[code].status] ?? FAILED;
}
