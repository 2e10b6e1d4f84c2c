import { Failure } from '@podwire/shared/failure/failure';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { MemoryLinks } from '../testing/memory-links.js';
import { pool } from '../testing/routes.js';
import {
  evaluateSettings,
  SYSCTL_CHECK_INTERVAL_MS,
  NodeSysctls,
  settingKeys,
  textOf,
  type SettingsCheck,
  type SettingsRequirements,
} from './sysctls.js';

const USE: SettingsRequirements = {
  families: [4, 6],
  parents: { 4: 'eth0', 6: 'eth0' },
  tunnels: [
    { name: 'vxlan4.podwire', family: 4 },
    { name: 'vxlan6.podwire', family: 6 },
  ],
  unfiltered: [],
};

const ALL_WELL: Readonly<Record<string, string>> = {
  'net.ipv4.conf.all.rp_filter': '0',
  'net.ipv4.ip_forward': '1',
  'net.ipv4.conf.eth0.forwarding': '1',
  'net.ipv4.conf.vxlan4/podwire.forwarding': '1',
  'net.ipv6.conf.all.disable_ipv6': '0',
  'net.ipv6.conf.all.forwarding': '1',
  'net.ipv6.conf.eth0.forwarding': '1',
  'net.ipv6.conf.vxlan6/podwire.disable_ipv6': '0',
  'net.ipv6.conf.vxlan6/podwire.forwarding': '1',
};

/** Reasons of conditions and commands of repairs. */
function judged(
  values: Readonly<Record<string, string | null>>,
  use: Partial<SettingsRequirements> = {},
): readonly string[] {
  const asked = { ...USE, ...use };
  const readable = new Set(settingKeys(asked).map(textOf));
  const { conditions, repairs } = evaluateSettings(asked, (key) => {
    expect(readable).toContain(textOf(key));
    const found = { ...ALL_WELL, ...values }[textOf(key)];
    return found ?? null;
  });
  return [...conditions.map(({ reason }) => reason), ...repairs.map(({ key, value }) => `${textOf(key)}=${value}`)];
}

test('correct settings need no condition and no repair', () => {
  expect(judged({})).toEqual([]);
});

describe('net.ipv4.conf.all.rp_filter', () => {
  const set = (value: string, use?: Partial<SettingsRequirements>) =>
    judged({ 'net.ipv4.conf.all.rp_filter': value }, use);

  test.each(['1', '2'])('of %s breaks only pods with source prefixes', (value) => {
    expect(set(value)).toEqual([]);
    expect(set(value, { unfiltered: ['podw1'] })).toEqual(['StrictReversePathFilter']);
    expect(set('0', { unfiltered: ['podw1'] })).toEqual([]);
  });
});

test.each([
  ['0', []],
  ['1', ['podw1']],
  ['2', ['podw1']],
])('a filter of %s of a pod with source prefixes is left to the pods’ reconciler', (set, filtered) => {
  const values = new Map([['net.ipv4.conf.podw1.rp_filter', set]]);
  const use = { ...USE, unfiltered: ['podw1', 'podw-gone'] };
  expect(evaluateSettings(use, (key) => values.get(textOf(key)) ?? null)).toMatchObject({ filtered });
});

describe('forwarding', () => {
  test.each([
    'net.ipv4.ip_forward',
    'net.ipv6.conf.all.forwarding',
    'net.ipv4.conf.vxlan4/podwire.forwarding',
    'net.ipv6.conf.vxlan6/podwire.forwarding',
  ])('%s is repaired', (key) => {
    expect(judged({ [key]: '0' })).toEqual([`${key}=1`]);
  });

  test('of a family without pods is ignored', () => {
    const off = { 'net.ipv4.ip_forward': '0', 'net.ipv6.conf.all.forwarding': '0' };
    expect(judged(off, { families: [], tunnels: [] })).toEqual([]);
    expect(judged(off, { families: [4], tunnels: [] })).toEqual(['net.ipv4.ip_forward=1']);
  });

  test('of the node’s interface alone is reported, and not changed', () => {
    expect(judged({ 'net.ipv4.conf.eth0.forwarding': '0' })).toEqual(['InterfaceNotForwarding']);
    expect(judged({ 'net.ipv6.conf.eth0.forwarding': '0' })).toEqual(['InterfaceNotForwarding']);
    // The kernel sets it to 0 with the node's own setting.
    const node = { 'net.ipv4.conf.eth0.forwarding': '0', 'net.ipv4.ip_forward': '0' };
    expect(judged(node)).toEqual(['net.ipv4.ip_forward=1']);
  });
});

describe('IPv6', () => {
  test('that the kernel lacks blocks IPv6 pods', () => {
    const missing = Object.fromEntries(
      Object.keys(ALL_WELL)
        .filter((key) => key.includes('ipv6'))
        .map((key) => [key, null]),
    );
    expect(judged(missing)).toEqual(['Ipv6Missing']);
    expect(judged(missing, { families: [4] })).toEqual([]);
    const { conditions } = evaluateSettings(USE, () => null);
    expect(conditions).toMatchObject([{ reason: 'Ipv6Missing', blockedFamilies: [6] }]);
  });

  test('that is off is reported once the node’s address is gone, and repaired on tunnels', () => {
    const all = { 'net.ipv6.conf.all.disable_ipv6': '1' };
    expect(judged(all)).toEqual([]);
    expect(judged(all, { parents: { 4: 'eth0', 6: undefined } })).toEqual(['Ipv6Disabled']);
    const tunnel = 'net.ipv6.conf.vxlan6/podwire.disable_ipv6';
    expect(judged({ [tunnel]: '1' })).toEqual([`${tunnel}=0`]);
  });
});

