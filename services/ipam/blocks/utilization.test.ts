import { addressAt, formatPrefix, prefixContains, prefixSize, type Prefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import { getNode } from '../nodes/nodes.js';
import { getPool } from '../pools/pools.js';
import type { AllocationAttributes } from '../records/attributes.js';
import { attributesAt, type Block } from '../records/block.js';
import { isLease, leaseAttributes } from '../records/lease.js';
import { TestView } from '../testing/test-view.js';
import { block, claimedBlock, nodeRecord, NOW_MS, poolRecord, prefix, reservation } from '../testing/records.js';
import { listBlocks } from './blocks.js';

const HELD: AllocationAttributes = { handleId: 'net.c1', owner: { node: 'n1' }, releasedAtMs: undefined };
const LEASED = leaseAttributes({ nodeName: 'n2', bootId: 'b', nowMs: NOW_MS });
const COOLING: AllocationAttributes = { handleId: undefined, owner: {}, releasedAtMs: NOW_MS };

/** A block whose addresses are, one after another, `f`ree, in `u`se, `c`ooling, or `l`eased. */
function blockOf(cidr: string, states: string): Block {
  const empty = block(cidr, 'n1');
  const stateAt = (ordinal: number): string => states[ordinal] ?? 'f';
  return {
    ...empty,
    allocations: empty.allocations.map((_, ordinal) => ({ u: 0, c: 1, l: 2 })[stateAt(ordinal)] ?? null),
    unallocated: empty.unallocated.filter((ordinal) => stateAt(ordinal) === 'f'),
    attributes: [HELD, COOLING, LEASED],
    sequenceNumbers: empty.allocations.map((_, ordinal) => (stateAt(ordinal) === 'f' ? null : 1n)),
  };
}

test('a reserved address is available neither in its block nor in its pool, and counts once', () => {
  const view = new TestView([
    poolRecord('p', '10.0.0.0/24', { blockSizeBits: 29 }),
    nodeRecord('n1'),
    ...claimedBlock(blockOf('10.0.0.0/29', 'uucfffff')),
    // Counts of the block: one in use, one that cools down, two free. Twice, nested, beyond the pool and of the other family.
    reservation('r1', '10.0.0.1/32', '10.0.0.2/31', '10.0.0.4/32', '10.0.0.4/32', '10.0.0.128/25'),
    reservation('r2', '10.0.0.128/26', '10.0.0.192/31', '10.0.1.0/24', 'fd00::/64'),
  ]);
  const ofBlock = { allocated: 3, cooling: 1, reserved: 2, available: 3, leased: 0 };
  const { items } = listBlocks(view, { after: undefined, limit: 1, poolName: 'p', nodeName: '' });
  expect(items.map(({ utilization }) => utilization)).toEqual([ofBlock]);
  expect(getNode(view, 'n1').utilization).toEqual({ blocks: 1, capacity: 8, ...ofBlock });
  expect(getPool(view, 'p').utilization).toEqual({
    capacity: 256n,
    allocated: 3n,
    cooling: 1n,
    reserved: 130n,
    available: 123n,
    leased: 0n,
    blocks: 1n,
  });
});

test('a leased address is available, also if it is reserved', () => {
  const view = new TestView([
    poolRecord('p', '10.0.0.0/28', { blockSizeBits: 29 }),
    nodeRecord('n1'),
    ...claimedBlock(blockOf('10.0.0.0/29', 'ulllcfff')),
    reservation('r', '10.0.0.1/32', '10.0.0.7/32'),
  ]);
  const ofBlock = { allocated: 2, cooling: 1, reserved: 1, available: 5, leased: 3 };
  const { items } = listBlocks(view, { after: undefined, limit: 1, poolName: 'p', nodeName: '' });
  expect(items.map(({ utilization }) => utilization)).toEqual([ofBlock]);
  expect(getNode(view, 'n1').utilization).toEqual({ blocks: 1, capacity: 8, ...ofBlock });
  expect(getPool(view, 'p').utilization).toEqual({
    ...{ capacity: 16n, allocated: 2n, cooling: 1n, reserved: 1n, available: 13n, leased: 3n, blocks: 1n },
  });
});

test('half of a /48 is reserved without reading its addresses', () => {
  const view = new TestView([
    poolRecord('six', 'fd65::/48'),
    ...claimedBlock(blockOf('fd65::/122', 'uu')),
    reservation('half', 'fd65::/49', 'fd65::1/128'),
  ]);
  expect(getPool(view, 'six').utilization).toMatchObject({
    capacity: 1n << 80n,
    allocated: 2n,
    reserved: (1n << 79n) - 2n,
    available: 1n << 79n,
  });
});

/** The state of each address of a prefix, from every block and every reservation. */
function countEach(view: TestView, range: Prefix) {
  const counts = { allocated: 0, cooling: 0, reserved: 0, available: 0, leased: 0 };
  for (let at = 0; at < Number(prefixSize(range)); at++) {
    const address = addressAt(range, at);
    const holding = view.blocks().find((each) => prefixContains(each.prefix, address));
    const ordinal = holding ? Number(address.value - holding.prefix.value) : 0;
    const attributes = holding && attributesAt(holding, ordinal);
    const isReserved = view.reservations().some(({ prefixes }) => prefixes.some((one) => prefixContains(one, address)));
    const isLeased = attributes !== undefined && isLease(attributes);
    if (isLeased) counts.leased++;
    else if (attributes) counts.allocated++;
    if (attributes?.releasedAtMs !== undefined) counts.cooling++;
    if (!attributes && isReserved) counts.reserved++;
    if (isLeased || (!attributes && !isReserved)) counts.available++;
  }
  return counts;
}

test('property: every address counts once, as reading each of them confirms', () => {
  const states = fc.string({ unit: fc.constantFrom('f', 'u', 'c', 'l'), minLength: 16, maxLength: 16 });
  // A block of another size than the pool's, from a former pool.
  const made = fc.record({ at: fc.integer({ min: 0, max: 15 }), length: fc.constantFrom(28, 29, 30), states });
  const cidr = fc
    .record({ at: fc.integer({ min: 0, max: 511 }), length: fc.integer({ min: 22, max: 32 }) })
    .map(({ at, length }) => {
      const value = prefix('10.0.0.0/8').value + BigInt(at);
      const hostBits = BigInt(32 - length);
      return formatPrefix({ family: 4, value: (value >> hostBits) << hostBits, length });
    });
  const reservations = fc.array(fc.array(cidr, { minLength: 1, maxLength: 4 }), { maxLength: 3 });
  fc.assert(
    fc.property(fc.array(made, { maxLength: 8 }), reservations, (blocks, reserved) => {
      const view = new TestView([poolRecord('p', '10.0.0.0/24', { blockSizeBits: 29 }), nodeRecord('n1')]);
      const cidrs = new Set(blocks.map(({ at }) => at));
      for (const { at, length, states: each } of blocks) {
        if (!cidrs.delete(at)) continue;
        claimedBlock(blockOf(`10.0.0.${at * 16}/${length}`, each)).forEach((record) => view.put(record));
      }
      reserved.forEach((prefixes, index) => view.put(reservation(`r${index}`, ...prefixes)));

      const ofPool = getPool(view, 'p').utilization;
      const { allocated, cooling, reserved: kept, available, leased } = ofPool;
      expect({
        allocated: Number(allocated),
        cooling: Number(cooling),
        reserved: Number(kept),
        available: Number(available),
        leased: Number(leased),
      }).toEqual(countEach(view, prefix('10.0.0.0/24')));
      expect(allocated + kept + available).toBe(ofPool.capacity);

      const { items } = listBlocks(view, { after: undefined, limit: 100, poolName: '', nodeName: '' });
      for (const { block: each, utilization } of items) expect(utilization).toEqual(countEach(view, each.prefix));
      const ofNode = getNode(view, 'n1').utilization;
      for (const count of ['allocated', 'cooling', 'reserved', 'available', 'leased'] as const)
        expect(ofNode[count]).toBe(items.reduce((sum, { utilization }) => sum + utilization[count], 0));
    }),
    { verbose: fc.VerbosityLevel.Verbose },
  );
});
