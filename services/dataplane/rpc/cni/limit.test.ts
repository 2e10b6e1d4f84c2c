import { AddRequest, DelRequest } from '@podwire/proto/calico/cni/cnibackend';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, describe, expect, test, vi } from 'vitest';

import { recordingLog, testRegistry } from '../../dataplane.fixture.js';
import { Events } from '../../pods/events.js';
import { Dataplane } from '../../pods/pods.js';
import { MemoryKernel } from '../../testing/memory-kernel.js';
import { cniAdd } from './add.js';
import { cniDel } from './del.js';
import { CNI_LIMIT_MS, withinLimit } from './limit.js';

/** Work that goes on until its signal fires. */
const endless = async (signal: AbortSignal): Promise<void> => {
  await new Promise((resolve) => {
    signal.addEventListener('abort', resolve);
  });
  signal.throwIfAborted();
};

test('work has the five seconds of Calico’s plugin', () => {
  expect(CNI_LIMIT_MS).toBe(5000);
});

test('work that takes longer is told to end, and why', async () => {
  await expect(withinLimit(new AbortController().signal, endless, 20)).rejects.toMatchObject({
    code: 'DEADLINE_EXCEEDED',
    message: 'no answer within 20 ms',
  });
});

test('a caller that gives up earlier ends the work', async () => {
  const caller = new AbortController();
  const work = withinLimit(caller.signal, endless);
  caller.abort(new Failure('CANCELLED', 'the caller gave up'));
  await expect(work).rejects.toMatchObject({ code: 'CANCELLED' });
});

test('work that is done in time is not disturbed', async () => {
  let seen: AbortSignal | undefined;
  const work = (signal: AbortSignal) => {
    seen = signal;
    return Promise.resolve('done');
  };
  expect(await withinLimit(new AbortController().signal, work, 1)).toBe('done');
  await new Promise((resolve) => setTimeout(resolve, 5));
  expect(seen?.aborted).toBe(false);
});

describe('a method whose caller has more time', () => {
  afterEach(() => void vi.useRealTimers());

  const place = { interfaceName: 'eth0', netns: '/run/netns/a' };
  const add = AddRequest.fromPartial({ ...place, containerIps: [{ address: '10.65.0.7/32' }] });

  test.each(['Add', 'Del'] as const)('%s answers after the five seconds all the same', async (method) => {
    const kernel = new MemoryKernel();
    kernel.addNamespace(place.netns);
    const dataplane = new Dataplane({ kernel, registry: testRegistry(), events: new Events(recordingLog().log) });
    const parts = { dataplane, refused: () => undefined };
    const call = () => ({ signal: new AbortController().signal });
    const pause = kernel.pauseBefore('link-add');
    const first = cniAdd(parts)(add, call());
    await pause.reached;

    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const second = method === 'Add' ? cniAdd(parts)(add, call()) : cniDel(parts)(DelRequest.fromPartial(place), call());
    await vi.advanceTimersByTimeAsync(CNI_LIMIT_MS);
    expect(await second).toMatchObject({
      successful: false,
      errorMessage: expect.stringMatching(/^DEADLINE_EXCEEDED: .*5000 ms/),
    });
    pause.release();
    expect(await first).toMatchObject({ successful: true });
  });
});
