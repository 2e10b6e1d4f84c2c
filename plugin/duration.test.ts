import { ManualClock } from '@podwire/shared/runtime/manual-clock.fixture';
import { expect, test } from 'vitest';

import { Duration } from './duration.js';

const arrivedNs = 1_700_000_000_000_000_000n;

test('the wait for the turn, every call of a service and the whole are told apart', () => {
  const clock = new ManualClock();
  const duration = new Duration({ startedNs: arrivedNs - 3_000_000n, arrivedNs }, undefined, clock);
  clock.advance(200);
  duration.noteTurn();
  duration.noteService('ListPods', 4);
  duration.noteService('ListPods', 5);
  clock.advance(300);
  expect(duration.fields()).toEqual({ elapsed_ms: 500, shim_ms: 3, waited_ms: 200, services_ms: { ListPods: 9 } });
});

test.each([[undefined], [arrivedNs + 1n]])(
  'the shim’s time is left out where its start (%s) is not known',
  (startedNs) => {
    const fields = new Duration({ startedNs, arrivedNs }, undefined, new ManualClock()).fields();
    expect(fields).not.toHaveProperty('shim_ms');
  },
);

test('services are not told of where none was asked', () => {
  const fields = new Duration({ startedNs: undefined, arrivedNs }, undefined, new ManualClock()).fields();
  expect(fields).toEqual({ elapsed_ms: 0, waited_ms: 0 });
});
