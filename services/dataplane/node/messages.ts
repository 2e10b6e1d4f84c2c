import { TunnelKind, type Node } from '@podwire/proto/podwire/ipam/v1/node';
import { AddressUse, PoolState, type Pool } from '@podwire/proto/podwire/ipam/v1/pool';
import type { BlockRoute } from '@podwire/proto/podwire/ipam/v1/watch';
import { parseAddress, type Address, type Family } from '@podwire/shared/net/address';
import { parseMac } from '@podwire/shared/net/mac';
import {
  defaultRoute,
  parsePrefix,
  prefixContains,
  prefixOf,
  splitCidr,
  type Prefix,
} from '@podwire/shared/net/prefix';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import { ENCAPSULATION_MODES } from '@podwire/shared/requests/pool-words';

import type { ClusterBlock, ClusterNode, Encapsulation, IpamPool, NodeAddress, VxlanEnd } from '../cluster/cluster.js';

/** Reads IPAM's messages. Each reader throws Failure INVALID_REQUEST that lists every fault of the message. */

export function readBlock({ cidr: text, poolName, nodeName, borrowed }: BlockRoute): ClusterBlock {
  return readChecked(`block ${text}`, (checks) => {
    const cidr = readPrefix('cidr', text, checks);
    return {
      cidr,
      poolName: undefinedIfEmpty(poolName),
      nodeName: undefinedIfEmpty(nodeName),
      borrowed: borrowed.flatMap((one, at) => {
        const field = `borrowed[${at}]`;
        const address = parseAddress(one.address);
        if (one.nodeName === '') checks.check(`${field}.node_name`, 'is empty');
        if (address && prefixContains(cidr, address)) return [{ address, nodeName: one.nodeName }];
        checks.check(`${field}.address`, `is ${quoted(one.address)}, which must be an address of the block`);
        return [];
      }),
    };
  });
}

export function readPool(pool: Pool): IpamPool {
  const { allowedUses, state, natOutgoing, name } = pool;
  return readChecked(`pool ${name}`, (checks) => {
    const cidr = readPrefix('cidr', pool.cidr, checks);
    const encapsulation = readEncapsulation(pool, checks);
    if (cidr.family === 6 && encapsulation.startsWith('ipip'))
      checks.check('ipip_mode', 'must not be set for an IPv6 pool');
    return {
      name,
      cidr,
      encapsulation,
      natOutgoing,
      loadBalancerOnly:
        allowedUses.length > 0 && allowedUses.every((use) => use === AddressUse.ADDRESS_USE_LOAD_BALANCER),
      isDraining: state === PoolState.POOL_STATE_DRAINING,
      isActive: state === PoolState.POOL_STATE_ACTIVE,
      assignsTunnelAddresses:
        state === PoolState.POOL_STATE_ACTIVE &&
        (allowedUses.length === 0 || allowedUses.includes(AddressUse.ADDRESS_USE_TUNNEL)),
    };
  });
}

function readEncapsulation({ vxlanMode, ipipMode }: Pool, checks: Checks): Encapsulation {
  const [vxlan, ipip] = [ENCAPSULATION_MODES.wordOf(vxlanMode), ENCAPSULATION_MODES.wordOf(ipipMode)];
  if (!vxlan) checks.check('vxlan_mode', `is ${vxlanMode}, which is not a valid EncapsulationMode`);
  if (!ipip) checks.check('ipip_mode', `is ${ipipMode}, which is not a valid EncapsulationMode`);
  if (isSet(vxlan) && isSet(ipip)) checks.check('ipip_mode', 'must not be set together with vxlan_mode');
  if (isSet(vxlan)) return vxlan === 'Always' ? 'vxlan' : 'vxlan-cross-subnet';
  if (isSet(ipip)) return ipip === 'Always' ? 'ipip' : 'ipip-cross-subnet';
  return 'none';
}

function isSet(mode: string | undefined): boolean {
  return mode !== undefined && mode !== 'Never';
}

export function readNode(node: Node): ClusterNode {
  return readChecked(`node ${node.name}`, (checks) => ({
    name: node.name,
    ipv4: readNodeAddress('ipv4_address', { text: node.ipv4Address, family: 4 }, checks),
    ipv6: readNodeAddress('ipv6_address', { text: node.ipv6Address, family: 6 }, checks),
    vxlanIpv4: readTunnel(node, { kind: TunnelKind.TUNNEL_KIND_VXLAN_IPV4, family: 4 }, checks),
    vxlanIpv6: readTunnel(node, { kind: TunnelKind.TUNNEL_KIND_VXLAN_IPV6, family: 6 }, checks),
    ipip: readTunnel(node, { kind: TunnelKind.TUNNEL_KIND_IPIP, family: 4 }, checks)?.address,
    asNumber: node.asNumber,
    ...(node.interfaces.length > 0 && { interfaceAddresses: interfaceAddressesOf(node) }),
    ...(node.leaseRecallCount > 0n && { leaseRecallCount: node.leaseRecallCount }),
    ...(node.inventoryRequestCount > 0n && { inventoryRequestCount: node.inventoryRequestCount }),
  }));
}

/** Leaves out an invalid address: it does not make the node unreachable. */
function interfaceAddressesOf({ interfaces }: Node): readonly Address[] {
  return interfaces.flatMap(({ addresses }) => addresses.flatMap((text) => splitCidr(text)?.address ?? []));
}

interface AddressText {
  readonly text: string;
  readonly family: Family;
}

function readNodeAddress(field: string, { text, family }: AddressText, checks: Checks): NodeAddress | undefined {
  if (text === '') return undefined;
  const parts = splitCidr(text);
  if (parts?.address.family === family)
    return { address: parts.address, subnet: prefixOf(parts.address, parts.length) };
  checks.check(field, `is ${quoted(text)}, which must be an IPv${family} address with the length of its subnet`);
  return undefined;
}

interface TunnelField {
  readonly kind: TunnelKind;
  readonly family: Family;
}

function readTunnel({ tunnels }: Node, { kind, family }: TunnelField, checks: Checks): VxlanEnd | undefined {
  const at = tunnels.findIndex((one) => one.kind === kind);
  const tunnel = tunnels[at];
  if (!tunnel) return undefined;
  const mac = parseMac(tunnel.macAddress);
  if (mac === undefined && tunnel.macAddress !== '')
    checks.check(`tunnels[${at}].mac_address`, `is ${quoted(tunnel.macAddress)}, which must be a unicast MAC address`);
  return { address: readTunnelAddress(`tunnels[${at}].address`, { text: tunnel.address, family }, checks), mac };
}

function readTunnelAddress(field: string, { text, family }: AddressText, checks: Checks): Address | undefined {
  if (text === '') return undefined;
  const address = parseAddress(text);
  if (address?.family === family) return address;
  checks.check(field, `is ${quoted(text)}, which must be an IPv${family} address`);
  return undefined;
}

function readPrefix(field: string, text: string, checks: Checks): Prefix {
  const parsed = parsePrefix(text);
  if (parsed.ok) return parsed.prefix;
  checks.check(field, `is ${quoted(text)}: ${parsed.fault}`);
  return defaultRoute(4);
}

function undefinedIfEmpty(text: string): string | undefined {
  return text === '' ? undefined : text;
}

const MAX_QUOTED_LENGTH = 60;

function quoted(text: string): string {
  return JSON.stringify(text.length > MAX_QUOTED_LENGTH ? `${text.slice(0, MAX_QUOTED_LENGTH)}…` : text);
}
