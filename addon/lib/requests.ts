import type { NetlinkError } from './errors.js';
import type { AddressGeneration, Link, Qdisc, RouteType, Scope } from './objects.js';

/** Identifies a namespace by the device and inode of its file. */
export interface NamespaceIdentity {
  readonly device: bigint;
  readonly inode: bigint;
  /**
   * Unique within this boot, unlike inodes, which are reused at once (NS_GET_ID, else SO_NETNS_COOKIE). Null on kernels before
   * 5.14.
   */
  readonly cookie: bigint | null;
}

/** An open namespace from `openNamespace`; any other value causes an ArgumentError on use. */
export interface OpenNamespace {
  readonly identity: NamespaceIdentity;
}

/** A link by its index or by its name; names are looked up when the request runs. */
export type LinkSelector = { readonly index: number } | { readonly name: string };

/** Attributes of every new link: `ip link add NAME address … mtu … txqueuelen … numtxqueues … numrxqueues …`. */
export interface NewLink {
  readonly name: string;
  readonly mac?: string;
  readonly mtuBytes?: number;
  /** Transmit queue length in packets. Default: the kernel's, usually 1000. */
  readonly txQueueLength?: number;
  /** 1 to 4096. Default: the kernel's, for veths the number of processors. Fixed at creation. */
  readonly txQueueCount?: number;
  readonly rxQueueCount?: number;
}

/** The peer of a new veth pair, created in another namespace, or in the same. */
export interface VethPeer extends NewLink {
  /** Must stay open until the request is answered. */
  readonly namespace: OpenNamespace;
}

/**
 * Creates a veth pair, both ends down: `ip link add NAME address MAC mtu MTU type veth peer name … netns …`. Fails with EEXIST
 * when either name is taken. Both MAC addresses are in the creating message; when a kernel ignores them, the outcome's `link`
 * shows it, and `link.set` corrects them. That `link` is the near end as it was created; its `linkedIndex` is the peer's index.
 */
export interface VethAdd extends NewLink {
  readonly type: 'link.add';
  readonly kind: 'veth';
  readonly peer: VethPeer;
}

/**
 * Creates a VXLAN device, down: `ip link add NAME … type vxlan id VNI dstport PORT local ADDRESS dev PARENT nolearning`. The family of
 * `local` is that of the tunnel. Fails with EEXIST when the name is taken, or when another
 * device has the same VNI, port and family; with EINVAL when the MTU does not fit the parent's.
 */
export interface VxlanAdd extends NewLink {
  readonly type: 'link.add';
  readonly kind: 'vxlan';
  /** 0 to 16777215. */
  readonly vni: number;
  /** Default: 4789 (RFC 7348). */
  readonly port?: number;
  readonly local: string;
  /** The outgoing link of tunnel packets; default: the routing table's choice. */
  readonly parent?: LinkSelector;
}

/**
 * Creates an IPIP device, down: `ip link add NAME … type ipip local ADDRESS pmtudisc`. The gateway of each route is the far end. Fails
 * with EEXIST when the name is taken or another device has the same address, with EOPNOTSUPP when the kernel lacks the kind. It has no
 * MAC address.
 */
export interface IpipAdd extends NewLink {
  readonly type: 'link.add';
  readonly kind: 'ipip';
  /** IPv4. Default: any address of the node. */
  readonly local?: string;
}

/**
 * Creates a link. A veth's outcome has the near end as `link`; for other kinds the kernel returns nothing, so follow with
 * `link.get`.
 */
export type LinkAdd = VethAdd | VxlanAdd | IpipAdd;

/**
 * Changes a link: `ip link set NAME [up|down] [address …] [mtu …] [alias …] [group …] [name …] [txqueuelen …] [addrgenmode …]`.
 * Idempotent. The kernel adds a link's own IPv6 address when it goes up, so set `addressGeneration` before that.
 */
