import { describe, expect, test } from 'vitest';

import { block, fullBlock, host, NOW_MS, prefix, takeAddress } from '../testing/records.js';
import type { AllocationAttributes } from './attributes.js';
import {
  attributesAt,
  collectCooled,
  makeBlock,
  ordinalsWhere,
  releaseAddresses,
  returnUnused,
  usedCount,
  validateBlock,
  type Block,
} from './block.js';

const START = BigInt(NOW_MS) * 1_000_000n;

const by = (handleId: string): AllocationAttributes => ({ handleId, owner: { node: 'n1' }, releasedAtMs: undefined });

function take(from: Block, ...handles: string[]): Block {
  return handles.reduce((current, handle) => takeAddress(current, by(handle))!.block, from);
}

describe('a new block', () => {
  const made = makeBlock({ prefix: prefix('10.0.0.0/29'), owner: host('n1'), nowMs: NOW_MS });

  test('is free from its first address to its last, claimed now in whole seconds, numbered from the clock', () => {
    expect(made).toEqual({
      prefix: prefix('10.0.0.0/29'),
      owner: host('n1'),
      claimTimeMs: Date.parse('2026-08-22T06:33:25Z'),
      allocations: [null, null, null, null, null, null, null, null],
      unallocated: [0, 1, 2, 3, 4, 5, 6, 7],
      attributes: [],
      sequenceNumber: START,
      sequenceNumbers: Array.from({ length: 8 }, () => null),
    });
    expect(validateBlock(made, NOW_MS)).toEqual([]);
  });

  test.each([
    ['10.0.0.0/20', 4096],
    ['10.0.0.7/32', 1],
    ['fd00::/116', 4096],
    ['fd00::7/128', 1],
  ])('%s holds %i addresses', (cidr, size) => {
    expect(block(cidr, 'n1').unallocated).toHaveLength(size);
  });
});

describe('taking', () => {
  test('returns the head of the queue, with the block’s number before the change', () => {
    const taken = takeAddress(block('10.0.0.0/30', 'n1', { unallocated: [2, 0, 1, 3] }), by('a'))!;
    expect(taken).toMatchObject({ ordinal: 2, sequenceNumber: START });
    expect(taken.block).toMatchObject({
      allocations: [null, null, 0, null],
      unallocated: [0, 1, 3],
      attributes: [by('a')],
      sequenceNumber: START + 1n,
      sequenceNumbers: [null, null, START, null],
    });
  });

  test('shares equal attributes among addresses', () => {
    const taken = take(block('10.0.0.0/30', 'n1'), 'a', 'b', 'a');
    expect(taken.attributes).toEqual([by('a'), by('b')]);
    expect(taken.allocations).toEqual([0, 1, 0, null]);
  });

  test('returns nothing from a full block', () => {
    expect(takeAddress(fullBlock('10.0.0.0/30', 'n1'), by('a'))).toBeUndefined();
  });

  test('leaves addresses that cool down after a release', () => {
    const cooling = { handleId: undefined, owner: {}, releasedAtMs: NOW_MS - 1000 };
    const rest = { allocations: [0, 0, null, 0], unallocated: [2], attributes: [cooling] };
    const taken = takeAddress(block('10.0.0.0/30', 'n1', rest), by('a'))!;
    expect(taken.ordinal).toBe(2);
    expect(takeAddress(taken.block, by('b'))).toBeUndefined();
    expect(usedCount(taken.block)).toBe(4);
  });
});

describe('releasing', () => {
  test('puts addresses at the tail in the order given, and counts as one change', () => {
    const taken = take(block('10.0.0.0/30', 'n1'), 'a', 'b', 'c');
    const released = releaseAddresses(taken, [2, 0]);
    expect(released).toMatchObject({ unallocated: [3, 2, 0], sequenceNumber: START + 4n });
    expect(released.sequenceNumbers).toEqual([null, START + 1n, null, null]);
  });

  test('keeps shared attributes for as long as one address has them, then drops and renumbers them', () => {
    const taken = take(block('10.0.0.0/30', 'n1'), 'a', 'a', 'b');
    const one = releaseAddresses(taken, [0]);
    expect(one).toMatchObject({ allocations: [null, 0, 1, null], attributes: [by('a'), by('b')] });
    const both = releaseAddresses(one, [1]);
    expect(both).toMatchObject({ allocations: [null, null, 0, null], attributes: [by('b')] });
    expect(validateBlock(both, NOW_MS)).toEqual([]);
  });

  test('reuses the first released address first', () => {
    const full = take(block('10.0.0.0/30', 'n1'), 'a', 'b', 'c', 'd');
    const released = releaseAddresses(releaseAddresses(full, [3]), [1]);
    expect(takeAddress(released, by('e'))!.ordinal).toBe(3);
  });

  test('puts unused addresses back to the front, in the order given', () => {
    const taken = releaseAddresses(take(block('10.0.0.0/30', 'n1'), 'a', 'b', 'c'), [0]);
    const returned = returnUnused(taken, [1, 2]);
    expect(returned).toMatchObject({ unallocated: [1, 2, 3, 0], attributes: [], sequenceNumber: START + 5n });
    expect(validateBlock(returned, NOW_MS)).toEqual([]);
  });
});

