import { afterEach, describe, expect, test } from 'vitest';

import { blackhole, unicast, vxlan } from '../testing/kernels.js';
import { differences } from '../testing/routes-oracle.js';
import { routesOf, ReconcilerFixture, VIEW } from '../testing/routes.js';
import { NO_CHANGE, RoutePlanner } from './planner.js';
import type { WantedNode } from './wanted.js';

const device = vxlan.name;
const far = unicast('10.65.1.0/26', '10.65.1.1');

const WANTED: WantedNode = {
  tunnels: [vxlan],
  routes: routesOf(
    far,
    unicast('10.65.2.0/26', '10.0.0.2', 'up0'),
    unicast('fd65:1::/122', 'fd00::2', 'up0'),
    blackhole('10.65.0.0/26'),
  ),
  peers: [{ device, tunnelAddress: '10.65.1.1', mac: '66:00:00:00:00:02', nodeAddress: '10.0.0.2' }],
  sysctls: [{ key: ['net', 'ipv4', 'ip_forward'], value: '1' }],
  conditions: [],
};

let fixture: ReconcilerFixture;

afterEach(async () => {
  await fixture.loop.reconciler.stop();
  expect(fixture.kernel.unusedFaults).toBe(0);
});

async function reached(): Promise<void> {
  fixture = new ReconcilerFixture();
  await fixture.setWanted(WANTED);
  expect(await left()).toEqual([]);
}

const left = () => differences(fixture.kernel, fixture.loop.planner.wanted);
const status = () => fixture.loop.reconciler.status();

/** A command of another program, the repairs, and the number of readings. */
const FOREIGN_CHANGES: readonly (readonly [string, readonly string[], number])[] = [
  ['ip route delete 10.65.1.0/26', ['ip route add 10.65.1.0/26 via 10.65.1.1 dev vxlan4.podwire proto 87 onlink'], 0],
  ['ip route delete 10.65.0.0/26', ['ip route add blackhole 10.65.0.0/26 proto 87'], 0],
  ['ip route delete fd65:1::/122', ['ip route add fd65:1::/122 via fd00::2 dev up0 proto 87 onlink'], 0],
  [
    'ip route replace 10.65.1.0/26 via 10.65.1.9 dev vxlan4.podwire proto 87 onlink',
    ['ip route replace 10.65.1.0/26 via 10.65.1.1 dev vxlan4.podwire proto 87 onlink'],
    1,
  ],
  [
    'ip route add 10.65.44.0/26 via 10.0.0.9 dev up0 proto 87',
    ['ip route delete 10.65.44.0/26 via 10.0.0.9 dev up0 proto 87'],
    0,
  ],
  [
    'ip route add 10.65.1.0/26 via 10.0.0.9 dev up0 proto 87 metric 7',
    ['ip route delete 10.65.1.0/26 via 10.0.0.9 dev up0 proto 87'],
    1,
  ],
  [
    `ip neighbour delete 10.65.1.1 dev ${device}`,
    ['ip neighbour replace 10.65.1.1 dev vxlan4.podwire lladdr 66:00:00:00:00:02 nud permanent'],
    0,
  ],
  [
    `ip neighbour replace 10.65.1.1 dev ${device} lladdr 66:00:00:00:00:09 nud permanent`,
    ['ip neighbour replace 10.65.1.1 dev vxlan4.podwire lladdr 66:00:00:00:00:02 nud permanent'],
    0,
  ],
  [
    `ip neighbour replace 10.65.1.7 dev ${device} lladdr 66:00:00:00:00:09 nud permanent`,
    ['ip neighbour delete 10.65.1.7 dev vxlan4.podwire'],
    0,
  ],
  [
    `bridge fdb delete 66:00:00:00:00:02 dev ${device} dst 10.0.0.2`,
    ['bridge fdb replace 66:00:00:00:00:02 dev vxlan4.podwire dst 10.0.0.2 self permanent'],
    0,
  ],
  [
    `bridge fdb append 66:00:00:00:00:07 dev ${device} dst 10.0.0.7`,
    ['bridge fdb delete 66:00:00:00:00:07 dev vxlan4.podwire dst 10.0.0.7 self'],
    0,
  ],
  [
    `ip address delete 10.65.0.1/32 dev ${device}`,
    [
      'ip address add 10.65.0.1/32 dev vxlan4.podwire',
      'ip route add 10.65.1.0/26 via 10.65.1.1 dev vxlan4.podwire proto 87 onlink',
    ],
    1,
  ],
  [`ip address add 10.65.0.9/32 dev ${device}`, ['ip address delete 10.65.0.9/32 dev vxlan4.podwire'], 2],
  [`ip link set ${device} mtu 1300`, ['ip link set vxlan4.podwire mtu 1450'], 2],
  [
    `ip link set ${device} down`,
    [
      'ip link set vxlan4.podwire up',
      'ip neighbour replace 10.65.1.1 dev vxlan4.podwire lladdr 66:00:00:00:00:02 nud permanent',
      'ip route add 10.65.1.0/26 via 10.65.1.1 dev vxlan4.podwire proto 87 onlink',
    ],
    2,
  ],
  [
    `ip link delete ${device}`,
    [
      'ip link add vxlan4.podwire mtu 1450 address 66:00:00:00:00:01 type vxlan id 4096 dstport 4789 local 10.0.0.1 dev up0 nolearning',
      'ip link set vxlan4.podwire up',
      'ip address add 10.65.0.1/32 dev vxlan4.podwire',
      'bridge fdb replace 66:00:00:00:00:02 dev vxlan4.podwire dst 10.0.0.2 self permanent',
      'ip neighbour replace 10.65.1.1 dev vxlan4.podwire lladdr 66:00:00:00:00:02 nud permanent',
      'ip route add 10.65.1.0/26 via 10.65.1.1 dev vxlan4.podwire proto 87 onlink',
    ],
    2,
  ],
];

