import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import type { LinkSource, NodeLink } from '../../node/links.js';
import type { NodeKernel } from '../../routes/kernel.js';
import { isDefaultMetric, ownerOf, type NodeChange, type ObservedNode } from '../../routes/observed.js';
import { formatNodeStep, type NodeStep } from '../../routes/step.js';
import type { NodeRoute, WantedVxlan } from '../../routes/wanted.js';
import { blackhole, unicast, vxlan, type NodeKernelFixture } from '../kernels.js';

const vxlan6: WantedVxlan = {
  ...vxlan,
  name: 'vxlan6.podwire',
  local: 'fd00::1',
  mtuBytes: 1430,
  address: 'fd65::1/128',
};

const device = vxlan.name;
const peer = { device, mac: '66:00:00:00:00:02' };

const make = (tunnel: WantedVxlan): NodeStep[] => [
  { type: 'device-add', tunnel },
  { type: 'device-set', name: tunnel.name, changeSteps: { up: true } },
];

/** Tests of every implementation of {@link NodeKernel}. */
export function nodeKernelContract(setUp: () => Promise<NodeKernelFixture>): void {
  let fixture: NodeKernelFixture;
  let kernel: NodeKernel;

  beforeEach(async () => {
    fixture = await setUp();
    ({ kernel } = fixture);
    fixture.addParent('up0', '10.0.0.1/24', 'fd00::1/64');
  });

  afterEach(async () => {
    await fixture.destroy();
  });

  const see = (): Promise<ObservedNode> =>
    kernel.observe({ sysctls: [['net', 'ipv4', 'ip_forward']], isWanted: (text) => text.startsWith('10.65.') });

  /** The result of each step: `done`, or the errno. */
  async function outcomes(...steps: readonly NodeStep[]): Promise<string[]> {
    return (await kernel.apply(steps)).map((refusal) => refusal?.errno ?? 'done');
  }

  async function applied(...steps: readonly NodeStep[]): Promise<void> {
    const failed = (await outcomes(...steps)).flatMap((outcome, place) =>
      outcome === 'done' ? [] : `${formatNodeStep(steps[place]!)}: ${outcome}`,
    );
    expect(failed).toEqual([]);
  }

  async function own(): Promise<string[]> {
    const { routes } = await see();
    return routes
      .filter((route) => ownerOf(route) === 'node')
      .map((route) => formatNodeStep({ type: 'route-delete', route }).replace('ip route delete ', ''))
      .sort();
  }

  describe('tunnels', () => {
    test('a VXLAN device is created as wanted, and up', async () => {
      expect((await kernel.abilities()).hasVxlan).toBe(true);
      await applied(...make(vxlan), { type: 'address-add', device, address: '10.65.0.1/32' });
      const { devices, addresses } = await see();
      expect(devices.get(device)).toEqual({
        name: device,
        kind: 'vxlan',
        up: true,
        mac: vxlan.mac,
        mtuBytes: 1450,
        tunnel: {
          kind: 'vxlan',
          vni: 4096,
          port: 4789,
          local: '10.0.0.1',
          parent: 'up0',
          remote: undefined,
          isLearning: false,
          isExternal: false,
        },
      });
      expect(addresses.filter((entry) => entry.device === device)).toEqual([{ device, address: '10.65.0.1/32' }]);
    });

    test('over IPv6 beside one over IPv4', async () => {
      await applied(...make(vxlan), ...make(vxlan6), {
        type: 'address-add',
        device: vxlan6.name,
        address: 'fd65::1/128',
      });
      const { devices, addresses } = await see();
      expect(devices.get(vxlan6.name)).toMatchObject({ up: true, mtuBytes: 1430, tunnel: { local: 'fd00::1' } });
      expect(addresses).toContainEqual({ device: vxlan6.name, address: 'fd65::1/128' });
    });

    test('MTU and MAC address change in place', async () => {
      await applied(...make(vxlan));
      await applied({ type: 'device-set', name: device, changeSteps: { mtuBytes: 1400, mac: '66:00:00:00:00:09' } });
      expect((await see()).devices.get(device)).toMatchObject({ mtuBytes: 1400, mac: '66:00:00:00:00:09', up: true });
    });

    test('one is recreated with another VNI in one call', async () => {
      await applied(...make(vxlan));
      await applied({ type: 'device-delete', name: device }, ...make({ ...vxlan, vni: 5 }));
      expect((await see()).devices.get(device)).toMatchObject({ up: true, tunnel: { vni: 5 } });
    });

    test('an impossible step is refused, and later steps are applied', async () => {
      fixture.runCommand('ip link add other type vxlan id 4096 dstport 4789 local 10.0.0.1 dev up0 nolearning');
      const there: NodeStep = { type: 'device-add', tunnel: { ...vxlan, name: 'other', vni: 7 } };
      const missing: NodeStep = { type: 'device-add', tunnel: { ...vxlan, vni: 8, parent: 'nowhere' } };
      expect(
        await outcomes(
          { type: 'device-add', tunnel: vxlan },
          there,
          missing,
          { type: 'device-set', name: device, changeSteps: { up: true } },
          { type: 'device-delete', name: device },
          ...make({ ...vxlan, vni: 9 }),
        ),
      ).toEqual(['EEXIST', 'EEXIST', 'ENODEV', 'ENODEV', 'ENODEV', 'done', 'done']);
    });

    test('IPIP if the kernel supports it, otherwise a refusal', async () => {
      const tunnel = {
        kind: 'ipip',
        name: 'ipip.podwire',
        local: '10.0.0.1',
        mtuBytes: 1480,
        address: undefined,
      } as const;
      const [refusal] = await kernel.apply([{ type: 'device-add', tunnel }]);
      const { hasIpip } = await kernel.abilities();
      if (!hasIpip) {
        expect(refusal).toMatchObject({ errno: 'EOPNOTSUPP', failure: { code: 'KERNEL_UNSUPPORTED' } });
        return;
      }
      expect(refusal).toBeUndefined();
      expect((await see()).devices.get('ipip.podwire')?.tunnel).toEqual({
        kind: 'ipip',
        local: '10.0.0.1',
        remote: undefined,
      });
    });

    test('probing abilities creates nothing, and may be repeated', async () => {
      const before = [...(await see()).devices.keys()];
      expect(await kernel.abilities()).toEqual(await kernel.abilities());
      expect([...(await see()).devices.keys()]).toEqual(before);
    });
  });

  describe('peers', () => {
    const neighbour = { ...peer, address: '10.65.1.1' };
    const forwarding = { ...peer, nodeAddress: '10.0.0.2' };

    beforeEach(() => applied(...make(vxlan)));

    test('are set, set again, replaced and deleted', async () => {
      for (let count = 0; count < 2; count++) {
        await applied({ type: 'neighbour-set', ...neighbour }, { type: 'forwarding-set', ...forwarding });
      }
      expect(await see()).toMatchObject({ neighbours: [neighbour], forwarding: [forwarding] });
      const [moved, other] = [
        { ...forwarding, nodeAddress: '10.0.0.3' },
        { ...neighbour, mac: '66:00:00:00:00:03' },
      ];
      await applied({ type: 'forwarding-set', ...moved }, { type: 'neighbour-set', ...other });
      expect(await see()).toMatchObject({ neighbours: [other], forwarding: [moved] });
      await applied({ type: 'forwarding-delete', ...moved }, { type: 'neighbour-delete', ...other });
      expect(await see()).toMatchObject({ neighbours: [], forwarding: [] });
      expect(await outcomes({ type: 'forwarding-delete', ...moved }, { type: 'neighbour-delete', ...other })).toEqual([
        'ENOENT',
        'ENOENT',
      ]);
    });

    test('a device that goes down loses neighbours and routes, and keeps forwarding entries and IPv4 addresses', async () => {
      await applied(
        { type: 'address-add', device, address: '10.65.0.1/32' },
        { type: 'neighbour-set', ...neighbour },
        { type: 'forwarding-set', ...forwarding },
        { type: 'route-add', route: unicast('10.65.1.0/26', '10.65.1.1') },
      );
      fixture.runCommand(`ip link set ${device} down`);
      const { neighbours, forwarding: entries, addresses } = await see();
      expect({ neighbours, entries, own: await own() }).toEqual({ neighbours: [], entries: [forwarding], own: [] });
      expect(addresses).toContainEqual({ device, address: '10.65.0.1/32' });
    });

    test('a device that gets another MAC address loses its neighbours', async () => {
      await applied({ type: 'neighbour-set', ...neighbour });
      fixture.runCommand(`ip link set ${device} address 66:00:00:00:00:0a`);
      expect((await see()).neighbours).toEqual([]);
    });
  });

  describe('routes', () => {
    beforeEach(() => applied(...make(vxlan)));

    const kinds: readonly (readonly [string, NodeRoute])[] = [
      ['by a tunnel', unicast('10.65.1.0/26', '10.65.1.1')],
      ['on a tunnel', unicast('10.65.1.1/32', undefined)],
      ['by an interface', unicast('10.65.1.0/26', '10.0.0.2', 'up0')],
      ['nowhere', blackhole('10.65.2.0/26')],
      ['with a source address', { ...unicast('10.65.1.0/26', '10.65.1.1'), source: '10.0.0.1' }],
      ['IPv6, by a tunnel', unicast('fd65:1::/122', 'fd65:1::1')],
      ['IPv6, on a tunnel', unicast('fd65:1::1/128', undefined)],
      ['IPv6, by an interface', unicast('fd65:1::/122', 'fd00::2', 'up0')],
      ['IPv6, nowhere', blackhole('fd65:2::/122')],
    ];

    test.each(kinds)('%s: as wanted, with the default metric', async (_, route) => {
      await applied({ type: 'route-add', route });
      const seen = (await see()).routes.filter((candidate) => ownerOf(candidate) === 'node');
      expect(seen).toMatchObject([route]);
      expect(seen.every(isDefaultMetric)).toBe(true);
      expect(await outcomes({ type: 'route-add', route })).toEqual(['EEXIST']);
      await applied({ type: 'route-delete', route: seen[0]! });
      expect(await own()).toEqual([]);
      expect(await outcomes({ type: 'route-delete', route: seen[0]! })).toEqual(['ESRCH']);
    });

    const sameFamily = kinds.flatMap(([from, first]) =>
      kinds
        .filter(
          ([to, second]) =>
            !(from === 'IPv6, by an interface' && to === 'IPv6, by a tunnel') &&
            second !== first &&
            second.destination.includes(':') === first.destination.includes(':'),
        )
        .map(([to, second]) => [from, to, first, { ...second, destination: first.destination }] as const),
    );

    test.each(sameFamily)('%s, replaced by one %s', async (_, __, first, second) => {
      await applied({ type: 'route-add', route: first }, { type: 'route-replace', route: second });
      expect((await see()).routes.filter((route) => ownerOf(route) === 'node')).toMatchObject([second]);
    });

    test('IPv6 refuses a gateway on a tunnel while its block is routed to another device', async () => {
      const near = unicast('fd65:1::/122', 'fd00::2', 'up0');
      const far = unicast('fd65:1::/122', 'fd65:1::1');
      const second = unicast('fd65:2::/122', 'fd65:1::1');
      await applied({ type: 'route-add', route: near });
      expect(await outcomes({ type: 'route-replace', route: far }, { type: 'route-add', route: second })).toEqual([
        'EINVAL',
        'EINVAL',
      ]);
      const [seen] = (await see()).routes;
      await applied(
        { type: 'route-delete', route: seen! },
        { type: 'route-add', route: far },
        { type: 'route-add', route: second },
      );
    });

    test('that are impossible are refused, and later ones are applied', async () => {
      fixture.runCommand('ip link set up0 down');
      expect(
        await outcomes(
          { type: 'route-add', route: unicast('10.65.1.0/26', '10.0.0.2', 'up0') },
          { type: 'route-add', route: unicast('10.65.1.0/26', '10.0.0.2', 'nowhere') },
          { type: 'route-add', route: { ...unicast('10.65.1.0/26', '10.9.9.9'), onlink: false } },
          { type: 'route-add', route: { ...unicast('10.65.1.0/26', '10.65.1.1'), source: '10.9.9.9' } },
          { type: 'route-add', route: blackhole('10.65.3.0/26') },
        ),
      ).toEqual(['ENETDOWN', 'ENODEV', 'ENETUNREACH', 'EINVAL', 'done']);
    });

    test('of other programs are listed when they conflict, and routes of pods are recognised', async () => {
      fixture.runCommand('ip route add 10.65.7.0/26 via 10.0.0.9 dev up0 proto 4');
      fixture.runCommand('ip route add 10.65.8.7/32 dev up0 proto 87 scope link');
      fixture.runCommand('ip route add 10.99.0.0/16 via 10.0.0.9 dev up0 proto 4');
      const { routes, routed } = await see();
      expect(routes.map((route) => [route.destination, ownerOf(route)]).sort()).toEqual([
        ['10.65.7.0/26', 'foreign'],
        ['10.65.8.7/32', 'pod'],
      ]);
      expect([...routed].sort()).toEqual(['10.65.7.0/26', '10.99.0.0/16']);
      expect(await outcomes({ type: 'route-add', route: unicast('10.65.7.0/26', '10.65.1.1') })).toEqual(['EEXIST']);
    });

    test('of other metrics and duplicates are listed; a deletion removes the given one', async () => {
      await applied({ type: 'route-add', route: unicast('10.65.1.0/26', '10.65.1.1') });
      fixture.runCommand('ip route append 10.65.1.0/26 via 10.65.1.9 dev vxlan4.podwire proto 87 onlink');
      fixture.runCommand('ip route add 10.65.1.0/26 via 10.65.1.1 dev vxlan4.podwire proto 87 metric 7 onlink');
      const { routes } = await see();
      expect(routes.map(({ gateway, metric }) => `${gateway} ${metric}`).sort()).toEqual([
        '10.65.1.1 0',
        '10.65.1.1 7',
        '10.65.1.9 0',
      ]);
      const [second, odd] = [
        routes.find(({ gateway }) => gateway === '10.65.1.9')!,
        routes.find(({ metric }) => metric === 7)!,
      ];
      await applied({ type: 'route-delete', route: odd }, { type: 'route-delete', route: second });
      expect((await see()).routes).toMatchObject([{ gateway: '10.65.1.1', metric: 0 }]);
    });

    test('vanish with the last address of their interface, and with the interface; the tunnel goes with its parent', async () => {
      await applied(
        { type: 'route-add', route: unicast('10.65.1.0/26', '10.0.0.2', 'up0') },
        { type: 'route-add', route: unicast('10.65.2.0/26', '10.65.2.1') },
      );
      fixture.runCommand('ip address delete 10.0.0.1/24 dev up0');
      expect(await own()).toEqual(['10.65.2.0/26 via 10.65.2.1 dev vxlan4.podwire proto 87 onlink']);
      fixture.runCommand('ip link delete up0');
      expect(await own()).toEqual([]);
      expect((await see()).devices.has(device)).toBe(false);
    });
  });

  describe('settings', () => {
    const key = ['net', 'ipv4', 'ip_forward'];

    test('are read and written; a missing one is null, and refused', async () => {
      fixture.runCommand('sysctl -w net.ipv4.ip_forward=0');
      await applied({ type: 'sysctl-write', key, value: '1' });
      const nonsense = ['net', 'ipv4', 'nonsense'];
      const { sysctls } = await kernel.observe({ sysctls: [key, nonsense], isWanted: () => false });
      expect([...sysctls]).toEqual([
        ['net/ipv4/ip_forward', '1'],
        ['net/ipv4/nonsense', null],
      ]);
      expect(await outcomes({ type: 'sysctl-write', key: nonsense, value: '1' })).toEqual(['ENOENT']);
    });
  });

  describe('a watch', () => {
    const changes: NodeChange[] = [];

    async function watching(): Promise<() => void> {
      changes.length = 0;
      const watch = await kernel.watch({
        changed: (change) => void changes.push(change),
        failed: (failure) => {
          throw failure;
        },
      });
      return () => watch.close();
    }

    const expectNotification = (text: string) =>
      expect.poll(() => changes.map(describeChange), { timeout: 10_000 }).toContain(text);

    beforeEach(() => applied(...make(vxlan)));

    test('notifies of own changes, foreign changes and removals', async () => {
      const close = await watching();
      await applied({ type: 'route-add', route: unicast('10.65.1.0/26', '10.65.1.1') });
      await expectNotification('route 10.65.1.0/26 node');
      fixture.runCommand('ip route delete 10.65.1.0/26');
      await expectNotification('no route 10.65.1.0/26 node');
      fixture.runCommand('ip route add 10.65.1.0/26 via 10.0.0.9 dev up0 proto 4');
      await expectNotification('route 10.65.1.0/26 foreign');
      fixture.runCommand('ip route add 10.65.8.7/32 dev up0 proto 87 scope link');
      await expectNotification('route 10.65.8.7/32 pod');
      await applied(
        { type: 'address-add', device, address: '10.65.0.1/32' },
        { type: 'neighbour-set', ...peer, address: '10.65.1.1' },
      );
      await expectNotification('address 10.65.0.1/32 dev vxlan4.podwire');
      await expectNotification('neighbour 10.65.1.1 dev vxlan4.podwire');
      await applied({ type: 'forwarding-set', ...peer, nodeAddress: '10.0.0.2' });
      await expectNotification('forwarding 66:00:00:00:00:02 to 10.0.0.2');
      fixture.runCommand(`bridge fdb delete ${peer.mac} dev ${device} dst 10.0.0.2`);
      await expectNotification('no forwarding 66:00:00:00:00:02 to 10.0.0.2');
      fixture.runCommand(`ip neighbour delete 10.65.1.1 dev ${device}`);
      await expectNotification('no neighbour 10.65.1.1 dev vxlan4.podwire');
      fixture.runCommand(`ip link set ${device} mtu 1400`);
      await expectNotification('device vxlan4.podwire 1400 up');
      fixture.runCommand(`ip link set ${device} down`);
      await expectNotification('device vxlan4.podwire 1400 down');
      fixture.runCommand('ip link delete up0');
      await expectNotification('no device vxlan4.podwire');
      await expectNotification('no device up0');
      close();
    });

    test('notifies of nothing after it was closed', async () => {
      const close = await watching();
      close();
      close();
      const second = await watching();
      await applied({ type: 'route-add', route: blackhole('10.65.1.0/26') });
      await expectNotification('route 10.65.1.0/26 node');
      expect(changes.filter((change) => change.object === 'route')).toHaveLength(1);
      second();
    });

    test('notifies of pods’ host interfaces by name, also of their removal', async () => {
      const close = await watching();
      fixture.runCommand('ip link add podw123 type bridge');
      await expectNotification('pod podw123');
      fixture.runCommand('ip link set podw123 mtu 1400');
      fixture.runCommand('ip link set podw123 up');
      fixture.runCommand('ip route add 10.65.8.7/32 dev podw123 proto 87 scope link');
      await expectNotification('route 10.65.8.7/32 pod');
      expect(changes.map(describeChange), 'as a wiring does').not.toContain('pod podw123 interference');
      for (const change of ['mtu 1300', 'down']) {
        changes.length = 0;
        fixture.runCommand(`ip link set podw123 ${change}`);
        await expectNotification('pod podw123 interference');
        fixture.runCommand('ip link set podw123 up');
      }
      changes.length = 0;
      fixture.runCommand('ip link delete podw123');
      await expectNotification('pod podw123 interference');
      expect(changes.some((change) => change.object === 'device')).toBe(false);
      close();
    });
  });

  test('a closed kernel refuses; closing it again has no effect', async () => {
    await kernel.close();
    await kernel.close();
    await expect(see()).rejects.toThrow();
  });
}

