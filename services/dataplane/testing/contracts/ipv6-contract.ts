import { beforeEach, describe, expect, test } from 'vitest';

import { diff } from '../../wiring/diff.js';
import { wantedState, GATEWAY, HOST_LINK_LOCAL, type Wanted } from '../../wiring/network.js';
import { keyText } from '../../wiring/observed.js';
import { formatStep, inverseOf, type Route, type Step, type SysctlKey } from '../../wiring/step.js';
import { emptyObservation } from '../../wiring/wire.js';
import { KernelUnderTest, type KernelFixture } from '../kernels.js';
import { address, BY_FAMILY, podNetwork } from '../pods.js';

const HOST = 'podwcontract';
const network = podNetwork('contract', { ...BY_FAMILY['both families'], hostInterfaceName: HOST });
const wanted = wantedState(network);

/** Sysctls of the pod's namespace that a plan reads before it writes them. */
const READ = wanted.pod.sysctls.filter(({ device }) => device === undefined).map(({ key }) => key);

const podSysctl = (device: string, setting: string, value: string): Step => {
  const key: SysctlKey = ['net', 'ipv6', 'conf', device, setting];
  return { type: 'sysctl-write', side: 'pod', key, value, previous: undefined, device: undefined, optional: false };
};

const viaGateway = (destination: string, rest: Partial<Route> = {}): Route => {
  const route = { destination, device: 'eth0', gateway: GATEWAY[6], scope: 'global', protocol: 87 } as const;
  return { metric: 1024, ...route, ...rest };
};

