import { HOST_MAC } from '@podwire/shared/attachment/names';
import { describe, expect, test } from 'vitest';

import type { StepFailure } from '../../pods/kernel.js';
import { diff } from '../../wiring/diff.js';
import { wantedState } from '../../wiring/network.js';
import { formatStep, inverseOf, type Route, type Step, type SysctlWrite } from '../../wiring/step.js';
import { emptyObservation } from '../../wiring/wire.js';
import { KernelUnderTest, type KernelFixture } from '../kernels.js';
import { podNetwork } from '../pods.js';

const HOST = 'podwcontract';
const network = podNetwork('contract', { hostInterfaceName: HOST });
const wanted = wantedState(network);
const fresh = diff(wanted, emptyObservation());
const [linkAdd] = fresh;

const podSysctl = (setting: string, value: string, previous?: string): SysctlWrite => {
  const key = ['net', 'ipv4', setting];
  return { type: 'sysctl-write', side: 'pod', key, value, previous, device: undefined, optional: false };
};

const podRoute = (destination: string, gateway: string | undefined): Route => ({
  destination,
  device: 'eth0',
  gateway,
  metric: 0,
  scope: gateway === undefined ? 'link' : 'global',
  protocol: 87,
});

/** The limits of these kernels when they read a pod, for {@link KernelFixture.kernel}. */
export const SMALL_BOUNDS = { maxCount: 40, timeoutMs: 60_000 };

