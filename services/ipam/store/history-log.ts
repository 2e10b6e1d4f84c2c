import { formatAddress } from '@podwire/shared/net/address';
import type { Address } from '@podwire/shared/net/address';

import type { HistoryEntry } from '../allocator/records.js';
import { decodeHistoryEntry } from './record/history.js';
import { historyHour, type RecordKeys } from './record/keys.js';
import type { Store, StoredRecord } from './store.js';

/** After every text that begins with a prefix. */
const LAST = '\u{10ffff}';

/** Records of one read. */
const PAGE_SIZE = 1000;

/** Operations of one transaction, of the 128 that etcd allows. */
const REMOVALS_PER_TRANSACTION = 100;

const HOUR_DIGITS = 8;

/** Part of the entries of an hour. */
export interface HourPage {
  readonly entries: readonly HistoryEntry[];
  /** The key behind which to go on; undefined at the end of the hour. */
  readonly next: string | undefined;
  /** Entries that were looked at, those that cannot be read included. */
  readonly lookedAtCount: number;
}

/**
 * The history as it is stored: past allocations by the hour of their release, hours counted from 1970. It is not mirrored, every
 * question goes to the datastore. Entries that cannot be read are left out.
 */
export class HistoryLog {
  readonly #store: Store;
  readonly #keys: RecordKeys;

  constructor(store: Store, keys: RecordKeys) {
    this.#store = store;
    this.#keys = keys;
  }

  /** The first hour behind another that has entries; undefined for the first of all. @returns undefined when there is none */
  async hourAfter(hour: number | undefined, signal: AbortSignal): Promise<number | undefined> {
    const prefix = this.#keys.history;
    const after = hour === undefined ? undefined : this.#hourPrefix(hour) + LAST;
    const { records } = await this.#store.scan({ prefix, after, limit: 1 }, signal);
    const digits = records[0]?.key.slice(prefix.length, prefix.length + HOUR_DIGITS);
    return digits !== undefined && /^\d+$/.test(digits) ? Number(digits) : undefined;
  }

  /** All entries of an address within an hour, in the order of their sequence numbers as texts. */
  async entriesOf(address: Address, hour: number, signal: AbortSignal): Promise<HistoryEntry[]> {
    const prefix = `${this.#hourPrefix(hour)}${formatAddress(address)}/`;
    const entries: HistoryEntry[] = [];
    for (let after: string | undefined; ;) {
      const { records, more } = await this.#store.scan({ prefix, after, limit: PAGE_SIZE }, signal);
      entries.push(...records.flatMap(decode));
      after = records.at(-1)?.key;
      if (!more) return entries;
    }
  }

  /** Entries of an hour in the order of their keys, whoever's they are. @param after - what the page before named; undefined to begin */
  async page(hour: number, after: string | undefined, signal: AbortSignal): Promise<HourPage> {
    const prefix = this.#hourPrefix(hour);
    const { records, more } = await this.#store.scan({ prefix, after, limit: PAGE_SIZE }, signal);
    return {
      entries: records.flatMap(decode),
      next: more ? records.at(-1)?.key : undefined,
      lookedAtCount: records.length,
    };
  }

  /** Under which an entry is stored. */
  keyOf(entry: HistoryEntry): string {
    return this.#keys.historyEntry(entry);
  }

  /** Removes the entries of an hour, in as many transactions as it takes. Idempotent. @returns how many there were */
  async removeHour(hour: number, signal: AbortSignal): Promise<number> {
    const prefix = this.#hourPrefix(hour);
    for (let removed = 0; ;) {
      const page = await this.#store.scan({ prefix, after: undefined, limit: REMOVALS_PER_TRANSACTION }, signal);
      const deletes = page.records.map(({ key }) => key);
      if (deletes.length > 0) await this.#store.commit({ comparisons: [], puts: [], deletes }, signal);
      removed += deletes.length;
      if (!page.more) return removed;
    }
  }

  #hourPrefix(hour: number): string {
    return `${this.#keys.history}${historyHour(hour * HOUR_MS)}/`;
  }
}

export const HOUR_MS = 3_600_000;

function decode({ value }: StoredRecord): HistoryEntry[] {
  const entry = decodeHistoryEntry(value);
  return entry ? [entry] : [];
}
