import type { BackoffBounds } from '@podwire/shared/retry/schedule';
import { backoffMs } from '@podwire/shared/retry/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { JournalEntry } from './entry.js';
import type { JournalEvents } from './events.js';
import type { Journal } from './journal.js';

/** The first repeat comes soon, as most absences are restarts; a long one is asked about twice a minute. */
const BACKOFF: BackoffBounds = { baseMs: 500, maxMs: 30_000 };

export interface ReplayOptions {
  readonly journal: Journal;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  readonly events: JournalEvents;
  /**
   * Does what an entry says, in the attachment's turn, and strikes it out; one that is gone by then is done.
   * @param skip - names of services that did not answer in this round
   * @returns the service that did not answer, for this round; undefined where all did
   * @throws Failure when a service refused
   */
  readonly settle: (entry: JournalEntry, skip: ReadonlySet<string>, signal: AbortSignal) => Promise<string | undefined>;
}

/**
 * Does what the journal says, in rounds over all entries in their order, until it is empty. A service that does not answer is asked
 * once a round, not once an entry; an entry that is refused holds up no other. After rounds without progress come pauses, which grow.
 */
export class Replay {
  readonly #options: ReplayOptions;
  readonly #stop = new AbortController();
  #wake = new AbortController();
  #running: Promise<void> | undefined;
  /** Why entries were refused, by their order, so that the log has each reason once. */
  #refusals = new Map<number, string>();

  constructor(options: ReplayOptions) {
    this.#options = options;
    options.journal.onAdd(() => this.start());
  }

  /** Begins where something waits. An entry that comes during a pause waits for its end. */
  start(): void {
    if (this.#stop.signal.aborted || this.#running || this.#options.journal.isIdle) return;
    this.#running = this.#run().finally(() => {
      this.#running = undefined;
      // What was added while the last round ended.
      this.start();
    });
  }

  /** Begins, and makes the pause between two rounds end. */
  hurry(): void {
    this.#wake.abort();
    this.start();
  }

  /** Ends the round under way. What is not done stays in the journal. */
  async stop(): Promise<void> {
    this.#stop.abort();
    this.#wake.abort();
    await this.#running;
  }

  async #run(): Promise<void> {
    const { clock, random } = this.#options;
    for (let attempt = 0; !this.#isOver(); attempt++) {
      this.#wake = new AbortController();
      const progressed = await this.#round();
      if (progressed) attempt = -1;
      if (progressed || this.#isOver()) continue;
      await clock.sleep(backoffMs(attempt, BACKOFF, random()), this.#wake.signal);
    }
  }

  #isOver(): boolean {
    return this.#options.journal.isIdle || this.#stop.signal.aborted;
  }

  /** @returns whether an entry was done */
  async #round(): Promise<boolean> {
    const { journal, settle, events } = this.#options;
    const { signal } = this.#stop;
    const away = new Set<string>();
    const refusals = new Map<number, string>();
    let progressed = false;
    await journal.settleStore();
    for (const entry of journal.entries()) {
      if (signal.aborted) break;
      try {
        const unanswered = await settle(entry, away, signal);
        if (unanswered === undefined) progressed = true;
        else away.add(unanswered);
      } catch (error) {
        const reason = error instanceof Error ? error.message : String(error);
        refusals.set(entry.order, reason);
        if (this.#refusals.get(entry.order) !== reason) events.notDone(entry, error);
      }
    }
    this.#refusals = refusals;
    return progressed;
  }
}
