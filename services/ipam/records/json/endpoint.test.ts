import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { hostPrefix, prefixOf } from '@podwire/shared/net/prefix';
import { attachments } from '@podwire/shared/testing/attachments';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import type { RecordValue } from '../view.js';
import { RecordKeys } from './keys.js';
import { decodeRecord, writeRecord } from './registry.js';

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

function read(record: EndpointRecord, text: string) {
  return decodeRecord(keys.of(record), { kind: 'endpoint', key: record.key }, Buffer.from(text));
}

test('property: a written endpoint is read as the same endpoint, and its value makes the same text', () => {
  const property = fc.property(endpoints, (record) => {
    const { bytes, decoded } = writeRecord(record, undefined);
    const again = read(record, bytes.toString());
    expect(again).toEqual(decoded);
    expect(again).toEqual({ record, raw: {} });
    expect(writeRecord(again.record, again).bytes).toEqual(bytes);
  });
  fc.assert(property, { seed, numRuns: 500 });
});

test('property: fields of other writers survive a rewrite of an endpoint', () => {
  const property = fc.property(endpoints, name, (record, value) => {
    const text = writeRecord(record, undefined).bytes.toString();
    const foreign = text.replace('"spec":{', `"spec":{"profiles":["${value}"],`);
    const again = read(record, foreign);
    expect(again.record).toEqual(record);
    expect(writeRecord(again.record, again).bytes.toString()).toBe(foreign);
  });
  fc.assert(property, { seed, numRuns: 300 });
});
