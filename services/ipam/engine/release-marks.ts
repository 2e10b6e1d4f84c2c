import type { Clock } from '@podwire/shared/runtime/clock';

import type { RecordKeys } from '../records/json/keys.js';
import type { Store, StoredRecord } from './store.js';

/**
 * Runs after which a mark is removed. Runs are at least 15 s apart, usually 30 s, so that is at least 15 minutes:
 * far longer than a transaction is in flight. Runs are counted, because clocks may be wrong.
 */
const KEPT_RUNS = 60;

/** A check reads every mark, so not each run checks. */
const RUNS_PER_CHECK = 10;

/** Marks per page. */
const PAGE_COUNT = 1000;

/** Marks removed per transaction, within the limit of any datastore. */
const BATCH_COUNT = 100;

/** Tolerance in milliseconds: a mark has the time of its decision, and the commit may be later. Usual clock differences are smaller. */
const TOLERANCE_MS = 30_000;

interface MarkExpiryOptions {
  readonly store: Store;
  readonly keys: RecordKeys;
  readonly clock: Clock;
  /**
   * Reports that another replica's clock differs: how far it is ahead of this one, in milliseconds; negative when
   * behind.
   */
  readonly clocksDiffer: (aheadMs: number) => void;
}

/** Revision and time of a run. */
interface RunRecord {
  readonly revision: number;
  readonly atMs: number;
}

/**
 * Removes release marks that are too old to matter. Several replicas may run it concurrently; a mark that was renewed
 * meanwhile stays. The age of a mark follows from its revision, not from its time, which is another replica's clock:
 * with clocks that differ, a recent mark would be removed.
 *
 * A mark made between two runs should carry a time between them, unless clocks differ. A difference is reported once
 * per run.
 */
export class MarkExpiry {
  readonly #options: MarkExpiryOptions;
  /** The last runs, oldest first. */
  #recentRuns: RunRecord[] = [];
  #runs = 0;
  /** The marks up to this revision were compared with the clock. */
  #comparedTo = 0;

  constructor(options: MarkExpiryOptions) {
    this.#options = options;
  }

  /** Call it periodically, see {@link KEPT_RUNS}. @throws Failure of the store; the next run retries */
  async run(signal: AbortSignal): Promise<void> {
    const { store, clock } = this.#options;
    const run = { revision: await store.revision(signal), atMs: clock.nowMs() };
    this.#recentRuns = [...this.#recentRuns.slice(-KEPT_RUNS), run];
    if (++this.#runs % RUNS_PER_CHECK === 0) await this.#checkMarks(signal);
  }

  async #checkMarks(signal: AbortSignal): Promise<void> {
    const { store, keys, clocksDiffer } = this.#options;
    const oldTo = this.#recentRuns.length > KEPT_RUNS ? (this.#recentRuns[0]?.revision ?? 0) : 0;
    let aheadMs = 0;
    let after: string | undefined;
    for (;;) {
      const { records, more } = await store.scan({ prefix: keys.releases, after, limit: PAGE_COUNT }, signal);
      for (const mark of records) aheadMs = largerDifference(aheadMs, this.#aheadMs(mark));
      const old = records.filter(({ modRevision }) => modRevision <= oldTo);
      for (let start = 0; start < old.length; start += BATCH_COUNT)
        await removeAll(store, old.slice(start, start + BATCH_COUNT), signal);
      after = records.at(-1)?.key;
      if (!more || after === undefined) break;
    }
    this.#comparedTo = this.#recentRuns.at(-1)?.revision ?? 0;
    if (aheadMs !== 0) clocksDiffer(aheadMs);
  }

  /** How far a mark's time lies outside of the interval between its runs; 0 if unknown or small. */
  #aheadMs({ value, modRevision }: StoredRecord): number {
    if (modRevision <= this.#comparedTo) return 0;
    const next = this.#recentRuns.findIndex(({ revision }) => revision >= modRevision);
    const [from, to] = [this.#recentRuns[next - 1], this.#recentRuns[next]];
    // A clock set back between two runs makes the comparison meaningless.
    if (!from || !to || to.atMs < from.atMs) return 0;
    const markedMs = releaseTimeMs(value);
    if (markedMs > to.atMs + TOLERANCE_MS) return markedMs - to.atMs;
    return markedMs < from.atMs - TOLERANCE_MS ? markedMs - from.atMs : 0;
  }
}

/** Removes all or none: after a concurrent change they stay until the next check. */
async function removeAll(store: Store, marks: readonly StoredRecord[], signal: AbortSignal): Promise<void> {
  const comparisons = marks.map(({ key, modRevision }) => ({ type: 'record', key, modRevision }) as const);
  await store.commit({ comparisons, puts: [], deletes: marks.map(({ key }) => key) }, signal);
}

function largerDifference(a: number, b: number): number {
  return Math.abs(b) > Math.abs(a) ? b : a;
}

/** @returns NaN for a mark that cannot be read */
function releaseTimeMs(value: Uint8Array): number {
  const match = /"releasedAt":"([^"]*)"/.exec(Buffer.from(value).toString('latin1'));
  return Date.parse(match?.[1] ?? '');
}
