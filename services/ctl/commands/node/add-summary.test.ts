import fc from 'fast-check';
import { expect, test } from 'vitest';

import { addOf } from '../../testing/recent-commands.js';
import { nearestRank, summarizeAdds } from './add-summary.js';

const summaryOf = (...commands: ReturnType<typeof addOf>[]) => summarizeAdds([{ node: 'node-1', commands }]);
const names = (adds: readonly { readonly pod: string }[]) => adds.map(({ pod }) => pod);

/** Newest first, as podwire-node lists them; the duration grows with the number. */
const adds = (count: number) => Array.from({ length: count }, (_, index) => addOf(count - index));

test('the percentiles are the ADDs at the nearest rank', () => {
  const { percentiles } = summaryOf(...adds(100));
  expect(percentiles.map(({ name, add }) => [name, add.pod, add.durationMs])).toEqual([
    ['p50', 'default/web-50', 60],
    ['p90', 'default/web-90', 100],
    ['p99', 'default/web-99', 109],
    ['max', 'default/web-100', 110],
  ]);
});

test('the phases of an ADD are in the order of stacking and add up to its time', () => {
  const { percentiles, phases } = summaryOf(addOf(4));
  expect(percentiles[0]!.add.phases).toEqual([
    { phase: 'shim', ms: 1 },
    { phase: 'plugin', ms: 8 },
    { phase: 'dataplane', ms: 3 },
    { phase: 'kernel', ms: 2 },
  ]);
  expect(phases).toEqual(['shim', 'plugin', 'dataplane', 'kernel']);
});

test('the slowest are of the successful ADDs, the newest are of all', () => {
  const failed = { result: 'POOL_EXHAUSTED', message: 'pool "web" is full', durationMs: 900 };
  const summary = summaryOf(addOf(9, failed), addOf(8), addOf(7, failed), addOf(6, { durationMs: 50 }), ...adds(5));
  expect(names(summary.slowest)).toEqual([6, 8, 5, 4, 3].map((order) => `default/web-${order}`));
  expect(names(summary.newest)).toEqual([9, 8, 7, 6, 5].map((order) => `default/web-${order}`));
  expect(summary).toMatchObject({ addCount: 9, failedCount: 2, since: addOf(1).startedAt });
});

test('commands other than ADD are left out', () => {
  expect(summaryOf(addOf(2, { command: 'DEL' }))).toEqual({
    addCount: 0,
    failedCount: 0,
    since: null,
    phases: [],
    percentiles: [],
    slowest: [],
    failures: [],
    newest: [],
  });
});

test('a container without a pod is named by its ID', () => {
  expect(names(summaryOf(addOf(1, { pod: null })).newest)).toEqual([addOf(1).containerId]);
});

test('failures whose messages differ in names, addresses and numbers only are one reason, the most frequent first', () => {
  const refused = (order: number, message: string) => addOf(order, { result: 'ADDRESS_REFUSED', message });
  const full = (order: number, pool: string) =>
    addOf(order, { result: 'POOL_EXHAUSTED', message: `pool "${pool}" is full` });
  const { failures } = summaryOf(
    refused(5, '192.0.2.7: is in no pool; choose one of 3'),
    full(4, 'web'),
    refused(3, '2001:db8::1: is in no pool; choose one of 12'),
    full(2, 'a b'),
    full(1, 'db'),
    refused(0, 'address of another pod'),
  );
  expect(failures.map(({ count, newest }) => [count, newest.result, newest.pod])).toEqual([
    [3, 'POOL_EXHAUSTED', 'default/web-4'],
    [2, 'ADDRESS_REFUSED', 'default/web-5'],
    [1, 'ADDRESS_REFUSED', 'default/web-0'],
  ]);
});

test('the ADDs of several nodes are one list', () => {
  const summary = summarizeAdds([
    { node: 'a', commands: [addOf(3), addOf(1)] },
    { node: 'b', commands: [addOf(4), addOf(2)] },
  ]);
  expect(summary.newest.map(({ node, pod }) => [node, pod])).toEqual([
    ['b', 'default/web-4'],
    ['a', 'default/web-3'],
    ['b', 'default/web-2'],
    ['a', 'default/web-1'],
  ]);
  expect(summary.percentiles[0]!.add.pod).toBe('default/web-2');
});

test('the nearest rank is the smallest value that enough values do not exceed', () => {
  expect(nearestRank<number>([], 0.5)).toBeUndefined();
  fc.assert(
    fc.property(
      fc.array(fc.integer({ min: 0, max: 50 }), { minLength: 1 }),
      fc.constantFrom(0.01, 0.5, 0.9, 0.99, 1),
      (values, share) => {
        const enough = (limit: number) => values.filter((value) => value <= limit).length >= share * values.length;
        const ascending = values.toSorted((a, b) => a - b);
        expect(nearestRank(ascending, share)).toBe(Math.min(...values.filter(enough)));
      },
    ),
  );
});
