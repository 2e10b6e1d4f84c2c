import { formatAddress, type Address } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';
import type { Prefix } from '@podwire/shared/net/prefix';

import type { AllocationAttributes } from './attributes.js';
import { wholeSeconds } from './block.js';

/** Kinds of a node's tunnels, by the `type` among the attributes of their addresses. */
export type TunnelKind = 'ipipTunnelAddress' | 'vxlanTunnelAddress' | 'vxlanV6TunnelAddress';

/** A node's address with its subnet: the first `subnetBits` bits of `address`. */
export interface NodeAddress {
  /** Address of full length: /32 or /128. */
  readonly address: Prefix;
  /** Prefix length of the subnet in bits. */
  readonly subnetBits: number;
}

export function formatNodeAddress({ address, subnetBits }: NodeAddress): string {
  return `${formatAddress(address)}/${subnetBits}`;
}

/** The node's end of a tunnel. */
export interface Tunnel {
  /** Address of full length: /32 or /128. */
  readonly address: Prefix;
}

/** A network interface of a node, published for other nodes. */
export interface NodeInterface {
  readonly name: string;
  readonly addresses: readonly NodeAddress[];
}

export interface Node {
  readonly name: string;
  readonly uid: string;
  readonly createTimeMs: number;
  /**
   * When its deletion began, in epoch milliseconds. From then on it gets no new address, and all of its addresses are
   * released.
   */
  readonly deletionTimeMs: number | undefined;
  readonly labels: Readonly<Record<string, string>>;
  /** The labels of the node's last registration. Where `labels` differs, an operator changed it. */
  readonly registeredLabels: Readonly<Record<string, string>>;
  readonly ipv4: NodeAddress | undefined;
  readonly ipv6: NodeAddress | undefined;
  readonly tunnels: ReadonlyMap<TunnelKind, Tunnel>;
  /** MAC addresses of its VXLAN devices, where known, even before the device has an address. */
  readonly tunnelMacs: ReadonlyMap<TunnelKind, Mac>;
  readonly interfaces: readonly NodeInterface[];
  /** BGP autonomous system number; undefined for the cluster's. Never written. */
  readonly asNumber: number | undefined;
  /**
   * The Kubernetes cluster that has a Node of this name, by the UID of its namespace kube-system: proof that a missing
   * Node was deleted. Undefined while none was seen, as on hosts without Kubernetes.
   */
  readonly kubernetesCluster?: string | undefined;
  /** How often its unbound leases were recalled. Default: 0. */
  readonly leaseRecallCount?: number | undefined;
  /** How often it was asked for its inventory. Default: 0. */
  readonly inventoryRequestCount?: number | undefined;
}

/** How requests for unregistered nodes are handled. */
export type UnknownNodes =
  | { readonly policy: 'refuse' }
  /** The node's record is made with the allocation, without labels and with this UID. */
  | { readonly policy: 'register'; readonly uid: string };

interface NewNode {
  readonly name: string;
  readonly uid: string;
  readonly nowMs: number;
}

/** The record of a node of which only the name is known. */
export function makeNode({ name, uid, nowMs }: NewNode): Node {
  return {
    name,
    uid,
    createTimeMs: wholeSeconds(nowMs),
    deletionTimeMs: undefined,
    labels: {},
    registeredLabels: {},
    ipv4: undefined,
    ipv6: undefined,
    tunnels: new Map(),
    tunnelMacs: new Map(),
    interfaces: [],
    asNumber: undefined,
  };
}

/** Whether the address is one of the node's: registered, of an interface, or of a tunnel. */
export function hasNodeAddress({ ipv4, ipv6, interfaces, tunnels }: Node, { family, value }: Address): boolean {
  const own = [ipv4, ipv6, ...interfaces.flatMap(({ addresses }) => addresses), ...tunnels.values()];
  return own.some((each) => each?.address.family === family && each.address.value === value);
}

/** Prefix of the handle of each tunnel's address, as in Calico; the node's name follows. */
const TUNNEL_HANDLES: Readonly<Record<TunnelKind, string>> = {
  ipipTunnelAddress: 'ipip-tunnel-addr-',
  vxlanTunnelAddress: 'vxlan-tunnel-addr-',
  vxlanV6TunnelAddress: 'vxlan-v6-tunnel-addr-',
};

export function isTunnelType(type: string | undefined): boolean {
  return type !== undefined && Object.hasOwn(TUNNEL_HANDLES, type);
}

/** ID of the handle that holds the address of a node's tunnel. */
export function tunnelHandleId(nodeName: string, kind: TunnelKind): string {
  return TUNNEL_HANDLES[kind] + nodeName;
}

/** Attributes of the address of a node's tunnel. */
export function tunnelAttributes(nodeName: string, kind: TunnelKind): AllocationAttributes {
  return {
    handleId: tunnelHandleId(nodeName, kind),
    owner: { node: nodeName, type: kind },
    releasedAtMs: undefined,
  };
}