let links: MemoryLinks;
let clock: ManualClock;
let looks: SettingsCheck[];
let reported: string[];
let use: SettingsRequirements;
let probe: () => Promise<void>;
let sysctls: NodeSysctls;

beforeEach(() => {
  links = new MemoryLinks();
  links.sysctls.set('net/ipv4/conf/all/rp_filter', '0');
  links.sysctls.set('net/ipv4/ip_forward', '0');
  clock = new ManualClock();
  [looks, reported] = [[], []];
  use = { families: [], parents: { 4: undefined, 6: undefined }, tunnels: [], unfiltered: [] };
  probe = () => Promise.resolve();
  sysctls = new NodeSysctls({
    links,
    requirements: () => use,
    probe: () => probe(),
    clock,
    events: {
      conditionsChanged: (reason, { length }) => void reported.push(`${reason} ${length}`),
      settingsApplied: (settings) =>
        void reported.push(...settings.map(({ key, value }) => `first ${key.join('.')}=${value}`)),
      settingsRepaired: (settings) =>
        void reported.push(...settings.map(({ key, value }) => `${key.join('.')}=${value}`)),
    },
    onCheck: (look) => void looks.push(look),
  });
});

afterEach(() => sysctls.stop());

/** Waits until the next check has ended: its loop sleeps again. */
async function looked(count: number): Promise<void> {
  await vi.waitFor(() => expect([looks.length, clock.sleeping]).toEqual([count, 1]), { timeout: 20_000 });
}

async function lookAgain(): Promise<void> {
  clock.advance(SYSCTL_CHECK_INTERVAL_MS);
  await looked(looks.length + 1);
}

const reasons = () => sysctls.conditions().map(({ reason }) => reason);
const followPools = (...cidrs: readonly string[]) => {
  const pools = new Map(cidrs.map((cidr) => [cidr, pool(cidr, cidr)]));
  const cluster = { nodes: new Map(), pools, blocks: new Map() };
  sysctls.follow({ self: 'n1', isDatastoreLocked: false, cluster }, { blocks: new Set(), hasOtherChanges: true });
};

test('forwarding is enabled for the families of pools once they are known, and repaired later', async () => {
  sysctls.start();
  await looked(1);
  expect(links.sysctls.get('net/ipv4/ip_forward')).toBe('0');
  followPools('10.65.0.0/16');
  await looked(2);
  expect(links.sysctls.get('net/ipv4/ip_forward')).toBe('1');
  expect(looks).toEqual([
    { poolFamilies: undefined, hasRepaired: false, changedPods: [] },
    { poolFamilies: [4], hasRepaired: true, changedPods: [] },
  ]);
  await lookAgain();
  expect(looks.at(-1)).toMatchObject({ hasRepaired: false });
  links.sysctls.set('net/ipv4/ip_forward', '0');
  await lookAgain();
  expect(links.sysctls.get('net/ipv4/ip_forward')).toBe('1');
  expect(reported).toEqual(['first net.ipv4.ip_forward=1', 'net.ipv4.ip_forward=1']);
});

test('families of existing pods count before the pools are known', async () => {
  use = { ...use, families: [4] };
  sysctls.start();
  await looked(1);
  expect(links.sysctls.get('net/ipv4/ip_forward')).toBe('1');
});

test('pods whose filter another program enabled are passed to the pods’ reconciler', async () => {
  use = { ...use, unfiltered: ['podw1', 'podw2'] };
  for (const name of use.unfiltered) links.sysctls.set(`net/ipv4/conf/${name}/rp_filter`, '0');
  sysctls.start();
  await looked(1);
  links.sysctls.set('net/ipv4/conf/podw2/rp_filter', '2');
  await lookAgain();
  expect(looks.map(({ changedPods }) => changedPods)).toEqual([[], ['podw2']]);
  expect([links.sysctls.get('net/ipv4/conf/podw2/rp_filter'), reported]).toEqual(['2', []]);
});

test('a condition is logged when it begins and when it is resolved', async () => {
  use = { ...use, families: [6] };
  sysctls.start();
  await looked(1);
  expect(reasons()).toEqual(['Ipv6Missing']);
  links.sysctls.set('net/ipv6/conf/all/disable_ipv6', '0');
  await lookAgain();
  expect(reasons()).toEqual([]);
  expect(reported).toEqual(['Ipv6Missing 1', 'Ipv6Missing 0']);
});

test('a failure to read, write or probe is a condition, and is retried', async () => {
  use = { ...use, families: [4] };
  links.failNext(new Failure('KERNEL_REFUSED', 'no descriptors are left'));
  sysctls.start();
  await looked(1);
  expect(reasons()).toEqual(['SettingsUnknown']);

  vi.spyOn(links, 'writeSysctls').mockRejectedValueOnce(new Failure('KERNEL_REFUSED', 'EROFS'));
  await lookAgain();
  expect(reasons()).toEqual(['SettingRefused']);
  expect(looks.at(-1)).toMatchObject({ hasRepaired: false });

  probe = () => Promise.reject(new Failure('KERNEL_UNSUPPORTED', 'the kernel has no veth'));
  await lookAgain();
  expect(sysctls.conditions()).toMatchObject([{ reason: 'KernelUnusable', blockedFamilies: [4, 6] }]);
  expect(links.sysctls.get('net/ipv4/ip_forward')).toBe('1');

  probe = () => Promise.resolve();
  await lookAgain();
  expect(reasons()).toEqual([]);
});
