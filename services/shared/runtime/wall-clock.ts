import type { Clock } from './clock.js';

export const NS_PER_MS = 1_000_000n;

/**
 * Wall clock in epoch nanoseconds, to compare events of several processes that are less than a millisecond apart. The
 * fractions come from the monotonic clock and are kept within the wall clock's millisecond, even if the two drift apart.
 */
export function wallClockNs(clock: Pick<Clock, 'nowMs' | 'monotonicMs'>): () => bigint {
  let offsetMs = clock.nowMs() - clock.monotonicMs();
  return () => {
    const earliestMs = clock.nowMs();
    const latestMs = earliestMs + 1;
    const elapsedMs = clock.monotonicMs();
    offsetMs = Math.min(Math.max(offsetMs, earliestMs - elapsedMs), latestMs - elapsedMs);
    const fractionNs = Math.floor((offsetMs + elapsedMs - earliestMs) * Number(NS_PER_MS));
    return BigInt(earliestMs) * NS_PER_MS + BigInt(fractionNs);
  };
}
