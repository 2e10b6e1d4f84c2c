import type { Failure } from '@podwire/shared/failure/failure';
import type { Address } from '@podwire/shared/net/address';
import type { Prefix } from '@podwire/shared/net/prefix';

import type { NodeSysctl } from '../routes/wanted.js';

/** A link of the node: the attributes that the MTU of pods depends on. */
export interface NodeLink {
  readonly name: string;
  readonly mtuBytes: number;
  /** Administrative state. */
  readonly up: boolean;
}

/**
 * The node's links, and a watch of them. Implementations: netlink, and memory (the fake); which passes the same tests.
 *
 * Every method fails with KERNEL_REFUSED when the kernel refuses or cannot be queried, and with KERNEL_UNSUPPORTED when a setting
 * to write does not exist.
 */
export interface LinkSource {
  /** Result: all links, or a failure. Idempotent. */
  links(): Promise<readonly NodeLink[]>;

  /**
   * Notifies of the names of links that any program creates, changes or removes, from the moment when the promise resolves.
   * Result: a watch, which the caller closes. The listener must not throw.
   */
  watch(listener: LinkListener): Promise<LinkWatch>;

  /**
   * Reads settings of the node (`sysctl KEY…`).
   * Result: for each key in order the value, or null when there is no such key. Idempotent.
   */
  readSysctls(keys: readonly NodeSysctl['key'][]): Promise<readonly (string | null)[]>;

  /**
   * Writes settings of the node in order (`sysctl -w KEY=VALUE…`); continues after refusals.
   * Result: nothing, or a failure that names the first refused one. Idempotent.
   */
  writeSysctls(settings: readonly NodeSysctl[]): Promise<void>;

  /** Closes the node's namespace: later calls fail. The caller has closed its watches. Idempotent. */
  close(): Promise<void>;
}

export interface LinkListener {
  /** @param name - undefined when notifications were lost: any link may have changed */
  readonly changed: (name: string | undefined) => void;
  /** Called once when the watch fails; no notifications follow. May be called before {@link LinkSource.watch} resolves. */
  readonly ended: () => void;
}

export interface LinkWatch {
  /** Ends the notifications. Idempotent. */
  close(): void;
}

/** The node's own interfaces: the attributes that determine its reachability. */
export interface NodeNetwork {
  /**
   * Reads links, their addresses and the routes of the main table, IPv4 and IPv6.
   * Result: complete, or a failure. The parts are read one after the other. Idempotent.
   * Errors: KERNEL_REFUSED.
   */
  read(): Promise<NodeNetworkState>;

  /**
   * Notifies of changes of addresses, of links with addresses, and of routes of the main table: default routes, and foreign routes
   * that lead to a target. Starts when the promise resolves. Omits changes of other routes.
   * Result: a function that ends the watch.
   * Errors: KERNEL_REFUSED.
   */
  watch(listener: NodeNetworkListener, targets?: readonly Address[]): Promise<() => void>;

  /**
   * Announces to all neighbours of a link its MAC address for one of its addresses: `arping -U`, or a neighbour advertisement.
   * Result: it was sent; there is no answer. Idempotent.
   * Errors: KERNEL_REFUSED, also for a link that is gone, down or not Ethernet.
   */
  announce(link: NetworkLink, address: Address): Promise<void>;

  /** Closes the node's namespace. The caller has ended its watches. Idempotent. */
  close(): Promise<void>;
}

/** Neither function may throw. */
export interface NodeNetworkListener {
  readonly changed: () => void;
  /** Called once when the watch fails; no notifications follow. May be called before {@link NodeNetwork.watch} resolves. */
  readonly ended: (failure: Failure) => void;
}

export interface NodeNetworkState {
  /** Sorted by index. */
  readonly links: readonly NetworkLink[];
  /** Addresses in the kernel's order: the first IPv4 address of a link is its primary one. */
  readonly addresses: readonly LinkAddress[];
  /** Routes of the main table with a single outgoing link. */
  readonly routes: readonly NetworkRoute[];
}

export interface NetworkLink {
  readonly index: number;
  readonly name: string;
  /** Administrative state. */
  readonly up: boolean;
  /** Null for links that have none. */
  readonly mac: string | null;
}

/** Lifetimes, preferred addresses first. */
export const LIFETIMES = ['permanent', 'dynamic', 'deprecated'] as const;

export interface LinkAddress {
  readonly linkIndex: number;
  readonly address: Address;
  /** Prefix length of its subnet, in bits. */
  readonly length: number;
  /** Global scope; not tentative, duplicate or temporary (RFC 8981). */
  readonly isUsable: boolean;
  /** Dynamic: it expires unless a router or a DHCP server renews it. Deprecated: new connections do not use it. */
  readonly lifetime: (typeof LIFETIMES)[number];
}

export interface NetworkRoute {
  readonly destination: Prefix;
  readonly linkIndex: number;
  /** Whether its destinations are neighbours: it has no gateway. */
  readonly isOnLink: boolean;
  /** Preferred source address of the node; undefined: the kernel chooses. */
  readonly source: Address | undefined;
  readonly metric: number;
}
