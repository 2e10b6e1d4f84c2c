import type { NetlinkError } from './errors.js';
import type { Link, RouteType, Scope } from './objects.js';

/** What makes a namespace the same as another: the file that the kernel shows for it. */
export interface NamespaceIdentity {
  readonly device: bigint;
  readonly inode: bigint;
  /**
   * What no other network namespace of this boot ever has, while inodes are used again at once (NS_GET_ID, else
   * SO_NETNS_COOKIE). Null on kernels before 5.14.
   */
  readonly cookie: bigint | null;
}

/** A namespace that `openNamespace` gave and that is not closed; anything else is an ArgumentError when it is used. */
export interface OpenNamespace {
  readonly identity: NamespaceIdentity;
}

/** A link by its index or by its name; names are looked up when the request is carried out. */
export type LinkSelector = { readonly index: number } | { readonly name: string };

/** The end of a new veth pair that is born in another namespace, or in the same. */
export interface VethPeer {
  readonly name: string;
  readonly mac?: string;
  readonly mtuBytes?: number;
  /** Must stay open until the request is answered. */
  readonly namespace: OpenNamespace;
}

/**
 * Creates a veth pair, both ends down: `ip link add NAME address MAC mtu MTU type veth peer name … netns …`.
 * Fails with EEXIST when either name is taken. Both MAC addresses are in the creating message; a kernel that takes no notice
 * of them there shows in the outcome's `link`, and `link.set` puts them right. That `link` is the near end as it was created;
 * its `linkedIndex` is the peer's index.
 */
export interface LinkAdd {
  readonly type: 'link.add';
  readonly kind: 'veth';
  readonly name: string;
  readonly mac?: string;
  readonly mtuBytes?: number;
  readonly peer: VethPeer;
}

/** Changes a link: `ip link set NAME [up|down] [address …] [mtu …] [alias …] [group …] [name …]`. Idempotent. */
export interface LinkSet {
  readonly type: 'link.set';
  readonly link: LinkSelector;
  readonly up?: boolean;
  readonly mac?: string;
  readonly mtuBytes?: number;
  /** At most 255 bytes of UTF-8; the empty string takes the alias away. */
  readonly alias?: string;
  readonly group?: number;
  readonly name?: string;
}

/**
 * Deletes a link: `ip link delete NAME`. The acknowledgement takes 13 to 40 ms, in which a thread of libuv's pool waits;
 * `Namespace.deleteLink` does not.
 */
export interface LinkDelete {
  readonly type: 'link.delete';
  readonly link: LinkSelector;
}

/** Reads a link: `ip -details link show NAME`. The outcome has it as `link`; ENODEV when there is none. */
export interface LinkGet {
  readonly type: 'link.get';
  readonly link: LinkSelector;
}

/**
 * `ip address add|replace|delete ADDRESS dev LINK`. `add` fails with EEXIST when the link has the address, `delete` with
 * EADDRNOTAVAIL when it has not.
 */
export interface AddressRequest {
  readonly type: 'address.add' | 'address.replace' | 'address.delete';
  readonly link: LinkSelector;
  /** With its prefix length: `10.65.0.2/32`, `fd00::2/128`. */
  readonly address: string;
  /** `global` when left out. */
  readonly scope?: Scope;
  /** IPv6: usable at once, without duplicate address detection. */
  readonly noDad?: boolean;
}

/**
 * `ip route add|replace|delete DESTINATION via GATEWAY dev OUTPUT …`. `add` fails with EEXIST when a route to the same
 * destination, table and metric is there, `delete` with ESRCH when none matches all that is given.
 */
export interface RouteRequest {
  readonly type: 'route.add' | 'route.replace' | 'route.delete';
  /** `10.65.0.2/32`, `0.0.0.0/0`, `::/0`; without host bits. */
  readonly destination: string;
  /** Left out for blackholes and their like. */
  readonly output?: LinkSelector;
  readonly gateway?: string;
  /** The source address that the node prefers when it sends there. */
  readonly source?: string;
  /** When left out: `link` without a gateway, else `global`; any scope for `route.delete`. IPv6 has no scopes. */
  readonly scope?: Scope;
  /** 4 (`static`) when left out; any for `route.delete`. */
  readonly protocol?: number;
  /** 254 (`main`) when left out. */
  readonly table?: number;
  /** IPv4: 0 when left out; IPv6: the kernel's default, 1024. */
  readonly metric?: number;
  /** `unicast` when left out. */
  readonly routeType?: RouteType;
  /** The gateway is on the output link though no route says so. */
  readonly onlink?: boolean;
}

/**
 * `ip neighbour add|replace|delete [proxy] ADDRESS dev LINK lladdr MAC nud permanent`. Entries are permanent. `add` fails with
 * EEXIST when one is there, `delete` with ENOENT when none is.
 */
export interface NeighbourRequest {
  readonly type: 'neighbour.add' | 'neighbour.replace' | 'neighbour.delete';
  readonly link: LinkSelector;
  readonly address: string;
  /** Needed to add or replace an entry that is not a proxy's. */
  readonly mac?: string;
  /** The node answers for the address on this link (proxy ARP, proxy NDP for one address). */
  readonly proxy?: boolean;
}

/** One change or question to the kernel. */
export type Request = LinkAdd | LinkSet | LinkDelete | LinkGet | AddressRequest | RouteRequest | NeighbourRequest;

/**
 * The path of a file below /proc/sys, by segments, as interface names may hold dots:
 * `['net', 'ipv4', 'conf', 'eth0', 'proxy_arp']`.
 */
export type SysctlKey = readonly string[];

export interface SysctlSetting {
  readonly key: SysctlKey;
  readonly value: string;
}

/** Sets a sysctl: `sysctl -w KEY=VALUE`. Idempotent. ENOENT when there is no such key, EROFS when /proc/sys is read-only. */
export interface SysctlWrite extends SysctlSetting {
  readonly type: 'sysctl.write';
}

/** One step of `Namespace.sequence`. */
export type Step = (Request | SysctlWrite) & {
  /** Its failure is reported and does not end the sequence. */
  readonly optional?: boolean;
  /** Carried out in this namespace instead; must stay open until the sequence is answered. */
  readonly within?: OpenNamespace;
};

/** What came of one request or step. */
export type Outcome =
  | { readonly ok: true; /** The answer to `link.get`, and the new link of `link.add`. */ readonly link?: Link }
  | { readonly ok: false; readonly error: NetlinkError };

/** What came of one key of `Namespace.readSysctls`. `value` is without the final line break. */
export type SysctlReading =
  { readonly ok: true; readonly value: string } | { readonly ok: false; readonly error: NetlinkError };
