import { trace, type SpanContext } from '@opentelemetry/api';
import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { Failure, tracedMessage } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { exponentialBackoff, WorkQueue, type NextRun } from '@podwire/shared/reconcile/work-queue';
import type { BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';
import { withSpan } from '@podwire/shared/telemetry/span';

import { isPermanentRefusal } from '../addresses/ipam-plugin.js';
import type { JournalEntry } from './entry.js';
import type { JournalEvents } from './events.js';
import type { Journal } from './journal.js';

/** The first retry is early, as most outages are restarts. During a long outage there are two rounds a minute. */
const BACKOFF: BackoffBounds = { baseMs: 500, maxMs: 30_000 };

/** Thrown by a round without progress, so that the next one follows after a back-off. */
const NO_PROGRESS = new Error('no entry of the journal was done');

/** A service failed for a transient reason. */
export interface UnavailableService {
  readonly service: string;
  /** Human-readable. */
  readonly reason: string;
}

export interface ReplayOptions {
  readonly journal: Journal;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  readonly events: JournalEvents;
  /**
   * Executes an entry in the attachment's queue and removes it. An entry that no longer exists counts as done.
   * @param skip - services that were unavailable in this round and are not called again
   * @returns the unavailable service, which may be one to skip; undefined if the entry is done
   * @throws Failure when a service rejected the call
   */
  readonly execute: (
    entry: JournalEntry,
    skip: ReadonlySet<string>,
    signal: AbortSignal,
  ) => Promise<UnavailableService | undefined>;
}

/**
 * Executes the journal in rounds over all entries, in order, until it is empty. An unresponsive service is called once
 * a round, not once per entry. No entry blocks another: the next round tries the service with a different entry. Rounds
 * without progress are followed by growing pauses. An entry that an IPAM plugin refuses permanently is tried again by the next
 * process, or when a round is requested.
 */
export class Replay {
  readonly #options: ReplayOptions;
  readonly #stop = new AbortController();
  readonly #rounds: WorkQueue<'round'>;
  /** Rejections of the last round, by the entry's order, so that each is logged once. */
  #rejections = new Map<number, string>();
  /** Error of the last attempt, by the entry's order. */
  readonly #faults = new Map<number, string>();
  /** The last round in which an entry found a service unavailable, by the entry's order. */
  readonly #unavailableIn = new Map<number, number>();
  /** The spans in which entries were added, by the entry's order. */
  readonly #causes = new Map<number, SpanContext>();
  #roundsCount = 0;
  /** Order of the entries that can only succeed once something else changes. */
  readonly #hopeless = new Set<number>();
  /** The next round tries entries again that an IPAM plugin refused permanently. */
  #isRequested = false;

  constructor(options: ReplayOptions) {
    this.#options = options;
    this.#rounds = new WorkQueue({
      reconcile: () => this.#run(),
      retryInMs: exponentialBackoff(BACKOFF, options.random),
      onFailure: (error) => {
        if (error !== NO_PROGRESS) throw error;
      },
      clock: options.clock,
    });
    options.journal.onAdd((entry) => {
      this.#hopeless.delete(entry.order);
      const cause = trace.getActiveSpan()?.spanContext();
      if (cause) this.#causes.set(entry.order, cause);
      this.start();
    });
  }

  /** Starts if the journal has work. An entry that is added during a pause waits for the next round. */
  start(): void {
    if (!this.#options.journal.isIdle) this.#rounds.request('round');
  }

  /** Ends the pause between two rounds. Resolves when a round that started after the call is over. Never rejects. */
  runNow(): Promise<void> {
    this.#isRequested = true;
    return this.#rounds.runNow('round').catch(() => undefined);
  }

  /** Error of the last attempt of an entry; undefined before there was one. */
  faultOf({ order }: JournalEntry): string | undefined {
    return this.#faults.get(order);
  }

  /** Cancels the round in flight. Entries that are not done stay in the journal. */
  async stop(): Promise<void> {
    this.#stop.abort(new Failure('CANCELLED', 'podwire-node is stopping; the next process continues'));
    await this.#rounds.stop();
  }

  async #run(): Promise<NextRun | undefined> {
    if (this.#isRequested) this.#hopeless.clear();
    this.#isRequested = false;
    const hasProgress = await this.#round();
    const { journal } = this.#options;
    const isResting = journal.fault === undefined && journal.entries().every(({ order }) => this.#hopeless.has(order));
    if (journal.isIdle || isResting) return undefined;
    if (!hasProgress) throw NO_PROGRESS;
    return { inMs: 0 };
  }

  /** @returns whether an entry was done */
  async #round(): Promise<boolean> {
    const { journal, execute, events } = this.#options;
    const { signal } = this.#stop;
    /** Unavailable services, with the reason. */
    const unavailable = new Map<string, string>();
    const rejections = new Map<number, string>();
    let hasProgress = false;
    await journal.retryStorage();
    this.#roundsCount++;
    for (const entry of this.#orderedEntries()) {
      if (signal.aborted) break;
      const rejection = this.#rejections.get(entry.order);
      if (rejection !== undefined && this.#hopeless.has(entry.order)) {
        rejections.set(entry.order, rejection);
        continue;
      }
      try {
        const failed = await this.#inSpan(entry, () => execute(entry, new Set(unavailable.keys()), signal));
        if (!failed) {
          hasProgress = true;
          continue;
        }
        const { service, reason } = failed;
        if (!unavailable.has(service)) {
          unavailable.set(service, reason);
          this.#unavailableIn.set(entry.order, this.#roundsCount);
        }
        this.#faults.set(entry.order, unavailable.get(service) ?? reason);
      } catch (error) {
        const reason = messageOf(error);
        rejections.set(entry.order, reason);
        this.#faults.set(entry.order, error instanceof Failure ? tracedMessage(error) : reason);
        if (error instanceof Failure && isPermanentRefusal(error)) this.#hopeless.add(entry.order);
        if (rejection !== reason) events.notDone(entry, error);
      }
    }
    this.#rejections = rejections;
    const pendingOrders = new Set(journal.entries().map(({ order }) => order));
    for (const known of [this.#faults, this.#unavailableIn, this.#causes, this.#hopeless])
      for (const order of known.keys()) if (!pendingOrders.has(order)) known.delete(order);
    return hasProgress;
  }

  /** Runs an attempt in a trace of its own, which links to the command that added the entry, if that was in this process. */
  #inSpan<Result>({ order, attachment }: JournalEntry, attempt: () => Promise<Result>): Promise<Result> {
    const cause = this.#causes.get(order);
    const attributes = { 'podwire.attachment': formatAttachment(attachment) };
    return withSpan('podwire.plugin.replay', attributes, attempt, { links: cause ? [{ context: cause }] : [] });
  }

  /** Entries in their order; entries that found a service unavailable come last, the most recent at the end. */
  #orderedEntries(): readonly JournalEntry[] {
    const roundOf = ({ order }: JournalEntry) => this.#unavailableIn.get(order) ?? 0;
    return [...this.#options.journal.entries()].sort((a, b) => roundOf(a) - roundOf(b) || a.order - b.order);
  }
}
