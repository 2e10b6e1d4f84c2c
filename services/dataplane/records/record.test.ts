import { attachments } from '@podwire/shared/testing/attachments';
import type { HostPort } from '@podwire/shared/attachment/host-port';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import { address, podNetwork } from '../testing/pods.js';
import { decodeRecord, encodeRecord, type AttachmentRecord } from './record.js';
import type { RecordedAllocation } from '@podwire/shared/attachment/allocation';

const uint64 = fc.bigInt({ min: 0n, max: 2n ** 64n - 1n });
const optionalCount = fc.option(fc.integer({ min: 68, max: 1500 }), { nil: undefined });

const allocation: fc.Arbitrary<RecordedAllocation> = fc.record({
  addresses: fc.array(fc.record({ address: fc.constantFrom('10.65.0.7', 'fd00::7'), sequenceNumber: uint64 }), {
    minLength: 1,
  }),
  nodeName: fc.string(),
  pod: fc.option(fc.record({ namespace: fc.string(), name: fc.string(), uid: fc.string() }), { nil: undefined }),
  isBound: fc.boolean(),
});

const HOST_PORTS: readonly HostPort[] = [
  { protocol: 'tcp', hostPort: 8080, podPort: 80, hostAddress: undefined },
  { protocol: 'udp', hostPort: 53, podPort: 53, hostAddress: address('fd00::1') },
];

const plainRecords: fc.Arbitrary<AttachmentRecord> = fc.record({
  network: fc
    .record({
      attachment: attachments,
      addresses: fc.uniqueArray(fc.constantFrom('10.65.0.7', '0.0.0.0', 'fd00::7', '::', '255.255.255.255'), {
        minLength: 1,
      }),
      mtuBytes: optionalCount,
      ipForwarding: fc.boolean(),
      txQueueLength: optionalCount,
      queueCount: optionalCount,
      netns: fc.string().map((text) => `/${text}`),
    })
    .chain((rest) =>
      fc.constantFrom(
        rest,
        { ...rest, bandwidth: { ingress: { rateBitsPerSecond: 1000, burstBits: undefined } } },
        { ...rest, bandwidth: { egress: { rateBitsPerSecond: 10 ** 15, burstBits: 1000 } } },
        { ...rest, addressesFromIpam: true as const },
        { ...rest, otherIpam: { pod: undefined } },
        { ...rest, otherIpam: { pod: { namespace: 'a', name: 'b', uid: 'c' } } },
      ),
    )
    .map(({ addresses, ...rest }) => {
      const prefix = { ...address('10.65.0.0'), length: 16 };
      const hostPorts = HOST_PORTS.slice(0, addresses.length);
      return podNetwork('a', { ...rest, addresses: addresses.map(address), sourcePrefixes: [prefix], hostPorts });
    }),
  identity: fc.record({ device: uint64, inode: uint64, cookie: fc.option(uint64, { nil: null }) }),
  bootId: fc.uuid(),
  state: fc.constantFrom('attached', 'detaching', 'dead'),
  createdAtMs: fc.nat(),
  updatedAtMs: fc.nat(),
});

const records: fc.Arbitrary<AttachmentRecord> = fc
  .record({ record: plainRecords, allocation: fc.option(allocation, { nil: undefined }) })
  .map(({ record: plain, allocation: recorded }) => ({ ...plain, ...(recorded && { allocation: recorded }) }));

test('a record is read back as it was written', () => {
  fc.assert(
    fc.property(records, (record) => {
      expect(decodeRecord(encodeRecord(record))).toEqual({ ok: true, record });
    }),
    { seed: 20_261_121 },
  );
});

const record: AttachmentRecord = {
  network: podNetwork('a'),
  identity: { device: 4n, inode: 4_026_532_178n, cookie: 7n },
  bootId: '0f8fad5b-d9cb-469f-a165-70867728950e',
  state: 'attached',
  createdAtMs: 1,
  updatedAtMs: 2,
};
const stored = () => JSON.parse(encodeRecord(record));

test.each<readonly [string, string, string]>([
  ['nothing', '', 'is not JSON'],
  ['the first half of a record', encodeRecord(record).slice(0, 100), 'is not JSON'],
  ['zeros', '\0'.repeat(512), 'is not JSON'],
  ['a later version', JSON.stringify({ ...stored(), version: 2 }), 'version'],
  ['an allocation without addresses', JSON.stringify({ ...stored(), allocation: { addresses: [] } }), 'allocation'],
  ['a field too many', JSON.stringify({ ...stored(), colour: 'blue' }), 'colour'],
  ['no address', JSON.stringify({ ...stored(), network: { ...stored().network, addresses: [] } }), 'network.addresses'],
  [
    'a bad address',
    JSON.stringify({ ...stored(), network: { ...stored().network, addresses: ['x'] } }),
    'must be an IP address',
  ],
  [
    'a bad route',
    JSON.stringify({ ...stored(), network: { ...stored().network, routes: ['10.0.0.1/8'] } }),
    'must be a CIDR',
  ],
  [
    'a bad name',
    JSON.stringify({ ...stored(), network: { ...stored().network, hostInterfaceName: '../x' } }),
    'network.hostInterfaceName',
  ],
  [
    'a bad limit',
    JSON.stringify({
      ...stored(),
      network: { ...stored().network, bandwidth: { egress: { rateBitsPerSecond: 1 } } },
    }),
    'network.bandwidth.egress rateBitsPerSecond is 1',
  ],
  ['a number for text', JSON.stringify({ ...stored(), bootId: 7 }), 'bootId'],
  ['an inode that is none', JSON.stringify({ ...stored(), identity: { ...stored().identity, inode: '-1' } }), 'inode'],
])('%s is a fault that names the field', (_, text, where) => {
  expect(decodeRecord(text)).toEqual({ ok: false, fault: expect.stringContaining(where) });
});

test('any text is a record or a fault', () => {
  fc.assert(
    fc.property(fc.oneof(fc.string(), fc.json()), (text) => {
      expect(decodeRecord(text).ok).toBe(false);
    }),
    { seed: 20_261_121 },
  );
});
