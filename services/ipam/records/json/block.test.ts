import { formatPrefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { NOW_MS, prefix } from '../../testing/records.js';
import { coolAddresses, makeBlock, releaseAddresses, replaceAttributes, takeOrdinals, type Block } from '../block.js';
import { formatBlock, type StoredBlock } from './block.js';
import { formatJson, type JsonObject } from './json.js';
import { RecordKeys } from './keys.js';
import { decodeRecord } from './registry.js';

const owner = { kind: 'host', name: 'node "1" \\ ü' } as const;
const EMPTY = makeBlock({ prefix: prefix('10.0.0.0/28'), owner, nowMs: NOW_MS });
const CLAIMED_OTHERWISE = '2026-08-22T08:33:25+02:00';
const KEY = new RecordKeys('/calico').block(EMPTY.prefix);

function read(text: string, of: Block) {
  const { record, raw } = decodeRecord(KEY, { kind: 'block', prefix: of.prefix }, Buffer.from(text));
  if (record.kind !== 'block') throw new Error('no block');
  return { value: record.value, raw };
}

const holder = (name: string) => ({
  handleId: `podwire.${name}`,
  owner: { node: 'node-1' },
  releasedAtMs: undefined,
});

/** Changes to a block, and their outcome: stored; lost, so that the next change starts from the earlier state; or read again, when other writers
 * have changed their fields. */
const steps = fc.array(
  fc.record({
    type: fc.constantFrom('take', 'take', 'take', 'release', 'cool', 'replace', 'disown', 'split'),
    at: fc.nat(15),
    count: fc.constantFrom(1, 1, 1, 2, 5),
    name: fc.string({ maxLength: 8, unit: 'grapheme' }),
    fate: fc.constantFrom('stored', 'stored', 'stored', 'lost', 'read'),
  }),
  { minLength: 1, maxLength: 40 },
);
type Step = typeof steps extends fc.Arbitrary<(infer One)[]> ? One : never;

function carryOut(block: Block, { type, at, count, name }: Step): Block {
  const ordinals = [...block.allocations.keys()].slice(at, at + count);
  const taken = ordinals.filter((ordinal) => block.allocations[ordinal] !== null);
  const first = taken[0];
  if (type === 'take') {
    const free = ordinals.filter((ordinal) => !taken.includes(ordinal));
    return takeOrdinals(block, free, holder(name));
  }
  if (type === 'disown') return { ...block, owner: block.owner ? undefined : owner };
  if (type === 'split') return half(block);
  if (first === undefined) return block;
  if (type === 'release') return releaseAddresses(block, taken);
  return type === 'cool' ? coolAddresses(block, taken, NOW_MS) : replaceAttributes(block, first, holder(name));
}

/** A block of half the size, created in the same way. */
function half(block: Block): Block {
  const size = block.allocations.length / 2;
  if (size < 4) return block;
  return releaseAddresses(
    {
      ...block,
      prefix: { ...block.prefix, length: block.prefix.length + 1 },
      allocations: block.allocations.slice(0, size),
      unallocated: block.unallocated.filter((ordinal) => ordinal < size),
      sequenceNumbers: block.sequenceNumbers.slice(0, size),
    },
    [],
  );
}

/** The block's JSON as a whole. */
function plainly(block: Block, raw: JsonObject): string {
  const attributes = block.attributes.map(({ handleId, owner: secondary, releasedAtMs }) => {
    const releasedAt = releasedAtMs && new Date(releasedAtMs).toISOString().replace('.000', '');
    if (releasedAt) return { secondary, releasedAt };
    return { ...(handleId !== undefined && { handle_id: handleId }), secondary };
  });
  const numbers = block.sequenceNumbers.flatMap((number, ordinal) => (number === null ? [] : [[ordinal, number]]));
  const { deleted = false, affinity_claim_time: claimed = '2026-08-22T06:33:25Z', ...unknown } = raw;
  return formatJson({
    cidr: formatPrefix(block.prefix),
    affinity: block.owner ? `${block.owner.kind}:${block.owner.name}` : null,
    affinity_claim_time: claimed,
    allocations: block.allocations,
    unallocated: block.unallocated,
    attributes,
    deleted,
    sequenceNumber: block.sequenceNumber,
    sequenceNumberForAllocation: Object.fromEntries(numbers),
    ...unknown,
  });
}

/** Writes each change from the stored state. @param check - gets the written text and the state before */
function writeAll(
  all: readonly Step[],
  start: StoredBlock,
  check: (text: string, block: Block, stored: StoredBlock) => void,
): void {
  let stored = start;
  for (const step of all) {
    const block = carryOut(stored.value ?? EMPTY, step);
    check(formatBlock(block, stored), block, stored);
    if (step.fate !== 'lost')
      stored = {
        value: block,
        raw: step.fate === 'read' ? { ...stored.raw, affinity_claim_time: CLAIMED_OTHERWISE } : stored.raw,
      };
  }
}

describe('the text of a block', () => {
  test.each<[string, JsonObject]>([
    ['', {}],
    [', with fields of other writers', { deleted: true, other: { ü: [2n ** 63n] }, more: null }],
  ])('property: is its JSON, and is read as the same block%s', (_, raw) => {
    const property = fc.property(steps, (all) => {
      writeAll(all, { value: undefined, raw }, (text, block, stored) => {
        expect(text).toBe(plainly(block, stored.raw));
        expect(read(text, block).value).toEqual(block);
      });
    });
    fc.assert(property, { seed: 20261123, numRuns: 1000 });
  });

  const UNKNOWN = '"other":18446744073709551615';
  const countIn = (text: string) => text.split(UNKNOWN).length - 1;

  /** A block with addresses 4 to 15 allocated, each with a field of another writer. */
  function readWithUnknown() {
    const holders = EMPTY.unallocated.slice(4).reduce((block, at) => takeOrdinals(block, [at], holder(`${at}`)), EMPTY);
    const text = plainly(holders, {}).replaceAll('{"handle_id"', `{${UNKNOWN},"handle_id"`);
    return read(text, EMPTY);
  }

  test('property: has the fields of other writers on allocations, after any earlier write', () => {
    const property = fc.property(steps, (all) => {
      const start = readWithUnknown();
      const kept = new Set(start.value.attributes);
      writeAll(all, start, (text, block) => {
        expect(countIn(text)).toBeGreaterThanOrEqual(block.attributes.filter((entry) => kept.has(entry)).length);
      });
    });
    fc.assert(property, { seed: 20261124, numRuns: 500 });
  });

  test('has the fields of other writers on an allocation that is repeated with the same content', () => {
    const start = readWithUnknown();
    const moved = takeOrdinals(releaseAddresses(start.value, [7]), [0], holder('7'));
    expect(countIn(formatBlock(moved, start))).toBe(12);
    expect(countIn(formatBlock(takeOrdinals(moved, [1], holder('new')), { ...start, value: moved }))).toBe(12);
  });

  test('is its JSON for the largest blocks', () => {
    const largest = makeBlock({ prefix: prefix('10.1.0.0/20'), owner, nowMs: NOW_MS });
    const block = takeOrdinals(largest, [4095, 0, 1000], holder('a'));
    expect(formatBlock(block, { value: largest, raw: {} })).toBe(plainly(block, {}));
  });
});

describe('the text of a block is refused', () => {
  const valid = takeOrdinals(takeOrdinals(EMPTY, [0], holder('a')), [1], holder('b'));
  const text = formatBlock(valid, { value: undefined, raw: {} });

  test.each([
    ['with an ordinal outside the block', text.replace('"unallocated":[2,', '"unallocated":[16,')],
    ['with an ordinal beyond all numbers', text.replace('"unallocated":[2,', '"unallocated":[1e999,')],
    ['with an address that is free and allocated', text.replace('"unallocated":[2,', '"unallocated":[0,')],
    ['with missing attributes', text.replace('"allocations":[0,1', '"allocations":[0,2')],
    ['with a number of more than 64 bits', text.replace(/"sequenceNumber":\d+/, `"sequenceNumber":${1n << 64n}`)],
    ['of another block', text.replace('10.0.0.0/28', '10.0.0.16/28')],
    ['that ends too early', text.slice(0, -1)],
  ])('%s', (_, changed) => {
    expect(changed).not.toBe(text);
    expect(() => read(changed, EMPTY)).toThrow(/cannot be read/);
    expect(read(text, EMPTY).value).toEqual(valid);
  });
});
