import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { NOW_MS, prefix } from '../../testing/records.js';
import { coolAddresses, makeBlock, releaseAddresses, replaceAttributes, takeOrdinals, type Block } from '../block.js';
import { RecordKeys } from './keys.js';
import { decodeRewritten, decodeRecord, serialize, writeRecord, type DecodedRecord } from './registry.js';

const keys = new RecordKeys('/calico');
const PREFIX = prefix('10.0.0.0/28');
const KEY = keys.block(PREFIX);
const owner = { kind: 'host', name: 'node "1" \\ ü' } as const;
const EMPTY = makeBlock({ prefix: PREFIX, owner, nowMs: NOW_MS });

const bytesOf = (value: Block, previous?: DecodedRecord) => writeRecord({ kind: 'block', value }, previous).bytes;
const decoded = (bytes: Uint8Array) => decodeRecord(KEY, { kind: 'block', prefix: PREFIX }, bytes);
const blockIn = ({ record }: DecodedRecord): Block => {
  if (record.kind !== 'block') throw new Error('no block');
  return record.value;
};
const holder = (name: string, nowMs = NOW_MS) => ({
  handleId: `podwire.${name}`,
  owner: { node: 'node-1', timestamp: new Date(nowMs).toISOString(), network: 'podwire', interface: 'eth0' },
  releasedAtMs: undefined,
});

/** Changes of other writers to a block between two reads. */
const steps = fc.array(
  fc.record({
    type: fc.constantFrom('take', 'take', 'take', 'release', 'cool', 'replace'),
    at: fc.nat(15),
    name: fc.string({ minLength: 1, maxLength: 8, unit: 'grapheme' }),
  }),
  { minLength: 1, maxLength: 12 },
);
/** A small edit of the text: mostly one digit for another. */
const edits = fc.oneof(
  fc.record({
    put: fc.constantFrom(...Array.from({ length: 10 }, (_, digit) => String(digit)), 'null', ',', '"x":'),
    cut: fc.constant(1),
  }),
  fc.record({ put: fc.string({ maxLength: 4 }), cut: fc.nat(6) }),
);
type Step = typeof steps extends fc.Arbitrary<(infer One)[]> ? One : never;

function carryOut(block: Block, { type, at, name }: Step): Block {
  const isTaken = block.allocations[at] !== null;
  if (type === 'take') return isTaken ? block : takeOrdinals(block, [at], holder(name));
  if (!isTaken) return block;
  if (type === 'release') return releaseAddresses(block, [at]);
  return type === 'cool' ? coolAddresses(block, [at], NOW_MS) : replaceAttributes(block, at, holder(name, NOW_MS + 1));
}

describe('a block that was rewritten', () => {
  test('property: is read like a new one, with each of its attributes once', () => {
    fc.assert(
      fc.property(steps, steps, (earlier, later) => {
        const before = decoded(bytesOf(earlier.reduce(carryOut, EMPTY)));
        const bytes = bytesOf(later.reduce(carryOut, blockIn(before)), before);
        const again = decodeRewritten(bytes, before);
        expect(again && blockIn(again)).toEqual(blockIn(decoded(bytes)));
        const known = new Set(blockIn(before).attributes);
        for (const value of blockIn(again!).attributes) known.delete(value);
        const gone =
          blockIn(before).attributes.length -
          blockIn(again!).attributes.filter((value) => blockIn(before).attributes.includes(value)).length;
        expect(known.size).toBe(gone);
        expect(bytesOf(blockIn(again!), again)).toEqual(bytes);
      }),
      { seed: 20261122, numRuns: 500 },
    );
  });

  test('property: after any edit of its text, it is read like a new one or not at all', () => {
    fc.assert(
      fc.property(steps, steps, fc.nat(), edits, (earlier, later, at, { put, cut }) => {
        const before = decoded(bytesOf(earlier.reduce(carryOut, EMPTY)));
        const text = bytesOf(later.reduce(carryOut, blockIn(before)), before).toString();
        const place = at % text.length;
        const bytes = Buffer.from(text.slice(0, place) + put + text.slice(place + cut));
        const again = decodeRewritten(bytes, before);
        if (again) expect(blockIn(again)).toEqual(blockIn(decoded(bytes)));
      }),
      { seed: 20261122, numRuns: 5000 },
    );
  });

  const before = decoded(bytesOf(takeOrdinals(EMPTY, [0], holder('a'))));
  const text = bytesOf(takeOrdinals(blockIn(before), [1], holder('b')), before).toString();
  const readAgain = (changed: string) => decodeRewritten(Buffer.from(changed), before);

  test.each([
    ['that names another owner', text.replace('host:node', 'host:other')],
    ['with fields of other writers', text.replace(/\}$/, ',"other":1}')],
    ['that has white space', text.replace('"unallocated":[', '"unallocated": [')],
    ['with an ordinal outside the block', text.replace('"unallocated":[2,', '"unallocated":[16,')],
    ['with an ordinal beyond all numbers', text.replace('"unallocated":[2,', '"unallocated":[1e999,')],
    ['with an address that is free and allocated', text.replace('"unallocated":[2,', '"unallocated":[0,')],
    ['with missing attributes', text.replace('"allocations":[0,1', '"allocations":[0,2')],
    ['with a number of more than 64 bits', text.replace(/"sequenceNumber":\d+/, `"sequenceNumber":${1n << 64n}`)],
    ['of another block', text.replace('10.0.0.0/28', '10.0.0.16/28')],
    ['that ends too early', text.slice(0, -1)],
    ['with more text', `${text} `],
  ])('is left to the JSON decoder: one %s', (_, changed) => {
    expect(changed).not.toBe(text);
    expect(readAgain(changed)).toBeUndefined();
    expect(readAgain(text)).toBeDefined();
  });

  test('keeps fields of other writers on an allocation byte for byte', () => {
    const foreign = text.replace(
      '"secondary":{"node":"node-1","timestamp"',
      '"other":18446744073709551615,"secondary":{"node":"node-1","timestamp"',
    );
    const [first, second] = [foreign.indexOf('"other"'), foreign.lastIndexOf('"other"')];
    expect(first).toBe(second);
    const again = decodeRewritten(
      Buffer.from(foreign),
      decoded(Buffer.from(foreign.replace('"other":18446744073709551615,', ''))),
    )!;
    const next = takeOrdinals(blockIn(again), [5], holder('c'));
    expect(bytesOf(next, again).toString()).toContain('"other":18446744073709551615,');
  });

  test('that is not UTF-8 is left to the JSON decoder', () => {
    const bytes = Buffer.from(text);
    bytes[bytes.indexOf('"b') < 0 ? bytes.indexOf('.b"') + 1 : bytes.indexOf('"b') + 1] = 0xff;
    expect(decodeRewritten(bytes, before)).toBeUndefined();
  });

  test('is the only kind that is read this way', () => {
    const handle = { kind: 'handle', value: { id: 'a', blocks: new Map([['10.0.0.0/28', 1]]) } } as const;
    expect(decodeRewritten(serialize({}), { record: handle, raw: {} })).toBeUndefined();
  });
});
