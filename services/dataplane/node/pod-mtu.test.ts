import { Failure } from '@podwire/shared/failure/failure';
import { parsePrefix } from '@podwire/shared/net/prefix';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { describe, expect, test, vi } from 'vitest';

import type { ClusterPool, ClusterView, Encapsulation } from '../cluster/cluster.js';
import { MemoryLinks } from '../testing/memory-links.js';
import {
  mostFrequentMtuBytes,
  detectMtu,
  isNodeInterface,
  LINK_CHECK_INTERVAL_MS,
  maxOverheadBytes,
  PodMtu,
  type DetectedMtu,
} from './pod-mtu.js';

const ALL = { blocks: 'all', hasOtherChanges: true } as const;
const BLOCKS = { blocks: 'all', hasOtherChanges: false } as const;

function view(...encapsulations: readonly Encapsulation[]): ClusterView {
  const pools = encapsulations.map((encapsulation, at) => {
    const parsed = parsePrefix(`10.${at}.0.0/16`);
    if (!parsed.ok) throw new Error(parsed.fault);
    const name = `pool-${at}`;
    return [name, { name, cidr: parsed.prefix, encapsulation, natOutgoing: false, loadBalancerOnly: false }] as const;
  });
  return {
    self: 'a',
    isDatastoreLocked: false,
    cluster: { nodes: new Map(), pools: new Map(pools), blocks: new Map() },
  };
}

async function start(fixedBytes = 0, links = new MemoryLinks(), wires: readonly string[] = []) {
  const clock = new ManualClock();
  const lines: string[] = [];
  const events = {
    mtuDetected: ({ mtuBytes, interfaceName }: DetectedMtu) => lines.push(`${mtuBytes} by ${interfaceName}`),
    mtuSet: (mtuBytes: number) => lines.push(`${mtuBytes} set`),
    mtuUnknown: (failure: Failure) => lines.push(failure.message),
  };
  const mtu = new PodMtu({ links, clock, random: () => 0.5, events, fixedBytes, patterns: ['eth*'] });
  const reported: number[] = [];
  mtu.onChange((bytes) => reported.push(bytes));
  links.put({ name: 'eth0', mtuBytes: 1500, up: true });
  await mtu.start(wires);
  return { mtu, links, clock, lines, reported };
}

const until = (check: () => void) => vi.waitFor(check, { timeout: 20_000, interval: 2 });

describe('a detected MTU', () => {
  test('is the node’s before the pools are known, and listeners are not called', async () => {
    const { mtu, lines, reported } = await start();
    expect([mtu.mtuBytes, lines, reported]).toEqual([1500, ['1500 by eth0'], []]);
    await mtu.stop();
  });

  test('equals the MTU of existing pods before the pools are known, and follows the interfaces', async () => {
    const links = new MemoryLinks();
    for (const wire of ['podw1', 'podw2']) links.put({ name: wire, mtuBytes: 1450, up: true });
    const { mtu, lines, reported } = await start(0, links, ['podw1', 'podw2']);
    expect([mtu.mtuBytes, lines, reported]).toEqual([1450, ['1450 by eth0'], []]);
    links.put({ name: 'eth0', mtuBytes: 1400, up: true });
    await until(() => expect(mtu.mtuBytes).toBe(1350));
    mtu.follow(view('ipip'), ALL);
    await until(() => expect(reported).toEqual([1380]));
    await mtu.stop();
  });

  test('is the node’s before the pools are known when existing pods have a larger one', async () => {
    const links = new MemoryLinks();
    links.put({ name: 'podw1', mtuBytes: 8950, up: true });
    const { mtu } = await start(0, links, ['podw1']);
    expect(mtu.mtuBytes).toBe(1500);
    await mtu.stop();
  });

  test('follows the pools', async () => {
    const { mtu, lines, reported } = await start();
    mtu.follow(view('vxlan'), ALL);
    await until(() => expect(reported).toEqual([1450]));
    expect(mtu.mtuBytes).toBe(1450);
    mtu.follow(view('none'), ALL);
    await until(() => expect(reported).toEqual([1450, 1500]));
    expect(lines).toEqual(['1500 by eth0', '1450 by eth0', '1500 by eth0']);
    await mtu.stop();
  });

  test('is reported once, however often it is detected', async () => {
    const { mtu, links, reported } = await start();
    mtu.follow(view('vxlan'), ALL);
    await until(() => expect(reported).toEqual([1450]));
    const { lists } = links;
    links.put({ name: 'eth0', mtuBytes: 1500, up: true });
    await until(() => expect(links.lists).toBe(lists + 1));
    await mtu.stop();
    expect(reported).toEqual([1450]);
  });

  test('follows the interfaces: changed, added, set down, removed', async () => {
    const { mtu, links, reported } = await start();
    mtu.follow(view('vxlan'), ALL);
    const changes = [
      [() => links.put({ name: 'eth0', mtuBytes: 9000, up: true }), 8950],
      [() => links.put({ name: 'eth1', mtuBytes: 1400, up: true }), 1350],
      [() => links.put({ name: 'eth1', mtuBytes: 1400, up: false }), 8950],
      [() => links.remove('eth0'), 1450],
    ] as const;
    for (const [change, expected] of changes) {
      change();
      await until(() => expect(reported.at(-1)).toBe(expected));
      expect(mtu.mtuBytes).toBe(expected);
    }
    await mtu.stop();
  });

  test('is reported at once to a listener that is added later', async () => {
    const { mtu, reported } = await start();
    mtu.follow(view('ipip'), ALL);
    await until(() => expect(reported).toEqual([1480]));
    const late: number[] = [];
    mtu.onChange((bytes) => late.push(bytes));
    expect(late).toEqual([1480]);
    await mtu.stop();
  });

  test('is not detected again for pods’ interfaces and for blocks', async () => {
    const { mtu, links, reported } = await start();
    mtu.follow(view('none'), ALL);
    await until(() => expect(reported).toEqual([1500]));
    const { lists } = links;
    for (let pod = 0; pod < 100; pod++) links.put({ name: `podw${pod}`, mtuBytes: 1500, up: true });
    mtu.follow(view('none', 'vxlan'), BLOCKS);
    await mtu.stop();
    expect(links.lists).toBe(lists);
  });

  test('is detected once for many simultaneous changes', async () => {
    const { mtu, links } = await start();
    const { lists } = links;
    for (let bytes = 1400; bytes < 1500; bytes++) links.put({ name: 'eth0', mtuBytes: bytes, up: true });
    await until(() => expect(mtu.mtuBytes).toBe(1499));
    expect(links.lists - lists).toBeLessThanOrEqual(2);
    await mtu.stop();
  });
});

