import { execFileSync } from 'node:child_process';

import { tunnelMac } from '@podwire/shared/attachment/names';
import { parseMac } from '@podwire/shared/net/mac';
import { describe, expect, test } from 'vitest';

import type { Encapsulation } from '../cluster/cluster.js';
import { facts, node, peerText, planNode, pool, reasons, tunnelText, view } from '../testing/routes.js';

const A = node('a', {
  ipv4: '192.0.2.1/24',
  ipv6: '2001:db8::1/64',
  vxlan4: '10.0.0.1',
  vxlan6: 'fd00::1',
  ipip: '10.0.0.2',
});
const B = node('b', { ipv4: '198.51.100.7/24', ipv6: '2001:db8:7::7/64', vxlan4: '10.0.7.1', vxlan6: 'fd00:7::1' });
const POOLS = (encapsulation: Encapsulation) => [
  pool('p', '10.0.0.0/16', { encapsulation }),
  pool('p6', 'fd00::/16', { encapsulation }),
];

const MAC_A = tunnelMac('a', 4);
const MAC_A6 = tunnelMac('a', 6);
const VXLAN4 = `vxlan4.podwire mtu 1450 address ${MAC_A} type vxlan id 4096 dstport 4789 local 192.0.2.1 dev eth0 inet 10.0.0.1/32`;
const VXLAN6 = `vxlan6.podwire mtu 1430 address ${MAC_A6} type vxlan id 4096 dstport 4789 local 2001:db8::1 dev eth0 inet fd00::1/128`;

describe('tunnel devices', () => {
  test.each<[Encapsulation, readonly string[]]>([
    ['none', []],
    ['vxlan', [VXLAN4, VXLAN6]],
    ['vxlan-cross-subnet', [VXLAN4, VXLAN6]],
    ['ipip', ['ipip.podwire mtu 1480 type ipip local 192.0.2.1 inet 10.0.0.2/32']],
  ])('for %s', (encapsulation, tunnels) => {
    const wanted = planNode(view('a', { nodes: [A, B], pools: POOLS(encapsulation) }), facts());
    expect(wanted.tunnels.map(tunnelText)).toEqual(tunnels);
  });

  test('of each family alone, with the MTU of the network less what the tunnel takes', () => {
    const pools = [pool('p', '10.0.0.0/16', { encapsulation: 'vxlan' }), pool('p6', 'fd00::/16')];
    const { tunnels } = planNode(view('a', { nodes: [A, B], pools }), facts({ mtuBytes: 1362 }));
    expect(tunnels.map(({ name, mtuBytes }) => [name, mtuBytes])).toEqual([['vxlan4.podwire', 1312]]);
    const six = [pool('p6', 'fd00::/16', { encapsulation: 'vxlan' })];
    const other = planNode(view('a', { nodes: [A, B], pools: six }), facts({ mtuBytes: 1362 }));
    expect(other.tunnels.map(({ name, mtuBytes }) => [name, mtuBytes])).toEqual([['vxlan6.podwire', 1292]]);
    expect(reasons(other)).toEqual([]);
  });

  test('without an address until one is allocated, and without a parent while that is unknown', () => {
    const bare = node('a', { ipv4: '192.0.2.1/24' });
    const given = facts({ parents: { 4: undefined, 6: undefined } });
    const wanted = planNode(view('a', { nodes: [bare, B], pools: POOLS('vxlan').slice(0, 1) }), given);
    expect(wanted.tunnels).toMatchObject([{ address: undefined, parent: undefined, mac: MAC_A }]);
    expect(reasons(wanted)).toEqual(['TunnelAddressMissing']);
  });

  test.each([
    ['not while this node is not registered', { nodes: [B] }, facts(), ['NodeNotRegistered']],
    [
      'not without the node’s address',
      { nodes: [node('a', {})] },
      facts(),
      ['NodeAddressMissing', 'NodeAddressMissing'],
    ],
    [
      'not when the kernel has none',
      { nodes: [A] },
      facts({ hasVxlan: false }),
      ['VxlanUnsupported', 'VxlanUnsupported'],
    ],
  ])('%s', (_, text, given, conditions) => {
    const wanted = planNode(view('a', { ...text, pools: POOLS('vxlan') }), given);
    expect(wanted.tunnels).toEqual([]);
    expect(wanted.peers).toEqual([]);
    expect(reasons(wanted)).toEqual(conditions);
  });

  test('a pool for load balancers alone needs none', () => {
    const pools = [pool('p', '10.0.0.0/16', { encapsulation: 'vxlan', loadBalancerOnly: true })];
    expect(planNode(view('a', { nodes: [A, B], pools }), facts()).tunnels).toEqual([]);
  });

  test('too small an MTU is a condition', () => {
    const wanted = planNode(view('a', { nodes: [A, B], pools: POOLS('vxlan') }), facts({ mtuBytes: 1340 }));
    expect(reasons(wanted)).toEqual(['MtuTooSmall']);
    expect(wanted.conditions[0]?.message).toContain('vxlan6.podwire: the MTU of 1270 bytes is below');
  });
});

