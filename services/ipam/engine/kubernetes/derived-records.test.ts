import { expect, test } from 'vitest';

import { takeOrdinals, type Block } from '../../records/block.js';
import { RecordKeys } from '../../records/json/keys.js';
import { block, NOW_MS } from '../../testing/records.js';
import { DerivedRecords } from './derived-records.js';

const keys = new RecordKeys('/calico');
const [V4, V6] = ['10.65.0.0/28', 'fd00::/124'];

const taken = (cidr: string, count: number): Block => {
  const owner = { node: 'n1', network: 'net', interface: 'eth0', namespace: 'default', pod: 'web' };
  const ordinals = Array.from({ length: count }, (_, index) => index);
  return takeOrdinals(block(cidr, 'n1'), ordinals, { handleId: 'net.c1', owner, releasedAtMs: undefined });
};

test('a handle and an endpoint with addresses in two blocks go with the last address', () => {
  const derived = new DerivedRecords({ keys, pools: () => [] });
  const replace = (cidr: string, value: Block | undefined): (string | undefined)[] => {
    const changed = derived.replace([{ cidr, block: value, details: new Map() }]);
    return [...changed.values()].map((bytes) => bytes && Buffer.from(bytes).toString());
  };
  expect(replace(V4, taken(V4, 2))).toHaveLength(2);
  expect(replace(V6, taken(V6, 1))).toEqual([expect.stringContaining(V6), expect.stringContaining('fd00::/128')]);
  // An attribute without an address, as another writer may leave it.
  const { attributes } = taken(V4, 1);
  const released = { ...block(V4, 'n1'), attributes, sequenceNumber: BigInt(NOW_MS) };
  for (const value of replace(V4, released)) expect(value).not.toContain('10.65.0.1/32');
  expect([...derived.keys()]).toHaveLength(2);
  expect(replace(V6, undefined)).toContain(undefined);
  expect(replace(V4, undefined)).toEqual([]);
  expect([...derived.keys()]).toEqual([]);
});