export interface LinkSet {
  readonly type: 'link.set';
  readonly link: LinkSelector;
  readonly up?: boolean;
  readonly mac?: string;
  readonly mtuBytes?: number;
  /** At most 255 bytes of UTF-8; the empty string removes the alias. */
  readonly alias?: string;
  readonly group?: number;
  readonly name?: string;
  readonly txQueueLength?: number;
  readonly addressGeneration?: AddressGeneration;
}

/**
 * Deletes a link: `ip link delete NAME`. The acknowledgement blocks a thread of libuv's pool for 13 to 40 ms;
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
 * EADDRNOTAVAIL when it does not.
 */
export interface AddressRequest {
  readonly type: 'address.add' | 'address.replace' | 'address.delete';
  readonly link: LinkSelector;
  /** With prefix length: `10.65.0.2/32`, `fd00::2/128`. */
  readonly address: string;
  /** Default: `global`. */
  readonly scope?: Scope;
  /** IPv6: usable at once, without duplicate address detection. */
  readonly noDad?: boolean;
}

/**
 * `ip route add|replace|delete DESTINATION via GATEWAY dev OUTPUT …`. `add` fails with EEXIST when a route with the same
 * destination, table and metric exists, `delete` with ESRCH when none matches all given fields.
 */
export interface RouteRequest {
  readonly type: 'route.add' | 'route.replace' | 'route.delete';
  /** `10.65.0.2/32`, `0.0.0.0/0`, `::/0`; without host bits. */
  readonly destination: string;
  /** Absent for blackholes and similar types. */
  readonly output?: LinkSelector;
  readonly gateway?: string;
  /** Preferred source address of the node. */
  readonly source?: string;
  /** Default: `link` without a gateway, else `global`; any scope for `route.delete`. IPv6 has no scopes. */
  readonly scope?: Scope;
  /** Default: 4 (`static`); any for `route.delete`. */
  readonly protocol?: number;
  /** Default: 254 (`main`). */
  readonly table?: number;
  /** Default for IPv4: 0; for IPv6: the kernel's, 1024. */
  readonly metric?: number;
  /** Default: `unicast`. */
  readonly routeType?: RouteType;
  /** The gateway is on the output link even without a route to it. */
  readonly onlink?: boolean;
}

/**
 * `ip rule add|delete from SOURCE lookup TABLE priority PRIORITY protocol PROTOCOL`: packets from these addresses are routed by
 * that table. `add` fails with EEXIST when the same rule exists, `delete` with ENOENT when none matches all given fields.
 */
export interface RuleRequest {
  readonly type: 'rule.add' | 'rule.delete';
  /** `10.65.0.2/32`; `0.0.0.0/0` and `::/0` are all of a family. */
  readonly source: string;
  /** 1 to 4294967295. It need not exist: a table without routes leaves the packet to the next rule. */
  readonly table: number;
  /** Default: before all rules but the first; any for `rule.delete`. */
  readonly priority?: number;
  /** Default: 4 (`static`); any for `rule.delete`. */
  readonly protocol?: number;
}

/**
 * `ip neighbour add|replace|delete [proxy] ADDRESS dev LINK lladdr MAC nud permanent`. Entries are permanent. `add` fails with
 * EEXIST when one exists, `delete` with ENOENT when none does.
 */
export interface NeighbourRequest {
  readonly type: 'neighbour.add' | 'neighbour.replace' | 'neighbour.delete';
  readonly link: LinkSelector;
  readonly address: string;
  /** Required to add or replace an entry that is not a proxy's. */
  readonly mac?: string;
  /** The node answers for the address on this link (proxy ARP, proxy NDP for one address). */
  readonly proxy?: boolean;
}

/**
 * `bridge fdb add|replace|append|delete MAC dev LINK dst DESTINATION self permanent`. `add` fails with EEXIST when the device has
 * an entry of this MAC address, `replace` changes its destination, `append` adds one more (for the zero or a multicast MAC only;
 * the kernel ignores it for any other with an entry), `delete` fails with ENOENT when there is none, and without a destination
 * deletes all of them.
 */
