import { Failure, violationsFailure } from '@podwire/shared/failure/failure';
import type { Address } from '@podwire/shared/net/address';

import {
  compareTenures,
  holderAt,
  isOf,
  isSameAllocation,
  lastedWithin,
  presentTenures,
  type Tenure,
  type HistoryPlace,
  type TenureQuery,
  type TenureSubject,
} from '../allocator/tenure.js';
import { HOUR_MS, type HistoryLog } from '../store/history-log.js';
import { read, type IpamOptions } from './options.js';

/** Who held an address at a moment. */
export interface HolderAt {
  /** Undefined when nobody did, as far as is known. */
  readonly tenure: Tenure | undefined;
  /** Whether the history is kept from so far back. */
  readonly isCovered: boolean;
}

export interface HistoryPage {
  readonly tenures: readonly Tenure[];
  /** Undefined on the last page. */
  readonly next: HistoryPlace | undefined;
}

/** Hours that one page looks at at most. */
const HOURS_PER_PAGE = 512;
/** Entries that one page of a handle or a pod looks at, give or take one read. */
const ENTRIES_PER_PAGE = 20_000;
/** Hours that are asked for at the same time. */
const HOURS_AT_ONCE = 8;
/** Hours of clocks that were wrong, before or behind all others, that are looked for. */
const MAX_STRAY_HOURS = 1000;

