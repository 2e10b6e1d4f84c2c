import { Failure } from '@podwire/shared/failure/failure';

/** What Calico's plugin gives a dataplane for each call. */
export const CNI_LIMIT_MS = 5000;

/**
 * Runs the work of a call of Calico's contract with the time that its plugin waits, where the caller's own is longer: a wire that
 * comes later is nobody's.
 * @throws whatever the work throws, which heeds its signal
 */
export async function withinLimit<Answer>(
  signal: AbortSignal,
  work: (signal: AbortSignal) => Promise<Answer>,
  limitMs = CNI_LIMIT_MS,
): Promise<Answer> {
  const limit = new AbortController();
  const overdue = () => limit.abort(new Failure('DEADLINE_EXCEEDED', `no answer within ${limitMs} ms`));
  const timer = setTimeout(overdue, limitMs);
  try {
    return await work(AbortSignal.any([signal, limit.signal]));
  } finally {
    clearTimeout(timer);
  }
}
