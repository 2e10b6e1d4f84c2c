import type { NetlinkError } from './errors.js';
import type { AddressGeneration, Link, RouteType, Scope } from './objects.js';

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

/** What every new link may be given: `ip link add NAME address … mtu … txqueuelen … numtxqueues … numrxqueues …`. */
export interface NewLink {
  readonly name: string;
  readonly mac?: string;
  readonly mtuBytes?: number;
  /** Packets that may wait to be sent. The kernel's default when left out, mostly 1000. */
  readonly txQueueLength?: number;
  /** 1 to 4096. The kernel's default when left out, for veths the number of processors. Not to be changed later. */
  readonly txQueueCount?: number;
  readonly rxQueueCount?: number;
}

/** The end of a new veth pair that is born in another namespace, or in the same. */
export interface VethPeer extends NewLink {
  /** Must stay open until the request is answered. */
  readonly namespace: OpenNamespace;
}

/**
 * Creates a veth pair, both ends down: `ip link add NAME address MAC mtu MTU type veth peer name … netns …`.
 * Fails with EEXIST when either name is taken. Both MAC addresses are in the creating message; a kernel that takes no notice
 * of them there shows in the outcome's `link`, and `link.set` puts them right. That `link` is the near end as it was created;
 * its `linkedIndex` is the peer's index.
 */
export interface VethAdd extends NewLink {
  readonly type: 'link.add';
  readonly kind: 'veth';
  readonly peer: VethPeer;
}

/**
 * Creates a VXLAN device, down: `ip link add NAME … type vxlan id VNI dstport PORT local ADDRESS dev PARENT [no]learning ttl TTL
 * tos TOS [no]udpcsum …`. The family of `local` is that of the tunnel. Fails with EEXIST when the name is taken, or when another
 * device has the same VNI, port and family; with EINVAL when the MTU does not fit the parent's.
 */
export interface VxlanAdd extends NewLink {
  readonly type: 'link.add';
  readonly kind: 'vxlan';
  /** 0 to 16777215. */
  readonly vni: number;
  /** 4789 (RFC 7348) when left out. */
  readonly port?: number;
  readonly local: string;
  /** The link that tunnel packets leave by; the routing table's choice when left out. */
  readonly parent?: LinkSelector;
  /** Takes entries from the packets that arrive. False when left out, unlike `ip`. */
  readonly learning?: boolean;
  /** 0 (the node's own) when left out. */
  readonly ttl?: number;
  /** 0 when left out; 1 is that of the packet inside. */
  readonly tos?: number;
  /** See VxlanSettings; the kernel's default when left out. */
  readonly udpChecksum?: boolean;
  readonly udp6ZeroChecksumTx?: boolean;
  readonly udp6ZeroChecksumRx?: boolean;
}

/**
 * Creates an IPIP device, down: `ip link add NAME … type ipip local ADDRESS remote ADDRESS dev PARENT ttl TTL tos TOS
 * [no]pmtudisc`. Fails with EEXIST when the name is taken or another device has the same addresses, with EOPNOTSUPP where the
 * kernel lacks the kind. It has no MAC address.
 */
export interface IpipAdd extends NewLink {
  readonly type: 'link.add';
  readonly kind: 'ipip';
  /** IPv4. Any address of the node when left out. */
  readonly local?: string;
  /** IPv4. When left out, each route's gateway is the far end. */
  readonly remote?: string;
  readonly parent?: LinkSelector;
  /** 0 (that of the packet inside) when left out. */
  readonly ttl?: number;
  readonly tos?: number;
  /** True when left out. A fixed `ttl` needs it. */
  readonly pathMtuDiscovery?: boolean;
}

/** Creates a link. The outcome has a veth's near end as `link`; of the other kinds the kernel tells nothing, so `link.get` follows. */
export type LinkAdd = VethAdd | VxlanAdd | IpipAdd;

/**
 * Changes a link: `ip link set NAME [up|down] [address …] [mtu …] [alias …] [group …] [name …] [txqueuelen …] [addrgenmode …]`.
 * Idempotent. A link's own IPv6 address comes when it goes up, so `addressGeneration` is to be set before that.
 */
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
  readonly txQueueLength?: number;
  readonly addressGeneration?: AddressGeneration;
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
 * `ip rule add|delete from SOURCE lookup TABLE priority PRIORITY protocol PROTOCOL`: packets from these addresses are routed by that
 * table. `add` fails with EEXIST when the same rule is there, `delete` with ENOENT when none matches all that is given.
 */
export interface RuleRequest {
  readonly type: 'rule.add' | 'rule.delete';
  /** `10.65.0.2/32`; `0.0.0.0/0` and `::/0` are all of a family. */
  readonly source: string;
  /** 1 to 4294967295. It need not exist: a table without routes leaves the packet to the next rule. */
  readonly table: number;
  /** When left out, before all rules but the first; any for `rule.delete`. */
  readonly priority?: number;
  /** 4 (`static`) when left out; any for `rule.delete`. */
  readonly protocol?: number;
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

/**
 * `bridge fdb add|replace|append|delete MAC dev LINK dst DESTINATION self permanent`. `add` fails with EEXIST when the device has
 * an entry of this MAC address, `replace` puts another destination in its place, `append` adds one more (for the zero or a
 * multicast MAC only; the kernel takes no notice of it for another that has an entry), `delete` fails with ENOENT when none is there, and without a destination takes all of them.
 */
export interface FdbRequest {
  readonly type: 'fdb.add' | 'fdb.replace' | 'fdb.append' | 'fdb.delete';
  readonly link: LinkSelector;
  readonly mac: string;
  /** The far end, without prefix length, of the tunnel's family. Left out for devices that are no tunnel. */
  readonly destination?: string;
}

/** One change or question to the kernel. */
export type Request =
  | LinkAdd
  | LinkSet
  | LinkDelete
  | LinkGet
  | AddressRequest
  | RouteRequest
  | RuleRequest
  | NeighbourRequest
  | FdbRequest;

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
  /** The value is read before it is written, and the outcome has it as `previous`; when it cannot be read, nothing is written. */
  readonly readPrevious?: boolean;
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
  | {
      readonly ok: true;
      /** The answer to `link.get`, and the near end of a veth. */
      readonly link?: Link;
      /** What a sysctl was before, where that was asked for. Without the final line break. */
      readonly previous?: string;
    }
  | { readonly ok: false; readonly error: NetlinkError };

/** What came of one key of `Namespace.readSysctls`. `value` is without the final line break. */
export type SysctlReading =
  { readonly ok: true; readonly value: string } | { readonly ok: false; readonly error: NetlinkError };
