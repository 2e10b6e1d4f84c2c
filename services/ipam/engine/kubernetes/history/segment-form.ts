import { promisify } from 'node:util';
import { gunzip, gzip } from 'node:zlib';

import { objectIn, type JsonObject } from '../../../records/json/json.js';

/** A record of the history. */
export interface HistoryRecord {
  readonly key: string;
  readonly value: Uint8Array;
}

/** A record of the history with the time of its release, in epoch milliseconds. */
export interface TimedRecord extends HistoryRecord {
  readonly releasedAtMs: number;
}

/** Records of a segment, and what they are in its object: compressed lines, in base 64. */
export interface PackedRecords<Record extends HistoryRecord = HistoryRecord> {
  readonly records: readonly Record[];
  readonly data: string;
}

/** The time whose releases are in a segment, in epoch milliseconds. */
export interface SegmentTime {
  /** Undefined: since the history began. */
  readonly sinceMs: number | undefined;
  readonly untilMs: number;
}

const API_VERSION = 'podwire.dev/v1alpha1';

/** Largest size of a segment's compressed records, in bytes. */
export const MAX_SEGMENT_BYTES = 256 * 1024;

/** Largest size of a segment's records, in bytes, of the largest compressed size. */
const MAX_UNPACKED_BYTES = 256 * 1024 * 1024;

/** Size of the records that are compressed first, in bytes: about a full segment. */
const FIRST_UNPACKED_BYTES = 3 * 1024 * 1024;

/** A segment counts as full from the first share of its largest size on; the second one is aimed at. */
const [FULL_SHARE, AIMED_SHARE] = [0.9, 0.96];

const LINE_FEED = 0x0a;
const SPACE = 0x20;

/** Begins a value in base 64; a value in JSON does not begin with it. */
const ENCODED = '='.charCodeAt(0);

const compress = promisify(gzip);
const decompress = promisify<Uint8Array, { maxOutputLength: number }, Buffer>(gunzip);

/**
 * Compresses records into parts that are as large as a segment may be, the last records first. A record that is too large is a part
 * of its own.
 * @param root - begins every key, and is left out
 */
export async function* packFromEnd<Record extends HistoryRecord>(
  records: readonly Record[],
  root: string,
): AsyncGenerator<PackedRecords<Record>, void, void> {
  for (let end = records.length; end > 0;) {
    const part = await packLast(records.slice(0, end), root);
    yield part;
    end -= part.records.length;
  }
}

/** Packs as many of the last records as a segment may have, nearly. The size of compressed records is known only afterwards. */
async function packLast<Record extends HistoryRecord>(
  records: readonly Record[],
  root: string,
): Promise<PackedRecords<Record>> {
  let fitting: PackedRecords<Record> | undefined;
  let tooManyCount = records.length + 1;
  for (let count = countUpTo(FIRST_UNPACKED_BYTES, records); ;) {
    const packed = await packAll(records.slice(records.length - count), root);
    const bytes = Buffer.byteLength(packed.data, 'base64');
    if (bytes > MAX_SEGMENT_BYTES && count > 1) tooManyCount = count;
    else fitting = packed;
    const fittingCount = fitting?.records.length ?? 0;
    const isFull = fitting === packed && bytes >= FULL_SHARE * MAX_SEGMENT_BYTES;
    if (fitting && (isFull || fittingCount + 1 >= tooManyCount)) return fitting;
    const guess = Math.floor((count * MAX_SEGMENT_BYTES * AIMED_SHARE) / bytes);
    const isBetween = guess > fittingCount && guess < tooManyCount;
    count = isBetween ? guess : (fittingCount + tooManyCount) >>> 1;
  }
}

/** Compresses records into one part, whatever its size. */
export async function packAll<Record extends HistoryRecord>(
  records: readonly Record[],
  root: string,
): Promise<PackedRecords<Record>> {
  const bytes = await compress(Buffer.concat(records.map((record) => line(record, root))));
  return { records, data: bytes.toString('base64') };
}

/** How many of the last records have this size, at least one. */
function countUpTo(sizeBytes: number, records: readonly HistoryRecord[]): number {
  let bytes = 0;
  const index = records.findLastIndex(({ key, value }) => (bytes += key.length + value.length) > sizeBytes);
  return Math.max(1, records.length - 1 - index);
}

/** The records of {@link packRecords}, whose values share memory. @throws Error for another text */
export async function unpackRecords(data: string, root: string): Promise<readonly HistoryRecord[]> {
  const lines = await decompress(Buffer.from(data, 'base64'), { maxOutputLength: MAX_UNPACKED_BYTES });
  const records: HistoryRecord[] = [];
  for (let start = 0; start < lines.length;) {
    const end = lines.indexOf(LINE_FEED, start);
    const space = lines.indexOf(SPACE, start);
    if (end < 0 || space < 0 || space > end) throw new Error('a line has no key, or no end');
    const value = lines.subarray(space + 1, end);
    records.push({
      key: root + decodeURI(lines.toString('latin1', start, space)),
      value: value[0] === ENCODED ? Buffer.from(value.toString('latin1', 1), 'base64') : value,
    });
    start = end + 1;
  }
  return records;
}

/** `00020687/10.65.0.7/42 {"address":"10.65.0.7",…}`. */
function line({ key, value }: HistoryRecord, root: string): Buffer {
  const isPlain = value[0] !== ENCODED && !value.includes(LINE_FEED);
  const text = isPlain ? value : Buffer.from(`=${Buffer.from(value).toString('base64')}`);
  return Buffer.concat([Buffer.from(`${encodeURI(key.slice(root.length))} `), text, Buffer.of(LINE_FEED)]);
}

/** The object of a segment. */
export function segmentObject(name: string, { sinceMs, untilMs }: SegmentTime, packed: PackedRecords): JsonObject {
  const since = sinceMs === undefined ? {} : { since: new Date(sinceMs).toISOString() };
  const until = new Date(untilMs).toISOString();
  const spec = { ...since, until, entries: packed.records.length, data: packed.data };
  return { apiVersion: API_VERSION, kind: 'HistorySegment', metadata: { name }, spec };
}

/** The time and the packed records of an object that {@link segmentObject} made; undefined for another one. */
export function readSegment(object: JsonObject): (SegmentTime & { readonly data: string }) | undefined {
  const { since, until, data } = objectIn(object, 'spec');
  const untilMs = typeof until === 'string' ? Date.parse(until) : NaN;
  const sinceMs = typeof since === 'string' ? Date.parse(since) : undefined;
  if (typeof data !== 'string' || Number.isNaN(untilMs) || Number.isNaN(sinceMs)) return undefined;
  return { sinceMs, untilMs, data };
}
