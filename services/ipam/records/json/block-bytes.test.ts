import { expect, test } from 'vitest';

import { block, NOW_MS } from '../../testing/records.js';
import type { AllocationAttributes } from '../attributes.js';
import { BLOCK_BYTES_PER_STEP, blockBytes, firstWritable } from '../block-stats.js';
import { takeOrdinals, type Block } from '../block.js';
import { encodeRecord, serialize } from './registry.js';

const storedBytes = (value: Block): number => serialize(encodeRecord({ kind: 'block', value }, undefined)).length;

/** A block in which each address has its own attributes. */
function filled(cidr: string, attributes: (ordinal: number) => Partial<AllocationAttributes>): Block {
  const free = block(cidr, 'node-1.example.com');
  return free.unallocated.reduce<Block>((taken, ordinal) => {
    const own = { handleId: undefined, owner: {}, releasedAtMs: undefined, ...attributes(ordinal) };
    return takeOrdinals(taken, [ordinal], own);
  }, free);
}

const owner = (ordinal: number) => ({ node: 'node-1.example.com', namespace: 'default', pod: `web-${ordinal}` });

test.each<[string, Block]>([
  ['free', block('10.0.0.0/20', 'n')],
  ['IPv6', block('fd00::/116', 'n')],
  ['full of pods', filled('10.0.0.0/22', (ordinal) => ({ handleId: `net.${ordinal}`, owner: owner(ordinal) }))],
  ['cooling down', filled('10.0.0.0/26', (ordinal) => ({ releasedAtMs: NOW_MS + ordinal * 1000 }))],
  [
    'held by two owners each',
    filled('10.0.0.0/26', (i) => ({ handleId: `h${i}`, owner: owner(i), alternateOwner: owner(i) })),
  ],
  [
    'with texts that JSON lengthens',
    filled('10.0.0.0/26', (i) => ({ handleId: `"${i}"`, owner: { ü: '\u0001"\\'.repeat(i) } })),
  ],
  ['of one address', filled('10.0.0.0/32', () => ({}))],
])('a block that is %s has nearly the estimated size, and not more', (_, value) => {
  const real = storedBytes(value);
  expect(blockBytes(value)).toBeGreaterThanOrEqual(real);
  expect(blockBytes(value)).toBeLessThan(1000 + real * 1.6);
});

test('as many blocks are written at once as fit into a request, or one of any size', () => {
  const long = 'x'.repeat(BLOCK_BYTES_PER_STEP / 4);
  const large = [1, 2, 3, 4, 5].map((count) =>
    filled(`10.0.${count}.0/32`, () => ({ owner: { long: `${long}${count}` } })),
  );
  const huge = filled('10.0.0.0/32', () => ({ owner: { long: long.repeat(5) } }));
  const count = (blocks: readonly (Block | undefined)[]): number => firstWritable(blocks, (each) => each).length;
  expect([count(large), count([huge, ...large]), count([undefined, ...large]), count([])]).toEqual([3, 1, 4, 0]);
});
