import { expect, test } from 'vitest';

import { forEachConcurrently } from './concurrently.js';

test('every item is worked on once, at most so many at a time', async () => {
  const done: number[] = [];
  let running = 0;
  let most = 0;
  await forEachConcurrently([1, 2, 3, 4, 5, 6, 7], 3, async (item) => {
    most = Math.max(most, ++running);
    await new Promise((resolve) => setImmediate(resolve));
    running--;
    done.push(item);
  });
  expect(done.sort()).toEqual([1, 2, 3, 4, 5, 6, 7]);
  expect(most).toBe(3);
});

test('a failure holds up no other item; the first one is thrown at the end', async () => {
  const done: number[] = [];
  const work = async (item: number) => {
    await new Promise((resolve) => setImmediate(resolve));
    if (item % 2 === 0) throw new Error(`item ${item}`);
    done.push(item);
  };
  await expect(forEachConcurrently([1, 2, 3, 4, 5], 2, work)).rejects.toThrow('item 2');
  expect(done).toEqual([1, 3, 5]);
});

test('without items nothing is done', async () => {
  await forEachConcurrently([], 2, () => Promise.reject(new Error('called')));
});
