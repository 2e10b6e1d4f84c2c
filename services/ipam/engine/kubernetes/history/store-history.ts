import type { RecordChange, StoredRecord } from '../../store.js';
import type { HistorySegments, ImportedHistory, OpenedHistory } from './history-segments.js';
import type { HistoryRecord } from './segment-form.js';

interface StoreHistoryOptions {
  readonly segments: HistorySegments;
  /** The stored record of a key. */
  readonly stored: (key: string) => StoredRecord | undefined;
  /** Publishes changes of records. */
  readonly publish: (changes: ChangedRecords) => void;
}

/** Values by key; undefined for removed records. */
type ChangedRecords = ReadonlyMap<string, Extract<RecordChange, { type: 'put' }>['value'] | undefined>;

const EMPTY_RECORD = Buffer.from('{}');

/** The history among the records of a store. */
export class StoreHistory {
  readonly #options: StoreHistoryOptions;

  constructor(options: StoreHistoryOptions) {
    this.#options = options;
  }

  /** The records as they were read. */
  static recordsOf({ segments, records }: OpenedHistory): ChangedRecords {
    return new Map([...records, ...beginChanges(undefined, segments.beginKey)]);
  }

  /** Takes the records that are not known, and writes them within a minute. @returns these records */
  append(records: readonly HistoryRecord[]): readonly HistoryRecord[] {
    const { segments, stored } = this.#options;
    const news = records.filter(({ key }) => !stored(key));
    segments.append(news);
    return news;
  }

  /** Adds the records of another datastore that are not known, as {@link HistorySegments.import} does. */
  async import({ records, beginMs, dryRun }: ImportedHistory, signal: AbortSignal): Promise<ImportedCounts> {
    const { segments, stored, publish } = this.#options;
    const news = records.filter(({ key }) => !stored(key));
    const before = segments.beginKey;
    const leftOut = await segments.import({ records: news, beginMs, dryRun }, signal);
    const written = news.slice(leftOut.length);
    const puts = written.map(({ key, value }) => [key, value] as const);
    if (!dryRun) publish(new Map([...puts, ...beginChanges(before, segments.beginKey)]));
    return { writtenCount: written.length, leftOutCount: leftOut.length };
  }

  /** Removes the oldest records. @returns their count */
  async removeOld(retentionMs: number, signal: AbortSignal): Promise<number> {
    const { segments, publish } = this.#options;
    let count = 0;
    let before = segments.beginKey;
    for await (const keys of segments.removeOld(retentionMs, signal)) {
      count += keys.length;
      const removals = keys.map((key) => [key, undefined] as const);
      publish(new Map([...removals, ...beginChanges(before, segments.beginKey)]));
      before = segments.beginKey;
    }
    return count;
  }
}

interface ImportedCounts {
  readonly writtenCount: number;
  /** Number of records for which there is no room. */
  readonly leftOutCount: number;
}

/** The changes of the record that has the begin of the complete history. */
function beginChanges(before: string | undefined, after: string | undefined): [string, Uint8Array | undefined][] {
  if (before === after) return [];
  const removed = before === undefined ? [] : [[before, undefined] satisfies [string, undefined]];
  return after === undefined ? removed : [...removed, [after, EMPTY_RECORD]];
}
