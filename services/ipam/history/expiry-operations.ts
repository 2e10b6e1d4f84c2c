import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Events } from '../engine/events.js';
import { dayOf, dayStartMs } from '../records/json/keys.js';
import type { HistoryLog } from './history-log.js';
import { HOUR_MS, isHistoryKept } from './history-operations.js';

/** Reports removals from the history. */
export class HistoryEvents {
  readonly #log: Logger;

  constructor(events: Events) {
    this.#log = events.log;
  }

  /** Entries older than the retention time were removed. */
  historyExpired(day: Date, entriesCount: number): void {
    this.#log.info(
      `removed ${formatCount(entriesCount, 'entry', 'entries')} of the history from ${day.toISOString().slice(0, 10)}`,
    );
  }
}

interface HistoryExpiryOptions {
  readonly log: Pick<HistoryLog, 'dayAfter' | 'removeBatch' | 'recordKeptFrom' | 'segments'>;
  readonly retentionHours: number;
  readonly events: Pick<HistoryEvents, 'historyExpired'>;
  readonly clock: Clock;
}

/**
 * Runs between two removals. With a run every 30 s a replica removes four days of history per day; one becomes due.
 * Runs are counted, because the clock may be wrong.
 */
const RUNS_PER_REMOVAL = 720;

/** Runs between two checks without a removal: an hour. A started replica first checks after an hour. */
const RUNS_PER_CHECK = 120;

/**
 * Removes history older than the retention time, by whole days, the oldest first. Several replicas may run it
 * concurrently: a repeated removal removes nothing.
 *
 * A replica whose clock is ahead must not remove the whole history, so two limits apply. Nothing is removed that is
 * newer than the newest entry's day minus the retention time. As that replica's own releases are entries too, it also
 * removes only a few days per day, so that the operator can react to the log's warning. A replica in a restart loop
 * removes none. A clock that is behind removes too little.
 *
 * A datastore with segments removes them itself.
 */
export class HistoryExpiry {
  readonly #options: HistoryExpiryOptions;
  /** Runs until the next removal. */
  #runsUntilRemoval = RUNS_PER_CHECK - 1;
  /** The day that is recorded as incomplete. */
  #recordedDay = -1;

  constructor(options: HistoryExpiryOptions) {
    this.#options = options;
  }

  /** Removes at most one day, a large one over several runs. The next run continues after an abort. */
  async run(signal: AbortSignal): Promise<void> {
    const { log, events, clock, retentionHours } = this.#options;
    await this.#recordMissingHistory(signal);
    if (log.segments) {
      await log.segments.removeOld(retentionHours * HOUR_MS, signal);
      return;
    }
    if (this.#runsUntilRemoval > 0) {
      this.#runsUntilRemoval--;
      return;
    }
    const day = await log.dayAfter(undefined, signal);
    if (day === undefined || day >= (await this.#firstKeptDay(signal))) {
      this.#runsUntilRemoval = RUNS_PER_CHECK - 1;
      return;
    }
    // A future day, written with a wrong clock, does not cover the days before it.
    await log.recordKeptFrom(Math.min(day, dayOf(clock.nowMs())) + 1, signal);
    const { count, more } = await log.removeBatch(day, signal);
    if (!more) this.#runsUntilRemoval = RUNS_PER_REMOVAL - 1;
    events.historyExpired(new Date(dayStartMs(day)), count);
  }

  /** Without a history, records that today is incomplete, for later queries. */
  async #recordMissingHistory(signal: AbortSignal): Promise<void> {
    const { log, clock, retentionHours } = this.#options;
    const today = dayOf(clock.nowMs());
    if (isHistoryKept(log, retentionHours) || today === this.#recordedDay) return;
    await log.recordKeptFrom(today + 1, signal);
    this.#recordedDay = today;
  }

  /** Days before this one are removed: they are older than the retention time. */
  async #firstKeptDay(signal: AbortSignal): Promise<number> {
    const { clock, retentionHours } = this.#options;
    if (retentionHours === 0) return Number.POSITIVE_INFINITY;
    const nowMs = clock.nowMs();
    const today = dayOf(nowMs);
    const newest = await this.#newestDayUpTo(today, signal);
    return dayOf((newest === today ? nowMs : dayStartMs(newest)) - retentionHours * HOUR_MS);
  }

  /** The newest day with entries, or one that is not before `today`: a binary search, because the datastore lists forwards only. */
  async #newestDayUpTo(today: number, signal: AbortSignal): Promise<number> {
    let low = -1;
    for (let high = today; low < high;) {
      const middle = Math.ceil((low + high) / 2);
      const behind = await this.#options.log.dayAfter(middle - 1, signal);
      if (behind === undefined) high = middle - 1;
      else low = Math.max(middle, Math.min(behind, high));
    }
    return low;
  }
}
