import { trace, type Link, type SpanContext } from '@opentelemetry/api';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { untilAborted } from '@podwire/shared/failure/signal';
import { exponentialBackoff, WorkQueue, type NextRun } from '@podwire/shared/reconcile/work-queue';
import type { BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';
import { withSpan } from '@podwire/shared/telemetry/span';

import type { AttachmentRecord } from '../records/record.js';
import type { AttachmentRegistry } from '../records/registry.js';
import type { LeaseEvents } from './lease-events.js';
import type { LeaseStock } from './lease-stock.js';
import type { LeaseBook, Unsettled } from './lease.js';

/** A run waits until no pod came or went for this time, in milliseconds: commands have the processor first. */
const QUIET_MS = 20;
/** The longest such wait, in milliseconds. While pods come and go, one transaction carries many. */
const LONGEST_WAIT_MS = 200;

const BACKOFF: BackoffBounds = { baseMs: 100, maxMs: 15_000 };

/** Timeout of a run, in milliseconds. */
const TIMEOUT_MS = 10_000;

/** Most records of one call. */
const MAX_COUNT = 256;

/** Pause before refused bindings, and returns whose block podwire-ipam cannot read, are tried again, in milliseconds. */
const REFUSED_PAUSE_MS = 10_000;

/** Pause between two attempts while an ADD waits for a return, in milliseconds. */
const RETURN_PAUSE_MS = 200;

interface SettlementOptions {
  readonly registry: Pick<AttachmentRegistry, 'all' | 'get' | 'setBound' | 'remove'>;
  readonly stock: LeaseStock;
  readonly book: LeaseBook;
  readonly events: LeaseEvents;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
}

/**
 * Brings podwire-ipam up to date in the background: binds the addresses of answered ADDs, and returns those of answered DELs. The
 * records are the queue, so that the next process continues.
 */
export class Settlement {
  readonly #options: SettlementOptions;
  readonly #queue: WorkQueue<'settle'>;
  /**
   * Attachments with a complete wire. A record without one is of an ADD that may fail and give its leases back: a binding that is
   * under way would reach them later.
   */
  readonly #wired = new Set<string>();
  /** The spans that caused the work, by attachment. */
  readonly #causes = new Map<string, SpanContext>();
  /** Attachments that wait for {@link REFUSED_PAUSE_MS}, with the reason and the end of the pause. */
  readonly #refused = new Map<string, { readonly reason: string; readonly untilMs: number }>();
  /** Of the requests since the last run, by the monotonic clock; undefined: there was none. */
  #requested: { readonly firstMs: number; readonly lastMs: number } | undefined;
  /** Called after each run. */
  #waiting: (() => void)[] = [];

  constructor(options: SettlementOptions) {
    this.#options = options;
    const { clock, random, events } = options;
    this.#queue = new WorkQueue({
      reconcile: (_, signal) => this.#run(signal),
      retryInMs: exponentialBackoff(BACKOFF, random),
      onFailure: (error, retryInMs) => {
        if (!(error instanceof Failure)) throw error;
        events.settlementFailed(error, retryInMs);
      },
      clock,
      timeoutMs: TIMEOUT_MS,
    });
  }

  /** Settles what the previous process left. Call once. */
  start(): void {
    for (const { network } of this.#options.registry.all()) this.#wired.add(formatAttachment(network.attachment));
    if (this.#pending().length > 0) this.#queue.request('settle');
  }

  /** The addresses of the record have to be bound or returned. Returns at once. */
  request({ network }: AttachmentRecord): void {
    const cause = trace.getActiveSpan()?.spanContext();
    const key = formatAttachment(network.attachment);
    if (cause) this.#causes.set(key, cause);
    this.#wired.add(key);
    this.#refused.delete(key);
    const lastMs = this.#options.clock.monotonicMs();
    this.#requested = { firstMs: this.#requested?.firstMs ?? lastMs, lastMs };
    this.#queue.request('settle', QUIET_MS);
  }

  /**
   * Waits until the addresses of a dead attachment are returned: it is about to be added again.
   * @throws Failure the signal's
   */
  async returned(attachment: Attachment, signal: AbortSignal): Promise<void> {
    const { registry, clock } = this.#options;
    const isDead = () => registry.get(attachment)?.state === 'dead';
    while (isDead()) {
      this.#refused.delete(formatAttachment(attachment));
      const isOver = new Promise<void>((resolve) => this.#waiting.push(resolve));
      this.#queue.hurry('settle');
      await untilAborted(isOver, signal);
      if (isDead()) await clock.sleep(RETURN_PAUSE_MS, signal);
    }
  }

  unsettled(): Unsettled {
    const records = this.#pending();
    const nowMs = this.#options.clock.nowMs();
    const unboundCount = records.filter(({ state }) => state !== 'dead').length;
    return {
      unboundCount,
      unreturnedCount: records.length - unboundCount,
      oldestMs: Math.max(0, ...records.map(({ updatedAtMs }) => nowMs - updatedAtMs)),
      refused: new Map([...this.#refused].map(([key, { reason }]) => [key, reason])),
    };
  }

  /** Tries once to settle the rest, then ends. */
  async stop(timeoutMs: number): Promise<void> {
    if (this.#pending().length > 0) {
      const isOver = new Promise<void>((resolve) => this.#waiting.push(resolve));
      this.#queue.hurry('settle');
      const done = new AbortController();
      await Promise.race([isOver, this.#options.clock.sleep(timeoutMs, done.signal)]);
      done.abort();
    }
    await this.#queue.stop();
    for (const resolve of this.#waiting.splice(0)) resolve();
  }

  async #run(signal: AbortSignal): Promise<NextRun | undefined> {
    const waitMs = this.#waitMs();
    if (waitMs > 0 && this.#waiting.length === 0) return { inMs: waitMs };
    this.#requested = undefined;
    // A run that began before a request does not count for it.
    const waiting = this.#waiting.splice(0);
    try {
      return await this.#settle(signal);
    } finally {
      for (const resolve of waiting) resolve();
    }
  }

  #waitMs(): number {
    if (!this.#requested) return 0;
    const { firstMs, lastMs } = this.#requested;
    return Math.min(lastMs + QUIET_MS, firstMs + LONGEST_WAIT_MS) - this.#options.clock.monotonicMs();
  }

  async #settle(signal: AbortSignal): Promise<NextRun | undefined> {
    const nowMs = this.#options.clock.monotonicMs();
    const due = this.#pending().filter(({ network }) => !this.#isPaused(network.attachment, nowMs));
    const dead = due.filter(({ state }) => state === 'dead').slice(0, MAX_COUNT);
    const unbound = due.filter(({ state }) => state === 'attached').slice(0, MAX_COUNT);
    await Promise.all([this.#return(dead, signal), this.#bind(unbound, signal)]);
    const rest = this.#pending();
    this.#options.events.settled();
    if (rest.length === 0) return undefined;
    const isDue = rest.some(({ network }) => !this.#isPaused(network.attachment, nowMs));
    return { inMs: isDue ? 0 : REFUSED_PAUSE_MS };
  }

  async #bind(records: readonly AttachmentRecord[], signal: AbortSignal): Promise<void> {
    if (records.length === 0) return;
    const { book, stock, registry, events } = this.#options;
    const refusals = await this.#inSpan('podwire.leases.bind', records, () => book.bind(records, signal));
    const bound = records.filter((_, index) => refusals[index] === undefined);
    stock.settled(bound.flatMap(allocated));
    await Promise.all(bound.map((record) => registry.setBound(record)));
    for (const record of bound) this.#forget(record);
    for (const [index, reason] of refusals.entries()) {
      const record = records[index];
      if (record && reason !== undefined) this.#refuse(record, reason, () => events.bindingRefused(record, reason));
    }
  }

  async #return(records: readonly AttachmentRecord[], signal: AbortSignal): Promise<void> {
    if (records.length === 0) return;
    const { book, stock, registry } = this.#options;
    const results = await this.#inSpan('podwire.leases.return', records, () => book.return(records, signal));
    const returned = records.filter((_, index) => results[index] === true);
    stock.settled(returned.flatMap(allocated));
    const current = returned.filter((record) => registry.get(record.network.attachment) === record);
    // Before its record goes: then the attachment may be added again.
    for (const record of current) {
      this.#forget(record);
      this.#wired.delete(formatAttachment(record.network.attachment));
    }
    await Promise.all(current.map(({ network }) => registry.remove(network.attachment)));
    for (const record of records)
      if (!returned.includes(record)) this.#refuse(record, 'podwire-ipam cannot read the block', () => undefined);
  }

  #refuse({ network }: AttachmentRecord, reason: string, report: () => void): void {
    const key = formatAttachment(network.attachment);
    if (this.#refused.get(key)?.reason !== reason) report();
    this.#refused.set(key, { reason, untilMs: this.#options.clock.monotonicMs() + REFUSED_PAUSE_MS });
  }

  #forget({ network }: AttachmentRecord): void {
    const key = formatAttachment(network.attachment);
    this.#causes.delete(key);
    this.#refused.delete(key);
  }

  #isPaused(attachment: Attachment, nowMs: number): boolean {
    const refused = this.#refused.get(formatAttachment(attachment));
    return refused !== undefined && nowMs < refused.untilMs;
  }

  /** Records whose allocation podwire-ipam does not know as it is. */
  #pending(): AttachmentRecord[] {
    return this.#options.registry.all().filter(({ state, allocation, network }) => {
      if (!allocation) return false;
      const isWired = () => this.#wired.has(formatAttachment(network.attachment));
      return state === 'dead' || (state === 'attached' && !allocation.isBound && isWired());
    });
  }

  /** Runs a call in a trace of its own, which links to the commands that caused it. */
  #inSpan<Result>(name: string, records: readonly AttachmentRecord[], call: () => Promise<Result>): Promise<Result> {
    const links = records.flatMap(({ network }): Link[] => {
      const cause = this.#causes.get(formatAttachment(network.attachment));
      return cause ? [{ context: cause }] : [];
    });
    return withSpan(name, { 'podwire.attachments': records.length }, call, { links });
  }
}

function allocated({ allocation }: AttachmentRecord) {
  return allocation?.addresses ?? [];
}
