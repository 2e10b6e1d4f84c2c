import { Failure } from './failure.js';

/** The failure of an aborted signal: its reason, if the RPC server set one; DEADLINE_EXCEEDED for a timeout; else CANCELLED. */
export function failureOfSignal(signal: AbortSignal): Failure {
  const reason: unknown = signal.reason;
  if (reason instanceof Failure) return reason;
  const timedOut = reason instanceof Error && reason.name === 'TimeoutError';
  return timedOut
    ? new Failure('DEADLINE_EXCEEDED', 'the deadline of the request has passed; retry it', { cause: reason })
    : new Failure('CANCELLED', 'the caller cancelled the request; retry it if still needed', { cause: reason });
}

/**
 * Waits for work that its caller may give up.
 * @throws what the work throws, or {@link failureOfSignal} as soon as the signal fires; the work keeps running
 */
export async function untilAborted<Result>(work: Promise<Result>, signal: AbortSignal): Promise<Result> {
  let onAbort = (): void => undefined;
  const aborted = new Promise<never>((_, reject) => {
    onAbort = () => reject(failureOfSignal(signal));
    signal.addEventListener('abort', onAbort);
    if (signal.aborted) onAbort();
  });
  try {
    return await Promise.race([work, aborted]);
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}

/** Whether the signal has fired; a function, because the compiler assumes an earlier check still holds. */
export function isAborted(signal: AbortSignal): boolean {
  return signal.aborted;
}
