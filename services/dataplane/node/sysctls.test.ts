import { describe, expect, test } from 'vitest';

import { judgeSettings, settingKeys, textOf, type SettingsUse } from '../sysctls/judge.js';

const USE: SettingsUse = {
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
function judged(values: Readonly<Record<string, string | null>>, use: Partial<SettingsUse> = {}): readonly string[] {
  const asked = { ...USE, ...use };
  const readable = new Set(settingKeys(asked).map(textOf));
  const { conditions, repairs } = judgeSettings(asked, (key) => {
    expect(readable).toContain(textOf(key));
    const found = { ...ALL_WELL, ...values }[textOf(key)];
    return found ?? null;
  });
  return [...conditions.map(({ reason }) => reason), ...repairs.map(({ key, value }) => `${textOf(key)}=${value}`)];
}

test('a node whose settings serve pods has nothing to tell and nothing to put right', () => {
  expect(judged({})).toEqual([]);
});

describe('net.ipv4.conf.all.rp_filter', () => {
  const set = (value: string, use?: Partial<SettingsUse>) => judged({ 'net.ipv4.conf.all.rp_filter': value }, use);

  test.each(['1', '2'])('of %s breaks the pods that may send from further prefixes, and no others', (value) => {
    expect(set(value)).toEqual([]);
    expect(set(value, { unfiltered: ['podw1'] })).toEqual(['StrictReversePathFilter']);
    expect(set('0', { unfiltered: ['podw1'] })).toEqual([]);
  });
});

test.each([
  ['0', []],
  ['1', ['podw1']],
  ['2', ['podw1']],
])('a filter of %s of a pod that may send from further prefixes is its keeper’s to put right', (set, filtered) => {
  const values = new Map([['net.ipv4.conf.podw1.rp_filter', set]]);
  const use = { ...USE, unfiltered: ['podw1', 'podw-gone'] };
  expect(judgeSettings(use, (key) => values.get(textOf(key)) ?? null)).toMatchObject({ filtered });
});

describe('forwarding', () => {
  test.each([
    'net.ipv4.ip_forward',
    'net.ipv6.conf.all.forwarding',
    'net.ipv4.conf.vxlan4/podwire.forwarding',
    'net.ipv6.conf.vxlan6/podwire.forwarding',
  ])('%s is put right', (key) => {
    expect(judged({ [key]: '0' })).toEqual([`${key}=1`]);
  });

  test('of a family that no pod has is nobody’s matter', () => {
    const off = { 'net.ipv4.ip_forward': '0', 'net.ipv6.conf.all.forwarding': '0' };
    expect(judged(off, { families: [], tunnels: [] })).toEqual([]);
    expect(judged(off, { families: [4], tunnels: [] })).toEqual(['net.ipv4.ip_forward=1']);
  });

  test('of the node’s interface alone is told, and is left to who switched it off', () => {
    expect(judged({ 'net.ipv4.conf.eth0.forwarding': '0' })).toEqual(['InterfaceNotForwarding']);
    expect(judged({ 'net.ipv6.conf.eth0.forwarding': '0' })).toEqual(['InterfaceNotForwarding']);
    // As it is when the whole node was switched off.
    const node = { 'net.ipv4.conf.eth0.forwarding': '0', 'net.ipv4.ip_forward': '0' };
    expect(judged(node)).toEqual(['net.ipv4.ip_forward=1']);
  });
});

describe('IPv6', () => {
  test('that the kernel has not defeats its pods', () => {
    const missing = Object.fromEntries(
      Object.keys(ALL_WELL)
        .filter((key) => key.includes('ipv6'))
        .map((key) => [key, null]),
    );
    expect(judged(missing)).toEqual(['Ipv6Missing']);
    expect(judged(missing, { families: [4] })).toEqual([]);
    const { conditions } = judgeSettings(USE, () => null);
    expect(conditions).toMatchObject([{ reason: 'Ipv6Missing', defeats: [6] }]);
  });

  test('that is switched off is told once the node’s address is gone, and put right on tunnels', () => {
    const all = { 'net.ipv6.conf.all.disable_ipv6': '1' };
    expect(judged(all)).toEqual([]);
    expect(judged(all, { parents: { 4: 'eth0', 6: undefined } })).toEqual(['Ipv6Disabled']);
    const tunnel = 'net.ipv6.conf.vxlan6/podwire.disable_ipv6';
    expect(judged({ [tunnel]: '1' })).toEqual([`${tunnel}=0`]);
  });
});
