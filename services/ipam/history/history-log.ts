import { formatAddress, type Address } from '@podwire/shared/net/address';

import type { Store, StoredRecord } from '../engine/store.js';
import type { HistoryEntry } from '../records/history.js';
import { decodeChanges } from '../records/json/history.js';
import { decodeHistoryEntry } from '../records/json/history.js';
import { DAY_DIGITS, dayStartMs, historyDay, type RecordKeys } from '../records/json/keys.js';
import { serialize } from '../records/json/registry.js';

/** Sorts after every key with the prefix. */
const LAST = '\u{10ffff}';

/** Records per read. */
const PAGE_SIZE = 1000;

/** Deletions per transaction; etcd allows 128 operations by default. */
const REMOVALS_PER_TRANSACTION = 100;

/** Entries removed per call, over several transactions. */
const MAX_REMOVED_COUNT = 10_000;

/** Part of the entries of a day. */
interface DayPage {
  readonly entries: readonly HistoryEntry[];
  /** The key after which the next page begins; undefined at the end of the day. */
  readonly next: string | undefined;
  /** Examined entries, including unreadable ones. */
  readonly scannedCount: number;
}

/** A history that the datastore writes apart from its transactions, and removes in larger parts than a record. */
export interface SegmentedHistory {
  /** Whether the datastore can keep it. */
  readonly isKept: boolean;
  /** Removes the oldest entries. @returns their count */
  removeOld(retentionMs: number, signal: AbortSignal): Promise<number>;
}

interface HistoryLogOptions {
  /** Undefined where a transaction writes the history. */
  readonly segments?: SegmentedHistory | undefined;
  /** Approximate maximum of {@link HistoryLog.removeBatch}, in entries. Default: 10,000. */
  readonly maxRemovedCount?: number;
}

/**
 * The stored history: past allocations by the day of their release, counted from 1970, and changes of objects. It is not mirrored; every
 * query reads the datastore. Unreadable entries are left out.
 */
export class HistoryLog {
  readonly #store: Store;
  readonly #keys: RecordKeys;
  readonly #maxRemovedCount: number;
  readonly segments: SegmentedHistory | undefined;

  constructor(
    store: Store,
    keys: RecordKeys,
    { segments, maxRemovedCount = MAX_REMOVED_COUNT }: HistoryLogOptions = {},
  ) {
    this.#store = store;
    this.#keys = keys;
    this.segments = segments;
    this.#maxRemovedCount = maxRemovedCount;
  }

  /** The first day with entries after another day; pass undefined for the very first. @returns undefined when there is none */
  async dayAfter(day: number | undefined, signal: AbortSignal): Promise<number | undefined> {
    const prefix = this.#keys.history;
    const after = day === undefined ? undefined : this.#dayPrefix(day) + LAST;
    const { records } = await this.#store.scan({ prefix, after, limit: 1 }, signal);
    const digits = records[0]?.key.slice(prefix.length, prefix.length + DAY_DIGITS);
    return digits !== undefined && /^\d+$/.test(digits) ? Number(digits) : undefined;
  }

  /** All entries of an address within a day, in the order of their sequence numbers as texts. */
  async entriesOf(address: Address, day: number, signal: AbortSignal): Promise<HistoryEntry[]> {
    const prefix = `${this.#dayPrefix(day)}${formatAddress(address)}/`;
    const entries: HistoryEntry[] = [];
    for (let after: string | undefined; ;) {
      const { records, more } = await this.#store.scan({ prefix, after, limit: PAGE_SIZE }, signal);
      entries.push(...records.flatMap(decode));
      after = records.at(-1)?.key;
      if (!more) return entries;
    }
  }

  /** Entries of a day in key order, of all holders. @param after - from the previous page; undefined to begin */
  async page(day: number, after: string | undefined, signal: AbortSignal): Promise<DayPage> {
    const prefix = this.#dayPrefix(day);
    const { records, more } = await this.#store.scan({ prefix, after, limit: PAGE_SIZE }, signal);
    return {
      entries: records.flatMap(decode),
      next: more ? records.at(-1)?.key : undefined,
      scannedCount: records.length,
    };
  }

  /**
   * Changes of objects in a day, in the order of their times.
   * @param after - `next` of the page before, or a time as {@link RecordKeys.changes} writes it
   * @returns `next` undefined at the end of the day
   */
  async changes(day: number, after: string, limit: number, signal: AbortSignal) {
    const prefix = this.#keys.changesOf(day);
    const { records, more } = await this.#store.scan({ prefix, after: prefix + after, limit }, signal);
    const changes = records.flatMap(({ value }) => decodeChanges(value) ?? []);
    return { changes, next: more ? records.at(-1)?.key.slice(prefix.length) : undefined };
  }

  /**
   * The begin of the complete history, in epoch milliseconds; 0 if it is complete. Call it after reading entries: the answer
   * then covers all removals before the call.
   */
  async keptFromMs(signal: AbortSignal): Promise<number> {
    return Math.max(0, ...(await this.#retentionMarks(signal)).map(({ beginMs }) => beginMs));
  }

  /**
   * Records that releases before a day are incomplete; a later call cannot lower the day. Call it before their removal.
   * Idempotent.
   */
  async recordKeptFrom(day: number, signal: AbortSignal): Promise<void> {
    const marks = await this.#retentionMarks(signal);
    if (marks.some(({ beginMs }) => beginMs >= dayStartMs(day))) return;
    const puts = [{ key: this.#keys.historyBegin(dayStartMs(day)), value: serialize({}) }];
    const deletes = marks.map(({ key }) => key).slice(0, REMOVALS_PER_TRANSACTION);
    await this.#store.commit({ comparisons: [], puts, deletes }, signal);
  }

  /** The key of an entry. */
  keyOf(entry: HistoryEntry): string {
    return this.#keys.historyEntry(entry);
  }

  /**
   * Removes entries of a day up to a limit, as there may be hundreds of thousands. Idempotent.
   * @returns the number of removed entries, and whether more are left
   */
  async removeBatch(day: number, signal: AbortSignal): Promise<{ readonly count: number; readonly more: boolean }> {
    const prefix = this.#dayPrefix(day);
    for (let count = 0; ;) {
      const page = await this.#store.scan({ prefix, after: undefined, limit: REMOVALS_PER_TRANSACTION }, signal);
      const deletes = page.records.map(({ key }) => key);
      if (deletes.length > 0) await this.#store.commit({ comparisons: [], puts: [], deletes }, signal);
      count += deletes.length;
      if (!page.more || count >= this.#maxRemovedCount) return { count, more: page.more };
    }
  }

  /** Usually one; several after concurrent writes of replicas, a merge of two datastores, or a removal of segments. */
  async #retentionMarks(signal: AbortSignal): Promise<{ readonly key: string; readonly beginMs: number }[]> {
    const prefix = this.#keys.historyBegins;
    const { records } = await this.#store.list(prefix, signal);
    return records.flatMap(({ key }) => {
      const beginMs = this.#keys.historyBeginMs(key);
      return beginMs === undefined ? [] : [{ key, beginMs }];
    });
  }

  #dayPrefix(day: number): string {
    return `${this.#keys.history}${historyDay(day)}/`;
  }
}

function decode({ value }: StoredRecord): HistoryEntry[] {
  const entry = decodeHistoryEntry(value);
  return entry ? [entry] : [];
}
