import { createHash } from 'node:crypto';

import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { retry } from '@podwire/shared/reconcile/retry';
import { backoffMs, type BackoffBounds } from '@podwire/shared/reconcile/schedule';
import { WorkQueue } from '@podwire/shared/reconcile/work-queue';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { KubernetesApi } from '../../../api-server/api.js';
import { listPages } from '../../../api-server/lists.js';
import { asObject, objectIn, type JsonObject } from '../../../records/json/json.js';
import type { RecordKeys } from '../../../records/json/keys.js';
import { storeFailure } from '../api-objects.js';
import {
  packAll,
  packFromEnd,
  readSegment,
  segmentObject,
  unpackRecords,
  type HistoryRecord,
  type PackedRecords,
  type SegmentTime,
  type TimedRecord,
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

/** Records of another datastore's history. */
export interface ImportedHistory {
  /** In the order of their releases. */
  readonly records: readonly TimedRecord[];
  /** When the complete history begins, in epoch milliseconds; 0 if it is complete. */
  readonly beginMs: number;
  /** Whether nothing is written. */
  readonly dryRun: boolean;
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

/** The same for a change of an object: they are few, and a process that is killed loses what waits. */
const CHANGE_INTERVAL_MS = 1000;

/** Size of waiting records that are written at once, in bytes: about as many as one segment takes. */
const MAX_PENDING_BYTES = 2 * 1024 * 1024;

/** Largest size of all segments, in bytes as the API server stores them. */
const MAX_TOTAL_BYTES = 32 * 1024 * 1024;

/**
 * How many segments are removed in a run because of their age. One becomes due each minute, and a run takes place twice a minute: a
 * leader whose clock is ahead needs hours to remove the history.
 */
const MAX_AGED_COUNT = 2;

/** A segment whose end is further ahead is by a clock that was wrong, in milliseconds: it would keep all later ones for as long. */
const MAX_AHEAD_MS = 24 * 3_600_000;

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
    const beginMs = this.#beginMs;
    return beginMs === 0 ? undefined : this.#options.keys.historyBegin(beginMs);
  }

  /** Releases before this time may be missing; 0 if none is. */
  get #beginMs(): number {
    let beginMs = 0;
    let untilMs = 0;
    for (const [index, segment] of this.#segments.entries()) {
      const sinceMs = segment.sinceMs ?? 0;
      if (!segment.keys) beginMs = segment.untilMs;
      else if (segment.keys.length === 0 || index === 0 || sinceMs > untilMs) beginMs = Math.max(beginMs, sinceMs);
      untilMs = Math.max(untilMs, segment.untilMs);
    }
    return beginMs;
  }

  /** Takes records, and writes releases within a minute, and changes of objects within a second. */
  append(records: readonly HistoryRecord[]): void {
    for (const { key, value } of records) this.#pendingBytes += key.length + value.length;
    this.#pending.push(...records);
    if (this.#pending.length === 0) return;
    const hasChange = records.some(({ key }) => this.#options.keys.isChange(key));
    const intervalMs = hasChange ? CHANGE_INTERVAL_MS : WRITE_INTERVAL_MS;
    this.#queue.request('write', this.#pendingBytes >= MAX_PENDING_BYTES ? 0 : intervalMs);
  }

  /**
   * Writes records of another datastore in as few segments as their size allows, the newest first: an import that continues an
   * interrupted one has room for the older ones. Where there is room no more, the oldest are left out.
   * @returns the records that are left out
   * @throws Failure STORE_UNAVAILABLE, STORE_DENIED, INVALID_REQUEST, or HISTORY_NOT_KEPT
   */
  async import({ records, beginMs, dryRun }: ImportedHistory, signal: AbortSignal): Promise<readonly TimedRecord[]> {
    const { keys, clock } = this.#options;
    const parts: PackedRecords<TimedRecord>[] = [];
    let room = MAX_TOTAL_BYTES - this.#totalBytes;
    for await (const part of packFromEnd(records, keys.history)) {
      room -= part.data.length;
      if (room < 0) break;
      parts.push(part);
    }
    const count = parts.reduce((sum, part) => sum + part.records.length, 0);
    const leftOut = records.slice(0, records.length - count);
    // The history may begin in the future, if a clock was ahead.
    const sinceMs = Math.min(clock.nowMs(), Math.max(beginMs, (leftOut.at(-1)?.releasedAtMs ?? -1) + 1));
    if (!dryRun) await this.#writeParts(parts, sinceMs, signal);
    return leftOut;
  }

  /** @param parts - the newest first */
  async #writeParts(parts: readonly PackedRecords<TimedRecord>[], beginMs: number, signal: AbortSignal): Promise<void> {
    const nowMs = this.#options.clock.nowMs();
    // A clock that was ahead must not make segments that stay for long.
    const endOf = (part: PackedRecords<TimedRecord>): number =>
      Math.min(nowMs, part.records.at(-1)?.releasedAtMs ?? nowMs);
    for (const [index, part] of parts.entries()) {
      const older = parts[index + 1];
      const sinceMs = older ? endOf(older) : beginMs === 0 ? undefined : beginMs;
      await this.#writePart(part, { sinceMs, untilMs: endOf(part) }, signal);
    }
    if (this.#beginMs >= beginMs) return;
    // A segment without records has the begin if another segment seems to cover the time before it.
    const none = await packAll([], this.#options.keys.history);
    await this.#writePart(none, { sinceMs: beginMs, untilMs: beginMs }, signal);
  }

  async #writePart(packed: PackedRecords, time: SegmentTime, signal: AbortSignal): Promise<void> {
    const { clock, random } = this.#options;
    const segment = segmentOf(packed, time);
    const retryable = (error: unknown): boolean => error instanceof Failure && error.retryable;
    const options = { attempts: Infinity, backoff: BACKOFF, clock, random, signal, retryable };
    try {
      await retry(() => this.#post(segment, signal), options);
    } catch (error) {
      throw storeFailure(error);
    }
    this.#keep({ ...segment, object: undefined });
    this.#sort();
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
    this.#sort();
    return records;
  }

  #sort(): void {
    this.#segments.sort((a, b) => a.untilMs - b.untilMs || (a.sinceMs ?? 0) - (b.sinceMs ?? 0));
    this.#untilMs = this.#segments.at(-1)?.untilMs;
  }

  /** Keeps the time of a segment even if its records are unreadable. */
  async #loadSegment(object: JsonObject): Promise<readonly HistoryRecord[]> {
    const { keys, clock, reports } = this.#options;
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
    const { sinceMs, untilMs, data } = plausible(segment, clock.nowMs());
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
    const { clock, keys } = this.#options;
    const records = this.#pending;
    if (records.length === 0) return;
    this.#pending = [];
    this.#pendingBytes = 0;
    let sinceMs = this.#untilMs;
    const untilMs = Math.max(clock.nowMs(), sinceMs ?? 0);
    this.#untilMs = untilMs;
    for await (const packed of packFromEnd(records, keys.history)) {
      this.#keep(segmentOf(packed, { sinceMs, untilMs }));
      sinceMs = untilMs;
    }
  }

  async #write(segment: KeptSegment, signal: AbortSignal): Promise<void> {
    try {
      await this.#post(segment, signal);
    } catch (error) {
      if (!(error instanceof Failure && error.code === 'INVALID_REQUEST')) throw error;
      // A further request would be refused too.
      this.#options.reports.writeFailed(error);
    }
    segment.object = undefined;
  }

  /** The API server has an object of the name already if it executed an earlier request. */
  async #post({ object }: KeptSegment, signal: AbortSignal): Promise<void> {
    const { api } = this.#options;
    const { status } = await api.send({ method: 'POST', path: PATH, body: object, signal });
    if (status === NOT_FOUND) throw missingDefinition(api);
  }
}

