/** The kernel's objects as it reports them. `null`: the kernel did not send the attribute. */

/** Address family as in `ip -4` and `ip -6`. */
export type Family = 4 | 6;

/** How a link generates its own IPv6 addresses (`ip link … addrgenmode`); a number for unnamed modes. */
export type AddressGeneration = 'eui64' | 'none' | 'stable-privacy' | 'random' | number;

/** Attributes of a VXLAN device (`ip -details link show type vxlan`). */
export interface VxlanSettings {
  readonly vni: number;
  /** Destination UDP port. */
  readonly port: number;
  /** Source address of tunnel packets; null: the routing table's choice. */
  readonly local: string | null;
  /** Default destination without a matching FDB entry: a multicast group or one far end. */
  readonly group: string | null;
  /** The outgoing device of tunnel packets; null: the routing table's choice. */
  readonly parentIndex: number | null;
  readonly learning: boolean;
  /** The metadata of each packet determines its tunnel (`external`, flow-based). */
  readonly external: boolean;
}

/** Attributes of an IPIP device (`ip -details link show type ipip`). */
export interface IpipSettings {
  readonly local: string | null;
  /** Null: each route gives its far end. */
  readonly remote: string | null;
}

/** A network interface (`ip link`). */
export interface Link {
  readonly index: number;
  readonly name: string;
  /** IFLA_INFO_KIND: `veth`, `bridge`, `vxlan`, …; null for physical devices and the loopback. */
  readonly kind: string | null;
  /** Lower-case, colons between the bytes; null when the device has no 6-byte hardware address. */
  readonly mac: string | null;
  readonly mtuBytes: number;
  readonly alias: string | null;
  readonly group: number;
  /** Kind of the root qdisc: `noqueue`, `tbf`, …; `noop` before a link with a default queue was up. */
  readonly rootQdisc: string | null;
  /** IFF_UP: administrative state. */
  readonly up: boolean;
  /** IFF_* bits of linux/if.h. */
  readonly flags: number;
  /** IFLA_LINK: for a veth end the index of its peer, in the peer's namespace. */
  readonly linkedIndex: number | null;
  /**
   * IFLA_LINK_NETNSID: this namespace's ID for the namespace of `linkedIndex`; null when it is this one, -1 when the kernel has
   * assigned no ID.
   */
  readonly linkedNamespaceId: number | null;
  /** Transmit queue length in packets (`txqueuelen`). */
  readonly txQueueLength: number;
  readonly txQueueCount: number;
  readonly rxQueueCount: number;
  /** Null when IPv6 is off for the link. */
  readonly addressGeneration: AddressGeneration | null;
  /** Null for other kinds. */
  readonly vxlan: VxlanSettings | null;
  /** Null for other kinds. */
  readonly ipip: IpipSettings | null;
}

/** An address on a link (`ip address`). */
export interface Address {
  readonly family: Family;
  readonly linkIndex: number;
  /** The node's own address with its prefix length, `10.65.0.2/32`. */
  readonly address: string;
  /** The other end's address on a point-to-point link, without prefix length. */
  readonly peer: string | null;
  readonly scope: Scope;
  /** IFA_F_* bits of linux/if_addr.h. */
  readonly flags: number;
  readonly label: string | null;
}

/** Route and address scopes of linux/rtnetlink.h; a number where it has no name. */
export type Scope = 'global' | 'site' | 'link' | 'host' | 'nowhere' | number;

/** Route types of linux/rtnetlink.h that Podwire sets; a number for any other. */
export type RouteType =
  'unicast' | 'local' | 'broadcast' | 'multicast' | 'blackhole' | 'unreachable' | 'prohibit' | number;

/**
 * A route (`ip route`). A multipath route has neither `outputIndex` nor `gateway`. IPv6 routes have no scope (`global`), always a
 * metric, and the loopback as output for blackholes and similar types.
 */
