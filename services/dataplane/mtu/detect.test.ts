import { parsePrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import type { ClusterPool, Encapsulation } from '../cluster/cluster.js';
import { commonMtu, detectMtu, isNodeInterface, mostOverhead } from './detect.js';

const PATTERNS = ['en*', 'eth*'];

function pool(cidr: string, encapsulation: Encapsulation, loadBalancerOnly = false): ClusterPool {
  const parsed = parsePrefix(cidr);
  if (!parsed.ok) throw new Error(parsed.fault);
  return { name: cidr, cidr: parsed.prefix, encapsulation, natOutgoing: false, loadBalancerOnly };
}

const link = (name: string, mtuBytes: number, state: 'up' | 'down' = 'up') => ({ name, mtuBytes, up: state === 'up' });

const ETH0 = [link('eth0', 1500)];

describe('the MTU of pods', () => {
  test.each<readonly [string, readonly ClusterPool[], number]>([
    ['no pools', [], 1500],
    ['no encapsulation', [pool('10.0.0.0/16', 'none')], 1500],
    ['VXLAN', [pool('10.0.0.0/16', 'vxlan')], 1450],
    ['VXLAN between subnets', [pool('10.0.0.0/16', 'vxlan-cross-subnet')], 1450],
    ['VXLAN over IPv6', [pool('fd00::/48', 'vxlan')], 1430],
    ['IPIP', [pool('10.0.0.0/16', 'ipip')], 1480],
    ['IPIP between subnets', [pool('10.0.0.0/16', 'ipip-cross-subnet')], 1480],
    ['IPIP for IPv6, which there is not', [pool('fd00::/48', 'ipip')], 1500],
    ['load balancers alone', [pool('10.0.0.0/16', 'vxlan', true)], 1500],
    [
      'the largest of several',
      [pool('10.1.0.0/16', 'none'), pool('fd00::/48', 'vxlan'), pool('10.0.0.0/16', 'ipip')],
      1430,
    ],
  ])('with %s on Ethernet', (_, pools, mtuBytes) => {
    expect(detectMtu(ETH0, PATTERNS, mostOverhead(pools)).mtuBytes).toBe(mtuBytes);
  });

  // Calico's felix/fv/mtu_test.go, but for what is assumed when no interface fits.
  test.each<readonly [string, ReturnType<typeof link>[], number, string | undefined]>([
    ['a small interface', [link('eth0', 1362)], 1312, 'eth0'],
    ['a smaller one that is down', [link('eth0', 1500), link('eth1', 1350, 'down')], 1450, 'eth0'],
    ['a smaller one that is up', [link('eth0', 1500), link('eth1', 1350)], 1300, 'eth1'],
    ['one of another name', [link('eth0', 1500), link('docker0', 576)], 1450, 'eth0'],
    ['none that fits', [link('bond0', 9000), link('lo', 65_536)], 1450, undefined],
    ['none', [], 1450, undefined],
    ['one that is too small for any tunnel', [link('eth0', 100)], 68, 'eth0'],
  ])('with VXLAN and %s', (_, links, mtuBytes, interfaceName) => {
    expect(detectMtu(links, PATTERNS, 50)).toEqual({ mtuBytes, interfaceName, overheadBytes: 50 });
  });
});

test.each<readonly [string, readonly number[], number | undefined]>([
  ['none of them', [], undefined],
  ['one', [1450], 1450],
  ['some of which one was changed by hand', [1450, 1290, 1450], 1450],
  ['two that differ', [1450, 1400], 1400],
])('the MTU that most of some links have, of %s', (_, mtus, expected) => {
  const wires = mtus.map((mtuBytes, at) => link(`podw${at}`, mtuBytes));
  const names = new Set(['gone', ...wires.map(({ name }) => name)]);
  expect(commonMtu([...ETH0, ...wires, link('podwother', 1280)], names)).toBe(expected);
});

test.each([
  ['eth0', ['eth*'], true],
  ['eth', ['eth*'], true],
  ['eth0', ['eth0'], true],
  ['eth01', ['eth0'], false],
  ['wlan0', ['eth*'], false],
  ['bond0', ['*'], true],
  ['lo', ['*', 'lo'], false],
  ['podw0123', ['*', 'podw*'], false],
  ['vxlan4.podwire', ['*'], false],
  ['vxlan6.podwire', ['*'], false],
  ['ipip.podwire', ['*'], false],
  ['eth0', [], false],
])('%s with %j: %s', (name, patterns, expected) => {
  expect(isNodeInterface(name, patterns)).toBe(expected);
});
