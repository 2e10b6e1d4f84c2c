import fc from 'fast-check';
import { expect, test } from 'vitest';

import { SortedTexts } from './sorted-texts.js';

test('holds what a sorted set holds, whatever is added and deleted', () => {
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
