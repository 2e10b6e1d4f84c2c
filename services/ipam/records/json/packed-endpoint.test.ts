import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { hostPrefix, prefixOf } from '@podwire/shared/net/prefix';
import { attachments } from '@podwire/shared/testing/attachments';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import type { RecordValue } from '../view.js';
import { RecordKeys } from './keys.js';
import { PackedEndpoint } from './packed-endpoint.js';
import { decodeRecord, encodeRecord, serialize, writeRecord } from './registry.js';

type EndpointRecord = Extract<RecordValue, { readonly kind: 'endpoint' }>;

const keys = new RecordKeys('/calico');
const seed = Number(process.env.PODWIRE_TEST_SEED ?? Date.now() % 2 ** 31);

const name = fc.stringMatching(/^[a-z0-9][a-z0-9.-]{0,20}$/);
/** Mostly names that Kubernetes allows; sometimes characters that have to be escaped. */
const loose = fc.oneof({ weight: 9, arbitrary: name }, fc.string({ unit: 'grapheme', maxLength: 5 }));
const uint64 = fc.bigInt({ min: 0n, max: (1n << 64n) - 1n });
const address = fc.oneof(
  fc.bigInt({ min: 0n, max: (1n << 32n) - 1n }).map((value) => ({ family: 4, value }) as const),
  fc.bigInt({ min: 1n << 100n, max: (1n << 128n) - 1n }).map((value) => ({ family: 6, value }) as const),
);

const endpoints: fc.Arbitrary<EndpointRecord> = fc
  .record({
    namespace: name,
    name,
    attachment: attachments,
    uid: fc.oneof(fc.constant(''), fc.uuid()),
    createTimeMs: fc.option(
      fc.integer({ min: 1, max: 4_000_000_000 }).map((seconds) => seconds * 1000),
      {
        nil: undefined,
      },
    ),
    nodeName: loose,
    pod: fc.option(fc.record({ name: loose, uid: fc.oneof(fc.constant(''), fc.uuid()) }), { nil: undefined }),
    netns: fc.option(fc.record({ bootId: loose, inode: uint64 }), { nil: undefined }),
    addresses: fc.array(fc.record({ address, poolName: loose, sequenceNumber: uint64 }), { maxLength: 3 }),
  })
  .map(({ namespace, name, pod, addresses, ...given }) => ({
    kind: 'endpoint',
    key: { namespace, name },
    value: {
      ...given,
      pod: pod && { namespace, ...pod },
      addresses: addresses.map(({ address, ...rest }) => {
        const block = prefixOf(address, address.family === 4 ? 26 : 122);
        return { address: hostPrefix(address), block, ...rest };
      }),
      mac: podMac(given.attachment),
      hostInterfaceName: hostInterfaceName(given.attachment),
    },
  }));

function textOf(record: EndpointRecord): string {
  return Buffer.from(serialize(encodeRecord(record, undefined))).toString();
}

/** Through JSON: a text with a space at the end is not one that Podwire wrote. */
function slowly(key: string, text: string): { readonly value: unknown } | undefined {
  const parsed = keys.parse(key);
  if (!parsed) throw new Error(`${key} names no record`);
  try {
    const { record } = decodeRecord(key, parsed, Buffer.from(`${text} `));
    return 'value' in record ? { value: record.value } : undefined;
  } catch {
    return undefined;
  }
}

describe('a packed endpoint', () => {
  it('equals its parsed JSON, when it is written and when it is read', () => {
    let packed = 0;
    const property = fc.property(endpoints, (record) => {
      const key = keys.of(record);
      const { bytes, decoded } = writeRecord(record, undefined);
      const text = bytes.toString();
      expect(text).toBe(textOf(record));
      for (const one of [PackedEndpoint.read(key, text), decoded.record]) {
        if (one instanceof PackedEndpoint) packed++;
        if (one?.kind === 'endpoint')
          expect({ key: one.key, value: one.value }).toEqual({ key: record.key, value: record.value });
      }
      expect(slowly(key, text)).toEqual({ value: record.value });
    });
    fc.assert(property, { seed, numRuns: 500 });
    expect(packed).toBeGreaterThan(300);
  });

  it('never has a value that a changed text does not have', () => {
    const edits = fc.record({
      at: fc.nat(1200),
      cut: fc.nat(3),
      put: fc.oneof(fc.string({ maxLength: 3 }), fc.constant('0'), fc.constant('"')),
    });
    const property = fc.property(endpoints, edits, (record, { at, cut, put }) => {
      const key = keys.of(record);
      const original = textOf(record);
      const start = at % original.length;
      const text = original.slice(0, start) + put + original.slice(start + cut);
      const packed = PackedEndpoint.read(key, text);
      if (!packed) return;
      expect(slowly(key, text)).toEqual({ value: packed.value });
      expect(textOf({ kind: 'endpoint', key: packed.key, value: packed.value })).toBe(text);
    });
    fc.assert(property, { seed, numRuns: 3000 });
  });

  it('is not created from a text with fields of other writers, or from a refused one', () => {
    const [record] = fc.sample(
      endpoints.filter(({ value }) => /^[a-z]*$/.test(value.nodeName) && value.pod === undefined),
      { seed: 1, numRuns: 1 },
    );
    if (!record) throw new Error('nothing was sampled');
    const [key, text] = [keys.of(record), textOf(record)];
    expect(PackedEndpoint.read(key, text)?.value).toEqual(record.value);
    expect(PackedEndpoint.read(key, text.replace('"spec":{', '"spec":{"profiles":[],'))).toBeUndefined();
    expect(PackedEndpoint.read(key, text.replace(record.value.mac, '01:00:5e:00:00:01'))).toBeUndefined();
    expect(PackedEndpoint.read(`${key}0`, text)).toBeUndefined();
  });
});