describe('cooling down', () => {
  const released = (agoMs: number): AllocationAttributes => ({
    handleId: undefined,
    owner: {},
    releasedAtMs: NOW_MS - agoMs,
  });
  const cooling = block('10.0.0.0/29', 'n1', {
    allocations: [0, 1, 2, 3, 4, 4, null, 1],
    unallocated: [6],
    attributes: [released(60_000), released(90_000), released(29_999), released(30_000), by('a')],
    sequenceNumbers: [0, 1, 2, 3, 4, 5, null, 7].map((ordinal) => (ordinal === null ? null : START - 10n)),
  });

  test('ends when the time is over: free, at the tail, first released first, the number of the block unchanged', () => {
    const collected = collectCooled(cooling, NOW_MS, 30);
    expect(collected).toMatchObject({
      allocations: [null, null, 0, null, 1, 1, null, null],
      unallocated: [6, 1, 7, 0, 3],
      attributes: [released(29_999), by('a')],
      sequenceNumber: START,
    });
    expect(collected.sequenceNumbers.map((number) => number !== null)).toEqual(
      collected.allocations.map((index) => index !== null),
    );
    expect(validateBlock(collected, NOW_MS)).toEqual([]);
  });

  test('frees two that were released a minute ago, not two of a later stamp and two in use', () => {
    const mixed = block('10.0.0.0/29', 'n1', {
      allocations: [0, 0, 1, 1, 2, 2, null, null],
      unallocated: [6, 7],
      attributes: [released(60_000), released(-10_000), by('a')],
    });
    expect(collectCooled(mixed, NOW_MS, 30)).toMatchObject({
      allocations: [null, null, 0, 0, 1, 1, null, null],
      unallocated: [6, 7, 0, 1],
    });
  });

  test.each([0, -1])('of %i seconds is over at once', (cooldownSeconds) => {
    expect(collectCooled(cooling, NOW_MS, cooldownSeconds).unallocated).toEqual([6, 1, 7, 0, 3, 2]);
  });

  test('that is not over returns the same block, so that nothing is written', () => {
    expect(collectCooled(cooling, NOW_MS, 1200)).toBe(cooling);
  });

  test.each([
    ['less than the cool-down ahead is awaited', -29_999, [6]],
    ['the cool-down ahead, or years, is ignored', -30_000, [6, 0]],
    ['years ahead is ignored', -1e11, [6, 0]],
  ])('a stamp %s', (_, agoMs, unallocated) => {
    const future = block('10.0.0.0/29', 'n1', {
      allocations: [0, 1, 1, 1, 1, 1, null, 1],
      unallocated: [6],
      attributes: [released(agoMs), by('a')],
    });
    expect(collectCooled(future, NOW_MS, 30).unallocated).toEqual(unallocated);
  });
});

test('addresses are found by their attributes', () => {
  const taken = take(block('10.0.0.0/30', 'n1'), 'a', 'b', 'a');
  expect(ordinalsWhere(taken, ({ handleId }) => handleId === 'a')).toEqual([0, 2]);
  expect(ordinalsWhere(taken, ({ handleId }) => handleId === 'z')).toEqual([]);
  expect(attributesAt(taken, 1)).toEqual(by('b'));
  expect(attributesAt(taken, 3)).toBeUndefined();
});

describe('validation names every fault', () => {
  const broken: readonly (readonly [string, Partial<Block>, RegExp])[] = [
    ['allocations of another length', { allocations: [null, null, null] }, /3 allocations for 4 addresses/],
    ['an index without attributes', { allocations: [5, null, null, null], unallocated: [1, 2, 3] }, /attributes 5/],
    ['attributes of no address', { attributes: [by('a')] }, /attributes 0 belong to no address/],
    [
      'a release in the future',
      {
        allocations: [0, null, null, null],
        unallocated: [1, 2, 3],
        attributes: [{ ...by('a'), releasedAtMs: NOW_MS + 1 }],
      },
      /in the future/,
    ],
    ['a free ordinal listed twice', { unallocated: [0, 1, 2, 3, 3] }, /ordinal 3 is free twice/],
    ['an ordinal both free and allocated', { allocations: [0, null, null, null], attributes: [by('a')] }, /both free/],
    ['an ordinal out of range', { unallocated: [0, 1, 2, 4] }, /ordinal 4 is out of range/],
    ['an ordinal neither free nor allocated', { unallocated: [0, 1, 2] }, /do not make 4/],
    ['a number for a free ordinal', { sequenceNumbers: [null, 1n, null, null] }, /ordinal 1 is free but has/],
    [
      'a number that the block has not reached',
      {
        allocations: [0, null, null, null],
        unallocated: [1, 2, 3],
        attributes: [by('a')],
        sequenceNumbers: [START, null, null, null],
      },
      /not reached/,
    ],
  ];

  test.each(broken)('%s', (_, fault, expected) => {
    const faults = validateBlock(block('10.0.0.0/30', 'n1', fault), NOW_MS);
    expect(faults.join('\n')).toMatch(expected);
    expect(faults[0]).toMatch(/^block 10\.0\.0\.0\/30: /);
  });
});
