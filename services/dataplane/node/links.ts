import type { Failure } from '@podwire/shared/failure/failure';
import type { Address } from '@podwire/shared/net/address';
import type { Prefix } from '@podwire/shared/net/prefix';

import type { NodeSysctl } from '../routes/wanted.js';

/** A link of the node, as far as the MTU of pods depends on it. */
export interface NodeLink {
  readonly name: string;
  readonly mtuBytes: number;
  /** The administrator's wish. */
  readonly up: boolean;
}

/**
 * The node's links, and changes of them. Implementations: netlink, and memory (the fake); both pass `link-source.contract.ts`.
 *
 * Every method fails with KERNEL_REFUSED when the kernel refuses or cannot be asked, and with KERNEL_UNSUPPORTED when it lacks what
 * is to be written.
 */
export interface LinkSource {
  /** Result: all links, or a failure. Idempotent. */
  links(): Promise<readonly NodeLink[]>;

  /**
   * Tells the names of links that are made, changed or removed, whoever does it, from the moment when the promise resolves.
   * Result: a watch, which the caller closes. The listener must not throw.
   */
  watch(listener: LinkListener): Promise<LinkWatch>;

  /**
   * Reads settings of the node (`sysctl KEY…`).
   * Result: for each key in its order the value, or null when there is no such key. Idempotent.
   */
  readSysctls(keys: readonly NodeSysctl['key'][]): Promise<readonly (string | null)[]>;

  /**
   * Writes settings of the node in their order (`sysctl -w KEY=VALUE…`), all that can be written.
   * Result: nothing, or a failure that tells the first that was refused. Idempotent.
   */
  writeSysctls(settings: readonly NodeSysctl[]): Promise<void>;

  /** Calls that come later fail; watches end. Idempotent. */
  close(): Promise<void>;
}

export interface LinkListener {
  /** @param name - undefined when changes were lost: any link may be another */
  readonly changed: (name: string | undefined) => void;
  /** The watch has ended by itself, once, and tells nothing any more; it may do so before {@link LinkSource.watch} resolves. */
  readonly ended: () => void;
}

export interface LinkWatch {
  /** Nothing is told any more. Idempotent. */
  close(): void;
}

/** The node's own interfaces, as far as they tell how the node is reached. */
export interface NodeNetwork {
  /**
   * Reads links, their addresses and the routes of the main table, IPv4 and IPv6.
   * Result: complete, or a failure. The parts are read one after the other. Idempotent.
   * Errors: KERNEL_REFUSED.
   */
  read(): Promise<NodeNetworkState>;

  /**
   * Tells of changes of addresses, of links that have some, and of routes of the main table: default ones, and those that lead to one of
   * the targets and are not Podwire's own. From when the promise resolves; changes of other routes alone are not told.
   * Result: what ends that.
   * Errors: KERNEL_REFUSED.
   */
  watch(listener: NodeNetworkListener, targets?: readonly Address[]): Promise<() => void>;

  /**
   * Tells all neighbours of a link its MAC address, as that of an address that it has: `arping -U`, or a neighbour advertisement.
   * Result: it was sent; nobody answers. Idempotent.
   * Errors: KERNEL_REFUSED, for a link that is gone, down or no Ethernet too.
   */
  announce(link: NetworkLink, address: Address): Promise<void>;

  /** Lets go of the node's namespace; watches end. Idempotent. */
  close(): Promise<void>;
}

/** Neither function may throw. */
export interface NodeNetworkListener {
  readonly changed: () => void;
  /** The watch has ended by itself, once, and tells nothing any more; it may do so before {@link NodeNetwork.watch} resolves. */
  readonly ended: (failure: Failure) => void;
}

export interface NodeNetworkState {
  /** In the order of their indexes. */
  readonly links: readonly NetworkLink[];
  /** In the kernel's order: of IPv4 the first of a link is its primary one. */
  readonly addresses: readonly LinkAddress[];
  /** Of the main table, those that leave by one link. */
  readonly routes: readonly NetworkRoute[];
}

export interface NetworkLink {
  readonly index: number;
  readonly name: string;
  /** Switched on by the administrator. */
  readonly up: boolean;
  /** Null for links that have none. */
  readonly mac: string | null;
}

export interface LinkAddress {
  readonly linkIndex: number;
  readonly address: Address;
  /** Prefix length of its subnet, in bits. */
  readonly length: number;
  /** Of global scope, and here to stay: not being checked for duplicates or found to be one, not deprecated, not temporary (RFC 8981). */
  readonly lasting: boolean;
}

export interface NetworkRoute {
  readonly destination: Prefix;
  readonly linkIndex: number;
  /** The address that the node prefers when it sends there; undefined: the kernel chooses. */
  readonly source: Address | undefined;
  readonly metric: number;
}
