import { comparePrefixes, prefixContains, type Prefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import { prefix } from '../testing/stores.js';
import { SortedPrefixes, SortedTexts } from './sorted-runs.js';

const START = prefix('10.0.0.0/28').value;

function blockAt(place: number): Prefix {
  return { family: 4, value: START + BigInt(place) * 16n, length: 28 };
}

test('property: lists and counts neighbours, as reading each would', () => {
  // Enough for several runs: whole ranges are added and removed, in any order.
  const step = fc.record({ adds: fc.boolean(), from: fc.nat(3000), count: fc.nat(1500), isBackwards: fc.boolean() });
  const scenario = fc.record({
    steps: fc.array(step, { maxLength: 5 }),
    probes: fc.array(fc.nat(4600), { minLength: 3 }),
  });
  fc.assert(
    fc.property(scenario, ({ steps, probes }) => {
      const sorted = new SortedPrefixes();
      const known = new Map<number, Prefix>();
      for (const { adds, from, count, isBackwards } of steps) {
        for (let index = 0; index < count; index++) {
          const place = from + (isBackwards ? count - index : index);
          if (adds) known.set(place, blockAt(place));
          else known.delete(place);
          if (adds) sorted.add(blockAt(place));
          else sorted.delete(blockAt(place));
        }
      }
      const all = [...known.values()].sort(comparePrefixes);
      for (const place of probes) {
        let count = 0;
        while (known.has(place + count)) count++;
        expect(sorted.consecutiveFrom(blockAt(place))).toBe(count);
        for (const length of [18, 23, 28]) {
          const hostBits = BigInt(32 - length);
          const range: Prefix = { family: 4, value: (blockAt(place).value >> hostBits) << hostBits, length };
          expect([...sorted.within(range)]).toEqual(all.filter((each) => prefixContains(range, each)));
        }
      }
    }),
    { numRuns: 60, verbose: fc.VerbosityLevel.Verbose },
  );
});

test('keeps each once', () => {
  const sorted = new SortedPrefixes();
  sorted.delete(blockAt(1));
  for (const place of [2, 1, 2]) sorted.add(blockAt(place));
  expect([...sorted.within(prefix('10.0.0.0/8'))]).toEqual([blockAt(1), blockAt(2)]);
  sorted.delete(blockAt(2));
  expect(sorted.consecutiveFrom(blockAt(1))).toBe(1);
  expect(sorted.consecutiveFrom(blockAt(2))).toBe(0);
});

test('holds the same as a sorted set, after any additions and removals', () => {
  const text = fc.oneof(fc.stringMatching(/^[ab/]{0,6}$/), fc.string({ unit: 'binary', maxLength: 3 }));
  const step = fc.record({ add: fc.boolean(), text, behind: text });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 200 }), (steps) => {
      const texts = new SortedTexts();
      const oracle = new Set<string>();
      for (const { add, text, behind } of steps) {
        if (add) texts.add(text);
        else texts.delete(text);
        if (add) oracle.add(text);
        else oracle.delete(text);
        expect([...texts.behind(behind)]).toEqual([...oracle].sort().filter((other) => other > behind));
      }
    }),
  );
});

test('holds many, added in any order and deleted again', () => {
  const count = 20_000;
  const texts = new SortedTexts();
  const name = (number: number) => `t${String(number).padStart(6, '0')}`;
  // 7919 and the count have no common factor, so every number comes once.
  const shuffled = Array.from({ length: count }, (_, i) => name((i * 7919) % count));
  for (const text of shuffled) texts.add(text);
  const sorted = shuffled.toSorted();
  expect(['', ...texts.behind('')].slice(1)).toEqual(sorted.filter((text) => text !== ''));
  expect([...texts.behind(name(count - 3))]).toEqual([name(count - 2), name(count - 1)]);
  for (const text of shuffled.slice(2)) texts.delete(text);
  expect([...texts.behind('')]).toEqual(shuffled.slice(0, 2).toSorted());
  for (const text of shuffled) texts.delete(text);
  expect([...texts.behind('')]).toEqual([]);
});
