import { Failure, violationsFailure } from '@podwire/shared/failure/failure';
import type { Address } from '@podwire/shared/net/address';

import { read, type IpamOptions } from '../engine/updates/operation.js';
import { dayOf, dayStartMs } from '../records/json/keys.js';
import type { HistoryLog } from './history-log.js';
import {
  compareTenures,
  holderAt,
  belongsToSubject,
  isSameAllocation,
  overlapsSpan,
  currentTenures,
  positionOf,
  timeOf,
  type ChangeQuery,
  type HistoryPosition,
  type Tenure,
  type TenureQuery,
  type TenureSubject,
} from './tenures.js';

export const HOUR_MS = 3_600_000;

export interface HistoryOptions {
  readonly log: HistoryLog;
  /** Retention time of past allocations; 0 disables the history. */
  readonly retentionHours: number;
}

/** Whether releases are recorded, as far as it is known. */
export function isHistoryKept({ segments }: Pick<HistoryLog, 'segments'>, retentionHours: number): boolean {
  return retentionHours > 0 && (segments?.isKept ?? true);
}

/** Options of history queries. */
export interface HistoryIpamOptions extends IpamOptions {
  readonly history: HistoryOptions;
}

/** The holder of an address at a moment. */
interface HolderResult {
  /** Tenure of the holder; undefined when no holder is known. */
  readonly tenure: Tenure | undefined;
  /** Whether the history covers the moment. */
  readonly isCovered: boolean;
}

interface HistoryPage {
  readonly tenures: readonly Tenure[];
  /** Undefined on the last page. */
  readonly next: HistoryPosition | undefined;
}

/** Maximum days examined per page. */
const DAYS_PER_PAGE = 512;
/** Approximate maximum of entries examined per page of a handle or a pod. */
const ENTRIES_PER_PAGE = 20_000;
/** Days that are read concurrently. */
const DAYS_AT_ONCE = 8;
/** Limit of days from wrong clocks, before or after all correct ones, that are searched. */
const MAX_OUTLIER_DAYS = 1000;

/** Tenures: past allocations from the history, present ones from the blocks. */
export class History {
  readonly #options: HistoryIpamOptions;

  constructor(options: HistoryIpamOptions) {
    this.#options = options;
  }

