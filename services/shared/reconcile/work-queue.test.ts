import { context, createContextKey, ROOT_CONTEXT } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import { Failure } from '../failure/failure.js';
import { FakeClock } from '../testing/clock.js';
import { ManualClock } from '../testing/manual-clock.js';
import { exponentialBackoff, WorkQueue, type NextRun, type WorkQueueOptions } from './work-queue.js';

type Reconcile = (signal: AbortSignal, run: number) => Promise<NextRun | undefined>;

const idle = () => new Promise((resolve) => setImmediate(resolve));

const untilAborted = (signal: AbortSignal) =>
  new Promise<never>((_, reject) =>
    signal.addEventListener('abort', () => reject(new Failure('CANCELLED', 'aborted'))),
  );

const done = () => Promise.resolve(undefined);

/** A queue whose back-offs are 10, 20 and then 40 ms. */
function start(reconcile: Reconcile, rest: Partial<WorkQueueOptions<string>> = {}) {
  const clock = new FakeClock();
  const failures: [unknown, number][] = [];
  let runs = 0;
  const queue = new WorkQueue<string>({
    reconcile: (_, signal) => reconcile(signal, ++runs),
    retryInMs: exponentialBackoff({ baseMs: 10, maxMs: 40 }, () => 0.5),
    onFailure: (error, retryInMs) => failures.push([error, retryInMs]),
    clock,
    ...rest,
  });
  return { queue, clock, failures, runs: () => runs };
}

test('retries a failed run with a growing back-off, which a success resets', async () => {
  const { queue, runs, clock, failures } = start((_, run) =>
    run <= 4 || run === 6 ? Promise.reject(new Error(`run ${run}`)) : done(),
  );
  queue.request('a');
  await idle();
  expect(runs()).toBe(5);
  expect(clock.sleepsMs).toEqual([10, 20, 20, 20]);
  queue.request('a');
  await idle();
  expect(runs()).toBe(7);
  expect(clock.sleepsMs.slice(4)).toEqual([10]);
  expect(failures).toHaveLength(5);
});

test('a caller waits for the end of a run that begins after its call, and receives its error', async () => {
  const ends: (() => void)[] = [];
  const refused = new Error('refused');
  const { queue, runs } = start(async (_, run) => {
    await new Promise<void>((resolve) => ends.push(resolve));
    if (run === 2) throw refused;
    return undefined;
  });
  const first = queue.runNow('a');
  const outcomes: unknown[] = [];
  const second = queue.runNow('a').catch((error: unknown) => outcomes.push(error));
  ends.shift()?.();
  await first;
  await idle();
  expect([runs(), outcomes]).toEqual([2, []]);
  ends.shift()?.();
  await second;
  expect(outcomes).toEqual([refused]);
  ends.shift()?.();
  await queue.stop();
});

test('a caller that waits for a run gets a failure when the queue is stopped before it', async () => {
  const { queue, runs } = start(untilAborted);
  queue.request('a');
  const waiting = expect(queue.runNow('a')).rejects.toMatchObject({ code: 'CANCELLED' });
  await queue.stop();
  await waiting;
  await expect(queue.runNow('a')).rejects.toMatchObject({ code: 'CANCELLED' });
  expect(runs()).toBe(1);
});

test('cancels a run and a wait when it is stopped, and runs no more', async () => {
  const { queue, runs, failures } = start(untilAborted);
  queue.request('a');
  await queue.stop();
  queue.request('a');
  await queue.stop();
  expect([runs(), failures]).toEqual([1, []]);
});

test('restart cancels a run or a wait, without counting it as a failure', async () => {
  const { queue, runs, failures, clock } = start((signal, run) => {
    if (run === 3) return Promise.reject(new Error('refused'));
    return run > 3 ? done() : untilAborted(signal);
  });
  queue.request('a');
  await idle();
  queue.request('a');
  await idle();
  expect(runs()).toBe(1);
  queue.restart('a');
  await idle();
  expect([runs(), failures]).toEqual([2, []]);
  clock.beforeSleep = () => queue.restart('a');
  queue.restart('a');
  await idle();
  expect(runs()).toBe(4);
  expect(failures).toHaveLength(1);
  expect(clock.monotonicMs()).toBe(1_000_000);
});

test('a request brings the next run forward, but not the retry of a failure', async () => {
  const clock = new ManualClock();
  const { queue, runs } = start(
    (_, run) => (run === 3 ? Promise.reject(new Error('no')) : Promise.resolve({ inMs: 500 })),
    {
      clock,
    },
  );
  queue.request('a', 100);
  await idle();
  expect([runs(), clock.nextMs]).toEqual([0, 100]);
  queue.request('a', 200);
  queue.request('a', 30);
  await idle();
  expect([runs(), clock.nextMs]).toEqual([0, 30]);
  clock.advance(30);
  await idle();
  expect([runs(), clock.nextMs]).toEqual([1, 500]);
  queue.request('a');
  await idle();
  expect([runs(), clock.nextMs]).toEqual([2, 500]);
  queue.request('a');
  await idle();
  queue.request('a');
  await idle();
  expect([runs(), clock.nextMs]).toEqual([3, 10]);
  clock.setBack(3_600_000);
  clock.advance(10);
  await idle();
  expect([runs(), clock.nextMs]).toEqual([4, 500]);
  await queue.stop();
  expect(clock.sleeping).toBe(0);
});

