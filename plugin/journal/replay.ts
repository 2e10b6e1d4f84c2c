import { Failure } from '@podwire/shared/failure/failure';
import { tracedMessage } from '@podwire/shared/failure/status';
import { messageOf } from '@podwire/shared/failure/thrown';
import type { BackoffBounds } from '@podwire/shared/retry/schedule';
import { backoffMs } from '@podwire/shared/retry/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { JournalEntry } from './entry.js';
import type { JournalEvents } from './events.js';
import type { Journal } from './journal.js';

/** The first retry is early, as most outages are restarts; a long outage is retried twice a minute. */
const BACKOFF: BackoffBounds = { baseMs: 500, maxMs: 30_000 };

/** A service failed its part of an entry for a transient reason. */
export interface Silence {
  readonly service: string;
  /** For people. */
  readonly reason: string;
}

export interface ReplayOptions {
  readonly journal: Journal;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  readonly events: JournalEvents;
  /**
   * Does what an entry says, in the attachment's turn, and strikes it out; one that is gone by then is done.
   * @param skip - services that were silent in this round, and are not asked again
   * @returns whose silence left the entry undone, of those to skip too; undefined where it is done
   * @throws Failure when a service refused
   */
  readonly settle: (
    entry: JournalEntry,
    skip: ReadonlySet<string>,
    signal: AbortSignal,
  ) => Promise<Silence | undefined>;
}

/**
 * Executes the journal in rounds over all entries, in order, until it is empty. An unresponsive service is called once
 * a round, not once per entry. No entry blocks another: the next round tries the service with a different entry. Rounds
 * without progress are followed by growing pauses.
 */
export class Replay {
  readonly #options: ReplayOptions;
  readonly #stop = new AbortController();
  #wake = new AbortController();
  #running: Promise<void> | undefined;
  /** Why entries were refused, by their order, so that the log has each reason once. */
  #refusals = new Map<number, string>();
  /** What the last attempt of each entry met, by their order. */
  readonly #faults = new Map<number, string>();
  /** The round in which an entry met a service's silence last, by their order. */
  readonly #silentIn = new Map<number, number>();
  #roundsCount = 0;
  /** Who waits for a round that has not begun. */
  #waiting: (() => void)[] = [];

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
      this.#answerWaiting();
    });
  }

  /**
   * Begins, and makes the pause between two rounds end. Rejects never.
   * @returns when a round that began after the call is over; at once where nothing waits
   */
  hurry(): Promise<void> {
    const over = new Promise<void>((resolve) => this.#waiting.push(resolve));
    this.#wake.abort();
    this.start();
    this.#answerWaiting();
    return over;
  }

  /** What the last attempt of an entry met; undefined before there was one. */
  faultOf({ order }: JournalEntry): string | undefined {
    return this.#faults.get(order);
  }

  /** Ends the round under way. What is not done stays in the journal. */
  async stop(): Promise<void> {
    this.#stop.abort(new Failure('CANCELLED', 'podwire-plugin is stopping; the next process goes on'));
    this.#wake.abort();
    await this.#running;
    this.#answerWaiting();
  }

  /** Where no round is to come, those who wait for one have what they waited for. */
  #answerWaiting(): void {
    if (this.#running) return;
    for (const resolve of this.#waiting.splice(0)) resolve();
  }

  async #run(): Promise<void> {
    const { clock, random } = this.#options;
    for (let attempt = 0; !this.#isOver(); attempt++) {
      this.#wake = new AbortController();
      const waiting = this.#waiting.splice(0);
      const progressed = await this.#round();
      for (const resolve of waiting) resolve();
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
    /** Services that were silent, with the reason. */
    const silent = new Map<string, string>();
    const refusals = new Map<number, string>();
    let progressed = false;
    await journal.settleStore();
    this.#roundsCount++;
    for (const entry of this.#inTurn()) {
      if (signal.aborted) break;
      try {
        const silence = await settle(entry, new Set(silent.keys()), signal);
        if (!silence) {
          progressed = true;
          continue;
        }
        const { service, reason } = silence;
        if (!silent.has(service)) {
          silent.set(service, reason);
          this.#silentIn.set(entry.order, this.#roundsCount);
        }
        this.#faults.set(entry.order, silent.get(service) ?? reason);
      } catch (error) {
        const reason = messageOf(error);
        refusals.set(entry.order, reason);
        this.#faults.set(entry.order, error instanceof Failure ? tracedMessage(error) : reason);
        if (this.#refusals.get(entry.order) !== reason) events.notDone(entry, error);
      }
    }
    this.#refusals = refusals;
    const waiting = new Set(journal.entries().map(({ order }) => order));
    for (const known of [this.#faults, this.#silentIn])
      for (const order of known.keys()) if (!waiting.has(order)) known.delete(order);
    return progressed;
  }

  /** The entries in their order, and behind them those that met a service's silence, the latest last. */
  #inTurn(): readonly JournalEntry[] {
    const roundOf = ({ order }: JournalEntry) => this.#silentIn.get(order) ?? 0;
    return [...this.#options.journal.entries()].sort((a, b) => roundOf(a) - roundOf(b) || a.order - b.order);
  }
}
