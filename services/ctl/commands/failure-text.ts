import { Failure } from '@podwire/shared/failure/failure';
import { tracedMessage } from '@podwire/shared/failure/status';

/** A failure in one line. */
export function failureLine(failure: Failure): string {
  return `${tracedMessage(failure)} (${failure.code})`;
}

/** What went wrong with one of several things, so that the others go on. @throws what is a defect, or ends the whole command */
export function failureText(error: unknown): string {
  if (!(error instanceof Failure) || error.code === 'UNREACHABLE' || error.code === 'DEADLINE_EXCEEDED') throw error;
  return failureLine(error);
}