describe('changes by other programs', () => {
  test.each(FOREIGN_CHANGES)('%s', async (command, repairs, observations) => {
    await reached();
    const before = fixture.kernel.observations;
    const commands = await fixture.commandsDuring(async () => {
      fixture.runCommand(command);
      await fixture.waitUntilIdle();
    });
    expect(commands).toEqual(repairs);
    expect(await left()).toEqual([]);
    expect(status()).toMatchObject({ state: 'as-wanted', conditions: [] });
    expect(status().driftCount).toBeGreaterThan(0);
    expect(fixture.loop.lines()).toEqual([expect.stringMatching(/^another program changed the node’s kernel/)]);
    // The comparison above made the last reading.
    expect(fixture.kernel.observations - before).toBe(observations + 1);
  });

  test.each(FOREIGN_CHANGES)('without a notification, repaired by the next full check: %s', async (command) => {
    await reached();
    fixture.kernel.hold();
    fixture.runCommand(command);
    await fixture.waitUntilIdle();
    expect(await left()).not.toEqual([]);
    await fixture.advance(100_000);
    expect(await left()).toEqual([]);
    expect(status().driftCount).toBeGreaterThan(0);
  });

  test.each(FOREIGN_CHANGES)('lost in an overrun, repaired at once: %s', async (command) => {
    await reached();
    fixture.kernel.hold();
    fixture.runCommand(command);
    fixture.kernel.release({ asOverrun: true });
    await fixture.waitUntilIdle();
    expect(await left()).toEqual([]);
  });

  test('a sysctl is repaired by the next full check', async () => {
    await reached();
    fixture.runCommand('sysctl -w net.ipv4.ip_forward=0');
    expect(await fixture.commandsDuring(() => fixture.advance(100_000))).toEqual(['sysctl -w net.ipv4.ip_forward=1']);
    expect(status().driftCount).toBe(1);
  });

  test('repeated interference is repaired with a growing back-off', async () => {
    await reached();
    let repairs = 0;
    for (let round = 0; round < 200; round++) {
      if ((await left()).length === 0) {
        fixture.runCommand('ip route delete 10.65.1.0/26');
        repairs++;
      }
      await fixture.advance(50);
    }
    expect(repairs).toBeGreaterThan(5);
    expect(repairs).toBeLessThan(20);
    await fixture.advance(100_000);
    expect(await left()).toEqual([]);
  });

  test('a change that is reverted before it is processed has no effect', async () => {
    await reached();
    const commands = await fixture.commandsDuring(async () => {
      fixture.runCommand('ip route delete 10.65.1.0/26');
      fixture.runCommand('ip route add 10.65.1.0/26 via 10.65.1.1 dev vxlan4.podwire proto 87 onlink');
      await fixture.waitUntilIdle();
    });
    expect([commands, status().driftCount]).toEqual([[], 0]);
  });
});