describe('a change without a notification', () => {
  test('is read when notifications were lost', async () => {
    const { mtu, links } = await start();
    const { lists } = links;
    links.overrun();
    await until(() => expect(links.lists).toBe(lists + 1));
    await mtu.stop();
  });

  test('is found soon after the watch ended, which is reopened with a growing back-off', async () => {
    const { mtu, links, clock } = await start();
    links.endWatches();
    links.put({ name: 'eth0', mtuBytes: 1300, up: true });
    expect([links.watches, mtu.mtuBytes]).toEqual([0, 1500]);
    await until(() => expect(clock.nextMs).toBe(250));
    clock.advance(250);
    await until(() => expect(mtu.mtuBytes).toBe(1300));
    expect(links.watches).toBe(1);
    for (const pauseMs of [500, 1000, 2000]) {
      await until(() => expect(clock.nextMs).toBe(LINK_CHECK_INTERVAL_MS));
      links.endWatches();
      await until(() => expect(clock.nextMs).toBe(pauseMs));
      clock.advance(pauseMs);
      await until(() => expect(links.watches).toBe(1));
    }
    await until(() => expect(clock.nextMs).toBe(LINK_CHECK_INTERVAL_MS));
    clock.advance(60_000);
    links.endWatches();
    await until(() => expect(clock.nextMs).toBe(250));
    await mtu.stop();
    expect([links.watches, clock.sleeping]).toEqual([0, 0]);
  });

  test('is found soon when the watch ended right after it opened', async () => {
    const links = new MemoryLinks();
    const watch = links.watch.bind(links);
    links.watch = async (listener) => {
      const opened = await watch(listener);
      links.watch = watch;
      links.endWatches();
      return opened;
    };
    const { mtu, clock } = await start(0, links);
    expect(links.watches).toBe(0);
    await until(() => expect(clock.nextMs).toBe(250));
    clock.advance(250);
    await until(() => expect(links.watches).toBe(1));
    await mtu.stop();
  });

  test('leaves the MTU unchanged while the kernel cannot be read, which is logged once', async () => {
    const { mtu, links, clock, lines } = await start();
    for (let times = 0; times < 2; times++) {
      links.failNext(new Failure('KERNEL_REFUSED', 'no answer'));
      const { unusedFaults } = links;
      await until(() => expect(clock.sleeping).toBe(1));
      clock.advance(LINK_CHECK_INTERVAL_MS);
      await until(() => expect(links.unusedFaults).toBe(unusedFaults - 1));
    }
    links.put({ name: 'eth0', mtuBytes: 1200, up: true });
    await until(() => expect(mtu.mtuBytes).toBe(1200));
    expect(lines).toEqual(['1500 by eth0', 'no answer', '1200 by eth0']);
    await mtu.stop();
  });

  test('since the start is retried', async () => {
    const links = new MemoryLinks();
    links.failNext(new Failure('KERNEL_REFUSED', 'no answer'));
    const { mtu, clock } = await start(0, links);
    expect(mtu.mtuBytes).toBe(1500);
    expect(mtu.conditions()).toMatchObject([{ reason: 'MtuUnknown', message: expect.stringContaining('no answer') }]);
    links.put({ name: 'eth0', mtuBytes: 1200, up: true });
    clock.advance(LINK_CHECK_INTERVAL_MS);
    await until(() => expect(mtu.mtuBytes).toBe(1200));
    expect(mtu.conditions()).toEqual([]);
    await mtu.stop();
  });
});

