import { Failure } from '@podwire/shared/failure/failure';
import { untilAborted } from '@podwire/shared/failure/signal';
import { messageOf } from '@podwire/shared/failure/thrown';
import { backoffMs, type BackoffBounds } from '@podwire/shared/reconcile/schedule';
import { WorkQueue } from '@podwire/shared/reconcile/work-queue';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { KubernetesApi } from '../../../api-server/api.js';
import { listPages } from '../../../api-server/lists.js';
import { asObject, objectIn, type JsonObject } from '../../../records/json/json.js';
import { dayOf, dayStartMs, historyDay, type RecordKeys } from '../../../records/json/keys.js';
import { storeFailure } from '../api-objects.js';
import {
  packRecords,
  readSegment,
  segmentObject,
  unpackRecords,
  type HistoryRecord,
  type SegmentTime,
} from './segment-form.js';

export interface HistorySegmentsOptions {
  readonly api: KubernetesApi;
  readonly keys: RecordKeys;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  readonly reports: HistoryReports;
}

/** Receives faults of the history. No function may throw. */
export interface HistoryReports {
  /** No history is kept, because the API server has no segments. */
  unavailable(failure: Failure): void;
  /** A segment is left out. @param id - of its object */
  unreadable(id: string, failure: Failure): void;
  /** Segments could not be written, which is repeated. */
  writeFailed(error: unknown): void;
}

/** A segment in the order of its time. */
interface KeptSegment extends SegmentTime {
  readonly name: string;
  /** Size of the packed records, in bytes. */
  readonly size: number;
  /** Keys of its records; undefined if they cannot be read. */
  readonly keys: readonly string[] | undefined;
  /** The object to write; undefined when it is written. */
  object: JsonObject | undefined;
}

const PLURAL = 'historysegments';
const PATH = `/apis/podwire.dev/v1alpha1/${PLURAL}`;

/** A page has at most some megabytes. */
const PAGE_SIZE = 50;

/** How long a record may wait for its segment, in milliseconds. */
const WRITE_INTERVAL_MS = 60_000;

/** Size of waiting records that are written at once, in bytes: about as many as one segment takes. */
const MAX_PENDING_BYTES = 2 * 1024 * 1024;

/** Largest size of all segments, in bytes as the API server stores them. */
const MAX_TOTAL_BYTES = 32 * 1024 * 1024;

/**
 * How many segments are removed in a run because of their age. One becomes due each minute, and a run takes place twice a minute: a
 * leader whose clock is ahead needs hours to remove the history.
 */
const MAX_AGED_COUNT = 2;

const BACKOFF: BackoffBounds = { baseMs: 1_000, maxMs: 30_000 };
const CLOSING_BACKOFF: BackoffBounds = { baseMs: 100, maxMs: 1_000 };

const NOT_FOUND = 404;

/** Failures with which podwire-ipam works without a history. */
const UNAVAILABLE: readonly Failure['code'][] = ['HISTORY_NOT_KEPT', 'ACCESS_DENIED'];

/**
 * The history in the API server: immutable objects, each with the records of one minute. An object for each record would be as
 * many requests as releases.
 *
 * A write whose outcome is unknown is repeated with the same name, so no record is stored twice.
 */
export class HistorySegments {
  readonly #options: HistorySegmentsOptions;
  readonly #segments: KeptSegment[] = [];
  readonly #queue: WorkQueue<'write'>;
  #pending: HistoryRecord[] = [];
  #pendingBytes = 0;
  #totalBytes = 0;
  /** End of the last segment's time. */
  #untilMs: number | undefined;

