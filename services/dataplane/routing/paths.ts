import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { prefixContains } from '@podwire/shared/net/prefix';

import type { ClusterNode, Encapsulation, NodeAddress, VxlanEnd } from '../cluster/cluster.js';
import type { ComplaintReason } from '../conditions/conditions.js';
import { IPIP_DEVICE, VXLAN_DEVICE } from '../routes/wanted.js';
import type { NodeFacts } from './facts.js';

/** How packets reach another node from this one. */
export type Path =
  /** By a device: `tunnelled` ones arrive at `nodeAddress` inside of another packet. */
  | {
      readonly kind: 'device';
      readonly device: string;
      readonly gateway: string;
      readonly isTunnelled: boolean;
      readonly nodeAddress: Address;
    }
  /** Not by a route of ours: whatever router the node's table names, or none. */
  | { readonly kind: 'network' }
  /** Nothing to do here: BIRD's matter, or this node's own trouble, which is told once for all destinations. */
  | { readonly kind: 'none' }
  | { readonly kind: 'refused'; readonly reason: ComplaintReason };

/** What a pool asks of the path to its addresses. */
export interface PathDemand {
  readonly family: Family;
  readonly encapsulation: Encapsulation;
}

interface Mode {
  readonly tunnel: 'none' | 'vxlan' | 'ipip';
  readonly onlyCrossSubnet: boolean;
}

const MODES: Readonly<Record<Encapsulation, Mode>> = {
  none: { tunnel: 'none', onlyCrossSubnet: false },
  vxlan: { tunnel: 'vxlan', onlyCrossSubnet: false },
  'vxlan-cross-subnet': { tunnel: 'vxlan', onlyCrossSubnet: true },
  ipip: { tunnel: 'ipip', onlyCrossSubnet: false },
  'ipip-cross-subnet': { tunnel: 'ipip', onlyCrossSubnet: true },
};

export function modeOf(encapsulation: Encapsulation): Mode {
  return MODES[encapsulation];
}

export function nodeAddressOf(node: ClusterNode | undefined, family: Family): NodeAddress | undefined {
  return family === 4 ? node?.ipv4 : node?.ipv6;
}

export function vxlanEndOf(node: ClusterNode | undefined, family: Family): VxlanEnd | undefined {
  return family === 4 ? node?.vxlanIpv4 : node?.vxlanIpv6;
}

/**
 * Paths from this node to others. A path depends on the other node, the family and the pool's encapsulation alone, so that the
 * thousands of blocks behind a few nodes share theirs.
 */
export class Paths {
  readonly #self: ClusterNode | undefined;
  readonly #facts: NodeFacts;
  readonly #known = new WeakMap<ClusterNode, Map<string, Path>>();

  constructor(self: ClusterNode | undefined, facts: NodeFacts) {
    this.#self = self;
    this.#facts = facts;
  }

  to(peer: ClusterNode, demand: PathDemand): Path {
    const known = this.#known.get(peer) ?? new Map<string, Path>();
    this.#known.set(peer, known);
    const key = `${demand.family} ${demand.encapsulation}`;
    const path = known.get(key) ?? this.#find(peer, demand);
    known.set(key, path);
    return path;
  }

  #find(peer: ClusterNode, { family, encapsulation }: PathDemand): Path {
    const { tunnel, onlyCrossSubnet } = MODES[encapsulation];
    if (tunnel === 'none' && this.#facts.routing === 'bird') return { kind: 'none' };
    const there = nodeAddressOf(peer, family)?.address;
    const here = nodeAddressOf(this.#self, family);
    if (!there) return { kind: 'refused', reason: 'NodeAddressMissing' };
    if (!here) return { kind: 'none' };
    // The kernel refuses a gateway that is an address of the node itself.
    if (there.value === here.address.value) return { kind: 'refused', reason: 'NodeAddressConflict' };
    const isNear = prefixContains(here.subnet, there);
    const parent = this.#facts.parents[family];
    if (tunnel === 'none' && !isNear) return { kind: 'network' };
    if (tunnel === 'none' || (onlyCrossSubnet && isNear && parent !== undefined)) {
      if (parent === undefined) return { kind: 'none' };
      const gateway = formatAddress(there);
      return { kind: 'device', device: parent, gateway, isTunnelled: false, nodeAddress: there };
    }
    return tunnel === 'vxlan' ? this.#byVxlan(peer, there) : this.#byIpip(there);
  }

  #byVxlan(peer: ClusterNode, nodeAddress: Address): Path {
    const { family } = nodeAddress;
    if (!this.#facts.hasVxlan) return { kind: 'none' };
    const end = vxlanEndOf(peer, family)?.address;
    if (!end) return { kind: 'refused', reason: 'TunnelAddressMissing' };
    const gateway = formatAddress(end);
    return { kind: 'device', device: VXLAN_DEVICE[family], gateway, isTunnelled: true, nodeAddress };
  }

  #byIpip(nodeAddress: Address): Path {
    if (nodeAddress.family === 6) return { kind: 'refused', reason: 'IpipIpv6' };
    if (!this.#facts.hasIpip) return { kind: 'none' };
    // The device has no far end of its own: each packet is sent to its route's gateway.
    return { kind: 'device', device: IPIP_DEVICE, gateway: formatAddress(nodeAddress), isTunnelled: true, nodeAddress };
  }
}