test('a failure after a long run resets the back-off', async () => {
  const clock = new ManualClock();
  const gates: (() => void)[] = [];
  const fail = () => new Promise<never>((_, reject) => gates.push(() => reject(new Error('no'))));
  const { queue, failures } = start(fail, { clock, resetAfterMs: 1000 });
  queue.request('a');
  for (const [runMs, pauseMs] of [
    [0, 10],
    [999, 20],
    [1000, 10],
    [0, 20],
  ] as const) {
    clock.advance(runMs);
    gates.shift()?.();
    await idle();
    expect(failures.at(-1)?.[1]).toBe(pauseMs);
    clock.advance(pauseMs);
    await idle();
  }
  gates.shift()?.();
  await queue.stop();
});

test('a run that exceeds its time limit is aborted, and counts as a failure', async () => {
  const clock = new ManualClock();
  const { queue, failures, runs } = start((signal, run) => (run === 1 ? untilAborted(signal) : done()), {
    clock,
    timeoutMs: 300,
  });
  queue.request('a');
  await idle();
  clock.advance(300);
  await idle();
  expect(failures).toEqual([[new Failure('CANCELLED', 'aborted'), 10]]);
  clock.advance(10);
  await idle();
  expect([runs(), clock.sleeping]).toEqual([2, 0]);
});

/** The same by a clock that the test advances; the back-offs are 10, 20, 40, … ms. */
function startManual(
  reconcile: (key: string, signal: AbortSignal, run: number) => Promise<NextRun | undefined>,
  rest: Partial<WorkQueueOptions<string>> = {},
) {
  const clock = new ManualClock();
  const failures: number[] = [];
  let runs = 0;
  const queue = new WorkQueue<string>({
    reconcile: (key, signal) => reconcile(key, signal, ++runs),
    retryInMs: (count) => 10 * 2 ** count,
    onFailure: (_, inMs) => failures.push(inMs),
    clock,
    ...rest,
  });
  return { queue, clock, failures, runs: () => runs };
}

test('a restart of a run that exceeded its time limit does not wait for a back-off', async () => {
  const ends: (() => void)[] = [];
  const run = () => new Promise<never>((_, reject) => ends.push(() => reject(new Failure('CANCELLED', 'aborted'))));
  const { queue, clock, failures, runs } = startManual(run, { timeoutMs: 300 });
  queue.request('a');
  clock.advance(300);
  queue.restart('a');
  ends.shift()?.();
  await idle();
  expect([runs(), failures]).toEqual([2, []]);
  ends.shift()?.();
  await queue.stop();
});

test('an error of a restarted run is reported, unless its abortion explains it', async () => {
  const defect = new TypeError('defect');
  const errors = [new Failure('CANCELLED', 'aborted'), new DOMException('aborted', 'AbortError'), defect];
  const seen: unknown[] = [];
  const { queue, runs } = startManual(
    (_, signal, run) =>
      new Promise((_, reject) => signal.addEventListener('abort', () => reject(errors[run - 1] ?? defect))),
    { onFailure: (...args) => seen.push(args) },
  );
  queue.request('a');
  for (let restarts = 0; restarts < 3; restarts++) {
    queue.restart('a');
    await idle();
  }
  expect([runs(), seen]).toEqual([4, [[defect, 0, 'a']]]);
  await queue.stop();
  expect(seen).toHaveLength(1);
});

test('hurry ends a back-off, which grows on, and does not abort a run', async () => {
  const ends: (() => void)[] = [];
  let aborted = 0;
  const { queue, clock, failures, runs } = startManual((_, signal) => {
    signal.addEventListener('abort', () => aborted++);
    return new Promise((_, reject) => ends.push(() => reject(new Error('no'))));
  });
  const end = async () => {
    ends.shift()?.();
    await idle();
  };
  queue.hurry('a');
  await end();
  expect([runs(), clock.nextMs]).toEqual([1, 10]);
  queue.hurry('a');
  await idle();
  expect([runs(), clock.sleeping]).toEqual([2, 0]);
  queue.hurry('a');
  await end();
  expect(runs()).toBe(3);
  await end();
  expect([failures, aborted]).toEqual([[10, 0, 40], 0]);
  await queue.stop();
  queue.hurry('a');
  expect(runs()).toBe(3);
});