export interface FdbRequest {
  readonly type: 'fdb.add' | 'fdb.replace' | 'fdb.append' | 'fdb.delete';
  readonly link: LinkSelector;
  readonly mac: string;
  /** The far end, without prefix length, of the tunnel's family. Absent for devices other than tunnels. */
  readonly destination?: string;
}

/** Parameters of a token bucket filter (tc-tbf(8)). */
export interface TokenBucket {
  /** 1 to 2^53 - 1. */
  readonly rateBytesPerSecond: number;
  /** Size of the bucket, at least 1. The kernel drops packets that are larger, so it must hold a packet of the link's MTU. */
  readonly burstBytes: number;
  /** Bytes that may wait for tokens; packets beyond are dropped. */
  readonly limitBytes: number;
}

/**
 * Limits the rate of packets that leave by a link: `tc qdisc replace dev LINK root handle MAJOR: tbf rate … burst … limit …`.
 * Replaces any other root qdisc, and changes a tbf of the same handle in place. Fails with EINVAL when the handle is that of another
 * kind, with ENOENT when the kernel lacks `sch_tbf`.
 */
export interface QdiscReplace {
  readonly type: 'qdisc.replace';
  readonly link: LinkSelector;
  /** Major number, 1 to 65535. The kernel itself chooses numbers from 32768 on. */
  readonly handle: number;
  readonly tbf: TokenBucket;
}

/**
 * Deletes the root qdisc of a link, so that the link gets the kernel's default back, or reads it: `tc qdisc delete|show dev LINK
 * root`. When the link has the kernel's default, `delete` fails with ENOENT, and `get` has no `qdisc`.
 */
export interface QdiscDeleteOrGet {
  readonly type: 'qdisc.delete' | 'qdisc.get';
  readonly link: LinkSelector;
}

/** One change or query of the kernel. */
export type Request =
  | LinkAdd
  | LinkSet
  | LinkDelete
  | LinkGet
  | AddressRequest
  | RouteRequest
  | RuleRequest
  | NeighbourRequest
  | FdbRequest
  | QdiscReplace
  | QdiscDeleteOrGet;

/**
 * The path of a file below /proc/sys, by segments, as interface names may contain dots: `['net', 'ipv4', 'conf', 'eth0',
 * 'proxy_arp']`.
 */
export type SysctlKey = readonly string[];

export interface SysctlSetting {
  readonly key: SysctlKey;
  readonly value: string;
}

/** Sets a sysctl: `sysctl -w KEY=VALUE`. Idempotent. ENOENT when there is no such key, EROFS when /proc/sys is read-only. */
export interface SysctlWrite extends SysctlSetting {
  readonly type: 'sysctl.write';
  /** The value is read before it is written, and the outcome has it as `previous`; when it cannot be read, nothing is written. */
  readonly readPrevious?: boolean;
}

/** One step of `Namespace.sequence`. */
export type Step = (Request | SysctlWrite) & {
  /** Its failure is reported and does not end the sequence. */
  readonly optional?: boolean;
  /** Applied in this namespace instead; must stay open until the sequence is answered. */
  readonly within?: OpenNamespace;
};

/** The outcome of one request or step. */
export type Outcome =
  | {
      readonly ok: true;
      /** The answer to `link.get`, and the near end of a veth. */
      readonly link?: Link;
      /** The answer to `qdisc.get`. */
      readonly qdisc?: Qdisc;
      /** The previous value of a sysctl, if requested. Without the final line break. */
      readonly previous?: string;
    }
  | { readonly ok: false; readonly error: NetlinkError };

/** The outcome of one key of `Namespace.readSysctls`. `value` is without the final line break. */
export type SysctlReading =
  { readonly ok: true; readonly value: string } | { readonly ok: false; readonly error: NetlinkError };
