import type { MonitorEvent, NetlinkError } from '@podwire/netlink';
import { describe, expect, test } from 'vitest';

import { monitorFailure, FakeMonitor } from '../testing/kernels.js';
import { NodeMonitor } from './node-monitor.js';

const OVERRUN: MonitorEvent = { object: 'overrun' };

function scene() {
  const opened: FakeMonitor[] = [];
  const refusals: Error[] = [];
  const open = () => {
    const refusal = refusals.shift();
    if (refusal) return Promise.reject(refusal);
    const monitor = new FakeMonitor();
    opened.push(monitor);
    const close = () => {
      closed.push('node');
      return Promise.resolve();
    };
    return Promise.resolve({ monitor: () => openWith(monitor), close });
  };
  const monitorRefusals: Error[] = [];
  const openWith = (monitor: FakeMonitor) => {
    const refusal = monitorRefusals.shift();
    return refusal ? Promise.reject(refusal) : Promise.resolve(monitor);
  };
  const closed: string[] = [];
  const heard: string[] = [];
  const listener = (name: string) => ({
    onEvent: ({ object }: MonitorEvent) => void heard.push(`${name}: ${object}`),
    onFailure: ({ code }: NetlinkError) => void heard.push(`${name}: ${code}`),
  });
  const monitor = new NodeMonitor(open);
  return {
    opened,
    refusals,
    monitorRefusals,
    heard,
    closed,
    subscribe: (name: string) => monitor.subscribe(listener(name)),
  };
}

describe('a subscription of the node', () => {
  test('is shared by all listeners, and closed with the last one', async () => {
    const { opened, heard, subscribe } = scene();
    const [a, b] = [await subscribe('a'), await subscribe('b')];
    opened[0]?.push(OVERRUN);
    await expect.poll(() => heard).toEqual(['a: overrun', 'b: overrun']);
    a.close();
    opened[0]?.push(OVERRUN);
    await expect.poll(() => heard.slice(2)).toEqual(['b: overrun']);
    expect(opened[0]?.isClosed).toBe(false);
    b.close();
    await expect.poll(() => opened[0]?.isClosed).toBe(true);
    expect(opened).toHaveLength(1);
  });

  test('that breaks is reported to each listener once; the next listener gets a new one', async () => {
    const { opened, heard, subscribe } = scene();
    for (const name of ['a', 'b']) await subscribe(name);
    opened[0]?.push(monitorFailure());
    await expect.poll(() => heard).toEqual(['a: EBADF', 'b: EBADF']);
    await subscribe('a');
    opened[1]?.push(OVERRUN);
    await expect.poll(() => heard.slice(2)).toEqual(['a: overrun']);
  });

  test('that cannot be opened is retried by the next listener', async () => {
    const { opened, refusals, heard, subscribe } = scene();
    refusals.push(monitorFailure());
    await expect(subscribe('a')).rejects.toMatchObject({ code: 'EBADF' });
    await subscribe('b');
    opened[0]?.push(OVERRUN);
    await expect.poll(() => heard).toEqual(['b: overrun']);
  });

  test('that breaks during subscribe is refused, or reported after it', async () => {
    const outcomes: string[] = [];
    for (let moment = 0; moment < 12; moment++) {
      const { opened, heard, subscribe } = scene();
      await subscribe('a');
      opened[0]?.push(monitorFailure());
      for (let step = 0; step < moment; step++) await Promise.resolve();
      const subscribed = subscribe('b').then(
        () => void heard.push('b: subscribed'),
        () => void heard.push('b: refused'),
      );
      await subscribed;
      await expect.poll(() => heard).toContain('a: EBADF');
      const outcome = heard.filter((line) => line.startsWith('b')).join();
      outcomes.push(`${outcome}, ${opened.length} opened`);
    }
    expect(new Set(outcomes)).toEqual(
      new Set(['b: subscribed,b: EBADF, 1 opened', 'b: refused, 1 opened', 'b: subscribed, 2 opened']),
    );
  });

  test('that the kernel refuses leaves no socket open', async () => {
    const { opened, monitorRefusals, closed, subscribe } = scene();
    monitorRefusals.push(monitorFailure());
    await expect(subscribe('a')).rejects.toMatchObject({ code: 'EBADF' });
    expect([opened.length, closed]).toEqual([1, ['node']]);
  });
});
