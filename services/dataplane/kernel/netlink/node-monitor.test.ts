import type { MonitorEvent, NetlinkError } from '@podwire/netlink';
import { describe, expect, test } from 'vitest';

import { broken, GivenMonitor } from './given-monitor.fixture.js';
import { NodeMonitor } from './node-monitor.js';

const OVERRUN: MonitorEvent = { object: 'overrun' };

function scene() {
  const opened: GivenMonitor[] = [];
  const refusals: Error[] = [];
  const open = () => {
    const refusal = refusals.shift();
    if (refusal) return Promise.reject(refusal);
    const given = new GivenMonitor();
    opened.push(given);
    return Promise.resolve({ monitor: () => Promise.resolve(given), close: () => Promise.resolve() });
  };
  const heard: string[] = [];
  const listener = (name: string) => ({
    heard: ({ object }: MonitorEvent) => void heard.push(`${name}: ${object}`),
    ended: ({ code }: NetlinkError) => void heard.push(`${name}: ${code}`),
  });
  const monitor = new NodeMonitor(open);
  return { opened, refusals, heard, subscribe: (name: string) => monitor.subscribe(listener(name)) };
}

describe('a subscription of the node', () => {
  test('is one for all who listen, and goes with the last of them', async () => {
    const { opened, heard, subscribe } = scene();
    const [a, b] = [await subscribe('a'), await subscribe('b')];
    opened[0]?.give(OVERRUN);
    await expect.poll(() => heard).toEqual(['a: overrun', 'b: overrun']);
    a.close();
    opened[0]?.give(OVERRUN);
    await expect.poll(() => heard.slice(2)).toEqual(['b: overrun']);
    expect(opened[0]?.isClosed).toBe(false);
    b.close();
    await expect.poll(() => opened[0]?.isClosed).toBe(true);
    expect(opened).toHaveLength(1);
  });

  test('that breaks is told to each once, and whoever listens next gets another', async () => {
    const { opened, heard, subscribe } = scene();
    for (const name of ['a', 'b']) await subscribe(name);
    opened[0]?.give(broken());
    await expect.poll(() => heard).toEqual(['a: EBADF', 'b: EBADF']);
    await subscribe('a');
    opened[1]?.give(OVERRUN);
    await expect.poll(() => heard.slice(2)).toEqual(['a: overrun']);
  });

  test('that cannot be had is tried again by the next', async () => {
    const { opened, refusals, heard, subscribe } = scene();
    refusals.push(broken());
    await expect(subscribe('a')).rejects.toMatchObject({ code: 'EBADF' });
    await subscribe('b');
    opened[0]?.give(OVERRUN);
    await expect.poll(() => heard).toEqual(['b: overrun']);
  });
});
