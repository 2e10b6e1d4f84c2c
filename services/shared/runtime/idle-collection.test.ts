import { expect, test, vi } from 'vitest';

import { ManualClock } from '../testing/manual-clock.js';
import { IdleCollection, systemHeap } from './idle-collection.js';

function scene(bytes = 2_000_000) {
  const clock = new ManualClock();
  const collect = vi.fn();
  return { clock, collect, collection: new IdleCollection(clock, { youngBytes: () => bytes, collect }) };
}

test('collects once, 4 ms after the last command', () => {
  const { clock, collect, collection } = scene();
  for (let command = 0; command < 3; command++) {
    collection.busy();
    clock.advance(10);
    collection.idle();
    clock.advance(3);
  }
  expect(collect).not.toHaveBeenCalled();
  clock.advance(1);
  clock.advance(1000);
  expect(collect).toHaveBeenCalledTimes(1);
});

test('does not collect little', () => {
  const { clock, collect, collection } = scene(1_000_000);
  collection.idle();
  clock.advance(4);
  expect(collect).not.toHaveBeenCalled();
});

test('V8 collects its young generation', () => {
  const { youngBytes, collect } = systemHeap();
  const garbage = () => Array.from({ length: 50_000 }, (_, index) => ({ index })).length;
  collect();
  garbage();
  const before = youngBytes();
  collect();
  expect(youngBytes()).toBeLessThan(before);
  expect('gc' in globalThis).toBe(false);
});
