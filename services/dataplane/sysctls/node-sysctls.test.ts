import { Failure } from '@podwire/shared/failure/failure';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { LOOK_INTERVAL_MS, NodeSysctls, type NodeLook } from '../node/sysctls.js';
import { MemoryLinks } from '../testing/memory-links.js';
import { pool } from '../testing/routes.js';
import type { SettingsUse } from './judge.js';

let links: MemoryLinks;
let clock: ManualClock;
let looks: NodeLook[];
let told: string[];
let use: SettingsUse;
let probe: () => Promise<void>;
let sysctls: NodeSysctls;

beforeEach(() => {
  links = new MemoryLinks();
  links.sysctls.set('net/ipv4/conf/all/rp_filter', '0');
  links.sysctls.set('net/ipv4/ip_forward', '0');
  clock = new ManualClock();
  [looks, told] = [[], []];
  use = { families: [], parents: { 4: undefined, 6: undefined }, tunnels: [], unfiltered: [] };
  probe = () => Promise.resolve();
  sysctls = new NodeSysctls({
    links,
    use: () => use,
    probe: () => probe(),
    clock,
    events: {
      conditionsChanged: (reason, { length }) => void told.push(`${reason} ${length}`),
      settingsMade: (settings) =>
        void told.push(...settings.map(({ key, value }) => `first ${key.join('.')}=${value}`)),
      settingsRepaired: (settings) => void told.push(...settings.map(({ key, value }) => `${key.join('.')}=${value}`)),
    },
    onLook: (look) => void looks.push(look),
  });
});

afterEach(() => sysctls.stop());

/** Waits for the next look to have ended: somebody sleeps again. */
async function looked(count: number): Promise<void> {
  await vi.waitFor(() => expect([looks.length, clock.sleeping]).toEqual([count, 1]), { timeout: 20_000 });
}

async function lookAgain(): Promise<void> {
  clock.advance(LOOK_INTERVAL_MS);
  await looked(looks.length + 1);
}

const reasons = () => sysctls.conditions().map(({ reason }) => reason);
const followPools = (...cidrs: readonly string[]) => {
  const pools = new Map(cidrs.map((cidr) => [cidr, pool(cidr, cidr)]));
  const cluster = { nodes: new Map(), pools, blocks: new Map() };
  sysctls.follow({ self: 'n1', cluster }, { blocks: new Set(), others: true });
};

test('forwarding is switched on for the families of pools once they are known, and put right later', async () => {
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
  expect(told).toEqual(['first net.ipv4.ip_forward=1', 'net.ipv4.ip_forward=1']);
});

test('pods that there are need their family before the pools are known', async () => {
  use = { ...use, families: [4] };
  sysctls.start();
  await looked(1);
  expect(links.sysctls.get('net/ipv4/ip_forward')).toBe('1');
});

test('pods whose own filter others have switched on are told, and left to their keeper', async () => {
  use = { ...use, unfiltered: ['podw1', 'podw2'] };
  for (const name of use.unfiltered) links.sysctls.set(`net/ipv4/conf/${name}/rp_filter`, '0');
  sysctls.start();
  await looked(1);
  links.sysctls.set('net/ipv4/conf/podw2/rp_filter', '2');
  await lookAgain();
  expect(looks.map(({ changedPods }) => changedPods)).toEqual([[], ['podw2']]);
  expect([links.sysctls.get('net/ipv4/conf/podw2/rp_filter'), told]).toEqual(['2', []]);
});

test('a condition is told when it comes and when it is over', async () => {
  use = { ...use, families: [6] };
  sysctls.start();
  await looked(1);
  expect(reasons()).toEqual(['Ipv6Missing']);
  links.sysctls.set('net/ipv6/conf/all/disable_ipv6', '0');
  await lookAgain();
  expect(reasons()).toEqual([]);
  expect(told).toEqual(['Ipv6Missing 1', 'Ipv6Missing 0']);
});

test('what cannot be read, written or probed is a condition, and is tried again', async () => {
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
  expect(sysctls.conditions()).toMatchObject([{ reason: 'KernelUnusable', defeats: [4, 6] }]);
  expect(links.sysctls.get('net/ipv4/ip_forward')).toBe('1');

  probe = () => Promise.resolve();
  await lookAgain();
  expect(reasons()).toEqual([]);
});