test('a configured MTU is reported at once, and neither pools nor interfaces change it', async () => {
  const { mtu, links, lines, reported } = await start(8000);
  mtu.follow(view('vxlan'), ALL);
  links.put({ name: 'eth0', mtuBytes: 1200, up: true });
  await mtu.stop();
  expect([mtu.mtuBytes, lines, reported, links.lists, links.watches]).toEqual([8000, ['8000 set'], [8000], 0, 0]);
});

const PATTERNS = ['en*', 'eth*'];

function pool(cidr: string, encapsulation: Encapsulation, loadBalancerOnly = false): ClusterPool {
  const parsed = parsePrefix(cidr);
  if (!parsed.ok) throw new Error(parsed.fault);
  return { name: cidr, cidr: parsed.prefix, encapsulation, natOutgoing: false, loadBalancerOnly };
}

const link = (name: string, mtuBytes: number, state: 'up' | 'down' = 'up') => ({ name, mtuBytes, up: state === 'up' });

const ETH0 = [link('eth0', 1500)];

describe('the MTU of pods', () => {
  test.each<readonly [string, readonly ClusterPool[], number]>([
    ['no pools', [], 1500],
    ['no encapsulation', [pool('10.0.0.0/16', 'none')], 1500],
    ['VXLAN', [pool('10.0.0.0/16', 'vxlan')], 1450],
    ['VXLAN between subnets', [pool('10.0.0.0/16', 'vxlan-cross-subnet')], 1450],
    ['VXLAN over IPv6', [pool('fd00::/48', 'vxlan')], 1430],
    ['IPIP', [pool('10.0.0.0/16', 'ipip')], 1480],
    ['IPIP between subnets', [pool('10.0.0.0/16', 'ipip-cross-subnet')], 1480],
    ['IPIP for IPv6, which there is not', [pool('fd00::/48', 'ipip')], 1500],
    ['load balancers alone', [pool('10.0.0.0/16', 'vxlan', true)], 1500],
    [
      'the largest of several',
      [pool('10.1.0.0/16', 'none'), pool('fd00::/48', 'vxlan'), pool('10.0.0.0/16', 'ipip')],
      1430,
    ],
  ])('with %s on Ethernet', (_, pools, mtuBytes) => {
    expect(detectMtu(ETH0, PATTERNS, maxOverheadBytes(pools)).mtuBytes).toBe(mtuBytes);
  });

  // Calico's felix/fv/mtu_test.go, except for the default when no interface matches.
  test.each<readonly [string, ReturnType<typeof link>[], number, string | undefined]>([
    ['a small interface', [link('eth0', 1362)], 1312, 'eth0'],
    ['a smaller one that is down', [link('eth0', 1500), link('eth1', 1350, 'down')], 1450, 'eth0'],
    ['a smaller one that is up', [link('eth0', 1500), link('eth1', 1350)], 1300, 'eth1'],
    ['one of another name', [link('eth0', 1500), link('docker0', 576)], 1450, 'eth0'],
    ['none that fits', [link('bond0', 9000), link('lo', 65_536)], 1450, undefined],
    ['none', [], 1450, undefined],
    ['one that is too small for any tunnel', [link('eth0', 100)], 68, 'eth0'],
  ])('with VXLAN and %s', (_, links, mtuBytes, interfaceName) => {
    expect(detectMtu(links, PATTERNS, 50)).toEqual({ mtuBytes, interfaceName, overheadBytes: 50 });
  });
});

test.each<readonly [string, readonly number[], number | undefined]>([
  ['none of them', [], undefined],
  ['one', [1450], 1450],
  ['some of which one was changed by hand', [1450, 1290, 1450], 1450],
  ['two that differ', [1450, 1400], 1400],
])('the most frequent MTU of %s', (_, mtus, expected) => {
  const wires = mtus.map((mtuBytes, at) => link(`podw${at}`, mtuBytes));
  const names = new Set(['gone', ...wires.map(({ name }) => name)]);
  expect(mostFrequentMtuBytes([...ETH0, ...wires, link('podwother', 1280)], names)).toBe(expected);
});

test.each([
  ['eth0', ['eth*'], true],
  ['eth', ['eth*'], true],
  ['eth0', ['eth0'], true],
  ['eth01', ['eth0'], false],
  ['wlan0', ['eth*'], false],
  ['bond0', ['*'], true],
  ['lo', ['*', 'lo'], false],
  ['podw0123', ['*', 'podw*'], false],
  ['vxlan4.podwire', ['*'], false],
  ['vxlan6.podwire', ['*'], false],
  ['ipip.podwire', ['*'], false],
  ['eth0', [], false],
])('%s with %j: %s', (name, patterns, expected) => {
  expect(isNodeInterface(name, patterns)).toBe(expected);
});
