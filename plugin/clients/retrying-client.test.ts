import { Failure } from '@podwire/shared/failure/failure';
import { systemClock } from '@podwire/shared/runtime/clock';
import { TestServers, GET_POOL, type GetPool } from '@podwire/shared/testing/server';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { RetryingPeer } from './retrying-client.js';

let bench: TestServers;
beforeEach(() => {
  bench = new TestServers();
});
afterEach(() => bench.clear());

test('after the deadline, the error has the last answer of the service', async () => {
  let calls = 0;
  const getPool: GetPool = () =>
    ++calls === 1 ? Promise.reject(new Failure('STORE_UNAVAILABLE', 'the disk is full')) : new Promise(() => undefined);
  await bench.serve({ getPool, drainTimeoutMs: 1 });
  const peer = new RetryingPeer({ peer: bench.peer(), clock: systemClock, random: () => 0 });
  const limits = { deadlineMs: Date.now() + 3000, signal: new AbortController().signal };
  await expect(peer.call(GET_POOL, { name: 'a' }, limits)).rejects.toMatchObject({
    code: 'DEADLINE_EXCEEDED',
    message: expect.stringMatching(/did not answer in time.*the attempt before failed: .*the disk is full/),
  });
  expect(calls).toBe(2);
});
