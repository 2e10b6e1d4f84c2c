import { afterEach, describe, expect, test } from 'vitest';

import { blackhole, unicast, vxlan } from '../testing/kernels.js';
import { differences } from '../testing/routes-oracle.js';
import { routesOf, Scene, VIEW } from '../testing/routes.js';
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

let scene: Scene;

afterEach(async () => {
  await scene.loop.reconciler.stop();
  expect(scene.kernel.unusedFaults).toBe(0);
});

async function reached(): Promise<void> {
  scene = new Scene();
  await scene.want(WANTED);
  expect(await left()).toEqual([]);
}

const left = () => differences(scene.kernel, scene.loop.planner.wanted);
const status = () => scene.loop.reconciler.status();

/** By hand, what it costs to put it right, and how often it has to be looked for that. */
const MEDDLINGS: readonly (readonly [string, readonly string[], number])[] = [
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

describe('what is changed by hand', () => {
  test.each(MEDDLINGS)('%s', async (command, repairs, observations) => {
    await reached();
    const before = scene.kernel.observations;
    const commands = await scene.commandsDuring(async () => {
      scene.byHand(command);
      await scene.calm();
    });
    expect(commands).toEqual(repairs);
    expect(await left()).toEqual([]);
    expect(status()).toMatchObject({ state: 'as-wanted', conditions: [] });
    expect(status().driftCount).toBeGreaterThan(0);
    expect(scene.loop.lines()).toEqual([expect.stringMatching(/^others changed the node’s kernel/)]);
    // The one that the comparison just above made is the last.
    expect(scene.kernel.observations - before).toBe(observations + 1);
  });

  test.each(MEDDLINGS)('unheard, it is put right by the next full check: %s', async (command) => {
    await reached();
    scene.kernel.hold();
    scene.byHand(command);
    await scene.calm();
    expect(await left()).not.toEqual([]);
    await scene.pass(100_000);
    expect(await left()).toEqual([]);
    expect(status().driftCount).toBeGreaterThan(0);
  });

  test.each(MEDDLINGS)('lost in an overrun, at once: %s', async (command) => {
    await reached();
    scene.kernel.hold();
    scene.byHand(command);
    scene.kernel.release({ asOverrun: true });
    await scene.calm();
    expect(await left()).toEqual([]);
  });

  test('a sysctl is put right by the next full check', async () => {
    await reached();
    scene.byHand('sysctl -w net.ipv4.ip_forward=0');
    expect(await scene.commandsDuring(() => scene.pass(100_000))).toEqual(['sysctl -w net.ipv4.ip_forward=1']);
    expect(status().driftCount).toBe(1);
  });

  test('what somebody keeps undoing is put right less and less often', async () => {
    await reached();
    let repairs = 0;
    for (let round = 0; round < 200; round++) {
      if ((await left()).length === 0) {
        scene.byHand('ip route delete 10.65.1.0/26');
        repairs++;
      }
      await scene.pass(50);
    }
    expect(repairs).toBeGreaterThan(5);
    expect(repairs).toBeLessThan(20);
    await scene.pass(100_000);
    expect(await left()).toEqual([]);
  });

  test('made and undone again before it is looked at, it is nothing', async () => {
    await reached();
    const commands = await scene.commandsDuring(async () => {
      scene.byHand('ip route delete 10.65.1.0/26');
      scene.byHand('ip route add 10.65.1.0/26 via 10.65.1.1 dev vxlan4.podwire proto 87 onlink');
      await scene.calm();
    });
    expect([commands, status().driftCount]).toEqual([[], 0]);
  });
});

describe('the parent interface', () => {
  test('goes down: its routes wait, told once; up again, they come back', async () => {
    await reached();
    const commands = await scene.commandsDuring(async () => {
      scene.byHand('ip link set up0 down');
      await scene.pass(200_000);
    });
    expect(commands).toEqual([]);
    expect(status()).toMatchObject({
      conditions: [{ message: 'interface up0 is down: 2 routes and vxlan4.podwire wait for it' }],
    });
    scene.byHand('ip link set up0 up');
    await scene.calm();
    expect(await left()).toEqual([]);
    expect(status().conditions).toEqual([]);
    expect(scene.loop.lines()).toEqual([
      'interface up0 is down: 2 routes and vxlan4.podwire wait for it',
      'DeviceUnavailable is over',
    ]);
  });

  test('vanishes with the tunnel, and comes back', async () => {
    await reached();
    scene.byHand('ip link delete up0');
    await scene.pass(200_000);
    expect(scene.kernel.node.devices).toEqual([]);
    for (const command of ['ip link add up0 type bridge', 'ip link set up0 up', 'ip address add 10.0.0.1/24 dev up0']) {
      scene.byHand(command);
    }
    await scene.calm();
    expect(await left()).toEqual([]);
  });

  test('loses its last address: its routes vanish without a word, and come back', async () => {
    await reached();
    scene.byHand('ip address delete 10.0.0.1/24 dev up0');
    scene.byHand('ip address add 10.0.0.1/24 dev up0');
    await scene.calm();
    scene.byHand('ip address add 10.0.0.8/24 dev up0');
    scene.byHand('ip address delete 10.0.0.8/24 dev up0');
    await scene.calm();
    await scene.pass(100_000);
    expect(await left()).toEqual([]);
  });

  test('is followed by facts: its name, its MTU, and what others route', async () => {
    await reached();
    const facts = () => scene.loop.planner.facts;
    expect(facts()).toMatchObject({
      parents: { 4: 'up0', 6: undefined },
      mtuBytes: 1500,
      hasVxlan: true,
      hasIpip: true,
      routed: [],
    });
    scene.byHand('ip link set up0 mtu 1400');
    await scene.calm();
    expect(facts()).toMatchObject({ mtuBytes: 1400 });
    scene.byHand('ip route add 10.99.0.0/16 via 10.0.0.9 dev up0 proto 4');
    await scene.calm();
    scene.byHand('ip route add 0.0.0.0/0 via 10.0.0.9 dev up0 proto 4');
    await scene.calm();
    expect(facts()?.routed).toEqual([{ family: 4, value: 0n, length: 0 }]);
    scene.byHand('ip route delete 0.0.0.0/0');
    await scene.calm();
    expect(facts()?.routed).toEqual([{ family: 4, value: 0x0a63_0000n, length: 16 }]);
    scene.byHand('ip link add up1 type bridge');
    scene.byHand('ip address delete 10.0.0.1/24 dev up0');
    scene.byHand('ip address add 10.0.0.1/24 dev up1');
    await scene.calm();
    expect(facts()).toMatchObject({ parents: { 4: 'up1' }, mtuBytes: 1500 });
  });

  test('the tunnel’s MTU follows its interface’s', async () => {
    scene = new Scene({ planner: new RoutePlanner() });
    const pool = {
      name: 'pool',
      cidr: { family: 4, value: 0x0a41_0000n, length: 16 },
      encapsulation: 'vxlan',
      natOutgoing: false,
      loadBalancerOnly: false,
    } as const;
    const view = { ...VIEW, cluster: { ...VIEW.cluster, pools: new Map([[pool.name, pool]]) } };
    scene.loop.reconciler.follow(view, { blocks: 'all', others: true });
    await scene.calm();
    const mtu = () => scene.kernel.node.find(device).mtuBytes;
    expect(mtu()).toBe(1450);
    for (const [parent, tunnel] of [
      [1400, 1350],
      [9000, 8950],
    ]) {
      scene.byHand(`ip link set up0 mtu ${parent}`);
      await scene.calm();
      expect(mtu()).toBe(tunnel);
    }
    scene.loop.reconciler.follow(view, NO_CHANGE);
  });
});

describe('trouble', () => {
  test('a step that is refused stops no other, is told once, and is tried again', async () => {
    scene = new Scene();
    scene.kernel.failNext('route-add', { errno: 'ENOMEM', after: 1 });
    await scene.want(WANTED);
    expect(await left()).toHaveLength(1);
    expect(status()).toMatchObject({ state: 'reconciling', present: { routes: 3 } });
    expect(status().conditions).toMatchObject([{ reason: 'KernelRefuses' }]);
    await scene.pass(1000);
    expect(await left()).toEqual([]);
    expect(status()).toMatchObject({ state: 'as-wanted', conditions: [] });
    expect(scene.loop.lines()).toEqual([expect.stringMatching(/^ip route add .*ENOMEM/), 'KernelRefuses is over']);
  });

  test('a route of others that leads to an IPv6 tunnel’s far ends is named, and the way is free once it is gone', async () => {
    scene = new Scene();
    scene.byHand('ip route add fd65::/48 via fd00::9 dev up0 proto 4');
    const tunnel = { ...vxlan, name: 'vxlan6.podwire', local: 'fd00::1', mtuBytes: 1430, address: 'fd65:0:0:1::1/128' };
    const into = unicast('fd65:0:0:2::/122', 'fd65:0:0:2::1', tunnel.name);
    await scene.want({ ...WANTED, tunnels: [tunnel], routes: routesOf(into), peers: [] });
    const message = expect.stringMatching(/fd65::\/48 .* fd65:0:0:2::\/122 by vxlan6\.podwire/);
    expect(status().conditions).toContainEqual({ reason: 'TunnelGatewayCovered', message });
    scene.byHand('ip route delete fd65::/48');
    await scene.calm();
    await scene.pass(100_000);
    expect(await left()).toEqual([]);
    expect(status()).toMatchObject({ state: 'as-wanted', conditions: [] });
  });

  test('what is refused again and again is tried less and less often', async () => {
    scene = new Scene();
    for (let count = 0; count < 40; count++) scene.kernel.failNext('route-add', { errno: 'EPERM' });
    await scene.want({ ...WANTED, tunnels: [], peers: [], routes: routesOf(blackhole('10.65.0.0/26')) });
    await scene.pass(60_000);
    const tries = scene.kernel.commands.filter((command) => command.includes('EPERM')).length;
    expect(tries).toBeGreaterThan(3);
    expect(tries).toBeLessThan(12);
    await scene.pass(3_600_000);
    expect(await left()).toEqual([]);
    expect(scene.loop.lines()).toHaveLength(2);
  });

  test('a kernel that cannot be read is asked again, and is told once; what is there stays', async () => {
    await reached();
    const there = scene.kernel.node.print();
    for (let count = 0; count < 4; count++) scene.kernel.failNext('observe', { errno: 'ENOBUFS' });
    const commands = await scene.commandsDuring(() => scene.pass(200_000));
    expect([commands, scene.kernel.node.print()]).toEqual([[], there]);
    expect(scene.loop.lines()).toEqual([
      expect.stringMatching(/cannot be read/),
      expect.stringMatching(/can be read again/),
    ]);
  });

  test('a watch that breaks is opened again, and what happened meanwhile is found', async () => {
    await reached();
    scene.kernel.breakWatches();
    scene.byHand('ip route delete 10.65.1.0/26');
    await scene.pass(1000);
    expect(await left()).toEqual([]);
    expect(scene.kernel.watches).toBe(1);
    scene.byHand('ip route delete 10.65.1.0/26');
    await scene.calm();
    expect(await left()).toEqual([]);
  });

  test('a watch that breaks while steps are carried out is opened again at once', async () => {
    await reached();
    const apply = scene.kernel.apply.bind(scene.kernel);
    scene.kernel.apply = async (steps) => {
      scene.kernel.apply = apply;
      const outcomes = await apply(steps);
      scene.kernel.breakWatches();
      scene.byHand('ip route delete 10.65.1.0/26');
      return outcomes;
    };
    await scene.want({ ...WANTED, routes: new Map([...WANTED.routes, ...routesOf(blackhole('10.65.5.0/26'))]) });
    await scene.pass(2000);
    expect(await left()).toEqual([]);
    expect(scene.kernel.watches).toBe(1);
  });

  test('a storm of what does not matter costs no look', async () => {
    await reached();
    const { observations } = scene.kernel;
    for (let count = 0; count < 500; count++) {
      scene.byHand(`ip route add 172.16.${count % 250}.0/24 via 10.0.0.9 dev up0 proto 12 metric ${count}`);
    }
    await scene.calm();
    expect(scene.kernel.observations).toBe(observations);
    for (let count = 0; count < 30_000; count++) scene.byHand(`ip link set up0 mtu ${1400 + (count % 2)}`);
    await scene.calm();
    expect(scene.kernel.observations).toBeLessThan(observations + 4);
  });

  test('pods’ interfaces are passed on', async () => {
    await reached();
    scene.byHand('ip link add podw77 type bridge');
    await scene.calm();
    expect(scene.pods).toEqual(['podw77']);
  });

  test('stopping leaves everything as it is, and nothing is done after it', async () => {
    await reached();
    const there = scene.kernel.node.print();
    await scene.loop.reconciler.stop();
    scene.loop.reconciler.follow(VIEW, NO_CHANGE);
    scene.byHand('sysctl -w net.ipv4.ip_forward=1');
    scene.clock.advance(1_000_000);
    expect([scene.kernel.node.print(), scene.kernel.watches]).toEqual([there, 0]);
  });
});
