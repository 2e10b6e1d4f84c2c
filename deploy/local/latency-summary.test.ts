import { expect, test } from 'vitest';

import { summarize } from './latency-summary.js';
import { addOf } from './testing/commands.js';

const summaryOf = (...commands: ReturnType<typeof addOf>[]) => summarize({ node: 'node-1', commands });
const names = (adds: readonly { readonly pod: string }[]) => adds.map(({ pod }) => pod);

/** Newest first, as podwire-node lists them; the duration grows with the number. */
const adds = (count: number) => Array.from({ length: count }, (_, index) => addOf(count - index));

test('the percentiles are the ADDs at the nearest rank', () => {
  const { percentiles } = summaryOf(...adds(100));
  expect(percentiles.map(({ name, add }) => [name, add.pod, add.durationMs])).toEqual([
    ['p50', 'default/web-50', 60],
    ['p90', 'default/web-90', 100],
    ['p99', 'default/web-99', 109],
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

test('the slowest are of the successful ADDs, the failed and the newest are newest first', () => {
  const failed = { result: 'POOL_EXHAUSTED', message: 'pool "web" is full', durationMs: 900 };
  const summary = summaryOf(addOf(9, failed), addOf(8), addOf(7, failed), addOf(6, { durationMs: 50 }), ...adds(5));
  expect(names(summary.slowest)).toEqual([6, 8, 5, 4, 3].map((order) => `default/web-${order}`));
  expect(names(summary.failed)).toEqual(['default/web-9', 'default/web-7']);
  expect(names(summary.newest)).toEqual([9, 8, 7, 6, 5].map((order) => `default/web-${order}`));
  expect(summary).toMatchObject({ addCount: 9, failedCount: 2, since: addOf(1).startedAt });
});

test('commands other than ADD are left out', () => {
  expect(summaryOf(addOf(2, { command: 'DEL' }))).toEqual({
    node: 'node-1',
    addCount: 0,
    failedCount: 0,
    since: null,
    phases: [],
    percentiles: [],
    slowest: [],
    failed: [],
    newest: [],
  });
});

test('a container without a pod is named by its ID', () => {
  expect(names(summaryOf(addOf(1, { pod: null })).newest)).toEqual([addOf(1).containerId]);
});
