import { trace, type Link, type SpanContext } from '@opentelemetry/api';
import type { AddressReturn } from '@podwire/proto/podwire/ipam/v1/lease';
import type { AttachmentRecord } from '@podwire/dataplane/records/record';
import type { AttachmentRegistry } from '@podwire/dataplane/records/registry';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { untilAborted } from '@podwire/shared/failure/signal';
import type { NextRun } from '@podwire/shared/reconcile/work-queue';
import type { Clock } from '@podwire/shared/runtime/clock';
import { withSpan } from '@podwire/shared/telemetry/span';

import type { EndedAddresses } from './ended-addresses.js';
import type { AddressEvents } from './events.js';
import { allocationsOf } from './lease-api.js';
import { bindAddresses, bindingOf, MAX_BATCH_COUNT, returnAddresses, returnsOf } from './lease-calls.js';
import type { SettlementInterval, Unsettled } from './lease.js';
import type { IpamSession } from './session.js';
import type { LeaseStock } from './stock.js';

/** Until podwire-ipam has named one, which depends on its datastore. */
const DEFAULT_INTERVAL: SettlementInterval = { quietMs: 250, longestMs: 1000 };

/** Pause before refused bindings, and returns whose block podwire-ipam cannot read, are tried again, in milliseconds. */
const REFUSED_PAUSE_MS = 10_000;

/** Pause between two attempts while an ADD waits for a return, in milliseconds. */
const RETURN_PAUSE_MS = 200;

/** Most addresses of an attachment: one of each family. */
const ADDRESSES_MAX = 2;

/** Code of a refusal: another holder has an address. */
const TAKEN = 'ALLOCATION_MISMATCH';

interface Refusal {
  readonly reason: string;
  readonly code: string;
  readonly untilMs: number;
}

interface SettlementOptions {
  readonly registry: Pick<AttachmentRegistry, 'all' | 'get' | 'withAddress' | 'setBound' | 'renumber' | 'remove'>;
  readonly stock: Pick<LeaseStock, 'recorded' | 'flush' | 'isTaken'>;
  readonly ended: EndedAddresses;
  readonly session: IpamSession;
  readonly events: AddressEvents;
  readonly clock: Clock;
  /** Requests a run in this time. */
  readonly request: (afterMs: number) => void;
  /** Requests a run now, whatever failed before, and waits for its end. */
  readonly runNow: () => Promise<void>;
}

/**
 * Brings podwire-ipam up to date: returns the addresses of ended attachments, and binds attached ones. The records are
 * the queue, so that the next process continues.
 */
export class Settlement {
  readonly #options: SettlementOptions;
  /** Attachments with a complete wire. A record without one is of an ADD that may fail and give its leases back. */
  readonly #wired = new Set<string>();
  /** The spans that caused the work, by attachment. */
  readonly #causes = new Map<string, SpanContext>();
  /** Refusals by attachment. */
  readonly #refused = new Map<string, Refusal>();
  /** A run waits until no pod came or went for a time: commands have the processor first. */
  interval = DEFAULT_INTERVAL;
  /** Times of the requests since the last run, by the monotonic clock; undefined: there was none. */
  #requested: { readonly firstMs: number; readonly lastMs: number } | undefined;
  /** The next run does not wait until no pod comes or goes. */
  #isUrgent = false;

  constructor(options: SettlementOptions) {
    this.#options = options;
  }

