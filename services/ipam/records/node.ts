import type { Mac } from '@podwire/shared/net/mac';
import type { Prefix } from '@podwire/shared/net/prefix';

import { wholeSeconds } from './block.js';

/** Kinds of a node's tunnels, by the `type` among the attributes of their addresses. */
export type TunnelKind =
  | 'ipipTunnelAddress'
  | 'vxlanTunnelAddress'
  | 'vxlanV6TunnelAddress'
  | 'wireguardTunnelAddress'
  | 'wireguardV6TunnelAddress';

/** A node's address with the subnet it is in: the host bits of `address`, cut at `length`, are the subnet. */
export interface NodeAddress {
  /** Of full length: /32 or /128. */
  readonly address: Prefix;
  /** Prefix length of the subnet in bits. */
  readonly subnetBits: number;
}

/** The node's end of a tunnel. */
export interface Tunnel {
  /** Of full length: /32 or /128. */
  readonly address: Prefix;
}

/** A network interface of a node that other nodes may need to know. */
export interface NodeInterface {
  readonly name: string;
  readonly addresses: readonly NodeAddress[];
}

export interface Node {
  readonly name: string;
  readonly uid: string;
  readonly createTimeMs: number;
  /** When its deletion began, in epoch milliseconds: it gets no new address, and releases all it holds. */
  readonly deletionTimeMs: number | undefined;
  readonly labels: Readonly<Record<string, string>>;
  /** The labels that the node itself gave last. Where `labels` says otherwise, an operator wanted it so. */
  readonly registeredLabels: Readonly<Record<string, string>>;
  readonly ipv4: NodeAddress | undefined;
  readonly ipv6: NodeAddress | undefined;
  readonly tunnels: ReadonlyMap<TunnelKind, Tunnel>;
  /** MAC addresses of its VXLAN devices, where they are known; also before the device has an address. */
  readonly tunnelMacs: ReadonlyMap<TunnelKind, Mac>;
  readonly interfaces: readonly NodeInterface[];
  /** BGP autonomous system number; undefined for the cluster's. Never written. */
  readonly asNumber: number | undefined;
}

/** What becomes of a request for a node that is not registered. */
export type UnknownNodes =
  | { readonly policy: 'refuse' }
  /** The node's record is made with the allocation, without labels and with this UID. */
  | { readonly policy: 'register'; readonly uid: string };

interface NewNode {
  readonly name: string;
  readonly uid: string;
  readonly nowMs: number;
}

/** The record of a node of which nothing is known but its name. */
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
