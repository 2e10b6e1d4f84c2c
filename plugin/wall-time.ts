import type { Clock } from '@podwire/shared/runtime/clock';

export const NS_PER_MS = 1_000_000n;

/** A time that only moves forward, in milliseconds with their fractions. */
export interface Stopwatch {
  now(): number;
}

/**
 * Wall clock in epoch nanoseconds, to compare with that of the shim, which ends before a clock of whole milliseconds moves on.
 * The fractions are a stopwatch's, kept within the clock's millisecond, however long the two run and drift apart.
 */
export function wallTimeNs(clock: Clock, stopwatch: Stopwatch): () => bigint {
  let offsetMs = clock.nowMs() - stopwatch.now();
  return () => {
    const earliestMs = clock.nowMs();
    const latestMs = earliestMs + 1;
    const elapsedMs = stopwatch.now();
    offsetMs = Math.min(Math.max(offsetMs, earliestMs - elapsedMs), latestMs - elapsedMs);
    const fractionNs = Math.floor((offsetMs + elapsedMs - earliestMs) * Number(NS_PER_MS));
    return BigInt(earliestMs) * NS_PER_MS + BigInt(fractionNs);
  };
}
