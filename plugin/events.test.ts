import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { expect, test } from 'vitest';

import { Duration } from './events.js';

const arrivedNs = 1_700_000_000_000_000_000n;

test('the event has the time in the queue, in each service call, and in total', () => {
  const clock = new ManualClock();
  const duration = new Duration({ startedNs: arrivedNs - 3_000_000n, arrivedNs }, clock);
  clock.advance(200);
  duration.noteQueueWait();
  const listPods = { service: 'podwire-dataplane', method: 'ListPods' };
  duration.noteService(listPods, 4);
  duration.noteService(listPods, 5);
  duration.noteService({ ...listPods, method: 'DetachPod' }, 6);
  clock.advance(300);
  duration.noteQueueWait();
  expect(duration.fields()).toEqual({
    elapsed_ms: 500,
    shim_ms: 3,
    waited_ms: 200,
    services_ms: { ListPods: 9, DetachPod: 6 },
  });
  expect(duration.parts()).toEqual([
    { name: 'podwire-dataplane', durationMs: 15 },
    { name: 'turn', durationMs: 200 },
    { name: 'shim', durationMs: 3 },
  ]);
  expect(duration.totalMs).toBe(503);
});

test('a clock that is set back makes no duration negative', () => {
  const clock = new ManualClock();
  const duration = new Duration({ startedNs: undefined, arrivedNs }, clock);
  clock.advance(-1000);
  duration.noteQueueWait();
  expect(duration.fields()).toEqual({ elapsed_ms: 0, waited_ms: 0 });
});

test.each([[undefined], [arrivedNs + 1n]])('the shim’s duration is absent where its start is %s', (startedNs) => {
  const fields = new Duration({ startedNs, arrivedNs }, new ManualClock()).fields();
  expect(fields).not.toHaveProperty('shim_ms');
});

test('wait and services are absent where there were none', () => {
  const fields = new Duration({ startedNs: undefined, arrivedNs }, new ManualClock()).fields();
  expect(fields).toEqual({ elapsed_ms: 0 });
});
