import { randomBytes } from 'node:crypto';
import { gzipSync } from 'node:zlib';

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { parseAddress } from '@podwire/shared/net/address';
import { hostPrefix } from '@podwire/shared/net/prefix';

import type { HistoryEntry } from '../../../records/history.js';
import { decodeHistoryEntry, encodeHistoryEntry } from '../../../records/json/history.js';
import { serialize } from '../../../records/json/registry.js';
import { NOW_MS, prefix } from '../../../testing/records.js';
import { keys } from '../../testing/stores.js';
import {
  MAX_SEGMENT_BYTES,
  packAll,
  packFromEnd,
  readSegment,
  segmentObject,
  unpackRecords,
  type HistoryRecord,
  type PackedRecords,
} from './segment-form.js';

const ROOT = keys.history;

const name = fc.string({ unit: 'grapheme', maxLength: 20 });

const entry: fc.Arbitrary<HistoryEntry> = fc
  .record({
    host: fc.integer({ min: 0, max: 63 }),
    isIpv6: fc.boolean(),
    handleId: fc.option(name, { nil: undefined }),
    owner: fc.dictionary(name, name, { maxKeys: 4 }),
    allocatedAtMs: fc.option(fc.integer({ min: 0, max: NOW_MS }), { nil: undefined }),
    releasedAtMs: fc.integer({ min: 0, max: 2 * NOW_MS }),
    sequenceNumber: fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
  })
  .map(({ host, isIpv6, ...rest }) => {
    const address = parseAddress(isIpv6 ? `fd00::${host}` : `10.0.0.${host}`);
    if (!address) throw new Error('the address is at fault');
    const block = prefix(isIpv6 ? 'fd00::/122' : '10.0.0.0/26');
    return { address: hostPrefix(address), block, ...rest };
  });

const text = (value: Uint8Array): string => Buffer.from(value).toString('hex');

const sizeOf = ({ data }: { readonly data: string }): number => Buffer.byteLength(data, 'base64');

const roundTrip = async (records: readonly HistoryRecord[]) => {
  const packed: PackedRecords[] = [];
  for await (const each of packFromEnd(records, ROOT)) packed.unshift(each);
  const unpacked = await Promise.all(packed.map(({ data }) => unpackRecords(data, ROOT)));
  return { packed, records: unpacked.flat() };
};

describe('the records of a segment', () => {
  test('property: are entries with every field', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(entry, { minLength: 1, maxLength: 30 }), async (entries) => {
        const records = entries.map((each) => ({
          key: keys.historyEntry(each),
          value: serialize(encodeHistoryEntry(each)),
        }));
        const read = await roundTrip(records);
        expect(read.records.map(({ key }) => key)).toEqual(records.map(({ key }) => key));
        expect(read.records.map(({ value }) => decodeHistoryEntry(value))).toEqual(entries);
      }),
    );
  });

  test('property: are the same bytes, whatever an import brought', async () => {
    const record = fc.record({ rest: fc.string({ unit: 'grapheme' }), bytes: fc.uint8Array({ maxLength: 100 }) });
    await fc.assert(
      fc.asyncProperty(fc.array(record, { minLength: 1 }), async (imported) => {
        const records = imported.map(({ rest, bytes }) => ({ key: ROOT + rest, value: bytes }));
        const read = await roundTrip(records);
        expect(read.records.map(({ key, value }) => [key, text(value)])).toEqual(
          records.map(({ key, value }) => [key, text(value)]),
        );
      }),
    );
  });

  test('are split when they are too large, and one alone is not', async () => {
    const values = Array.from({ length: 40 }, () => randomBytes(20_000));
    const read = await roundTrip(values.map((value, index) => ({ key: `${ROOT}${index}`, value })));
    expect(read.packed.length).toBeGreaterThan(2);
    for (const each of read.packed) expect(sizeOf(each)).toBeLessThanOrEqual(MAX_SEGMENT_BYTES);
    expect(read.records.map(({ value }) => text(value))).toEqual(values.map(text));
    const large = { key: `${ROOT}large`, value: randomBytes(2 * MAX_SEGMENT_BYTES) };
    const small = { key: `${ROOT}small`, value: randomBytes(100) };
    const parts = (await roundTrip([small, large, small])).packed.map(({ records }) => records.length);
    expect(parts).toEqual([1, 1, 1]);
  });

  test.each([
    ['that compress well', 200_000, (index: number) => `{"address":"10.65.${index >> 8}.${index & 255}"}`],
    ['that do not', 20_000, () => randomBytes(60).toString('hex')],
    ['of many sizes', 500, (index: number) => randomBytes(2 ** (index % 16)).toString('hex')],
  ])('%s are in segments that are full, except the first one', async (_, length, valueOf) => {
    const records = Array.from({ length }, (_each, index) => ({
      key: `${ROOT}${index}`,
      value: Buffer.from(valueOf(index)),
    }));
    const { packed } = await roundTrip(records);
    expect(packed.flatMap((part) => part.records)).toEqual(records);
    for (const each of packed) expect(sizeOf(each)).toBeLessThanOrEqual(MAX_SEGMENT_BYTES);
    expect(packed.length).toBeGreaterThan(3);
    for (const each of packed.slice(1)) expect(sizeOf(each)).toBeGreaterThan(0.8 * MAX_SEGMENT_BYTES);
  });

  test.each(['', 'bm8gZ3ppcA==', '!'])('cannot be read from %j', async (data) => {
    await expect(unpackRecords(data, ROOT)).rejects.toThrow();
  });

  test('cannot be read without their ends', async () => {
    for (const lines of ['no-value\n', 'key {}', '00020687/10.0.0.1/7 {}\nkey'])
      await expect(unpackRecords(gzipSync(lines).toString('base64'), ROOT)).rejects.toThrow('a line has no key');
  });
});

describe('the object of a segment', () => {
  test.each([undefined, NOW_MS - 60_000])('has the time of the segment, since %s', async (sinceMs) => {
    const packed = await packAll([{ key: `${ROOT}a`, value: Buffer.from('{}') }], ROOT);
    const object = segmentObject('20260822t063325z-00000001', { sinceMs, untilMs: NOW_MS }, packed);
    expect(object).toMatchObject({ kind: 'HistorySegment', spec: { until: '2026-08-22T06:33:25.100Z', entries: 1 } });
    expect(readSegment(object)).toEqual({ sinceMs, untilMs: NOW_MS, data: packed.data });
  });

  test.each([{}, { until: 'then', data: '' }, { until: '2026-08-22T06:33:25Z' }, { until: 7, data: '' }])(
    'is not %j',
    (spec) => {
      expect(readSegment({ spec })).toBeUndefined();
    },
  );
});