export interface Route {
  readonly family: Family;
  /** `0.0.0.0/0` or `::/0` for a default route. */
  readonly destination: string;
  readonly outputIndex: number | null;
  readonly gateway: string | null;
  readonly source: string | null;
  readonly scope: Scope;
  /** Origin of the route: 2 kernel, 3 boot, 4 static, … (`/etc/iproute2/rt_protos`). */
  readonly protocol: number;
  readonly table: number;
  /** RTA_PRIORITY; 0 when the kernel sends none. */
  readonly metric: number;
  readonly routeType: RouteType;
  readonly onlink: boolean;
  /** RTNH_F_* bits of linux/rtnetlink.h. */
  readonly flags: number;
}

/** Action of a rule; a number for unnamed actions. */
export type RuleAction = 'lookup' | 'blackhole' | 'unreachable' | 'prohibit' | number;

/**
 * A rule that chooses a routing table (`ip rule`). Of its selectors only the two prefixes are included; `flags` has
 * FIB_RULE_INVERT when they must not match.
 */
export interface Rule {
  readonly family: Family;
  /** `0.0.0.0/0` or `::/0` for all sources; the same for the destination. */
  readonly source: string;
  readonly destination: string;
  readonly action: RuleAction;
  /** 0 when the action is no lookup. */
  readonly table: number;
  /** The kernel evaluates rules in ascending order. */
  readonly priority: number;
  /** Origin of the rule, as with routes; 0 when the kernel does not report it (before 4.17). */
  readonly protocol: number;
  /** FIB_RULE_* bits of linux/fib_rules.h. */
  readonly flags: number;
}

/** A neighbour or proxy entry (`ip neighbour`). */
export interface Neighbour {
  readonly family: Family;
  readonly linkIndex: number;
  readonly address: string;
  readonly mac: string | null;
  readonly proxy: boolean;
  readonly permanent: boolean;
  /** NUD_* bits of linux/neighbour.h. */
  readonly state: number;
}

/**
 * A forwarding entry of a device (`bridge fdb`): frames for a MAC address go to a port of a bridge, or, on a tunnel device, to
 * the far end `destination`.
 */
export interface FdbEntry {
  readonly linkIndex: number;
  /** Null when the device has no 6-byte hardware addresses. Zero is a tunnel's default entry. */
  readonly mac: string | null;
  /** Address of the far end; null on devices other than tunnels. */
  readonly destination: string | null;
  readonly permanent: boolean;
  /** The entry is the device's own, not that of the bridge to which the device belongs. */
  readonly self: boolean;
  /** NUD_* bits of linux/neighbour.h. */
  readonly state: number;
}

/** The root qdisc of a link (`tc qdisc`). */
export interface Qdisc {
  readonly linkIndex: number;
  /** Major number. */
  readonly handle: number;
  /** `tbf`, `htb`, … */
  readonly kind: string;
  /** Null for other kinds, and for a tbf with a peak rate. */
  readonly tbf: TokenBucketState | null;
}

/** A token bucket filter as the kernel reports it: it reports no burst, but the time that fills the bucket. */
export interface TokenBucketState {
  readonly rateBytesPerSecond: number;
  readonly limitBytes: number;
  /** Burst by rate, in units of 64 ns and modulo 2^32. */
  readonly bucketTicks: number;
}

/** A change as the kernel announced it. */
export type ObjectChange =
  | { readonly object: 'link'; readonly deleted: boolean; readonly value: Link }
  | { readonly object: 'address'; readonly deleted: boolean; readonly value: Address }
  | { readonly object: 'route'; readonly deleted: boolean; readonly value: Route }
  | { readonly object: 'neighbour'; readonly deleted: boolean; readonly value: Neighbour }
  | { readonly object: 'fdb'; readonly deleted: boolean; readonly value: FdbEntry };

/** Changes were lost, because they arrived faster than they were read; read the full state again. */
export interface Overrun {
  readonly object: 'overrun';
}
