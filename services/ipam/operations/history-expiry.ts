import type { Clock } from '@podwire/shared/runtime/clock';

import type { Events } from '../events.js';
import { HOUR_MS, type HistoryLog } from '../store/history-log.js';
import { hourOf } from './history.js';

export interface HistoryExpiryOptions {
  readonly log: Pick<HistoryLog, 'hourAfter' | 'removeHour'>;
  readonly keptHoursCount: number;
  readonly events: Pick<Events, 'historyExpired'>;
  readonly clock: Clock;
}

/**
 * Of the history a replica removes one hour in so many runs: with a run each half minute four in an hour, where one falls due.
 * Runs are counted because the clock is what may be wrong.
 */
const RUNS_PER_REMOVAL = 30;

/**
 * Removes what is older than the history is kept, by whole hours, the oldest first. Any number of replicas may do so at once: a removal
 * that another has done already removes nothing.
 *
 * A replica whose clock is ahead must not take the whole history with it, so two things hold it back. Nothing is removed that is
 * newer than the newest entry less the time to keep. And as that replica's own releases are entries too, it removes only a
 * few hours in an hour: who is warned by the log has days to act. A clock behind removes too little.
 */
export class HistoryExpiry {
  readonly #options: HistoryExpiryOptions;
  /** Runs until the next removal. */
  #pauseRuns = 0;

  constructor(options: HistoryExpiryOptions) {
    this.#options = options;
  }

  /** Removes one hour at most. What is cut off by the signal goes on with the next run. */
  async run(signal: AbortSignal): Promise<void> {
    const { log, events } = this.#options;
    if (this.#pauseRuns > 0) {
      this.#pauseRuns--;
      return;
    }
    const hour = await log.hourAfter(undefined, signal);
    if (hour === undefined || hour >= (await this.#limit(signal))) return;
    const entries = await log.removeHour(hour, signal);
    this.#pauseRuns = RUNS_PER_REMOVAL - 1;
    events.historyExpired(new Date(hour * HOUR_MS), entries);
  }

  /** The hours before this one are to go. */
  async #limit(signal: AbortSignal): Promise<number> {
    const { clock, keptHoursCount } = this.#options;
    const now = hourOf(clock.nowMs());
    if (keptHoursCount === 0) return Number.POSITIVE_INFINITY;
    return Math.min(now, await this.#newestUpTo(now, signal)) - keptHoursCount;
  }

  /** The newest hour with entries, or one that is not before `now`: halving, as the datastore lists forwards only. */
  async #newestUpTo(now: number, signal: AbortSignal): Promise<number> {
    let low = -1;
    for (let high = now; low < high;) {
      const middle = Math.ceil((low + high) / 2);
      const behind = await this.#options.log.hourAfter(middle - 1, signal);
      if (behind === undefined) high = middle - 1;
      else low = Math.max(middle, Math.min(behind, high));
    }
    return low;
  }
}