function describeChange(change: NodeChange): string {
  const not = 'deleted' in change && change.deleted ? 'no ' : '';
  switch (change.object) {
    case 'route':
      return `${not}route ${change.route.destination} ${ownerOf(change.route)}`;
    case 'device': {
      const { name, mtuBytes, up } = change.device;
      return change.deleted ? `no device ${name}` : `device ${name} ${mtuBytes} ${up ? 'up' : 'down'}`;
    }
    case 'address':
      return `${not}address ${change.address} dev ${change.device}`;
    case 'neighbour':
      return `${not}neighbour ${change.address} dev ${change.device}`;
    case 'forwarding':
      return `${not}forwarding ${change.mac} to ${change.nodeAddress}`;
    case 'pod-interface':
      return `pod ${change.name}${change.isInterference ? ' interference' : ''}`;
    case 'overrun':
      return 'overrun';
  }
}

/** Another program that changes the links of a source. */
export interface LinkChanger {
  /** Creates or changes the link. */
  put(link: NodeLink): void;
  remove(name: string): void;
}

interface OpenedLinks {
  readonly source: LinkSource;
  readonly changer: LinkChanger;
  /** An existing key with a valid value. */
  readonly sysctl: { readonly key: readonly string[]; readonly value: string };
}

/** Tests of every implementation of {@link LinkSource}. */
export function linkSourceContract(open: () => Promise<OpenedLinks>): void {
  describe('links', () => {
    test('are listed', async () => {
      const { source, changer } = await open();
      changer.put({ name: 'eth7', mtuBytes: 1400, up: false });
      const seven = async () => (await source.links()).filter(({ name }) => name === 'eth7');
      expect(await seven()).toEqual([{ name: 'eth7', mtuBytes: 1400, up: false }]);
      changer.put({ name: 'eth7', mtuBytes: 9000, up: true });
      expect(await seven()).toEqual([{ name: 'eth7', mtuBytes: 9000, up: true }]);
      changer.remove('eth7');
      expect(await seven()).toEqual([]);
      await source.close();
    });

    test('that are created, changed or removed are reported until the watch is closed', async () => {
      const { source, changer } = await open();
      const names: (string | undefined)[] = [];
      const ended = vi.fn();
      const watch = await source.watch({ changed: (name) => names.push(name), ended });
      const notified = async (change: () => void) => {
        names.splice(0);
        change();
        await vi.waitFor(() => expect(names).toContain('eth7'), { timeout: 20_000 });
      };
      await notified(() => changer.put({ name: 'eth7', mtuBytes: 1400, up: false }));
      await notified(() => changer.put({ name: 'eth7', mtuBytes: 1300, up: false }));
      await notified(() => changer.put({ name: 'eth7', mtuBytes: 1300, up: true }));
      await notified(() => changer.remove('eth7'));
      watch.close();
      names.splice(0);
      changer.put({ name: 'eth8', mtuBytes: 1400, up: false });
      await source.links();
      changer.remove('eth8');
      expect(names).toEqual([]);
      expect(ended).not.toHaveBeenCalled();
      await source.close();
    });
  });

  describe('sysctls', () => {
    test('are read and written; a missing one is null, and cannot be written', async () => {
      const { source, sysctl } = await open();
      await source.writeSysctls([sysctl]);
      expect(await source.readSysctls([sysctl.key, ['net', 'ipv4', 'nothing']])).toEqual([sysctl.value, null]);
      await expect(source.writeSysctls([{ key: ['net', 'ipv4', 'nothing'], value: '1' }])).rejects.toMatchObject({
        code: 'KERNEL_UNSUPPORTED',
      });
      await source.close();
    });
  });
}