test('stop waits for a run that ends late', async () => {
  let end = (): void => undefined;
  const { queue } = startManual(() => new Promise((resolve) => (end = () => resolve(undefined))));
  queue.request('a');
  let isStopped = false;
  const stopped = queue.stop().then(() => (isStopped = true));
  await idle();
  expect(isStopped).toBe(false);
  end();
  await stopped;
});

test('a request during a run is not postponed to the time that the run returns', async () => {
  const ends: (() => void)[] = [];
  const { queue, runs } = startManual(() => new Promise((resolve) => ends.push(() => resolve({ inMs: 500 }))));
  queue.request('a');
  queue.request('a');
  ends.shift()?.();
  await idle();
  expect(runs()).toBe(2);
  ends.shift()?.();
  await queue.stop();
});

test('a later request does not postpone an earlier one', async () => {
  const { queue, clock } = startManual(() => Promise.resolve(undefined));
  queue.request('a', 30);
  queue.request('a', 200);
  await idle();
  expect(clock.nextMs).toBe(30);
  await queue.stop();
});

test('a success that returns a time resets the back-off', async () => {
  const { queue, clock, failures } = startManual((_, __, run) =>
    run === 3 ? Promise.resolve({ inMs: 5 }) : Promise.reject(new Error('no')),
  );
  queue.request('a');
  for (const ms of [10, 20, 5, 10]) {
    await idle();
    clock.advance(ms);
  }
  await idle();
  expect(failures.slice(0, 3)).toEqual([10, 20, 10]);
  await queue.stop();
});

test('a key that waits for a place does not run after stop', async () => {
  const seen: string[] = [];
  const { queue } = startManual(
    (key, signal) => {
      seen.push(key);
      return new Promise((resolve) => signal.addEventListener('abort', () => resolve(undefined)));
    },
    { concurrency: 1 },
  );
  queue.request('a');
  queue.request('b');
  await idle();
  await queue.stop();
  expect(seen).toEqual(['a']);
});

test('runs belong to no caller’s trace', async () => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  try {
    const key = createContextKey('caller');
    const seen: unknown[] = [];
    const record = () => seen.push(context.active().getValue(key));
    const { queue } = startManual(() => {
      record();
      return done();
    });
    context.with(ROOT_CONTEXT.setValue(key, 'pod'), () => {
      record();
      queue.request('a');
    });
    await idle();
    expect(seen).toEqual(['pod', undefined]);
  } finally {
    context.disable();
  }
});

test('property: runs of a key never overlap, at most so many run at once, and no request is lost', async () => {
  const step = fc.oneof(
    fc.record({ type: fc.constant('request'), key: fc.constantFrom('a', 'b', 'c'), afterMs: fc.nat(30) }),
    fc.record({
      type: fc.constantFrom('restart', 'hurry'),
      key: fc.constantFrom('a', 'b', 'c'),
      afterMs: fc.constant(0),
    }),
    fc.record({ type: fc.constantFrom('advance', 'succeed', 'fail'), key: fc.constant(''), afterMs: fc.nat(60) }),
  );
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 60 }), fc.integer({ min: 1, max: 3 }), async (steps, concurrency) => {
      const clock = new ManualClock();
      const running = new Map<string, { readonly resolve: () => void; readonly reject: () => void }>();
      /** The keys for which a run began since their last request. */
      const unserved = new Set<string>();
      let most = 0;
      const queue = new WorkQueue<string>({
        reconcile: (key, signal) =>
          new Promise((resolve, reject) => {
            expect(running.has(key)).toBe(false);
            unserved.delete(key);
            const end = (act: () => void) => () => {
              running.delete(key);
              act();
            };
            const entry = { resolve: end(() => resolve(undefined)), reject: end(() => reject(new Error('no'))) };
            running.set(key, entry);
            most = Math.max(most, running.size);
            signal.addEventListener('abort', entry.reject);
          }),
        retryInMs: exponentialBackoff({ baseMs: 10, maxMs: 40 }, () => 0.5),
        onFailure: () => undefined,
        concurrency,
        clock,
      });
      for (const { type, key, afterMs } of steps) {
        if (type === 'advance') clock.advance(afterMs);
        else if (type === 'request') queue.request(key, afterMs);
        else if (type === 'restart') queue.restart(key);
        else if (type === 'hurry') queue.hurry(key);
        else [...running.values()][0]?.[type === 'fail' ? 'reject' : 'resolve']();
        if (key !== '') unserved.add(key);
        await idle();
      }
      for (let turn = 0; turn < 12; turn++) {
        for (const { resolve } of [...running.values()]) resolve();
        clock.advance(100);
        await idle();
      }
      expect([...unserved]).toEqual([]);
      expect(most).toBeLessThanOrEqual(concurrency);
      await queue.stop();
      expect([running.size, clock.sleeping]).toEqual([0, 0]);
    }),
    { numRuns: 200, verbose: fc.VerbosityLevel.Verbose },
  );
}, 60_000);
