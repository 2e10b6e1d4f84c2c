import fc from 'fast-check';
import { expect, test } from 'vitest';

import { SortedList, TEXT_ORDER, type ListOrder } from './sorted-list.js';

test('holds the same as a sorted set, after any additions and removals', () => {
  const text = fc.oneof(fc.stringMatching(/^[ab/]{0,6}$/), fc.string({ unit: 'binary', maxLength: 3 }));
  const step = fc.record({ add: fc.boolean(), text, behind: text });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 200 }), (steps) => {
      let texts = new SortedList(TEXT_ORDER);
      const oracle = new Set<string>();
      for (const { add, text, behind } of steps) {
        texts = add ? texts.with(text) : texts.without(text);
        if (add) oracle.add(text);
        else oracle.delete(text);
        expect([...texts.from(behind)]).toEqual([...oracle].sort().filter((known) => known >= behind));
      }
    }),
  );
});

test('holds many, added in any order and deleted again', () => {
  const count = 20_000;
  let texts = new SortedList(TEXT_ORDER);
  const name = (number: number) => `t${String(number).padStart(6, '0')}`;
  // 7919 and the count have no common factor, so every number comes once.
  const shuffled = Array.from({ length: count }, (_, i) => name((i * 7919) % count));
  for (const text of shuffled) texts = texts.with(text);
  const sorted = shuffled.toSorted();
  expect([...texts.from('')]).toEqual(sorted);
  expect([...texts.from(name(count - 2))]).toEqual([name(count - 2), name(count - 1)]);
  for (const text of shuffled.slice(2)) texts = texts.without(text);
  expect([...texts.from('')]).toEqual(shuffled.slice(0, 2).toSorted());
  for (const text of shuffled) texts = texts.without(text);
  expect([...texts.from('')]).toEqual([]);
});

interface Item {
  readonly key: number;
  readonly value: number;
}

const SUMMED: ListOrder<Item, number, number> = {
  keyOf: ({ key }) => key,
  compare: (a, b) => a - b,
  empty: 0,
  add: (sum, { value }) => sum + value,
  subtract: (sum, { value }) => sum - value,
};

test('property: runs have the sums of their items, and a changed list leaves the one before as it was', () => {
  const step = fc.record({ add: fc.boolean(), key: fc.nat(1000), value: fc.integer() });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 100 }), fc.nat(1000), (steps, from) => {
      let list = new SortedList(SUMMED);
      const oracle = new Map<number, Item>();
      for (let key = 0; key < 1000; key++) {
        list = list.with({ key, value: 1 });
        oracle.set(key, { key, value: 1 });
      }
      const [before, itemsBefore] = [list, [...oracle.values()]];
      for (const { add, key, value } of steps) {
        list = add ? list.with({ key, value }) : list.without(key);
        if (add) oracle.set(key, { key, value });
        else oracle.delete(key);
        expect(list.get(key)).toEqual(oracle.get(key));
      }
      const expected = [...oracle.values()].sort((a, b) => a.key - b.key);
      expect([...list.from(from)]).toEqual(expected.filter(({ key }) => key >= from));
      for (const { run } of list.runsFrom(0)) {
        expect(run.sum).toBe(run.items.reduce((sum, { value }) => sum + value, 0));
        expect(run.items.length).toBeGreaterThan(0);
      }
      expect([...before.from(0)]).toEqual(itemsBefore);
    }),
    { numRuns: 50, verbose: fc.VerbosityLevel.Verbose },
  );
});