/** The contract of every kernel in a pod's session: observe it, and apply steps, each with its inverse. */
export function podSessionContract(setUp: () => Promise<KernelFixture>): void {
  const under = new KernelUnderTest(setUp);
  const applyAll = (steps: readonly Step[]) => under.applyAll(steps);
  const refusal = (step: Step) => under.refusal(step);
  const only = (...steps: Step[]) => under.session.apply(steps);

  const observed = () => under.session.observe(wanted);

  describe('a plan for a new pod', () => {
    test('is applied; then nothing differs', async () => {
      const { finished, warnings, failed, links } = await under.session.apply(fresh);
      expect(finished.map(formatStep)).toEqual(fresh.map(formatStep));
      expect([warnings, failed]).toEqual([[], undefined]);
      const shown = [links.host, links.pod].map((link) => [link?.name, link?.mac, link?.mtuBytes, link?.running]);
      expect(shown).toEqual([
        [HOST, 'ee:ee:ee:ee:ee:ee', 1500, true],
        ['eth0', network.mac, 1500, true],
      ]);
      expect(diff(wanted, await observed())).toEqual([]);
    });

    test('leaves both ends running, each with the other’s index', async () => {
      await applyAll(fresh);
      const { host, pod } = await observed();
      expect([host.link?.running, pod.link?.running]).toEqual([true, true]);
      expect(host.link?.peerIndex).toBe(pod.link?.index);
      expect(pod.link?.peerIndex).toBe(host.link?.index);
    });

    test('is created again after the deletion of a stale wire in the same batch', async () => {
      await applyAll(fresh);
      const outcome = await only({ type: 'link-delete', side: 'host', name: HOST }, linkAdd!);
      expect(outcome.finished).toHaveLength(2);
      expect(outcome.links.host).toMatchObject({ name: HOST, up: false, alias: null });
    });
  });

  describe('exclusive creation', () => {
    test('is refused when the host’s name is taken, and makes no peer', async () => {
      under.fixture.addBridge(HOST, {});
      expect(await refusal(linkAdd!)).toBe('EEXIST INTERFACE_EXISTS');
      expect((await observed()).pod.link).toBeUndefined();
    });

    test('is refused when the pod’s name is taken, and makes no host end', async () => {
      under.fixture.addBridge('eth0', { pod: 'contract' });
      expect(await refusal(linkAdd!)).toBe('EEXIST INTERFACE_EXISTS');
      expect(await under.fixture.kernel.hostLink(HOST)).toBeUndefined();
    });
  });

  describe('a batch', () => {
    test('stops at the first failed step, and returns the finished ones', async () => {
      await applyAll([linkAdd!]);
      const address = (text: string): Step => ({ type: 'address-add', side: 'pod', device: 'eth0', address: text });
      const steps = [address('10.0.0.1/32'), address('10.0.0.1/32'), address('10.0.0.2/32')];
      const { finished, failed } = await only(...steps);
      expect(finished).toEqual([steps[0]]);
      expect(failed).toMatchObject({ step: steps[1], errno: 'EEXIST', failure: { code: 'KERNEL_REFUSED' } });
      expect((await observed()).pod.addresses).toEqual(['10.0.0.1/32']);
    });

    test('continues after a failed optional step', async () => {
      await applyAll([linkAdd!]);
      const sysctl = { type: 'sysctl-write', side: 'host', device: HOST, previous: undefined } as const;
      const missing: Step = { ...sysctl, key: ['net', 'ipv4', 'conf', HOST, 'nonsense'], value: '1', optional: true };
      const present: Step = { ...sysctl, key: ['net', 'ipv4', 'conf', HOST, 'proxy_arp'], value: '1', optional: false };
      const { finished, warnings, failed } = await only(missing, present);
      expect({ finished, failed }).toEqual({ finished: [present], failed: undefined });
      expect(warnings).toMatchObject([{ step: missing, errno: 'ENOENT' }] satisfies Partial<StepFailure>[]);
      expect((await observed()).host.sysctls.get(`net/ipv4/conf/${HOST}/proxy_arp`)).toBe('1');
    });
  });

  describe('refuses', () => {
    const neighbour = { device: 'eth0', address: '169.254.1.1', mac: 'ee:ee:ee:ee:ee:ee' };
    const forward = {
      type: 'sysctl-write',
      side: 'pod',
      device: undefined,
      previous: undefined,
      optional: false,
    } as const;
    const cases: readonly (readonly [string, readonly Step[], Step, string])[] = [
      [
        'a route on a link that is down',
        [linkAdd!],
        { type: 'route-add', side: 'pod', route: podRoute('10.0.0.0/8', undefined) },
        'ENETDOWN KERNEL_REFUSED',
      ],
      [
        'a route by an unreachable next hop',
        fresh,
        { type: 'route-add', side: 'pod', route: podRoute('10.0.0.0/8', '10.9.9.9') },
        'ENETUNREACH KERNEL_REFUSED',
      ],
      [
        'a second route to a destination',
        fresh,
        { type: 'route-add', side: 'pod', route: podRoute('0.0.0.0/0', '169.254.1.1') },
        'EEXIST ROUTE_TAKEN',
      ],
      [
        'to delete a missing route',
        fresh,
        { type: 'route-delete', side: 'pod', route: podRoute('10.0.0.0/8', undefined) },
        'ESRCH KERNEL_REFUSED',
      ],
      [
        'a route by a missing link',
        [],
        { type: 'route-add', side: 'pod', route: podRoute('10.0.0.0/8', undefined) },
        'ENODEV KERNEL_REFUSED',
      ],
      [
        'to delete a missing address',
        [linkAdd!],
        { type: 'address-delete', side: 'pod', device: 'eth0', address: '10.0.0.1/32' },
        'EADDRNOTAVAIL KERNEL_REFUSED',
      ],
      [
        'an address on a missing link',
        [],
        { type: 'address-add', side: 'pod', device: 'eth0', address: '10.0.0.1/32' },
        'ENODEV KERNEL_REFUSED',
      ],
      [
        'a neighbour on a missing link',
        [],
        { type: 'neighbour-set', side: 'pod', neighbour, previous: undefined },
        'ENODEV KERNEL_REFUSED',
      ],
      [
        'to delete a missing neighbour',
        [linkAdd!, ...fresh.filter((step) => step.type === 'link-set')],
        { type: 'neighbour-delete', side: 'pod', neighbour },
        'ENOENT KERNEL_REFUSED',
      ],
      [
        'to set a missing link',
        [],
        { type: 'link-set', side: 'pod', name: 'eth0', change: { up: true }, previous: { up: false } },
        'ENODEV KERNEL_REFUSED',
      ],
      [
        'an MTU that a veth cannot have',
        [linkAdd!],
        { type: 'link-set', side: 'pod', name: 'eth0', change: { mtuBytes: 67 }, previous: {} },
        'EINVAL KERNEL_REFUSED',
      ],
      ['to delete a missing link', [], { type: 'link-delete', side: 'host', name: HOST }, 'ENODEV KERNEL_REFUSED'],
      [
        'a missing sysctl',
        [],
        { ...forward, key: ['net', 'ipv4', 'nonsense'], value: '1' },
        'ENOENT KERNEL_UNSUPPORTED',
      ],
      [
        'a sysctl’s value that is not a number',
        [],
        { ...forward, key: ['net', 'ipv4', 'ip_forward'], value: 'x' },
        'EINVAL KERNEL_REFUSED',
      ],
    ];

    test.each(cases)('%s', async (_, before, step, expected) => {
      await applyAll(before);
      expect(await refusal(step)).toBe(expected);
    });
  });

  describe('the kernel’s own rules', () => {
    const set = (change: { readonly up: boolean }): Step => ({
      type: 'link-set',
      side: 'pod',
      name: 'eth0',
      change,
      previous: {},
    });

    test('a link that goes down loses its routes and neighbours, and keeps its addresses', async () => {
      await applyAll(fresh);
      await applyAll([set({ up: false })]);
      const { pod, host } = await observed();
      expect({
        routes: pod.routes,
        neighbours: pod.neighbours,
        addresses: pod.addresses,
        running: host.link?.running,
      }).toEqual({
        routes: [],
        neighbours: [],
        addresses: ['10.65.0.7/32'],
        running: false,
      });
      await applyAll(diff(wanted, await observed()));
      expect(diff(wanted, await observed())).toEqual([]);
    });

    test('a link that gets another MAC address loses its neighbours', async () => {
      await applyAll(fresh);
      const change = { mac: '02:00:00:00:00:99' };
      await applyAll([{ type: 'link-set', side: 'pod', name: 'eth0', change, previous: {} }]);
      expect((await observed()).pod.neighbours).toEqual([]);
    });

    test('a link that loses its last address loses its routes', async () => {
      await applyAll(fresh);
      await applyAll([{ type: 'address-delete', side: 'pod', device: 'eth0', address: '10.65.0.7/32' }]);
      expect((await observed()).pod.routes).toEqual([]);
    });

    test('a route is taken over from another link, and restored', async () => {
      under.fixture.addBridge('bridge0', { alias: 'podwire:net/old/eth0' });
      const old: Route = {
        destination: '10.65.0.7/32',
        device: 'bridge0',
        gateway: undefined,
        metric: 0,
        scope: 'link',
        protocol: 87,
      };
      await applyAll([...fresh.slice(0, -1), { type: 'route-add', side: 'host', route: old }]);
      expect(await refusal(fresh.at(-1)!)).toBe('EEXIST ROUTE_TAKEN');
      const [takeover] = diff(wanted, await observed());
      await applyAll([takeover!]);
      expect(diff(wanted, await observed())).toEqual([]);
      await applyAll([inverseOf(takeover!)!]);
      expect((await observed()).host.routes).toMatchObject([
        { device: 'bridge0', deviceAlias: 'podwire:net/old/eth0' },
      ]);
    });
  });

  test('a link of the pod is found by its name; a missing one is undefined', async () => {
    await applyAll(fresh);
    const { name, mac } = wanted.pod.link;
    expect(await under.session.podLink(name)).toMatchObject({ name, mac, kind: 'veth', up: true });
    expect(await under.session.podLink('nothing')).toBeUndefined();
  });

  test('every reversible step is reverted: the observation is as before', async () => {
    await applyAll(fresh);
    const other = wantedState({
      ...network,
      mtuBytes: 1400,
      mac: '02:00:00:00:00:99',
      ipForwarding: true,
      addresses: [{ family: 4, value: 0x0a41_0009n }],
    });
    const before = await observed();
    const steps = diff(other, await under.session.observe(other));
    expect(steps.map((step) => step.type)).toEqual([
      'link-set',
      'neighbour-delete',
      'link-set',
      'address-add',
      'neighbour-set',
      'sysctl-write',
      'neighbour-set',
      'route-add',
      'address-delete',
      'route-delete',
      'neighbour-delete',
    ]);
    await applyAll(steps);
    expect(diff(other, await under.session.observe(other))).toEqual([]);
    await applyAll(steps.toReversed().flatMap((step) => inverseOf(step) ?? []));
    expect(await observed()).toEqual(before);
  });

  describe('a sysctl write that reads the previous value', () => {
    const write = { ...podSysctl('ip_forward', '1'), readPrevious: true } as const;

    test('returns it, and is reverted by the inverse', async () => {
      await applyAll([podSysctl('ip_forward', '0')]);
      const { finished } = await only(write);
      expect(finished).toEqual([podSysctl('ip_forward', '1', '0')]);
      const values = async () => (await observed()).pod.sysctls.get('net/ipv4/ip_forward');
      expect(await values()).toBe('1');
      await applyAll(finished.flatMap((step) => inverseOf(step) ?? []));
      expect(await values()).toBe('0');
    });

    test('is refused for a missing sysctl', async () => {
      expect(await refusal({ ...podSysctl('nonsense', '1'), readPrevious: true })).toBe('ENOENT KERNEL_UNSUPPORTED');
    });
  });

  describe('a pod that fills its own tables', () => {
    const numbers = Array.from({ length: SMALL_BOUNDS.maxCount + 1 }, (_, number) => number);
    const unreadable = (kind: string) => ({
      code: 'POD_UNREADABLE',
      message: `pod namespace ${network.netns}: more than ${SMALL_BOUNDS.maxCount} ${kind}; remove them in the pod, or delete the pod`,
    });
    const routes = numbers.map((number) => podRoute(`10.66.0.${number}/32`, undefined));

    test('is not read with too many routes, and is read again without them', async () => {
      await applyAll([...fresh, ...routes.map((route): Step => ({ type: 'route-add', side: 'pod', route }))]);
      await expect(observed()).rejects.toMatchObject(unreadable('routes'));
      await applyAll(routes.map((route): Step => ({ type: 'route-delete', side: 'pod', route })));
      expect(diff(wanted, await observed())).toEqual([]);
    });

    test('is not read with too many addresses or neighbours', async () => {
      await applyAll(fresh);
      const addresses = numbers.map((number) => `10.66.0.${number}/32`);
      await applyAll(
        numbers.map((_, at): Step => ({ type: 'address-add', side: 'pod', device: 'eth0', address: addresses[at]! })),
      );
      await expect(observed()).rejects.toMatchObject({ code: 'POD_UNREADABLE' });
      await applyAll(
        addresses.map((address): Step => ({ type: 'address-delete', side: 'pod', device: 'eth0', address })),
      );
      const entries = numbers.map((number) => ({ device: 'eth0', address: `10.66.0.${number}`, mac: HOST_MAC }));
      await applyAll(
        entries.map((neighbour): Step => ({ type: 'neighbour-set', side: 'pod', neighbour, previous: undefined })),
      );
      await expect(observed()).rejects.toMatchObject(unreadable('neighbours'));
    });

    test('is read without its rules when it has too many', async () => {
      const rules = numbers.map((number) => ({
        source: `10.66.0.${number}/32`,
        table: 1_459_617_792,
        priority: 30_087,
        protocol: 87,
      }));
      await applyAll([...fresh, ...rules.map((rule): Step => ({ type: 'rule-add', side: 'pod', rule }))]);
      await expect(under.session.rules(1)).rejects.toMatchObject(unreadable('rules'));
      await expect(under.session.orphanRules()).rejects.toMatchObject(unreadable('rules'));
      expect(diff(wanted, await observed())).toEqual([]);
    });
  });

  test('more steps than the addon accepts in one call are applied in several', async () => {
    const steps = Array.from({ length: 2500 }, (_, number): Step => {
      const route = podRoute(`10.66.${number >> 8}.${number & 255}/32`, undefined);
      return { type: 'route-add', side: 'pod', route };
    });
    const outcome = await under.session.apply([...fresh, ...steps]);
    expect([outcome.failed, outcome.finished.length]).toEqual([undefined, fresh.length + steps.length]);
    expect(outcome.links).toMatchObject({ host: { name: HOST }, pod: { name: 'eth0' } });
    const missing = { ...steps[0]!, type: 'route-delete', route: podRoute('10.67.0.0/32', undefined) } as const;
    const inverses = steps.flatMap((step) => inverseOf(step) ?? []);
    const broken = await under.session.apply([...inverses, missing, ...fresh]);
    expect([broken.failed?.errno, broken.finished.length]).toEqual(['ESRCH', steps.length]);
  });
}