/** The contract of every kernel for IPv6, and for routes of several metrics. */
export function ipv6Contract(setUp: () => Promise<KernelFixture>): void {
  const under = new KernelUnderTest(setUp);
  const applyAll = (steps: readonly Step[]) => under.applyAll(steps);
  const refusal = (step: Step) => under.refusal(step);

  const fresh = diff(wanted, emptyObservation());
  const namespaceSysctls = async () => {
    const { pod } = await observed();
    return READ.map((key) => pod.sysctls.get(keyText(key)));
  };
  const observed = () => under.session.observe(wanted);

  test.each(Object.entries(BY_FAMILY))('a plan for a new pod of %s is applied; then nothing differs', async (_, of) => {
    const own = wantedState({ ...network, ...of });
    expect(await under.session.apply(diff(own, emptyObservation()))).toMatchObject({
      failed: undefined,
      warnings: [],
    });
    expect(diff(own, await under.session.observe(own))).toEqual([]);
  });

  test('the host end has the gateway’s address before the pod’s end is up', async () => {
    await under.session.apply(
      fresh.slice(
        0,
        fresh.findIndex(({ side }) => side === 'pod'),
      ),
    );
    const { host, pod } = await observed();
    expect([host.addresses, host.link?.running, pod.link?.up]).toEqual([[HOST_LINK_LOCAL], false, false]);
  });

  test('an existing address can be set again, but not added again', async () => {
    await applyAll(fresh);
    const at = { side: 'host', device: HOST, address: HOST_LINK_LOCAL } as const;
    expect(await refusal({ ...at, type: 'address-add' })).toBe('EEXIST KERNEL_REFUSED');
    expect(await refusal({ ...at, type: 'address-set' })).toBe('done');
    expect((await observed()).host.addresses).toEqual([HOST_LINK_LOCAL]);
  });

  test('a link that goes down loses its IPv6 addresses too', async () => {
    await applyAll(fresh);
    await applyAll([{ type: 'link-set', side: 'pod', name: 'eth0', change: { up: false }, previous: {} }]);
    const { addresses, routes, neighbours } = (await observed()).pod;
    expect({ addresses, routes, neighbours }).toEqual({ addresses: ['10.65.0.7/32'], routes: [], neighbours: [] });
    await applyAll(diff(wanted, await observed()));
    expect(diff(wanted, await observed())).toEqual([]);
  });

  test('a link that loses its last IPv4 address keeps its IPv6 routes, and vice versa', async () => {
    await applyAll(fresh);
    const gone = (text: string): Step => ({ type: 'address-delete', side: 'pod', device: 'eth0', address: text });
    const destinations = async () => (await observed()).pod.routes.map(({ destination }) => destination);
    await applyAll([gone('10.65.0.7/32')]);
    expect(await destinations()).toEqual(['::/0']);
    await applyAll([gone('fd65::7/128')]);
    expect(await destinations()).toEqual(['::/0']);
  });

  test('a link that gets another MAC address loses its IPv6 neighbours', async () => {
    await applyAll(fresh);
    const change = { mac: '02:00:00:00:00:99' };
    await applyAll([{ type: 'link-set', side: 'pod', name: 'eth0', change, previous: {} }]);
    expect((await observed()).pod.neighbours).toEqual([]);
  });

  describe('with IPv6 disabled on a link', () => {
    beforeEach(async () => {
      await applyAll(fresh);
      await applyAll([podSysctl('eth0', 'disable_ipv6', '1')]);
    });

    test('IPv6 objects are gone, and repaired with the switch', async () => {
      const { addresses, routes, neighbours } = (await observed()).pod;
      expect(addresses).toEqual(['10.65.0.7/32']);
      expect(routes.map(({ destination }) => destination).sort()).toEqual(['0.0.0.0/0', '169.254.1.1/32']);
      expect(neighbours.map((neighbour) => neighbour.address)).toEqual(['169.254.1.1']);
      const steps = diff(wanted, await observed());
      await applyAll(steps);
      expect(diff(wanted, await observed())).toEqual([]);
      await applyAll(steps.toReversed().flatMap((step) => inverseOf(step) ?? []));
      expect(diff(wanted, await observed())).toEqual(steps);
    });

    test.each<readonly [string, Step, string]>([
      [
        'an address',
        { type: 'address-add', side: 'pod', device: 'eth0', address: 'fd65::9/128' },
        'EACCES KERNEL_REFUSED',
      ],
      ['a route', { type: 'route-add', side: 'pod', route: viaGateway('fd00::/8') }, 'EACCES KERNEL_REFUSED'],
      [
        'a neighbour',
        {
          type: 'neighbour-set',
          side: 'pod',
          neighbour: { device: 'eth0', address: 'fd65::9', mac: '02:00:00:00:00:01' },
          previous: undefined,
        },
        'EINVAL KERNEL_REFUSED',
      ],
    ])('%s is refused', async (_, step, expected) => {
      expect(await refusal(step)).toBe(expected);
    });
  });

  test('IPv6 that a runtime disabled in a namespace is enabled, and exactly restored at a rollback', async () => {
    await applyAll([podSysctl('all', 'disable_ipv6', '1'), podSysctl('lo', 'disable_ipv6', '0')]);
    const before = await namespaceSysctls();
    expect(before).toEqual(['0', '1', '1', '0', '0']);
    const { finished } = await under.session.apply(fresh);
    expect(diff(wanted, await observed())).toEqual([]);
    const ofNamespace = finished.filter((step) => step.type === 'sysctl-write' && step.device === undefined);
    await applyAll(ofNamespace.toReversed().flatMap((step) => inverseOf(step) ?? []));
    expect(await namespaceSysctls()).toEqual(before);
  });

  describe('routes of one destination', () => {
    beforeEach(async () => applyAll(fresh));

    const destination = { IPv4: '0.0.0.0/0', IPv6: '::/0' } as const;
    const another = (family: 'IPv4' | 'IPv6', metric: number): Route => {
      const gateway = family === 'IPv4' ? GATEWAY[4] : GATEWAY[6];
      return viaGateway(destination[family], { gateway, metric });
    };
    const metrics = async (family: 'IPv4' | 'IPv6') =>
      (await observed()).pod.routes
        .filter((route) => route.destination === destination[family])
        .map(({ metric }) => metric)
        .sort((a, b) => a - b);

    test.each(['IPv4', 'IPv6'] as const)('coexist with different metrics: %s', async (family) => {
      const [best = 0] = await metrics(family);
      const next = another(family, best + 1);
      expect(await refusal({ type: 'route-add', side: 'pod', route: next })).toBe('done');
      expect(await refusal({ type: 'route-add', side: 'pod', route: next })).toBe('EEXIST ROUTE_TAKEN');
      expect(await metrics(family)).toEqual([best, best + 1]);
      await applyAll([{ type: 'route-replace', side: 'pod', route: next, previous: next }]);
      expect(await metrics(family)).toEqual([best, best + 1]);
      await applyAll([{ type: 'route-delete', side: 'pod', route: next }]);
      expect(await metrics(family)).toEqual([best]);
    });
  });

  test('a route of IPv6 is taken over from another link, and restored', async () => {
    under.fixture.addBridge('bridge0', { alias: 'podwire:net/old/eth0' });
    const on = { destination: 'fd65::7/128', gateway: undefined, metric: 1024, scope: 'global', protocol: 87 } as const;
    await applyAll([...fresh.slice(0, -1)]);
    await applyAll([{ type: 'route-add', side: 'host', route: { ...on, device: 'bridge0' } }]);
    const [takeover] = diff(wanted, await observed());
    await applyAll([takeover!]);
    expect(diff(wanted, await observed())).toEqual([]);
    await applyAll([inverseOf(takeover!)!]);
    expect((await observed()).host.routes).toContainEqual(
      expect.objectContaining({ destination: 'fd65::7/128', device: 'bridge0', deviceAlias: 'podwire:net/old/eth0' }),
    );
  });

  test('every reversible step is reverted: the observation is as before', async () => {
    await applyAll(fresh);
    const other = wantedState({
      ...network,
      mtuBytes: 1400,
      mac: '02:00:00:00:00:99',
      ipForwarding: true,
      addresses: [address('fd65::9')],
      routes: [{ ...address('fd00::'), length: 8 }],
    });
    const commands = async (aim: Wanted) =>
      diff(aim, await under.session.observe(aim))
        .map(formatStep)
        .sort();
    const before = await commands(other);
    const steps = diff(other, await under.session.observe(other));
    expect(new Set(steps.map((step) => step.type))).toEqual(
      new Set([
        'link-set',
        'neighbour-delete',
        'neighbour-set',
        'address-add',
        'address-delete',
        'route-add',
        'route-delete',
        'sysctl-write',
      ]),
    );
    await applyAll(steps);
    expect(diff(other, await under.session.observe(other))).toEqual([]);
    await applyAll(steps.toReversed().flatMap((step) => inverseOf(step) ?? []));
    expect({ own: await commands(wanted), other: await commands(other) }).toEqual({ own: [], other: before });
  });

  test('attachments are listed with their addresses of both families', async () => {
    await applyAll(fresh);
    const [found] = await under.fixture.kernel.attachedLinks();
    expect([...(found?.addresses ?? [])].sort()).toEqual(['10.65.0.7/32', 'fd65::7/128']);
  });
}
