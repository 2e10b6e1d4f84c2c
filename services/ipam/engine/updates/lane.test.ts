import { context } from '@opentelemetry/api';
import { describe, expect, it } from 'vitest';

import { forever } from '../testing/stores.js';
import { Lane } from './lane.js';
import type { UpdateRequest } from './update-request.js';

const nothing = (): void => undefined;

function request(isAnswered = false): UpdateRequest {
  const told = { succeed: nothing, fail: nothing, endWait: nothing };
  const known = {
    isAnswered,
    isFresh: true,
    awaitedRevision: 0,
    hasWaited: false,
    attempts: 0,
    keys: [],
    signal: forever,
  };
  return { decide: () => 'folded', ...told, ...known, context: context.active() };
}

describe('a lane', () => {
  it('returns its requests in order of arrival, without answered ones', () => {
    const lane = new Lane('n');
    const [first, gone, last] = [request(), request(true), request()];
    for (const each of [first, gone, last]) lane.add(each);
    expect(lane.first()).toBe(first);
    lane.takeFirst();
    expect(lane.first()).toBe(last);
    lane.putBack([first, gone]);
    expect(lane.takeAll()).toEqual([first, last]);
    expect(lane.isIdle).toBe(true);
  });

  it('is not served while it has a transaction in flight, or waits', () => {
    const lane = new Lane('n');
    lane.add(request());
    expect([lane.isReady, lane.isOccupied]).toEqual([true, true]);
    lane.isBusy = true;
    expect([lane.isReady, lane.isIdle]).toEqual([false, false]);
    lane.isBusy = false;
    lane.pause();
    expect([lane.isReady, lane.isIdle]).toEqual([false, false]);
    lane.resume();
    expect(lane.isReady).toBe(true);
  });

  it('is served alone for a while after it lost', () => {
    const lane = new Lane('n');
    expect(lane.isExclusive(0)).toBe(false);
    lane.markLost(1000);
    expect([lane.isReady, lane.isExclusive(1499), lane.isExclusive(1500)]).toEqual([false, true, false]);
  });

  it('is served with other lanes after two transactions without a loss, and keeps the order', () => {
    const lane = new Lane('n');
    lane.markLost(0);
    expect([lane.markCommitted(), lane.isExclusive(0)]).toEqual([true, true]);
    lane.markLost(0);
    expect([lane.markCommitted(), lane.isExclusive(0)]).toEqual([true, true]);
    expect([lane.markCommitted(), lane.isExclusive(0)]).toEqual([false, false]);
  });
});
