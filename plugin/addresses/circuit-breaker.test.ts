import { Failure } from '@podwire/shared/failure/failure';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { beforeEach, expect, test } from 'vitest';

import { IpamCircuitBreaker } from './ipam-plugin.js';

const DELEGATE = { type: 'whereabouts', configuration: '{}', variables: {} };

let clock: ManualClock;
let circuitBreaker: IpamCircuitBreaker;

beforeEach(() => {
  clock = new ManualClock();
  circuitBreaker = new IpamCircuitBreaker(clock);
});

const fails = (failure: Failure) =>
  expect(circuitBreaker.run('net', DELEGATE, () => Promise.reject(failure))).rejects.toBe(failure);
const TIMEOUT = new Failure('DELEGATE_UNAVAILABLE', 'was killed');
const LATER = new Failure('DELEGATE_UNAVAILABLE', 'try again', { details: { delegate: 'whereabouts' } });

test('a timeout opens the circuit for 30 s, in that network only', async () => {
  await fails(TIMEOUT);
  expect([circuitBreaker.openFor('net'), circuitBreaker.openFor('other')]).toEqual([['whereabouts'], []]);
  clock.advance(29_999);
  expect(circuitBreaker.openFor('net')).toEqual(['whereabouts']);
  clock.advance(1);
  expect(circuitBreaker.openFor('net')).toEqual([]);
});

test('any answer closes the circuit; a cancelled call does not', async () => {
  await fails(TIMEOUT);
  await fails(new Failure('CANCELLED', 'stopped'));
  expect(circuitBreaker.openFor('net')).toEqual(['whereabouts']);
  await fails(LATER);
  expect(circuitBreaker.openFor('net')).toEqual([]);
  await fails(TIMEOUT);
  await circuitBreaker.run('net', DELEGATE, () => Promise.resolve());
  expect(circuitBreaker.openFor('net')).toEqual([]);
});

test('a clock that is set back does not prolong the open circuit', async () => {
  await fails(TIMEOUT);
  clock.setBack(3_600_000);
  clock.advance(29_999);
  expect(circuitBreaker.openFor('net')).toHaveLength(1);
  clock.advance(1);
  expect(circuitBreaker.openFor('net')).toEqual([]);
});
