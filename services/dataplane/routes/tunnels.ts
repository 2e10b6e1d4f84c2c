import { tunnelMac } from '@podwire/shared/attachment/names';
import { FAMILIES, formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';
import { compareNames } from '@podwire/shared/words/order';

import {
  encapsulationOf,
  modeOf,
  nodeAddressOf,
  VXLAN_PORT,
  type ClusterNode,
  type ClusterPool,
} from '../cluster/cluster.js';
import { formatList, type Condition } from '../conditions/conditions.js';
import { vxlanEndOf } from './block-routes.js';
import {
  IPIP_DEVICE,
  VXLAN_DEVICE,
  VXLAN_VNI,
  type NodeFacts,
  type NodeSysctl,
  type VxlanPeer,
  type WantedTunnel,
} from './wanted.js';

/** Size of a tunnel's outer headers per packet, in bytes. */
export const OVERHEAD_BYTES = { ipip: 20, vxlan: { 4: 50, 6: 70 } } as const;

/** Least MTU of a link for IPv6, in bytes (RFC 8200, section 5). */
const IPV6_MIN_MTU_BYTES = 1280;

/** Least MTU of a link for IPv4, in bytes (RFC 791). */
const IPV4_MIN_MTU_BYTES = 68;

/** The input for planning tunnels. */
interface TunnelInput {
  /** Name of this node. */
  readonly selfName: string;
  /** Node as last received from IPAM. */
  readonly self: ClusterNode | undefined;
  readonly nodes: ReadonlyMap<string, ClusterNode>;
  readonly pools: ReadonlyMap<string, ClusterPool>;
  readonly facts: NodeFacts;
}

/** The wanted state of the node as a whole, independent of blocks. */
export interface TunnelPlan {
  readonly tunnels: readonly WantedTunnel[];
  readonly peers: readonly VxlanPeer[];
  readonly sysctls: readonly NodeSysctl[];
  readonly conditions: readonly Condition[];
}

export function planTunnels(input: TunnelInput): TunnelPlan {
  const conditions = [...registrationConditions(input)];
  const tunnels: WantedTunnel[] = [];
  const peers: VxlanPeer[] = [];
  for (const family of FAMILIES) {
    const requirements = requirementsOf(family, input);
    if (requirements.pools.length === 0) continue;
    const local = nodeAddressOf(input.self, family)?.address;
    conditions.push(...nodeConditions(requirements, local, input));
    if (!local) continue;
    if (requirements.vxlan.length > 0 && input.facts.hasVxlan) {
      tunnels.push(vxlanTunnel(local, input));
      const found = vxlanPeers(family, input);
      peers.push(...found.peers);
      conditions.push(...found.conditions);
    }
    if (requirements.ipip.length > 0 && input.facts.hasIpip && family === 4) tunnels.push(ipipTunnel(local, input));
  }
  conditions.push(...tunnels.flatMap((tunnel) => mtuConditions(tunnel)));
  return { tunnels, peers, sysctls: FAMILIES.flatMap((family) => forwardingSysctls(family, input)), conditions };
}

/** Names of a family's pools by requirement. */
interface PoolRequirements {
  readonly family: Family;
  readonly pools: readonly string[];
  readonly vxlan: readonly string[];
  /** VXLAN pools that are not draining: the node releases its tunnel address when none is left. */
  readonly undrained: readonly string[];
  readonly ipip: readonly string[];
  /** Pools whose packets may leave by the node's interface without encapsulation. */
  readonly direct: readonly string[];
}

function requirementsOf(family: Family, { pools, facts }: TunnelInput): PoolRequirements {
  const ours = [...pools.values()].filter(({ cidr }) => cidr.family === family);
  const draining = new Set(ours.filter(({ isDraining }) => isDraining).map(({ name }) => name));
  const names = (wanted: (mode: ReturnType<typeof modeOf>) => boolean) =>
    ours.filter((pool) => wanted(modeOf(encapsulationOf(pool)))).map(({ name }) => name);
  const vxlan = names(({ tunnel }) => tunnel === 'vxlan');
  return {
    family,
    pools: names(() => true),
    vxlan,
    undrained: vxlan.filter((name) => !draining.has(name)),
    ipip: names(({ tunnel }) => tunnel === 'ipip'),
    direct: names(({ tunnel, onlyCrossSubnet }) => (tunnel === 'none' ? facts.routing === 'native' : onlyCrossSubnet)),
  };
}

function registrationConditions({ selfName, nodes }: TunnelInput): Condition[] {
  if (nodes.has(selfName)) return [];
  return [
    {
      reason: 'NodeNotRegistered',
      message: `node ${selfName} is not registered in IPAM, so other nodes cannot route to it; its dataplane retries, see its log`,
    },
  ];
}

/** The properties that this node lacks for the pools of a family. */
function nodeConditions(requirements: PoolRequirements, local: Address | undefined, input: TunnelInput): Condition[] {
  const { facts, self, selfName } = input;
  const { family } = requirements;
  const node = `node ${selfName}`;
  if (!local) {
    if (!self) return [];
    const pools = formatList(requirements.pools);
    const message = `${node} has no IPv${family} address, which pools ${pools} need; assign one to an interface, or set the node's address`;
    return [{ reason: 'NodeAddressMissing', message }];
  }
  const found: Condition[] = [];
  if (requirements.vxlan.length > 0 && !facts.hasVxlan) {
    const message = `the kernel of ${node} has no VXLAN, which pools ${formatList(requirements.vxlan)} use; load the module vxlan`;
    found.push({ reason: 'VxlanUnsupported', message });
  } else if (requirements.undrained.length > 0 && !vxlanEndOf(self, family)?.address) {
    const message = `${node} has no IPv${family} tunnel address, so other nodes cannot tunnel to it; check its dataplane's log, and whether pools ${formatList(requirements.undrained)} have free addresses`;
    found.push({ reason: 'TunnelAddressMissing', message });
  }
  if (requirements.ipip.length > 0 && !facts.hasIpip && family === 4) {
    const message = `the kernel of ${node} has no IPIP, which pools ${formatList(requirements.ipip)} use; load the module ipip, or use VXLAN for the pools`;
    found.push({ reason: 'IpipUnsupported', message });
  }
  if (requirements.direct.length > 0 && facts.parents[family] === undefined) {
    const message = `no interface of ${node} has its address ${formatAddress(local)}, so pools ${formatList(requirements.direct)} cannot be reached without a tunnel; correct the node's address`;
    found.push({ reason: 'ParentUnknown', message });
  }
  return found;
}

function vxlanTunnel(local: Address, { facts, selfName, self }: TunnelInput): WantedTunnel {
  const { family } = local;
  const end = vxlanEndOf(self, family);
  return {
    kind: 'vxlan',
    name: VXLAN_DEVICE[family],
    vni: VXLAN_VNI,
    port: VXLAN_PORT,
    local: formatAddress(local),
    parent: facts.parents[family],
    mac: end?.mac ?? tunnelMac(selfName, family),
    mtuBytes: facts.mtuBytes - OVERHEAD_BYTES.vxlan[family],
    address: hostCidr(end?.address),
  };
}

function ipipTunnel(local: Address, { facts, self }: TunnelInput): WantedTunnel {
  return {
    kind: 'ipip',
    name: IPIP_DEVICE,
    local: formatAddress(local),
    mtuBytes: facts.mtuBytes - OVERHEAD_BYTES.ipip,
    address: hostCidr(self?.ipip),
  };
}

function hostCidr(address: Address | undefined): string | undefined {
  return address && formatPrefix(hostPrefix(address));
}

/**
 * The peers of a family's VXLAN device, sorted by name. Of several with the same tunnel or MAC address only the first is used;
 * further ones are reported.
 */
function vxlanPeers(family: Family, { selfName, self, nodes }: TunnelInput): Pick<TunnelPlan, 'peers' | 'conditions'> {
  const peers: VxlanPeer[] = [];
  const conditions: Condition[] = [];
  const ownEnd = vxlanEndOf(self, family);
  const takenBy = new Map<string, string>();
  if (ownEnd?.address) takenBy.set(formatAddress(ownEnd.address), selfName);
  takenBy.set(ownEnd?.mac ?? tunnelMac(selfName, family), selfName);
  for (const node of [...nodes.values()].sort(compareNames)) {
    const address = nodeAddressOf(node, family)?.address;
    const end = vxlanEndOf(node, family);
    if (node.name === selfName || !address || !end?.address) continue;
    const tunnelAddress = formatAddress(end.address);
    const mac = end.mac ?? tunnelMac(node.name, family);
    const other = takenBy.get(tunnelAddress) ?? takenBy.get(mac);
    if (other !== undefined) {
      const message = `nodes ${other} and ${node.name} have the same tunnel address (${tunnelAddress}) or MAC address (${mac}); delete the stale one`;
      conditions.push({ reason: 'TunnelAddressConflict', message });
      continue;
    }
    takenBy.set(tunnelAddress, node.name).set(mac, node.name);
    peers.push({ device: VXLAN_DEVICE[family], tunnelAddress, mac, nodeAddress: formatAddress(address) });
  }
  return { peers, conditions };
}

function mtuConditions({ name, mtuBytes }: WantedTunnel): Condition[] {
  const least = name === VXLAN_DEVICE[6] ? IPV6_MIN_MTU_BYTES : IPV4_MIN_MTU_BYTES;
  if (mtuBytes >= least) return [];
  const message = `${name}: the MTU of ${mtuBytes} bytes is below the minimum of ${least}; raise the MTU of the node's interfaces`;
  return [{ reason: 'MtuTooSmall', message }];
}

const FORWARDING: Readonly<Record<Family, NodeSysctl>> = {
  4: { key: ['net', 'ipv4', 'ip_forward'], value: '1' },
  6: { key: ['net', 'ipv6', 'conf', 'all', 'forwarding'], value: '1' },
};

/** Off unless a pool needs it: a node that forwards IPv6 no longer accepts router advertisements. */
function forwardingSysctls(family: Family, { pools }: TunnelInput): NodeSysctl[] {
  return [...pools.values()].some(({ cidr }) => cidr.family === family) ? [FORWARDING[family]] : [];
}
