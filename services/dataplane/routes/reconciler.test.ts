import { afterEach, describe, expect, test } from 'vitest';

import { blackhole, unicast, vxlan } from '../testing/kernels.js';
import { differences } from '../testing/routes-oracle.js';
import { routesOf, ReconcilerFixture } from '../testing/routes.js';
import type { WantedNode } from './wanted.js';

const device = vxlan.name;
const far = unicast('10.65.1.0/26', '10.65.1.1');
const near = unicast('10.65.2.0/26', '10.0.0.2', 'up0');
const far6 = unicast('fd65:1::/122', 'fd00::2', 'up0');

const WANTED: WantedNode = {
  tunnels: [vxlan],
  routes: routesOf(far, near, far6, blackhole('10.65.0.0/26'), unicast('10.65.9.9/32', undefined)),
  peers: [{ device, tunnelAddress: '10.65.1.1', mac: '66:00:00:00:00:02', nodeAddress: '10.0.0.2' }],
  sysctls: [{ key: ['net', 'ipv4', 'ip_forward'], value: '1' }],
  conditions: [],
};

let fixture: ReconcilerFixture;

afterEach(async () => {
  await fixture.loop.reconciler.stop();
  expect(fixture.kernel.unusedFaults).toBe(0);
});

/** A fixture in which everything is as wanted. */
async function reached(wanted = WANTED): Promise<ReconcilerFixture> {
  fixture = new ReconcilerFixture();
  await fixture.setWanted(wanted);
  expect(await differences(fixture.kernel, wanted)).toEqual([]);
  return fixture;
}

const left = () => differences(fixture.kernel, fixture.loop.planner.wanted);
const reasons = () => fixture.loop.reconciler.status().conditions.map(({ reason }) => reason);

describe('the first time', () => {
  test('nothing is read or changed before a first view', async () => {
    fixture = new ReconcilerFixture();
    await fixture.advance(200_000);
    expect([fixture.kernel.observations, fixture.kernel.commands]).toEqual([0, []]);
    expect(fixture.loop.reconciler.status()).toMatchObject({ state: 'waiting', wanted: undefined });
  });

  test('everything is applied, in an order that the kernel accepts', async () => {
    await reached();
    expect(fixture.kernel.commands).toEqual([
      'ip link add vxlan4.podwire mtu 1450 address 66:00:00:00:00:01 type vxlan id 4096 dstport 4789 local 10.0.0.1 dev up0 nolearning',
      'ip link set vxlan4.podwire up',
      'ip address add 10.65.0.1/32 dev vxlan4.podwire',
      'bridge fdb replace 66:00:00:00:00:02 dev vxlan4.podwire dst 10.0.0.2 self permanent',
      'ip neighbour replace 10.65.1.1 dev vxlan4.podwire lladdr 66:00:00:00:00:02 nud permanent',
      'sysctl -w net.ipv4.ip_forward=1',
      'ip route add 10.65.1.0/26 via 10.65.1.1 dev vxlan4.podwire proto 87 onlink',
      'ip route add 10.65.2.0/26 via 10.0.0.2 dev up0 proto 87 onlink',
      'ip route add fd65:1::/122 via fd00::2 dev up0 proto 87 onlink',
      'ip route add blackhole 10.65.0.0/26 proto 87',
      'ip route add 10.65.9.9/32 dev vxlan4.podwire proto 87',
    ]);
    expect(fixture.loop.reconciler.status()).toMatchObject({
      state: 'as-wanted',
      wanted: { tunnels: 1, peers: 1, routes: 5 },
      present: { tunnels: 1, peers: 1, routes: 5 },
      conditions: [],
      driftCount: 0,
    });
    expect(fixture.loop.lines()).toEqual([]);
  });
});

