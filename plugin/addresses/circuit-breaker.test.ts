import { Failure } from '@podwire/shared/failure/failure';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { beforeEach, expect, test } from 'vitest';

import { HangingPlugins } from './circuit-breaker.js';

const DELEGATE = { type: 'whereabouts', configuration: '{}', variables: {} };

let clock: ManualClock;
let hanging: HangingPlugins;

beforeEach(() => {
  clock = new ManualClock();
  hanging = new HangingPlugins(clock);
});

const fails = (failure: Failure) =>
  expect(hanging.watch('net', DELEGATE, () => Promise.reject(failure))).rejects.toBe(failure);
const HANG = new Failure('DELEGATE_UNAVAILABLE', 'was killed');
const LATER = new Failure('DELEGATE_UNAVAILABLE', 'try again', { details: { delegate: 'whereabouts' } });

test('one that hung is taken to hang for half a minute, in its network alone', async () => {
  await fails(HANG);
  expect([hanging.of('net'), hanging.of('other')]).toEqual([['whereabouts'], []]);
  clock.advance(29_999);
  expect(hanging.of('net')).toEqual(['whereabouts']);
  clock.advance(1);
  expect(hanging.of('net')).toEqual([]);
});

test('an answer of any kind ends it, and a call that was cut off does not', async () => {
  await fails(HANG);
  await fails(new Failure('CANCELLED', 'the end'));
  expect(hanging.of('net')).toEqual(['whereabouts']);
  await fails(LATER);
  expect(hanging.of('net')).toEqual([]);
  await fails(HANG);
  await hanging.watch('net', DELEGATE, () => Promise.resolve());
  expect(hanging.of('net')).toEqual([]);
});

test('a clock that is set back makes it no longer', async () => {
  await fails(HANG);
  clock.advance(-1);
  expect(hanging.of('net')).toEqual([]);
});