  private constructor(options: HistorySegmentsOptions) {
    this.#options = options;
    const { clock, random, reports } = options;
    this.#queue = new WorkQueue({
      reconcile: async (_, signal) => {
        await this.#writeAll(signal);
        return undefined;
      },
      retryInMs: (failures) => backoffMs(failures, BACKOFF, random()),
      onFailure: (error) => reports.writeFailed(error),
      clock,
    });
  }

  /**
   * Reads all segments.
   * @returns undefined where the API server has none, or refuses them
   * @throws Failure UNREACHABLE, or the signal's
   */
  static async open(options: HistorySegmentsOptions, signal: AbortSignal): Promise<OpenedHistory | undefined> {
    const { api, reports } = options;
    try {
      const { status } = await api.send({ method: 'GET', path: `${PATH}?limit=1`, signal });
      if (status === NOT_FOUND) throw missingDefinition(api);
      const segments = new HistorySegments(options);
      return { segments, records: await segments.#load(signal) };
    } catch (error) {
      if (!(error instanceof Failure) || !UNAVAILABLE.includes(error.code)) throw error;
      reports.unavailable(error);
      return undefined;
    }
  }

  /** A record that exists while releases before a time are missing; undefined if none is. */
  get beginKey(): string | undefined {
    let beginMs = 0;
    let untilMs = 0;
    for (const [index, segment] of this.#segments.entries()) {
      const sinceMs = segment.sinceMs ?? 0;
      if (!segment.keys) beginMs = segment.untilMs;
      else if (index === 0 || sinceMs > untilMs) beginMs = Math.max(beginMs, sinceMs);
      untilMs = Math.max(untilMs, segment.untilMs);
    }
    if (beginMs === 0) return undefined;
    const day = dayOf(beginMs);
    return `${this.#options.keys.historyBegins}${historyDay(day)}/${beginMs - dayStartMs(day)}`;
  }

  /** Takes records, and writes them within a minute. */
  append(records: readonly HistoryRecord[]): void {
    for (const { key, value } of records) this.#pendingBytes += key.length + value.length;
    this.#pending.push(...records);
    if (this.#pending.length > 0)
      this.#queue.request('write', this.#pendingBytes >= MAX_PENDING_BYTES ? 0 : WRITE_INTERVAL_MS);
  }

  /** Writes the records that wait. @throws Failure STORE_UNAVAILABLE or STORE_DENIED, after which it is repeated; the signal's */
  async flush(signal: AbortSignal): Promise<void> {
    try {
      await untilAborted(this.#queue.runNow('write'), signal);
    } catch (error) {
      throw storeFailure(error);
    }
  }

  /**
   * Removes the oldest segments, beyond the retention time or beyond 32 MiB. The newest one stays, unless the retention is 0: it
   * has the begin of the next one.
   * @returns the keys of the removed records, by segment
   */
  async *removeOld(retentionMs: number, signal: AbortSignal): AsyncGenerator<readonly string[], void, void> {
    const expiredMs = this.#options.clock.nowMs() - retentionMs;
    let agedCount = 0;
    for (let oldest = this.#segments[0]; oldest; oldest = this.#segments[0]) {
      const isSurplus = retentionMs === 0 || this.#totalBytes > MAX_TOTAL_BYTES;
      const isAged = oldest.untilMs < expiredMs && this.#segments.length > 1;
      if (!isSurplus && (!isAged || agedCount++ >= MAX_AGED_COUNT)) return;
      if (!oldest.object) await this.#options.api.send({ method: 'DELETE', path: `${PATH}/${oldest.name}`, signal });
      this.#segments.shift();
      this.#totalBytes -= oldest.size;
      yield oldest.keys ?? [];
    }
  }

  /** Writes all records that wait. @throws the last failure when the signal fires */
  async close(signal: AbortSignal): Promise<void> {
    await this.#queue.stop();
    const { clock, random } = this.#options;
    for (let count = 0; ; count++) {
      try {
        await this.#writeAll(signal);
        return;
      } catch (error) {
        if ((await clock.sleep(backoffMs(count, CLOSING_BACKOFF, random()), signal)) === 'aborted') throw error;
      }
    }
  }

  async #load(signal: AbortSignal): Promise<ReadonlyMap<string, Uint8Array>> {
    const { api } = this.#options;
    const records = new Map<string, Uint8Array>();
    for await (const { items } of listPages(api, { path: PATH, limit: PAGE_SIZE, signal }))
      for (const item of items) {
        const object = asObject(item);
        const loaded = object ? await this.#loadSegment(object) : [];
        for (const { key, value } of loaded) records.set(key, value);
      }
    this.#segments.sort((a, b) => a.untilMs - b.untilMs || (a.sinceMs ?? 0) - (b.sinceMs ?? 0));
    this.#untilMs = this.#segments.at(-1)?.untilMs;
    return records;
  }

  /** Keeps the time of a segment even if its records are unreadable. */
  async #loadSegment(object: JsonObject): Promise<readonly HistoryRecord[]> {
    const { keys, reports } = this.#options;
    const { name } = objectIn(object, 'metadata');
    if (typeof name !== 'string') return [];
    const segment = readSegment(object);
    let records: readonly HistoryRecord[] | undefined;
    try {
      if (!segment) throw new Error('a field is missing');
      records = await unpackRecords(segment.data, keys.history);
    } catch (error) {
      reports.unreadable(`${PLURAL}/${name}`, unreadable(name, error));
    }
    if (!segment) return [];
    const { sinceMs, untilMs, data } = segment;
    const recordKeys = records?.map(({ key }) => key);
    this.#keep({ name, sinceMs, untilMs, size: data.length, keys: recordKeys, object: undefined });
    return records ?? [];
  }

  #keep(segment: KeptSegment): void {
    this.#segments.push(segment);
    this.#totalBytes += segment.size;
  }

  async #writeAll(signal: AbortSignal): Promise<void> {
    await this.#packPending();
    for (const segment of this.#segments.filter(({ object }) => object)) await this.#write(segment, signal);
  }

  async #packPending(): Promise<void> {
    const { clock, random, keys } = this.#options;
    const records = this.#pending;
    if (records.length === 0) return;
    this.#pending = [];
    this.#pendingBytes = 0;
    let sinceMs = this.#untilMs;
    const untilMs = Math.max(clock.nowMs(), sinceMs ?? 0);
    this.#untilMs = untilMs;
    for (const packed of await packRecords(records, keys.history)) {
      const name = segmentName(untilMs, random());
      const object = segmentObject(name, { sinceMs, untilMs }, packed);
      const recordKeys = packed.records.map(({ key }) => key);
      this.#keep({ name, sinceMs, untilMs, size: packed.data.length, keys: recordKeys, object });
      sinceMs = untilMs;
    }
  }

  /** The API server has an object of the name already if it executed an earlier request. */
  async #write(segment: KeptSegment, signal: AbortSignal): Promise<void> {
    const { api, reports } = this.#options;
    try {
      const { status } = await api.send({ method: 'POST', path: PATH, body: segment.object, signal });
      if (status === NOT_FOUND) throw missingDefinition(api);
    } catch (error) {
      if (!(error instanceof Failure && error.code === 'INVALID_REQUEST')) throw error;
      // A further request would be refused too.
      reports.writeFailed(error);
    }
    segment.object = undefined;
  }
}

/** The segments, and their records by key. */
export interface OpenedHistory {
  readonly segments: HistorySegments;
  readonly records: ReadonlyMap<string, Uint8Array>;
}

/** `20261130t022329z-5f0c11ab`: sorted by time. The random part differs from the names of every other leader. */
function segmentName(untilMs: number, random: number): string {
  const time = new Date(untilMs).toISOString().replace(/\.\d+/, '').replace(/[-:]/g, '').toLowerCase();
  const digits = Math.floor(random * 2 ** 32).toString(16);
  return `${time}-${digits.padStart(8, '0')}`;
}

function missingDefinition({ subject, namespace }: KubernetesApi): Failure {
  return new Failure(
    'HISTORY_NOT_KEPT',
    `${subject}: has no definition of ${PLURAL}.podwire.dev, so past allocations are not kept; run: helm upgrade --install podwire-crds deploy/kubernetes/podwire-crds --namespace ${namespace}; then restart podwire-ipam`,
  );
}

function unreadable(name: string, error: unknown): Failure {
  const text = `${PLURAL} ${name} cannot be read: ${messageOf(error)}; its releases are missing in the history; delete it: kubectl delete ${PLURAL} ${name}`;
  return new Failure('STORE_CORRUPT', text, { cause: error });
}