describe('applying', () => {
  test('the same again changes nothing, also in a full check and after a restart', async () => {
    await reached();
    const { observations } = fixture.kernel;
    expect(await fixture.commandsDuring(() => fixture.setWanted(WANTED))).toEqual([]);
    expect(
      await fixture.commandsDuring(() => fixture.setWanted({ ...WANTED, routes: new Map(WANTED.routes) })),
    ).toEqual([]);
    expect(fixture.kernel.observations).toBe(observations);
    expect(await fixture.commandsDuring(() => fixture.advance(300_000))).toEqual([]);
    expect(fixture.kernel.observations).toBeGreaterThan(observations + 2);
    await fixture.loop.reconciler.stop();
    fixture.start();
    expect(await fixture.commandsDuring(() => fixture.setWanted(WANTED))).toEqual([]);
    expect(fixture.loop.reconciler.status()).toMatchObject({ state: 'as-wanted', driftCount: 0 });
  });

  test.each<[string, WantedNode['routes'], string]>([
    [
      'an added one',
      new Map([...WANTED.routes, ...routesOf(blackhole('10.65.5.0/26'))]),
      'ip route add blackhole 10.65.5.0/26 proto 87',
    ],
    [
      'a changed one',
      new Map([...WANTED.routes, ...routesOf({ ...far, gateway: '10.65.1.2' })]),
      'ip route replace 10.65.1.0/26 via 10.65.1.2 dev vxlan4.podwire proto 87 onlink',
    ],
    [
      'a removed one',
      new Map([...WANTED.routes].slice(1)),
      'ip route delete 10.65.1.0/26 via 10.65.1.1 dev vxlan4.podwire proto 87 onlink',
    ],
  ])('a block alone costs one message and no reading: %s', async (_, routes, command) => {
    await reached();
    const { observations } = fixture.kernel;
    expect(await fixture.commandsDuring(() => fixture.setWanted({ ...WANTED, routes }))).toEqual([command]);
    expect(fixture.kernel.observations).toBe(observations);
    expect(await left()).toEqual([]);
  });

  test.each<[string, Partial<typeof vxlan>, readonly string[]]>([
    ['MTU', { mtuBytes: 1400 }, ['ip link set vxlan4.podwire mtu 1400']],
    [
      'MAC address, with the neighbours that it removes',
      { mac: '66:00:00:00:00:0b' },
      [
        'ip link set vxlan4.podwire address 66:00:00:00:00:0b',
        'ip neighbour replace 10.65.1.1 dev vxlan4.podwire lladdr 66:00:00:00:00:02 nud permanent',
      ],
    ],
    [
      'tunnel address',
      { address: '10.65.0.2/32' },
      ['ip address add 10.65.0.2/32 dev vxlan4.podwire', 'ip address delete 10.65.0.1/32 dev vxlan4.podwire'],
    ],
  ])('a device is changed in place: %s', async (_, change, commands) => {
    await reached();
    const wanted = { ...WANTED, tunnels: [{ ...vxlan, ...change }] };
    expect(await fixture.commandsDuring(() => fixture.setWanted(wanted))).toEqual(commands);
    expect(await left()).toEqual([]);
    expect(fixture.loop.reconciler.status().driftCount).toBe(0);
  });

  test.each<[string, Partial<typeof vxlan>]>([
    ['VNI', { vni: 5 }],
    ['port', { port: 8472 }],
    ['local', { local: '10.0.0.3' }],
    ['parent', { parent: undefined }],
  ])('a device is recreated, with everything on it: %s', async (_, change) => {
    await reached();
    const wanted = { ...WANTED, tunnels: [{ ...vxlan, ...change }] };
    const commands = await fixture.commandsDuring(() => fixture.setWanted(wanted));
    expect(commands[0]).toBe('ip link delete vxlan4.podwire');
    expect(commands).toHaveLength(8);
    expect(await left()).toEqual([]);
    expect(fixture.loop.reconciler.status().driftCount).toBe(0);
  });

  test.each(['remote 10.0.0.9 nolearning', 'learning'])(
    'a device that was created with %s is recreated',
    async (how) => {
      fixture = new ReconcilerFixture();
      fixture.runCommand(
        `ip link add vxlan4.podwire mtu 1450 address ${vxlan.mac} type vxlan id 4096 dstport 4789 local 10.0.0.1 dev up0 ${how}`,
      );
      await fixture.setWanted(WANTED);
      expect(fixture.kernel.commands[0]).toBe('ip link delete vxlan4.podwire');
      expect(await left()).toEqual([]);
    },
  );

  test('a peer that moves or is removed costs only its own messages', async () => {
    await reached();
    const [peer] = WANTED.peers;
    const moved = { ...WANTED, peers: [{ ...peer!, nodeAddress: '10.0.0.3' }] };
    const entry = '66:00:00:00:00:02 dev vxlan4.podwire dst';
    expect(await fixture.commandsDuring(() => fixture.setWanted(moved))).toEqual([
      `bridge fdb replace ${entry} 10.0.0.3 self permanent`,
      // The kernel's replacement has removed the entry already, unless another one existed beside it.
      `bridge fdb delete ${entry} 10.0.0.2 self # ENOENT`,
    ]);
    expect(await left()).toEqual([]);
    expect(await fixture.commandsDuring(() => fixture.setWanted({ ...WANTED, peers: [] }))).toEqual([
      'ip neighbour delete 10.65.1.1 dev vxlan4.podwire',
      `bridge fdb delete ${entry} 10.0.0.3 self`,
    ]);
    expect(await left()).toEqual([]);
    expect([fixture.loop.reconciler.status().driftCount, fixture.loop.lines()]).toEqual([0, []]);
  });

  test('of several waiting views the last one is applied', async () => {
    await reached();
    for (const last of [3, 4, 5])
      fixture.loop.setWanted({ ...WANTED, routes: routesOf(blackhole(`10.65.${last}.0/26`)) });
    await fixture.waitUntilIdle();
    expect(await left()).toEqual([]);
    expect(fixture.kernel.commands.some((command) => command.includes('10.65.3.0'))).toBe(false);
  });
});