describe('the parent interface', () => {
  test('goes down: its routes wait, which is logged once; up again, they are restored', async () => {
    await reached();
    const commands = await fixture.commandsDuring(async () => {
      fixture.runCommand('ip link set up0 down');
      await fixture.advance(200_000);
    });
    expect(commands).toEqual([]);
    expect(status()).toMatchObject({
      conditions: [{ message: 'interface up0 is down: 2 routes and vxlan4.podwire wait for it' }],
    });
    fixture.runCommand('ip link set up0 up');
    await fixture.waitUntilIdle();
    expect(await left()).toEqual([]);
    expect(status().conditions).toEqual([]);
    expect(fixture.loop.lines()).toEqual([
      'interface up0 is down: 2 routes and vxlan4.podwire wait for it',
      'condition resolved: DeviceUnavailable',
    ]);
  });

  test('vanishes with the tunnel, and is restored', async () => {
    await reached();
    fixture.runCommand('ip link delete up0');
    await fixture.advance(200_000);
    expect(fixture.kernel.node.devices).toEqual([]);
    for (const command of ['ip link add up0 type bridge', 'ip link set up0 up', 'ip address add 10.0.0.1/24 dev up0']) {
      fixture.runCommand(command);
    }
    await fixture.waitUntilIdle();
    expect(await left()).toEqual([]);
  });

  test('loses its last address: its routes vanish without a notification, and are restored', async () => {
    await reached();
    fixture.runCommand('ip address delete 10.0.0.1/24 dev up0');
    fixture.runCommand('ip address add 10.0.0.1/24 dev up0');
    await fixture.waitUntilIdle();
    fixture.runCommand('ip address add 10.0.0.8/24 dev up0');
    fixture.runCommand('ip address delete 10.0.0.8/24 dev up0');
    await fixture.waitUntilIdle();
    await fixture.advance(100_000);
    expect(await left()).toEqual([]);
  });

  test('determines the facts: its name, its MTU, and foreign routes', async () => {
    await reached();
    const facts = () => fixture.loop.planner.facts;
    expect(facts()).toMatchObject({
      parents: { 4: 'up0', 6: undefined },
      mtuBytes: 1500,
      hasVxlan: true,
      hasIpip: true,
      routed: [],
    });
    fixture.runCommand('ip link set up0 mtu 1400');
    await fixture.waitUntilIdle();
    expect(facts()).toMatchObject({ mtuBytes: 1400 });
    fixture.runCommand('ip route add 10.99.0.0/16 via 10.0.0.9 dev up0 proto 4');
    await fixture.waitUntilIdle();
    fixture.runCommand('ip route add 0.0.0.0/0 via 10.0.0.9 dev up0 proto 4');
    await fixture.waitUntilIdle();
    expect(facts()?.routed).toEqual([{ family: 4, value: 0n, length: 0 }]);
    fixture.runCommand('ip route delete 0.0.0.0/0');
    await fixture.waitUntilIdle();
    expect(facts()?.routed).toEqual([{ family: 4, value: 0x0a63_0000n, length: 16 }]);
    fixture.runCommand('ip link add up1 type bridge');
    fixture.runCommand('ip address delete 10.0.0.1/24 dev up0');
    fixture.runCommand('ip address add 10.0.0.1/24 dev up1');
    await fixture.waitUntilIdle();
    expect(facts()).toMatchObject({ parents: { 4: 'up1' }, mtuBytes: 1500 });
  });

  test('determines the tunnel’s MTU', async () => {
    fixture = new ReconcilerFixture({ planner: new RoutePlanner() });
    const pool = {
      name: 'pool',
      cidr: { family: 4, value: 0x0a41_0000n, length: 16 },
      encapsulation: 'vxlan',
      natOutgoing: false,
      loadBalancerOnly: false,
    } as const;
    const view = { ...VIEW, cluster: { ...VIEW.cluster, pools: new Map([[pool.name, pool]]) } };
    fixture.loop.reconciler.follow(view, { blocks: 'all', hasOtherChanges: true });
    await fixture.waitUntilIdle();
    const mtu = () => fixture.kernel.node.find(device).mtuBytes;
    expect(mtu()).toBe(1450);
    for (const [parent, tunnel] of [
      [1400, 1350],
      [9000, 8950],
    ]) {
      fixture.runCommand(`ip link set up0 mtu ${parent}`);
      await fixture.waitUntilIdle();
      expect(mtu()).toBe(tunnel);
    }
    fixture.loop.reconciler.follow(view, NO_CHANGE);
  });
});

