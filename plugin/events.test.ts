import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { expect, test } from 'vitest';

import { Duration } from './events.js';

const arrivedNs = 1_700_000_000_000_000_000n;

test('the log has the time since the start of the shim, and of each phase', () => {
  const clock = new ManualClock();
  const duration = new Duration({ startedNs: arrivedNs - 3_000_000n, arrivedNs }, clock);
  const { recorder } = duration;
  const wait = recorder.open('podwire.plugin.queue_wait', 'queue');
  clock.advance(200);
  recorder.close(wait);
  const call = recorder.open('podwire-ipam ListEndpoints', 'rpc');
  const endService = recorder.callService(call, 'podwire-ipam');
  clock.advance(20);
  endService('15000;datastore,commit,0,5000,0');
  recorder.close(call);
  clock.advance(300.04);
  expect(duration.fields({ namespace: 'red', name: 'web-0', uid: '' })).toEqual({
    elapsed_ms: 523,
    pod: 'red/web-0',
    phases_ms: { shim: 3, queue: 200, rpc: 5, ipam: 10, datastore: 5, plugin: 300 },
  });
  expect(duration.elapsedMs).toBeCloseTo(520.04);
});

test('the time of a command stands still at its end, so that log and metrics agree', () => {
  const clock = new ManualClock();
  const duration = new Duration({ startedNs: undefined, arrivedNs }, clock);
  clock.advance(20);
  duration.recorder.end();
  clock.advance(5);
  expect(duration.fields()).toEqual({ elapsed_ms: 20, phases_ms: { plugin: 20 } });
  expect([...duration.phases()]).toEqual([['plugin', 20]]);
  expect([duration.totalMs, duration.elapsedMs]).toEqual([20, 20]);
  expect(duration.phases()).toBe(duration.phases());
});

test('a clock that is set back changes no duration', () => {
  const clock = new ManualClock();
  const duration = new Duration({ startedNs: undefined, arrivedNs }, clock);
  clock.setBack(1000);
  expect(duration.fields()).toEqual({ elapsed_ms: 0, phases_ms: { plugin: 0 } });
});

test.each([[undefined], [arrivedNs + 1_000_000n]])('the shim’s time is absent where its start is %s', (startedNs) => {
  const duration = new Duration({ startedNs, arrivedNs }, new ManualClock());
  expect([...duration.phases().keys()]).toEqual(['plugin']);
});