  /** Settles what the previous process left. Call once. */
  start(): void {
    for (const { network } of this.#options.registry.all()) this.#wired.add(formatAttachment(network.attachment));
    if (this.#pending().length > 0) this.#options.request(0);
  }

  /** The addresses of the record have to be bound or returned. Returns at once. */
  request(record: AttachmentRecord): void {
    const { network, state, allocation } = record;
    const { session, stock, ended, clock, request } = this.#options;
    const cause = trace.getActiveSpan()?.spanContext();
    const key = formatAttachment(network.attachment);
    if (cause) this.#causes.set(key, cause);
    this.#wired.add(key);
    const isLost = session.refusal !== undefined || this.#refused.get(key)?.code === TAKEN;
    this.#refused.delete(key);
    stock.recorded(allocation?.addresses ?? []);
    if (state === 'dead') {
      if (isLost) ended.markSent([record]);
      else ended.markEnded(record);
      if (session.isUnreachable) ended.flush();
      // The record may be removed by hand, and is all that proves that its leases are taken.
      stock.flush();
    }
    const lastMs = clock.monotonicMs();
    this.#requested = { firstMs: this.#requested?.firstMs ?? lastMs, lastMs };
    request(this.interval.quietMs);
  }

  /** Whether the attachment's wire is complete. */
  isWired(attachment: Attachment): boolean {
    return this.#wired.has(formatAttachment(attachment));
  }

  /**
   * Waits until the addresses of a dead attachment, and these addresses of other ones, are returned: a pod is about to get them.
   * @throws Failure the signal's
   */
  async returned(attachment: Attachment, addresses: readonly string[], signal: AbortSignal): Promise<void> {
    const { registry, clock } = this.#options;
    const dead = () =>
      [registry.get(attachment), ...addresses.flatMap((address) => registry.withAddress(address))].flatMap((record) =>
        record?.state === 'dead' ? [formatAttachment(record.network.attachment)] : [],
      );
    for (let keys = dead(); keys.length > 0; keys = dead()) {
      for (const key of keys) this.#refused.delete(key);
      await untilAborted(this.#runNow(), signal);
      if (dead().length > 0) await clock.sleep(RETURN_PAUSE_MS, signal);
    }
  }

  /** Returns the addresses of ended pods without a wait, if there are any: other pods need them. */
  hurryReturns(): void {
    if (this.unsettled().unreturnedCount > 0) this.#hurry();
  }

  /** As {@link request}, without a wait. */
  requestNow(record: AttachmentRecord): void {
    this.request(record);
    this.#hurry();
  }

  #hurry(): void {
    this.#isUrgent = true;
    this.#options.request(0);
  }

  unsettled(): Unsettled {
    const records = this.#pending();
    const nowMs = this.#options.clock.nowMs();
    const unboundCount = records.filter(({ state }) => state !== 'dead').length;
    return {
      unboundCount,
      unreturnedCount: records.length - unboundCount,
      oldestMs: Math.max(0, ...records.map(({ updatedAtMs }) => nowMs - updatedAtMs)),
    };
  }

  /** Attachments of which podwire-ipam does not record an address, with the reason. */
  unrecorded(): ReadonlyMap<string, string> {
    const refused = [...this.#refused].filter(([, { code }]) => code === TAKEN || code === 'ACCESS_DENIED');
    return new Map(refused.map(([key, { reason }]) => [key, reason]));
  }

  /** Settles the rest, until a run settles nothing more. */
  async finish(timeoutMs: number): Promise<void> {
    const done = new AbortController();
    const timeout = this.#options.clock.sleep(timeoutMs, done.signal);
    const isLate = timeout.then(() => true);
    for (let left = this.#due().length, before = Infinity; left > 0 && left < before; left = this.#due().length) {
      before = left;
      if (await Promise.race([this.#runNow(), isLate])) break;
    }
    done.abort();
  }

  async run(signal: AbortSignal): Promise<NextRun | undefined> {
    const waitMs = this.#waitMs();
    if (waitMs > 0 && !this.#isUrgent) return { inMs: waitMs };
    this.#requested = undefined;
    this.#isUrgent = false;
    return this.#settle(signal);
  }

  /** Binds the addresses that are due, without a wait for a quiet time. Must not be called during a run. */
  async bind(signal: AbortSignal): Promise<void> {
    const unbound = this.#due().filter(({ state }) => state !== 'dead');
    await this.#bind(unbound.slice(0, MAX_BATCH_COUNT), signal);
  }

  /** Resolves at the end of the run, also of a failed one. */
  #runNow(): Promise<void> {
    this.#isUrgent = true;
    return this.#options.runNow().catch(() => undefined);
  }

  #waitMs(): number {
    if (!this.#requested) return 0;
    const { firstMs, lastMs } = this.#requested;
    const { quietMs, longestMs } = this.interval;
    return Math.min(lastMs + quietMs, firstMs + longestMs) - this.#options.clock.monotonicMs();
  }

  async #settle(signal: AbortSignal): Promise<NextRun | undefined> {
    // Earlier holders of an address are returned first: the return of the last holder frees it.
    const due = this.#due().toSorted((a, b) => orderOf(a) - orderOf(b) || a.updatedAtMs - b.updatedAtMs);
    await this.#return(due.filter(isFirstOfAddresses()), signal);
    await this.bind(signal);
    this.#options.events.settled();
    if (this.#pending().length === 0) return undefined;
    return { inMs: this.#due().length > 0 ? 0 : REFUSED_PAUSE_MS };
  }

  /**
   * Settlements possible now. Earlier pods of an address are settled first. Their return gives it a new sequence number,
   * so it waits for the record of an ADD in progress that has the address.
   */
  #due(): AttachmentRecord[] {
    const { registry, stock, clock } = this.#options;
    const nowMs = clock.monotonicMs();
    const isTaken = ({ allocation }: AttachmentRecord) =>
      allocation?.addresses.some(({ address }) => stock.isTaken(address)) === true;
    const hasEarlierHolder = ({ allocation }: AttachmentRecord) =>
      allocation?.addresses.some(({ address }) => registry.withAddress(address).some(({ state }) => state === 'dead'));
    return this.#pending().filter((record) => {
      const refused = this.#refused.get(formatAttachment(record.network.attachment));
      if (refused && nowMs < refused.untilMs) return false;
      return record.state === 'dead' ? !isTaken(record) : !hasEarlierHolder(record);
    });
  }

  async #bind(records: readonly AttachmentRecord[], signal: AbortSignal): Promise<void> {
    if (records.length === 0) return;
    const { session, stock, registry, events } = this.#options;
    const results = await this.#inSpan('podwire.leases.bind', records, () =>
      bindAddresses(session, records.map(bindingOf), signal),
    );
    stock.flush();
    for (const [index, record] of records.entries()) {
      const { endpoint, refusalCode = '', refusal = '' } = results[index] ?? {};
      if (refusalCode === '') {
        this.#forget(record);
        await registry.setBound(record, endpoint ? allocationsOf(endpoint) : []);
        continue;
      }
      this.#refuse(record, { reason: refusal, code: refusalCode }, () => events.bindingRefused(record, refusal));
    }
  }

  async #return(records: readonly AttachmentRecord[], signal: AbortSignal): Promise<void> {
    if (records.length === 0) return;
    const { session, stock, registry, ended } = this.#options;
    const returns = records.map(returnsOf);
    const atSending = (part: AddressReturn[]) => {
      ended.markSent(records);
      // A pod may have got the address since the records were read.
      const isReused = ({ attachment }: AddressReturn) => attachment && registry.get(attachment)?.isReused;
      return part.map((each) => ({ ...each, keepAsLease: isReused(each) === true }));
    };
    const call = () => returnAddresses(session, returns.flat(), signal, atSending);
    // Unsent changes can be used by the next process.
    const results = await this.#inSpan('podwire.leases.return', records, call).finally(() => ended.flush());
    stock.flush();
    let at = 0;
    for (const record of records) {
      const addresses = record.allocation?.addresses ?? [];
      const own = results.slice(at, (at += addresses.length));
      for (const [index, each] of addresses.entries()) {
        const { leaseNumber = 0n } = own[index] ?? {};
        // Before the record goes: the next process repeats the return, and gets the same answer.
        if (leaseNumber > 0n) await registry.renumber(record, each, leaseNumber);
      }
      if (!own.every(({ isReturned }) => isReturned)) {
        const reason = 'podwire-ipam cannot read the block';
        this.#refuse(record, { reason, code: 'STORE_CORRUPT' }, () => undefined);
      } else if (registry.get(record.network.attachment) === record) {
        this.#forget(record);
        this.#wired.delete(formatAttachment(record.network.attachment));
        await registry.remove(record.network.attachment);
        ended.markReturned(record);
      }
    }
  }

  #refuse({ network }: AttachmentRecord, refusal: Pick<Refusal, 'reason' | 'code'>, report: () => void): void {
    const key = formatAttachment(network.attachment);
    if (this.#refused.get(key)?.reason !== refusal.reason) report();
    this.#refused.set(key, { ...refusal, untilMs: this.#options.clock.monotonicMs() + REFUSED_PAUSE_MS });
  }

  #forget({ network }: AttachmentRecord): void {
    const key = formatAttachment(network.attachment);
    this.#causes.delete(key);
    this.#refused.delete(key);
  }

  /** Records whose allocation podwire-ipam does not know as it is. */
  #pending(): AttachmentRecord[] {
    return this.#options.registry.all().filter(({ state, allocation, network }) => {
      if (!allocation) return false;
      return state === 'dead' || (state === 'attached' && !allocation.isBound && this.isWired(network.attachment));
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

/** A dead record whose address a further pod got comes first, whatever the clock says. */
function orderOf({ isReused }: AttachmentRecord): number {
  return isReused ? 0 : 1;
}

/** Selects dead records for one request, which names an address once. */
function isFirstOfAddresses(): (record: AttachmentRecord) => boolean {
  const named = new Set<string>();
  return ({ state, allocation }) => {
    const addresses = (allocation?.addresses ?? []).map(({ address }) => address);
    if (state !== 'dead' || named.size > MAX_BATCH_COUNT - ADDRESSES_MAX) return false;
    if (addresses.some((address) => named.has(address))) return false;
    for (const address of addresses) named.add(address);
    return true;
  };
}
