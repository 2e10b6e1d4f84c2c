import { context, ROOT_CONTEXT } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';

import { ManualClock } from '../testing/manual-clock.js';
import { beginInterval, IntervalRecorder, recordInterval, withRecorder } from './intervals.js';

beforeAll(() => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
});

afterAll(() => context.disable());

test('work inside of other work is listed after it, one level deeper', async () => {
  const clock = new ManualClock();
  const recorder = new IntervalRecorder(clock, 5);
  const takes = (ms: number) => (): Promise<void> => {
    clock.advance(ms);
    return Promise.resolve();
  };
  await context.with(withRecorder(ROOT_CONTEXT, recorder), async () => {
    await recordInterval('batch', 'kernel', async () => {
      clock.advance(1);
      await recordInterval('lock', 'lock', takes(2));
    });
    await recordInterval('commit', 'datastore', takes(4));
  });
  expect(recorder.intervals()).toEqual([
    { name: 'batch', phase: 'kernel', startMs: 5, durationMs: 3, depth: 0 },
    { name: 'lock', phase: 'lock', startMs: 6, durationMs: 2, depth: 1 },
    { name: 'commit', phase: 'datastore', startMs: 8, durationMs: 4, depth: 0 },
  ]);
});

test('failed work is recorded, and its error passed on', async () => {
  const recorder = new IntervalRecorder(new ManualClock());
  const work = () => recordInterval('batch', 'kernel', () => Promise.reject(new Error('refused')));
  await expect(context.with(withRecorder(ROOT_CONTEXT, recorder), work)).rejects.toThrow('refused');
  expect(recorder.intervals()).toMatchObject([{ name: 'batch' }]);
});

test('without a recorder, work runs as it is', async () => {
  expect(await recordInterval('batch', 'kernel', () => Promise.resolve(7))).toBe(7);
  expect(beginInterval(ROOT_CONTEXT, 'batch', 'kernel')).not.toThrow();
});

test('the intervals of shared work are recorded for each request', () => {
  const clock = new ManualClock();
  const recorders = [new IntervalRecorder(clock), new IntervalRecorder(clock)];
  const ends = recorders.map((recorder) => beginInterval(withRecorder(ROOT_CONTEXT, recorder), 'commit', 'datastore'));
  clock.advance(3);
  for (const end of [...ends, ...ends]) end();
  clock.advance(3);
  for (const recorder of recorders) expect(recorder.intervals()).toMatchObject([{ durationMs: 3 }]);
});

test('an interval that has not ended lasts until now', () => {
  const clock = new ManualClock();
  const recorder = new IntervalRecorder(clock);
  recorder.open('queue', 'queue');
  clock.advance(9);
  expect(recorder.intervals()).toMatchObject([{ durationMs: 9 }]);
});

test('after the end of the command, its time stands still, and work in its context records nothing', async () => {
  const clock = new ManualClock();
  const recorder = new IntervalRecorder(clock);
  recorder.open('queue', 'queue');
  clock.advance(9);
  await context.with(withRecorder(ROOT_CONTEXT, recorder), async () => {
    recorder.end();
    clock.advance(5);
    await recordInterval('batch', 'kernel', () => Promise.resolve());
  });
  expect(recorder.elapsedMs).toBe(9);
  expect(recorder.intervals()).toEqual([{ name: 'queue', phase: 'queue', startMs: 0, durationMs: 9, depth: 0 }]);
});

test('the interval of a service lies in the middle of its call', () => {
  const clock = new ManualClock();
  const service = new IntervalRecorder(clock);
  const commit = service.open('podwire.store.commit', 'datastore');
  clock.advance(2);
  service.close(commit);
  clock.advance(2);
  const text = service.encode();
  expect(text).toBe('4000;datastore,podwire.store.commit,0,2000,0');

  const recorder = new IntervalRecorder(clock);
  const call = recorder.open('podwire-ipam Allocate', 'rpc');
  const endService = recorder.callService(call, 'podwire-ipam');
  clock.advance(10);
  endService(text);
  recorder.close(call);
  expect(recorder.intervals()).toEqual([
    { name: 'podwire-ipam Allocate', phase: 'rpc', startMs: 0, durationMs: 10, depth: 0 },
    { name: 'podwire-ipam', phase: 'ipam', startMs: 3, durationMs: 4, depth: 1 },
    { name: 'podwire.store.commit', phase: 'datastore', startMs: 3, durationMs: 2, depth: 2 },
  ]);
});

test('any text as the value of the header is accepted, and adds only valid intervals', () => {
  const part = fc.oneof(
    fc.string(),
    fc.constantFrom('kernel,batch,1,2,0', 'kernel,batch,1,2,7', 'x,batch,1,2,0', 'kernel,b,-1,2,0'),
  );
  fc.assert(
    fc.property(fc.oneof(fc.string(), fc.integer().map(String)), fc.array(part, { maxLength: 150 }), (total, parts) => {
      const recorder = new IntervalRecorder(new ManualClock());
      const call = recorder.open('call', 'rpc');
      recorder.callService(call, 's')([total, ...parts].join(';'));
      const intervals = recorder.intervals();
      expect(intervals.length).toBeLessThanOrEqual(102);
      for (const { startMs, durationMs, depth } of intervals) {
        expect(Math.min(startMs, durationMs, depth)).toBeGreaterThanOrEqual(0);
      }
    }),
  );
});
