import { describe, expect, it } from 'vitest';

import { EventQueue } from './monitor.js';
import type { NativeEvent } from './native.js';

const OVERRUN: NativeEvent = { object: 'overrun' };

function neighbour(address: string): NativeEvent {
  const value = { family: 4, linkIndex: 1, address, mac: null, proxy: false, permanent: true, state: 128 } as const;
  return { object: 'neighbour', deleted: false, value };
}

describe('EventQueue', () => {
  it('returns events in order, to readers that came before and after', async () => {
    const queue = new EventQueue('of this process');
    const reader = queue[Symbol.asyncIterator]();
    const first = reader.next();
    queue.push([neighbour('10.0.0.1'), neighbour('10.0.0.2')]);
    expect(await first).toEqual({ done: false, value: neighbour('10.0.0.1') });
    expect(await reader.next()).toEqual({ done: false, value: neighbour('10.0.0.2') });
  });

  it('drops events that are not read, and reports that once', async () => {
    const queue = new EventQueue('of this process');
    queue.push(Array.from({ length: 65_536 }, () => neighbour('10.0.0.1')));
    queue.push([neighbour('10.0.0.2'), neighbour('10.0.0.3')]);
    const reader = queue[Symbol.asyncIterator]();
    expect(await reader.next()).toEqual({ done: false, value: OVERRUN });
    expect(await reader.next()).toEqual({ done: false, value: neighbour('10.0.0.3') });
  });

  it('ends its readers and its subscription when it is closed, once', async () => {
    const queue = new EventQueue('of this process');
    let unsubscribed = 0;
    queue.onClose(() => (unsubscribed += 1));
    const waiting = queue[Symbol.asyncIterator]().next();
    queue.close();
    queue.close();
    queue.push([OVERRUN]);
    expect(await waiting).toEqual({ done: true, value: undefined });
    expect(await queue[Symbol.asyncIterator]().next()).toEqual({ done: true, value: undefined });
    expect(unsubscribed).toBe(1);
  });

  it('rejects for its readers when the subscription breaks, after the events before', async () => {
    const queue = new EventQueue('of this process');
    queue.push([OVERRUN, { object: 'failure', error: { errno: 9, text: null } }]);
    const reader = queue[Symbol.asyncIterator]();
    expect(await reader.next()).toEqual({ done: false, value: OVERRUN });
    await expect(reader.next()).rejects.toMatchObject({ name: 'NetlinkError', operation: 'monitor', code: 'EBADF' });
  });
});
