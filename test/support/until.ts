import { setTimeout as sleep } from 'node:timers/promises';

/** Long enough for any operation on a machine under heavy load, in milliseconds. */
const PATIENCE_MS = 60_000;

/** Waits for a condition. @param complaint - the error when it does not come true @throws Error with it */
export async function until(
  isTrue: () => boolean | Promise<boolean>,
  complaint: () => string,
  patienceMs = PATIENCE_MS,
): Promise<void> {
  const endMs = Date.now() + patienceMs;
  while (!(await isTrue())) {
    if (Date.now() > endMs) throw new Error(complaint());
    await sleep(20);
  }
}