describe('failures', () => {
  test('a refused step stops no other, is logged once, and is retried', async () => {
    fixture = new ReconcilerFixture();
    fixture.kernel.failNext('route-add', { errno: 'ENOMEM', after: 1 });
    await fixture.setWanted(WANTED);
    expect(await left()).toHaveLength(1);
    expect(status()).toMatchObject({ state: 'reconciling', present: { routes: 3 } });
    expect(status().conditions).toMatchObject([{ reason: 'KernelRefuses' }]);
    await fixture.advance(1000);
    expect(await left()).toEqual([]);
    expect(status()).toMatchObject({ state: 'as-wanted', conditions: [] });
    expect(fixture.loop.lines()).toEqual([
      expect.stringMatching(/^ip route add .*ENOMEM/),
      'condition resolved: KernelRefuses',
    ]);
  });

  test('a foreign route that covers an IPv6 tunnel’s peers is reported, and the routes are added once it is gone', async () => {
    fixture = new ReconcilerFixture();
    fixture.runCommand('ip route add fd65::/48 via fd00::9 dev up0 proto 4');
    const tunnel = { ...vxlan, name: 'vxlan6.podwire', local: 'fd00::1', mtuBytes: 1430, address: 'fd65:0:0:1::1/128' };
    const into = unicast('fd65:0:0:2::/122', 'fd65:0:0:2::1', tunnel.name);
    await fixture.setWanted({ ...WANTED, tunnels: [tunnel], routes: routesOf(into), peers: [] });
    const message = expect.stringMatching(/fd65:0:0:2::\/122 by vxlan6\.podwire: .* fd65::\/48 covers/);
    expect(status().conditions).toContainEqual({ reason: 'TunnelGatewayCovered', message });
    fixture.runCommand('ip route delete fd65::/48');
    await fixture.waitUntilIdle();
    await fixture.advance(100_000);
    expect(await left()).toEqual([]);
    expect(status()).toMatchObject({ state: 'as-wanted', conditions: [] });
  });

  test('repeatedly refused steps are retried with a growing back-off', async () => {
    fixture = new ReconcilerFixture();
    for (let count = 0; count < 40; count++) fixture.kernel.failNext('route-add', { errno: 'EPERM' });
    await fixture.setWanted({ ...WANTED, tunnels: [], peers: [], routes: routesOf(blackhole('10.65.0.0/26')) });
    await fixture.advance(60_000);
    const tries = fixture.kernel.commands.filter((command) => command.includes('EPERM')).length;
    expect(tries).toBeGreaterThan(3);
    expect(tries).toBeLessThan(12);
    await fixture.advance(3_600_000);
    expect(await left()).toEqual([]);
    expect(fixture.loop.lines()).toHaveLength(2);
  });

  test('an unreadable kernel is read again, and logged once; its state stays unchanged', async () => {
    await reached();
    const there = fixture.kernel.node.print();
    for (let count = 0; count < 4; count++) fixture.kernel.failNext('observe', { errno: 'ENOBUFS' });
    const commands = await fixture.commandsDuring(() => fixture.advance(200_000));
    expect([commands, fixture.kernel.node.print()]).toEqual([[], there]);
    expect(fixture.loop.lines()).toEqual([
      expect.stringMatching(/cannot be read/),
      expect.stringMatching(/is readable again/),
    ]);
  });

  test('a watch that fails is reopened, and changes meanwhile are found', async () => {
    await reached();
    fixture.kernel.breakWatches();
    fixture.runCommand('ip route delete 10.65.1.0/26');
    await fixture.advance(1000);
    expect(await left()).toEqual([]);
    expect(fixture.kernel.watches).toBe(1);
    fixture.runCommand('ip route delete 10.65.1.0/26');
    await fixture.waitUntilIdle();
    expect(await left()).toEqual([]);
  });

  test('a watch that fails while steps are applied is reopened at once', async () => {
    await reached();
    const apply = fixture.kernel.apply.bind(fixture.kernel);
    fixture.kernel.apply = async (steps) => {
      fixture.kernel.apply = apply;
      const outcomes = await apply(steps);
      fixture.kernel.breakWatches();
      fixture.runCommand('ip route delete 10.65.1.0/26');
      return outcomes;
    };
    await fixture.setWanted({ ...WANTED, routes: new Map([...WANTED.routes, ...routesOf(blackhole('10.65.5.0/26'))]) });
    await fixture.advance(2000);
    expect(await left()).toEqual([]);
    expect(fixture.kernel.watches).toBe(1);
  });

  test('a storm of irrelevant notifications causes no reading', async () => {
    await reached();
    const { observations } = fixture.kernel;
    for (let count = 0; count < 500; count++) {
      fixture.runCommand(`ip route add 172.16.${count % 250}.0/24 via 10.0.0.9 dev up0 proto 12 metric ${count}`);
    }
    await fixture.waitUntilIdle();
    expect(fixture.kernel.observations).toBe(observations);
    for (let count = 0; count < 30_000; count++) fixture.runCommand(`ip link set up0 mtu ${1400 + (count % 2)}`);
    await fixture.waitUntilIdle();
    expect(fixture.kernel.observations).toBeLessThan(observations + 4);
  });

  test('changes of pods’ interfaces are passed on', async () => {
    await reached();
    fixture.runCommand('ip link add podw77 type bridge');
    await fixture.waitUntilIdle();
    expect(fixture.pods).toEqual(['podw77']);
  });

  test('stopping leaves everything unchanged, and nothing is changed after it', async () => {
    await reached();
    const there = fixture.kernel.node.print();
    await fixture.loop.reconciler.stop();
    fixture.loop.reconciler.follow(VIEW, NO_CHANGE);
    fixture.runCommand('sysctl -w net.ipv4.ip_forward=1');
    fixture.clock.advance(1_000_000);
    expect([fixture.kernel.node.print(), fixture.kernel.watches]).toEqual([there, 0]);
  });
});
