import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { formatPrefix, hostPrefix, prefixOf } from '@podwire/shared/net/prefix';
import { attachments } from '@podwire/shared/testing/attachments';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

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

const KEY = { namespace: 'default', name: 'n1-k8s-web-eth0' };

/** The fields read from an endpoint of Calico's own plugin. */
function readForeign(spec: Record<string, unknown>) {
  const stored = { kind: 'WorkloadEndpoint', metadata: { name: KEY.name, namespace: KEY.namespace }, spec };
  const value = Buffer.from(JSON.stringify(stored));
  const { record } = decodeRecord(keys.endpoints + KEY.name, { kind: 'endpoint', key: KEY }, value);
  if (record.kind !== 'foreignEndpoint') throw new Error('it is not another writer’s');
  return record;
}

describe('an endpoint of another writer', () => {
  test('has node, container, pod and addresses', () => {
    const spec = { node: 'n1', containerID: 'c1', pod: 'web', ipNetworks: ['10.0.0.1/32', 'fd00::c/128'] };
    const foreign = readForeign(spec);
    expect(foreign).toMatchObject({ key: KEY, value: { nodeName: 'n1', containerId: 'c1', podName: 'web' } });
    expect(foreign.value.addresses.map(formatPrefix)).toEqual(['10.0.0.1/32', 'fd00::c/128']);
  });

  // Compared as texts, live addresses looked unused, and were released (projectcalico/calico#5044).
  test.each(['fd00::c/128', 'FD00::C/128', 'fd00:0:0:0:0:0:0:c/128', 'fd00:0000::000c/128', 'fd00::c'])(
    'has the same address in each notation: %s',
    (text) => {
      expect(readForeign({ ipNetworks: [text] }).value.addresses.map(formatPrefix)).toEqual(['fd00::c/128']);
    },
  );

  test.each([[undefined], [null], ['10.0.0.1'], [[7, '', 'x', '10.0.0.0/24']]])(
    'is read although its addresses are invalid: %j',
    (ipNetworks) => {
      expect(readForeign({ node: 'n1', ipNetworks }).value).toMatchObject({ nodeName: 'n1', addresses: [] });
    },
  );
});
