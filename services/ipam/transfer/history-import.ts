import type { ImportedHistory } from '../engine/kubernetes/history/history-segments.js';
import type { TimedRecord } from '../engine/kubernetes/history/segment-form.js';
import { decodeChanges } from '../records/json/history.js';
import { decodeHistoryEntry } from '../records/json/history.js';
import type { RecordKeys } from '../records/json/keys.js';
import type { ArchivedRecord } from './archive.js';

/** A history apart from the records of a datastore, of which it keeps only the newest part. */
export interface HistoryDestination {
  /** Whether the datastore can keep it. */
  readonly isKept: boolean;
  /**
   * Adds entries that it does not have, in the order of their releases. The oldest ones are left out if there is no room.
   * @throws Failure of the datastore
   */
  import(
    history: ImportedHistory,
    signal: AbortSignal,
  ): Promise<{ readonly writtenCount: number; readonly leftOutCount: number }>;
}

interface HistoryImportOptions {
  readonly keys: RecordKeys;
  readonly destination: HistoryDestination;
  /** 0 keeps nothing. */
  readonly retentionHours: number;
  readonly nowMs: number;
}

const HOUR_MS = 3_600_000;

/** The history of a file, whose newest part is in memory, as it is in the datastore's process. */
export class HistoryImport {
  readonly #options: HistoryImportOptions;
  readonly #entries: TimedRecord[] = [];
  readonly #leftOut = new Map<string, number>();
  #beginMs = 0;

  constructor(options: HistoryImportOptions) {
    this.#options = options;
  }

  /** Whether a record is of the history. */
  covers(key: string): boolean {
    const { history, historyBegins } = this.#options.keys;
    return key.startsWith(history) || key.startsWith(historyBegins);
  }

  /** Receives each record of the history once. */
  prepare({ key, value }: ArchivedRecord): void {
    const { keys, destination, retentionHours, nowMs } = this.#options;
    if (!key.startsWith(keys.history)) {
      this.#beginMs = Math.max(this.#beginMs, keys.historyBeginMs(key) ?? 0);
      return;
    }
    const endedAtMs = keys.isChange(key) ? decodeChanges(value)?.[0]?.atMs : decodeHistoryEntry(value)?.releasedAtMs;
    if (!destination.isKept) this.#leaveOut('the API server has no historysegments.podwire.dev');
    else if (endedAtMs === undefined) this.#leaveOut('unreadable');
    else if (retentionHours === 0 || endedAtMs < nowMs - retentionHours * HOUR_MS) {
      this.#leaveOut(`released more than ${retentionHours} h ago`);
      this.#beginMs = Math.max(this.#beginMs, endedAtMs + 1);
    } else this.#entries.push({ key, value, releasedAtMs: endedAtMs });
  }

  /** Writes the entries. Idempotent. @returns the number of entries that the datastore did not have */
  async write(dryRun: boolean, signal: AbortSignal): Promise<number> {
    const { destination } = this.#options;
    if (!destination.isKept) return 0;
    const records = this.#entries.toSorted((a, b) => a.releasedAtMs - b.releasedAtMs);
    const history = { records, beginMs: this.#beginMs, dryRun };
    const { writtenCount, leftOutCount } = await destination.import(history, signal);
    if (leftOutCount > 0) this.#leaveOut('the datastore keeps 32 MiB', leftOutCount);
    return writtenCount;
  }

  /** Numbers of entries that are left out, by the reason. */
  get leftOut(): ReadonlyMap<string, number> {
    return this.#leftOut;
  }

  #leaveOut(reason: string, count = 1): void {
    this.#leftOut.set(reason, (this.#leftOut.get(reason) ?? 0) + count);
  }
}