describe('VXLAN peers', () => {
  test('have their reported MAC address, or one derived from their name', () => {
    const registered = node('c', { ipv4: '192.0.2.3/24', vxlan4: '10.0.3.1', mac: '02:00:00:00:00:03' });
    const wanted = planNode(view('a', { nodes: [registered, B, A], pools: POOLS('vxlan') }), facts());
    expect(wanted.peers.map(peerText)).toEqual([
      `10.0.7.1 lladdr ${tunnelMac('b', 4)} dev vxlan4.podwire; ${tunnelMac('b', 4)} dst 198.51.100.7`,
      `10.0.3.1 lladdr 02:00:00:00:00:03 dev vxlan4.podwire; 02:00:00:00:00:03 dst 192.0.2.3`,
      `fd00:7::1 lladdr ${tunnelMac('b', 6)} dev vxlan6.podwire; ${tunnelMac('b', 6)} dst 2001:db8:7::7`,
    ]);
  });

  test.each([
    ['without a tunnel address', { ipv4: '192.0.2.3/24' }],
    ['without a node address', { vxlan4: '10.0.3.1' }],
  ])('are not those %s', (_, text) => {
    const wanted = planNode(view('a', { nodes: [A, node('c', text)], pools: POOLS('vxlan') }), facts());
    expect(wanted.peers).toEqual([]);
  });

  test('with a duplicate tunnel address: the first is used, further nodes are reported', () => {
    const twin = node('c', { ipv4: '192.0.2.3/24', vxlan4: '10.0.7.1' });
    const mine = node('d', { ipv4: '192.0.2.4/24', vxlan4: '10.0.0.1' });
    const wanted = planNode(view('a', { nodes: [mine, twin, B, A], pools: POOLS('vxlan').slice(0, 1) }), facts());
    expect(wanted.peers.map(({ nodeAddress }) => nodeAddress)).toEqual(['198.51.100.7']);
    expect(wanted.conditions.map(({ reason, message }) => `${reason}: ${message}`)).toEqual([
      expect.stringContaining('TunnelAddressConflict: nodes b and c have'),
      expect.stringContaining('TunnelAddressConflict: nodes a and d have'),
    ]);
  });
});

test.each([
  ['IPv4', POOLS('none').slice(0, 1), ['net.ipv4.ip_forward=1']],
  ['IPv6', POOLS('none').slice(1), ['net.ipv6.conf.all.forwarding=1']],
  ['both', POOLS('none'), ['net.ipv4.ip_forward=1', 'net.ipv6.conf.all.forwarding=1']],
  ['neither', [], []],
] as const)('the node forwards the families of the pools: %s', (_, pools, sysctls) => {
  const wanted = planNode(view('a', { nodes: [A], pools }), facts());
  expect(wanted.sysctls.map(({ key, value }) => `${key.join('.')}=${value}`)).toEqual(sysctls);
});

test.each([
  ['node-1', 4, 'node-1'],
  ['node-1', 6, 'node-1-v6'],
  ['knoten-ü', 4, 'knoten-ü'],
] as const)('of %s for IPv%i: 66 and the first five bytes that sha1sum gives of %j', (name, family, hashed) => {
  const sum = execFileSync('sha1sum', { input: hashed, encoding: 'utf8' });
  const mac = tunnelMac(name, family);
  expect(mac.replaceAll(':', '')).toBe(`66${sum.slice(0, 10)}`);
  expect(parseMac(mac)).toBe(mac);
});