/** The segments, and their records by key. */
export interface OpenedHistory {
  readonly segments: HistorySegments;
  readonly records: ReadonlyMap<string, Uint8Array>;
}

/** A segment that ends now if its end is too far ahead. */
function plausible<Segment extends SegmentTime>(segment: Segment, nowMs: number): Segment {
  if (segment.untilMs <= nowMs + MAX_AHEAD_MS) return segment;
  const sinceMs = segment.sinceMs === undefined ? undefined : Math.min(segment.sinceMs, nowMs);
  return { ...segment, sinceMs, untilMs: nowMs };
}

/** A segment that is not yet written. */
function segmentOf(packed: PackedRecords, { sinceMs, untilMs }: SegmentTime): KeptSegment {
  const name = segmentName(untilMs, packed.data);
  const object = segmentObject(name, { sinceMs, untilMs }, packed);
  return { name, sinceMs, untilMs, size: packed.data.length, keys: packed.records.map(({ key }) => key), object };
}

/** `20261130t022329z-5f0c11ab`: sorted by time. The last part depends on the records, so that equal segments have one name. */
function segmentName(untilMs: number, data: string): string {
  const time = new Date(untilMs).toISOString().replace(/\.\d+/, '').replace(/[-:]/g, '').toLowerCase();
  return `${time}-${createHash('sha256').update(data).digest('hex').slice(0, 8)}`;
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
