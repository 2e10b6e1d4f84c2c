import { beforeEach, expect, test } from 'vitest';

import { KnownAllocations } from './known-allocations.js';

const attachment = { network: 'net', containerId: 'c0ffee', interfaceName: 'eth0' };
const held = [{ address: '10.65.0.7', sequenceNumber: 3n }];

let known: KnownAllocations;
beforeEach(() => {
  known = new KnownAllocations();
});

test('the addresses of an ADD are known until they are forgotten', () => {
  expect(known.of(attachment)).toBeUndefined();
  known.record(attachment, held);
  expect(known.of(attachment)).toEqual(held);
  expect(known.of({ ...attachment, interfaceName: 'net1' })).toBeUndefined();
  known.forget(attachment);
  expect(known.of(attachment)).toBeUndefined();
});

test('an ADD without a request is known as such, unless an earlier ADD got an address', () => {
  known.recordUnrequested(attachment);
  expect([known.of(attachment), known.wasUnrequested(attachment)]).toEqual([undefined, true]);
  known.record(attachment, held);
  known.recordUnrequested(attachment);
  expect([known.of(attachment), known.wasUnrequested(attachment)]).toEqual([held, false]);
});

test('a refused ADD is known as such, also after a DEL, until the next request', () => {
  known.recordUnrequested(attachment);
  known.recordRefused(attachment);
  known.forget(attachment);
  expect([known.of(attachment), known.wasRefused(attachment)]).toEqual([undefined, true]);
  known.clearFailure(attachment);
  expect(known.wasRefused(attachment)).toBe(false);
  known.record(attachment, []);
  known.clearFailure(attachment);
  known.recordRefused(attachment);
  expect([known.of(attachment), known.wasRefused(attachment)]).toEqual([[], false]);
});

test('the oldest is forgotten first, and a repeated one counts as new', () => {
  const at = (count: number) => ({ ...attachment, containerId: `c${count}` });
  for (let count = 0; count < 4096; count++) known.record(at(count), held);
  known.record(at(0), held);
  known.record(at(4096), held);
  expect([known.of(at(0)), known.of(at(1)), known.of(at(2))]).toEqual([held, undefined, held]);
});
