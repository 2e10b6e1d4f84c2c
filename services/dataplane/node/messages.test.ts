import { TunnelKind, type Node } from '@podwire/proto/podwire/ipam/v1/node';
import { AddressUse, EncapsulationMode, PoolState, type Pool } from '@podwire/proto/podwire/ipam/v1/pool';
import { parseAddress } from '@podwire/shared/net/address';
import { parsePrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { nodeMessage, poolMessage, routeMessage } from '../testing/ipam.js';
import { readBlock, readNode, readPool } from './messages.js';

const { ENCAPSULATION_MODE_ALWAYS: ALWAYS, ENCAPSULATION_MODE_CROSS_SUBNET: CROSS_SUBNET } = EncapsulationMode;
const {
  ADDRESS_USE_LOAD_BALANCER: LOAD_BALANCER,
  ADDRESS_USE_WORKLOAD: WORKLOAD,
  ADDRESS_USE_TUNNEL: TUNNEL,
} = AddressUse;

const prefix = (cidr: string) => {
  const parsed = parsePrefix(cidr);
  return parsed.ok ? parsed.prefix : expect.unreachable();
};

/** A value that a later release may send. */
const OF_A_LATER_RELEASE = EncapsulationMode.UNRECOGNIZED;

function faultsOf(read: () => unknown): string[] {
  try {
    read();
  } catch (error) {
    expect(error).toMatchObject({ code: 'INVALID_REQUEST' });
    return error instanceof Error && 'violations' in error && Array.isArray(error.violations)
      ? error.violations.map(({ field }) => String(field))
      : [];
  }
  return [];
}

describe('a pool', () => {
  test.each<[Partial<Pool>, string]>([
    [{}, 'none'],
    [{ vxlanMode: ALWAYS }, 'vxlan'],
    [{ vxlanMode: CROSS_SUBNET }, 'vxlan-cross-subnet'],
    [{ ipipMode: ALWAYS }, 'ipip'],
    [{ ipipMode: CROSS_SUBNET, vxlanMode: EncapsulationMode.ENCAPSULATION_MODE_NEVER }, 'ipip-cross-subnet'],
  ])('%j is encapsulated: %s', (modes, encapsulation) => {
    expect(readPool(poolMessage('p', '10.65.0.0/16', { ...modes, natOutgoing: true }))).toEqual({
      name: 'p',
      cidr: prefix('10.65.0.0/16'),
      encapsulation,
      natOutgoing: true,
      loadBalancerOnly: false,
      isDraining: false,
      isActive: true,
      assignsTunnelAddresses: true,
    });
  });

  test.each<[Partial<Pool>, boolean, boolean]>([
    [{ allowedUses: [LOAD_BALANCER] }, true, false],
    [{ allowedUses: [WORKLOAD] }, false, false],
    [{ allowedUses: [WORKLOAD, TUNNEL] }, false, true],
    [{ state: PoolState.POOL_STATE_DISABLED }, false, false],
    [{ state: PoolState.POOL_STATE_DRAINING }, false, false],
    [{ state: PoolState.POOL_STATE_NOT_ALLOCATABLE }, false, false],
  ])(
    '%j is for load balancers alone: %s; assigns tunnel addresses: %s',
    (rest, loadBalancerOnly, assignsTunnelAddresses) => {
      expect(readPool(poolMessage('p', 'fd65::/48', rest))).toMatchObject({ loadBalancerOnly, assignsTunnelAddresses });
    },
  );

  test.each<[Partial<Pool>, readonly string[]]>([
    [{ cidr: '' }, ['cidr']],
    [{ cidr: '10.65.0.1/16' }, ['cidr']],
    [{ vxlanMode: OF_A_LATER_RELEASE }, ['vxlan_mode']],
    [{ ipipMode: OF_A_LATER_RELEASE, cidr: 'x' }, ['cidr', 'ipip_mode']],
    [{ ipipMode: ALWAYS, vxlanMode: ALWAYS }, ['ipip_mode']],
    [{ ipipMode: ALWAYS, cidr: 'fd65::/48' }, ['ipip_mode']],
  ])('%j is invalid', (rest, fields) => {
    expect(faultsOf(() => readPool(poolMessage('p', '10.65.0.0/16', rest)))).toEqual(fields);
  });
});

describe('a node', () => {
  test('with everything', () => {
    const tunnels = [
      { kind: TunnelKind.TUNNEL_KIND_IPIP, address: '10.65.0.1', macAddress: '' },
      { kind: TunnelKind.TUNNEL_KIND_VXLAN_IPV4, address: '10.65.0.2', macAddress: '66:00:00:00:00:AB' },
      { kind: TunnelKind.TUNNEL_KIND_VXLAN_IPV6, address: '', macAddress: '66:00:00:00:00:02' },
    ];
    const interfaces = [{ name: 'eth0', addresses: ['192.0.2.7/24', 'x', 'fd00::7/64'] }];
    const node = nodeMessage('n1', '192.0.2.7/24', { ipv6Address: 'fd00::7/64', tunnels, interfaces, asNumber: 64512 });
    expect(readNode(node)).toEqual({
      name: 'n1',
      ipv4: { address: parseAddress('192.0.2.7'), subnet: prefix('192.0.2.0/24') },
      ipv6: { address: parseAddress('fd00::7'), subnet: prefix('fd00::/64') },
      ipip: parseAddress('10.65.0.1'),
      vxlanIpv4: { address: parseAddress('10.65.0.2'), mac: '66:00:00:00:00:ab' },
      vxlanIpv6: { address: undefined, mac: '66:00:00:00:00:02' },
      asNumber: 64512,
      interfaceAddresses: [parseAddress('192.0.2.7'), parseAddress('fd00::7')],
    });
  });

  test('with the counts of recalls and of requests for its inventory', () => {
    const node = nodeMessage('n1', '', { leaseRecallCount: 3n, inventoryRequestCount: 7n });
    expect(readNode(node)).toMatchObject({ leaseRecallCount: 3n, inventoryRequestCount: 7n });
  });

  test('with nothing, as an allocation registers it', () => {
    const nothing = { ipv4: undefined, ipv6: undefined, vxlanIpv4: undefined, vxlanIpv6: undefined };
    expect(readNode(nodeMessage('n1', ''))).toEqual({ name: 'n1', ...nothing, ipip: undefined, asNumber: undefined });
  });

  test.each<[Partial<Node>, readonly string[]]>([
    [{ ipv4Address: '192.0.2.7' }, ['ipv4_address']],
    [{ ipv4Address: 'fd00::7/64', ipv6Address: '192.0.2.7/24' }, ['ipv4_address', 'ipv6_address']],
    [{ tunnels: [{ kind: TunnelKind.TUNNEL_KIND_IPIP, address: 'fd00::1', macAddress: '' }] }, ['tunnels[0].address']],
    [
      { tunnels: [{ kind: TunnelKind.TUNNEL_KIND_VXLAN_IPV4, address: '1', macAddress: 'ff:ff:ff:ff:ff:ff' }] },
      ['tunnels[0].mac_address', 'tunnels[0].address'],
    ],
  ])('%j is invalid', (rest, fields) => {
    expect(faultsOf(() => readNode(nodeMessage('n1', '', rest)))).toEqual(fields);
  });
});

describe('a block', () => {
  test('with its borrowed addresses', () => {
    const borrowed = [{ address: '10.65.0.7', nodeName: 'n2' }];
    expect(readBlock(routeMessage('10.65.0.0/26', 'n1', { borrowed }))).toEqual({
      cidr: prefix('10.65.0.0/26'),
      poolName: 'p',
      nodeName: 'n1',
      borrowed: [{ address: parseAddress('10.65.0.7'), nodeName: 'n2' }],
    });
    expect(readBlock(routeMessage('fd65::/122', '', { poolName: '' }))).toMatchObject({
      poolName: undefined,
      nodeName: undefined,
    });
  });

  test.each([
    ['10.65.0.0', [], ['cidr']],
    ['10.65.0.0/26', [{ address: '10.65.0.64', nodeName: 'n2' }], ['borrowed[0].address']],
    ['10.65.0.0/26', [{ address: 'fd65::1', nodeName: '' }], ['borrowed[0].node_name', 'borrowed[0].address']],
  ])('%s with %j is invalid', (cidr, borrowed, fields) => {
    expect(faultsOf(() => readBlock(routeMessage(cidr, 'n1', { borrowed })))).toEqual(fields);
  });
});

test('quoted values are truncated', () => {
  expect(() => readPool(poolMessage('p', 'x'.repeat(10_000)))).toThrow(/"x{60}…": not a CIDR$/);
});
