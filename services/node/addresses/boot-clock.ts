import { uptime } from 'node:os';

import type { Clock } from '@podwire/shared/runtime/clock';

const MS_PER_SECOND = 1000;

/** The kernel is read again after this time, in milliseconds: a reading takes some 20 µs. */
const READING_MS = 10_000;

/** Largest difference of the two clocks' progress without a suspension, in milliseconds. */
const DRIFT_MS = 1000;

/**
 * The time since the boot, in milliseconds, with the time in which the machine was suspended. The monotonic clock stops meanwhile,
 * and the wall clock does not.
 * @param readMs - reads it from the kernel
 */
export function bootClock(
  clock: Pick<Clock, 'nowMs' | 'monotonicMs'>,
  readMs = () => uptime() * MS_PER_SECOND,
): () => number {
  const read = () => ({ bootMs: readMs(), monotonicMs: clock.monotonicMs(), nowMs: clock.nowMs() });
  let last = read();
  return () => {
    const passedMs = clock.monotonicMs() - last.monotonicMs;
    const hasJumped = Math.abs(clock.nowMs() - last.nowMs - passedMs) > DRIFT_MS;
    if (passedMs < READING_MS && !hasJumped) return last.bootMs + passedMs;
    last = read();
    return last.bootMs;
  };
}