  /** A page of what the subject held, newest first. @throws Failure HISTORY_NOT_KEPT */
  async query(query: TenureQuery, signal: AbortSignal): Promise<HistoryPage> {
    this.#requireHistory();
    const { subject, span, limit, after } = query;
    const isFirst = after === undefined || after.kind === 'present';
    // Read before the history, so that a concurrent release is found there.
    const present = isFirst ? await read(this.#options, (view) => currentTenures(view, subject), signal) : [];
    const matching = present.filter((tenure) => overlapsSpan(tenure, span));
    const begin = after?.kind === 'present' ? after.count : 0;
    const held = matching.slice(begin, begin + limit);
    if (matching.length > begin + held.length)
      return { tenures: held, next: { kind: 'present', count: begin + held.length } };
    const walk = new HistoryWalk(this.#options, { ...query, limit: Math.max(1, limit - held.length) });
    const past = await walk.run(signal);
    const stillHeld = held.filter((tenure) => !past.tenures.some((other) => isSameAllocation(other, tenure)));
    if (stillHeld.length + past.tenures.length <= limit) return { ...past, tenures: [...stillHeld, ...past.tenures] };
    return { tenures: held, next: { kind: 'day', day: Number.MAX_SAFE_INTEGER } };
  }

  /** The holder of an address at a moment. @throws Failure HISTORY_NOT_KEPT, and INVALID_REQUEST for a future moment */
  async at(address: Address, atMs: number, signal: AbortSignal): Promise<HolderResult> {
    this.#requireHistory();
    const { history, clock } = this.#options;
    const nowMs = clock.nowMs();
    if (atMs > nowMs) {
      const violation = { field: 'time', reason: 'is in the future' };
      throw violationsFailure('INVALID_REQUEST', 'QueryAt refused', [violation]);
    }
    const tenure = await this.#holderAt(address, atMs, signal);
    // After the entries, so that the answer includes removals that happened during the read.
    const keptFromMs = await history.log.keptFromMs(signal);
    return { tenure, isCovered: atMs >= Math.max(keptFromMs, nowMs - history.retentionHours * HOUR_MS) };
  }

  /** A page of changes of objects, oldest first; it may be empty. @throws Failure HISTORY_NOT_KEPT */
  async changes({ span, limit, after = positionOf(span.fromMs), selects }: ChangeQuery, signal: AbortSignal) {
    this.#requireHistory();
    const { log } = this.#options.history;
    const day = dayOf(timeOf(after));
    const { changes, next } = await log.changes(day, after, limit, signal);
    const nextDay = next === undefined ? await log.dayAfter(day, signal) : undefined;
    const position = nextDay === undefined ? next : positionOf(dayStartMs(nextDay));
    const isLast = position === undefined || timeOf(position) >= span.untilMs;
    const selected = changes.filter((each) => each.atMs >= span.fromMs && each.atMs < span.untilMs && selects(each));
    return { changes: selected, next: isLast ? undefined : position };
  }

  async #holderAt(address: Address, atMs: number, signal: AbortSignal): Promise<Tenure | undefined> {
    const subject: TenureSubject = { kind: 'address', address };
    const [present] = await read(this.#options, (view) => currentTenures(view, subject), signal);
    if (present?.allocatedAtMs !== undefined && present.allocatedAtMs <= atMs) return present;
    const { log } = this.#options.history;
    const today = dayOf(this.#options.clock.nowMs());
    for (let day = dayOf(atMs); day <= today; day += DAYS_AT_ONCE) {
      const days = Array.from({ length: DAYS_AT_ONCE }, (_, index) => day + index);
      const entries = await Promise.all(days.map((each) => log.entriesOf(address, each, signal)));
      const behind = entries.flat().filter(({ releasedAtMs }) => releasedAtMs > atMs);
      if (behind.length > 0) return holderAt(behind, present, atMs);
    }
    return holderAt([], present, atMs);
  }

  #requireHistory(): void {
    const { log, retentionHours } = this.#options.history;
    if (isHistoryKept(log, retentionHours)) return;
    const text =
      retentionHours === 0
        ? 'the history is disabled; set PODWIRE_IPAM_HISTORY_HOURS to the number of hours to keep'
        : 'the API server keeps no history; the log of podwire-ipam has the reason';
    throw new Failure('HISTORY_NOT_KEPT', text);
  }
}

/** Reads one page of the history, newest day first. */
class HistoryWalk {
  readonly #log: HistoryLog;
  readonly #query: TenureQuery;
  readonly #today: number;
  readonly #oldestDay: number;
  readonly #found: Tenure[] = [];

  constructor({ history, clock }: HistoryIpamOptions, query: TenureQuery) {
    this.#log = history.log;
    this.#query = query;
    const nowMs = clock.nowMs();
    this.#today = dayOf(nowMs);
    this.#oldestDay = dayOf(nowMs - history.retentionHours * HOUR_MS);
  }

  async run(signal: AbortSignal): Promise<HistoryPage> {
    const days = await this.#days(signal);
    const next =
      this.#query.subject.kind === 'address'
        ? await this.#walkAddress(days, this.#query.subject.address, signal)
        : await this.#walkEntries(days, signal);
    return { tenures: this.#found, next };
  }

  /**
   * The days to read, newest first: every day of the retention time, because testing a day for entries costs as much as
   * reading it; and other days with entries, from wrong clocks or not removed yet.
   */
  async #days(signal: AbortSignal): Promise<number[]> {
    const { span, after } = this.#query;
    const ahead = await this.#daysWithEntries(this.#today, Number.POSITIVE_INFINITY, signal);
    const behind = await this.#daysWithEntries(undefined, this.#oldestDay, signal);
    const kept = Array.from({ length: this.#today - this.#oldestDay + 1 }, (_, index) => this.#oldestDay + index);
    const firstDay = dayOf(span.fromMs);
    const lastDay = after && 'day' in after ? after.day : Number.POSITIVE_INFINITY;
    return [...behind, ...kept, ...ahead].filter((day) => day >= firstDay && day <= lastDay).reverse();
  }

  /** The days with entries between two days. */
  async #daysWithEntries(after: number | undefined, before: number, signal: AbortSignal): Promise<number[]> {
    const days: number[] = [];
    for (let last = after; days.length < MAX_OUTLIER_DAYS;) {
      last = await this.#log.dayAfter(last, signal);
      if (last === undefined || last >= before) break;
      days.push(last);
    }
    return days;
  }

  async #walkAddress(
    days: readonly number[],
    address: Address,
    signal: AbortSignal,
  ): Promise<HistoryPosition | undefined> {
    const { limit } = this.#query;
    for (let start = 0; start < days.length; start += DAYS_AT_ONCE) {
      if (start >= DAYS_PER_PAGE) return dayPosition(days[start]);
      const some = days.slice(start, start + DAYS_AT_ONCE);
      const entries = await Promise.all(some.map((day) => this.#log.entriesOf(address, day, signal)));
      for (const [index, day] of some.entries()) {
        const matching = this.#matching(entries[index] ?? [], day).sort(compareTenures);
        const room = limit - this.#found.length;
        this.#found.push(...matching.slice(0, room));
        const last = this.#found.at(-1);
        if (matching.length > room && last) return releasePosition(day, last);
        if (this.#found.length >= limit) return dayPosition(days[start + index + 1]);
      }
    }
    return undefined;
  }

  async #walkEntries(days: readonly number[], signal: AbortSignal): Promise<HistoryPosition | undefined> {
    const { limit, after } = this.#query;
    let scannedCount = 0;
    for (const [index, day] of days.entries()) {
      let key = after?.kind === 'key' && after.day === day ? after.key : undefined;
      do {
        const page = await this.#log.page(day, key, signal);
        scannedCount += page.scannedCount + 1;
        key = page.next;
        const matching = this.#matching(page.entries, day);
        const room = limit - this.#found.length;
        this.#found.push(...matching.slice(0, room));
        const last = matching[room - 1];
        if (matching.length > room && last) return this.#sortFound({ kind: 'key', day, key: this.#log.keyOf(last) });
        if (this.#found.length >= limit || scannedCount > ENTRIES_PER_PAGE || index >= DAYS_PER_PAGE)
          return this.#sortFound(key === undefined ? dayPosition(days[index + 1]) : { kind: 'key', day, key });
      } while (key !== undefined);
    }
    return this.#sortFound(undefined);
  }

  #sortFound(position: HistoryPosition | undefined): HistoryPosition | undefined {
    this.#found.sort(compareTenures);
    return position;
  }

  #matching<Entry extends Tenure>(entries: readonly Entry[], day: number): Entry[] {
    const { subject, span, after } = this.#query;
    return entries.filter((tenure) => {
      const isBehind =
        after?.kind !== 'release' || after.day !== day || compareTenures(tenure, tenureAtPosition(tenure, after)) > 0;
      return isBehind && belongsToSubject(subject, tenure) && overlapsSpan(tenure, span);
    });
  }
}

function dayPosition(day: number | undefined): HistoryPosition | undefined {
  return day === undefined ? undefined : { kind: 'day', day };
}

function releasePosition(day: number, { releasedAtMs = 0, sequenceNumber }: Tenure): HistoryPosition {
  return { kind: 'release', day, releasedAtMs, sequenceNumber };
}

/** A tenure at the position, for comparison. */
function tenureAtPosition(
  tenure: Tenure,
  { releasedAtMs, sequenceNumber }: HistoryPosition & { kind: 'release' },
): Tenure {
  return { ...tenure, releasedAtMs, sequenceNumber };
}