/** Who held what when: past allocations from the history, present ones from the blocks. */
export class History {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  /** A page of what the subject held, newest first. @throws Failure HISTORY_NOT_KEPT */
  async query(query: TenureQuery, signal: AbortSignal): Promise<HistoryPage> {
    this.#requireHistory();
    const { subject, span, limit, after } = query;
    const isFirst = after === undefined || after.kind === 'present';
    // Before the history, so that what is released meanwhile is seen there, if not here.
    const present = isFirst ? await read(this.#options, (view) => presentTenures(view, subject), signal) : [];
    const wanted = present.filter((tenure) => lastedWithin(tenure, span));
    const begin = after?.kind === 'present' ? after.count : 0;
    const held = wanted.slice(begin, begin + limit);
    if (wanted.length > begin + held.length)
      return { tenures: held, next: { kind: 'present', count: begin + held.length } };
    const walk = new Walk(this.#options, { ...query, limit: Math.max(1, limit - held.length) });
    const past = await walk.run(signal);
    const stillHeld = held.filter((tenure) => !past.tenures.some((other) => isSameAllocation(other, tenure)));
    if (stillHeld.length + past.tenures.length <= limit) return { ...past, tenures: [...stillHeld, ...past.tenures] };
    return { tenures: held, next: { kind: 'hour', hour: Number.MAX_SAFE_INTEGER } };
  }

  /** Who held an address at a moment. @throws Failure HISTORY_NOT_KEPT, and INVALID_REQUEST for a moment to come */
  async at(address: Address, atMs: number, signal: AbortSignal): Promise<HolderAt> {
    this.#requireHistory();
    const { history, clock } = this.#options;
    const nowMs = clock.nowMs();
    if (atMs > nowMs) {
      const violation = { field: 'time', reason: 'is in the future, of which nothing is known' };
      throw violationsFailure('INVALID_REQUEST', 'QueryAt refused', [violation]);
    }
    const isCovered = hourOf(atMs) >= hourOf(nowMs) - history.keptHoursCount;
    return { tenure: await this.#holderAt(address, atMs, signal), isCovered };
  }

  async #holderAt(address: Address, atMs: number, signal: AbortSignal): Promise<Tenure | undefined> {
    const subject: TenureSubject = { kind: 'address', address };
    const [present] = await read(this.#options, (view) => presentTenures(view, subject), signal);
    if (present?.allocatedAtMs !== undefined && present.allocatedAtMs <= atMs) return present;
    const { log } = this.#options.history;
    const nowHour = hourOf(this.#options.clock.nowMs());
    for (let hour = hourOf(atMs); hour <= nowHour; hour += HOURS_AT_ONCE) {
      const hours = Array.from({ length: HOURS_AT_ONCE }, (_, index) => hour + index);
      const entries = await Promise.all(hours.map((each) => log.entriesOf(address, each, signal)));
      const behind = entries.flat().filter(({ releasedAtMs }) => releasedAtMs > atMs);
      if (behind.length > 0) return holderAt(behind, present, atMs);
    }
    return holderAt([], present, atMs);
  }

  #requireHistory(): void {
    if (this.#options.history.keptHoursCount > 0) return;
    const text = 'no history is kept; set PODWIRE_IPAM_HISTORY_HOURS to for how long to keep it from now on';
    throw new Failure('HISTORY_NOT_KEPT', text);
  }
}

/** One page's way through the hours, newest first. */
class Walk {
  readonly #log: HistoryLog;
  readonly #query: TenureQuery;
  readonly #nowHour: number;
  readonly #oldestHour: number;
  readonly #found: Tenure[] = [];

  constructor({ history, clock }: IpamOptions, query: TenureQuery) {
    this.#log = history.log;
    this.#query = query;
    this.#nowHour = hourOf(clock.nowMs());
    this.#oldestHour = this.#nowHour - history.keptHoursCount - 1;
  }

  async run(signal: AbortSignal): Promise<HistoryPage> {
    const hours = await this.#hours(signal);
    const next =
      this.#query.subject.kind === 'address'
        ? await this.#walkAddress(hours, this.#query.subject.address, signal)
        : await this.#walkEntries(hours, signal);
    return { tenures: this.#found, next };
  }

  /**
   * The hours to look at, newest first: those of the kept time one by one, since asking whether one has entries costs as much as
   * asking for them; and beyond it those that have entries, of replicas with a wrong clock or not removed yet.
   */
  async #hours(signal: AbortSignal): Promise<number[]> {
    const { span, after } = this.#query;
    const ahead = await this.#strays(this.#nowHour, Number.POSITIVE_INFINITY, signal);
    const behind = await this.#strays(undefined, this.#oldestHour, signal);
    const kept = Array.from({ length: this.#nowHour - this.#oldestHour + 1 }, (_, index) => this.#oldestHour + index);
    const firstHour = hourOf(span.fromMs);
    const lastHour = after && 'hour' in after ? after.hour : Number.POSITIVE_INFINITY;
    return [...behind, ...kept, ...ahead].filter((hour) => hour >= firstHour && hour <= lastHour).reverse();
  }

  /** The hours with entries between two others. */
  async #strays(after: number | undefined, before: number, signal: AbortSignal): Promise<number[]> {
    const hours: number[] = [];
    for (let last = after; hours.length < MAX_STRAY_HOURS;) {
      last = await this.#log.hourAfter(last, signal);
      if (last === undefined || last >= before) break;
      hours.push(last);
    }
    return hours;
  }

  async #walkAddress(
    hours: readonly number[],
    address: Address,
    signal: AbortSignal,
  ): Promise<HistoryPlace | undefined> {
    const { limit } = this.#query;
    for (let start = 0; start < hours.length; start += HOURS_AT_ONCE) {
      if (start >= HOURS_PER_PAGE) return hourPlace(hours[start]);
      const some = hours.slice(start, start + HOURS_AT_ONCE);
      const entries = await Promise.all(some.map((hour) => this.#log.entriesOf(address, hour, signal)));
      for (const [index, hour] of some.entries()) {
        const wanted = this.#wanted(entries[index] ?? [], hour).sort(compareTenures);
        const room = limit - this.#found.length;
        this.#found.push(...wanted.slice(0, room));
        const last = this.#found.at(-1);
        if (wanted.length > room && last) return releasePlace(hour, last);
        if (this.#found.length >= limit) return hourPlace(hours[start + index + 1]);
      }
    }
    return undefined;
  }

  async #walkEntries(hours: readonly number[], signal: AbortSignal): Promise<HistoryPlace | undefined> {
    const { limit, after } = this.#query;
    let lookedAt = 0;
    for (const [index, hour] of hours.entries()) {
      let key = after?.kind === 'key' && after.hour === hour ? after.key : undefined;
      do {
        const page = await this.#log.page(hour, key, signal);
        lookedAt += page.lookedAtCount + 1;
        key = page.next;
        const wanted = this.#wanted(page.entries, hour);
        const room = limit - this.#found.length;
        this.#found.push(...wanted.slice(0, room));
        const last = wanted[room - 1];
        if (wanted.length > room && last) return this.#end({ kind: 'key', hour, key: this.#log.keyOf(last) });
        if (this.#found.length >= limit || lookedAt > ENTRIES_PER_PAGE || index >= HOURS_PER_PAGE)
          return this.#end(key === undefined ? hourPlace(hours[index + 1]) : { kind: 'key', hour, key });
      } while (key !== undefined);
    }
    return this.#end(undefined);
  }

  #end(place: HistoryPlace | undefined): HistoryPlace | undefined {
    this.#found.sort(compareTenures);
    return place;
  }

  #wanted<Entry extends Tenure>(entries: readonly Entry[], hour: number): Entry[] {
    const { subject, span, after } = this.#query;
    return entries.filter((tenure) => {
      const isBehind =
        after?.kind !== 'release' || after.hour !== hour || compareTenures(tenure, placeOf(tenure, after)) > 0;
      return isBehind && isOf(subject, tenure) && lastedWithin(tenure, span);
    });
  }
}

function hourPlace(hour: number | undefined): HistoryPlace | undefined {
  return hour === undefined ? undefined : { kind: 'hour', hour };
}

function releasePlace(hour: number, { releasedAtMs = 0, sequenceNumber }: Tenure): HistoryPlace {
  return { kind: 'release', hour, releasedAtMs, sequenceNumber };
}

/** A tenure at the place, to compare with. */
function placeOf(tenure: Tenure, { releasedAtMs, sequenceNumber }: HistoryPlace & { kind: 'release' }): Tenure {
  return { ...tenure, releasedAtMs, sequenceNumber };
}

export function hourOf(timeMs: number): number {
  return Math.max(0, Math.floor(timeMs / HOUR_MS));
}
