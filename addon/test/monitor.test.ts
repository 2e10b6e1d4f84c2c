import { execFileSync } from 'node:child_process';

import { describe, expect, it } from 'vitest';

import type { Monitor, MonitorEvent } from '../lib/index.js';
import { makePod, open, run } from './ip.fixture.js';

/** The events up to the first one that fits. */
async function until(monitor: Monitor, fits: (event: MonitorEvent) => boolean): Promise<MonitorEvent[]> {
  const events: MonitorEvent[] = [];
  for await (const event of monitor) {
    events.push(event);
    if (fits(event)) break;
  }
  return events;
}

describe('monitor', () => {
  it('tells of links, addresses, routes and neighbours, in their order', async () => {
    const pod = makePod();
    const inside = await open(pod.path);
    const monitor = await inside.monitor({ groups: ['links', 'addresses', 'routes', 'neighbours'] });
    run('ip', '-n', pod.name, 'link', 'set', 'lo', 'up');
    run('ip', '-n', pod.name, 'address', 'add', '10.65.0.1/32', 'dev', 'lo');
    run('ip', '-n', pod.name, 'address', 'delete', '10.65.0.1/32', 'dev', 'lo');
    const events = await until(monitor, (event) => event.object === 'address' && event.deleted);
    expect(events[0]).toMatchObject({ object: 'link', deleted: false, value: { name: 'lo', up: true } });
    expect(events).toContainEqual({
      object: 'address',
      deleted: false,
      value: expect.objectContaining({ address: '10.65.0.1/32', family: 4 }),
    });
    expect(events).toContainEqual({
      object: 'route',
      deleted: false,
      value: expect.objectContaining({ destination: '10.65.0.1/32', routeType: 'local', table: 255 }),
    });
  });

  it('hears only the groups that were asked for', async () => {
    const pod = makePod();
    const inside = await open(pod.path);
    const monitor = await inside.monitor({ groups: ['addresses'] });
    run('ip', '-n', pod.name, 'link', 'set', 'lo', 'up');
    run('ip', '-n', pod.name, 'address', 'add', 'fd00::1/128', 'dev', 'lo', 'nodad');
    const isWanted = (event: MonitorEvent) => event.object === 'address' && event.value.address === 'fd00::1/128';
    const events = await until(monitor, isWanted);
    expect(new Set(events.map(({ object }) => object))).toEqual(new Set(['address']));
  });

  it('reports an overrun when the process was too busy to read, and goes on', async () => {
    const pod = makePod();
    const inside = await open(pod.path);
    const monitor = await inside.monitor({ groups: ['routes'] });
    // The event loop stands still meanwhile; each notification takes some hundred bytes of the socket's buffer.
    const add = Array.from(
      { length: 40_000 },
      (_, n) => `route add blackhole 10.${n >> 14}.${(n >> 6) & 255}.${(n & 63) << 2}/30`,
    );
    const batch = Buffer.from(add.join('\n'));
    execIpBatch(pod.name, batch);
    const events = await until(monitor, ({ object }) => object === 'overrun');
    expect(events.at(-1)).toEqual({ object: 'overrun' });
    expect(events.length).toBeGreaterThan(1);
  });

  it('ends for its reader when it is closed', async () => {
    const inside = await open(makePod().path);
    const monitor = await inside.monitor({ groups: ['links'] });
    const reading = until(monitor, () => false);
    monitor.close();
    monitor.close();
    expect(await reading).toEqual([]);
  });

  it('outlives the namespace it was made by', async () => {
    const pod = makePod();
    const inside = await open(pod.path);
    const monitor = await inside.monitor({ groups: ['links'] });
    await inside.close();
    run('ip', '-n', pod.name, 'link', 'set', 'lo', 'up');
    const events = await until(monitor, () => true);
    expect(events).toMatchObject([{ object: 'link', value: { name: 'lo' } }]);
  });
});

function execIpBatch(pod: string, lines: Buffer): void {
  execFileSync('ip', ['-n', pod, '-batch', '-'], { input: lines });
}
