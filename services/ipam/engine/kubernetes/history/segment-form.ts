import { promisify } from 'node:util';
import { gunzip, gzip } from 'node:zlib';

import { objectIn, type JsonObject } from '../../../records/json/json.js';

/** A record of the history. */
export interface HistoryRecord {
  readonly key: string;
  readonly value: Uint8Array;
}

/** Records of a segment, and what they are in its object: compressed lines, in base 64. */
export interface PackedRecords {
  readonly records: readonly HistoryRecord[];
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

const LINE_FEED = 0x0a;
const SPACE = 0x20;

/** Begins a value in base 64; a value in JSON does not begin with it. */
const ENCODED = '='.charCodeAt(0);

const compress = promisify(gzip);
const decompress = promisify<Uint8Array, { maxOutputLength: number }, Buffer>(gunzip);

/** Compresses records, into several parts if one would be too large. @param root - begins every key, and is left out */
export async function packRecords(records: readonly HistoryRecord[], root: string): Promise<readonly PackedRecords[]> {
  const packed = await compress(Buffer.concat(records.map((record) => line(record, root))));
  if (packed.length <= MAX_SEGMENT_BYTES || records.length === 1) return [{ records, data: packed.toString('base64') }];
  const middle = records.length >>> 1;
  return [...(await packRecords(records.slice(0, middle), root)), ...(await packRecords(records.slice(middle), root))];
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
