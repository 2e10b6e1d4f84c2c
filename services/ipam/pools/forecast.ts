/** Interval between two samples, in milliseconds, and the samples that count: an hour, as the alert of exhausted pools has it. */
const SAMPLE_INTERVAL_MS = 60_000;
const MAX_SAMPLES_COUNT = 60;

/** Fewer samples would make a forecast of one burst. */
const MIN_SAMPLES_COUNT = 10;

/** A pool that lasts longer gets no forecast: an hour does not show a trend of months. */
const MAX_FORECAST_SECONDS = 30 * 86_400;

interface Sample {
  /** Time of the monotonic clock. */
  readonly atMs: number;
  readonly availableCount: number;
}

/** Forecasts when pools are full, by the trend of their available addresses in the last hour. */
export class PoolForecast {
  #samples = new Map<string, readonly Sample[]>();

  /** @param available - addresses of each pool that pods can get. A pool that is missing is forgotten */
  sample(atMs: number, available: ReadonlyMap<string, number>): void {
    const next = new Map<string, readonly Sample[]>();
    for (const [name, availableCount] of available) {
      const earlier = this.#samples.get(name) ?? [];
      const isDue = atMs - (earlier.at(-1)?.atMs ?? -Infinity) >= SAMPLE_INTERVAL_MS;
      next.set(name, isDue ? [...earlier, { atMs, availableCount }].slice(-MAX_SAMPLES_COUNT) : earlier);
    }
    this.#samples = next;
  }

  /** @returns undefined: too little is known, or the pool lasts for a month at least */
  fullInSeconds(name: string): number | undefined {
    const samples = this.#samples.get(name) ?? [];
    const last = samples.at(-1);
    if (!last || samples.length < MIN_SAMPLES_COUNT) return undefined;
    const perMs = slopeOf(samples);
    const seconds = last.availableCount / -perMs / 1000;
    return perMs < 0 && seconds < MAX_FORECAST_SECONDS ? Math.round(seconds) : undefined;
  }
}

/** Least squares: addresses per millisecond. */
function slopeOf(samples: readonly Sample[]): number {
  const mean = (of: (sample: Sample) => number): number =>
    samples.reduce((sum, sample) => sum + of(sample), 0) / samples.length;
  const [meanMs, meanCount] = [mean(({ atMs }) => atMs), mean(({ availableCount }) => availableCount)];
  const covariance = mean(({ atMs, availableCount }) => (atMs - meanMs) * (availableCount - meanCount));
  return covariance / mean(({ atMs }) => (atMs - meanMs) ** 2);
}