describe('foreign objects', () => {
  test('a foreign route that replaces one of Podwire’s is kept', async () => {
    await reached();
    fixture.runCommand('ip route replace 10.65.2.0/26 via 10.0.0.9 dev up0 proto 4');
    await fixture.waitUntilIdle();
    expect(reasons()).toEqual(['RouteTaken']);
    expect(await fixture.commandsDuring(() => fixture.advance(200_000))).toEqual([]);
    expect(reasons()).toEqual(['RouteTaken']);
    // The wanted route changes meanwhile: the foreign one still stays.
    await fixture.setWanted({
      ...WANTED,
      routes: new Map([...WANTED.routes, ...routesOf({ ...near, gateway: '10.0.0.3' })]),
    });
    expect(fixture.kernel.node.routes.find(({ destination }) => destination === '10.65.2.0/26')).toMatchObject({
      protocol: 4,
    });
  });

  test('a foreign route beside one that changes is not replaced', async () => {
    await reached();
    fixture.kernel.node.routes.unshift({ ...near, gateway: '10.0.0.9', protocol: 4, metric: 0 });
    fixture.loop.reconciler.check();
    await fixture.waitUntilIdle();
    await fixture.setWanted({
      ...WANTED,
      routes: new Map([...WANTED.routes, ...routesOf({ ...near, gateway: '10.0.0.3' })]),
    });
    const there = fixture.kernel.node.routes.filter(({ destination }) => destination === '10.65.2.0/26');
    expect(there).toMatchObject([{ protocol: 4, gateway: '10.0.0.9' }]);
    expect(reasons()).toEqual(['RouteTaken']);
  });

  test('a pod’s route in the place of one to another node is kept', async () => {
    fixture = new ReconcilerFixture();
    fixture.runCommand('ip route add 10.65.9.9/32 dev up0 proto 87 scope link');
    await fixture.setWanted(WANTED);
    expect(fixture.loop.reconciler.status().conditions).toMatchObject([
      { message: expect.stringMatching(/to a pod of this node/) },
    ]);
    fixture.runCommand('ip route delete 10.65.9.9/32 proto 87');
    await fixture.waitUntilIdle();
    expect(await left()).toEqual([]);
    expect(fixture.pods).toContain('up0');
  });

  test('a device of another kind under a name of Podwire’s is reported, not deleted', async () => {
    fixture = new ReconcilerFixture();
    fixture.runCommand('ip link add vxlan4.podwire type bridge');
    await fixture.setWanted(WANTED);
    expect(reasons()).toContain('DeviceTaken');
    expect(fixture.kernel.node.find(device).kind).toBe('bridge');
    fixture.runCommand('ip link delete vxlan4.podwire');
    await fixture.waitUntilIdle();
    expect(await left()).toEqual([]);
  });
});
