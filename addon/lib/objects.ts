/** What the kernel says about its objects. `null` is an attribute that the kernel did not send. */

/** Address family as in `ip -4` and `ip -6`. */
export type Family = 4 | 6;

/** RFC 2863 operational state, as `ip link` prints it. */
export type OperState = 'unknown' | 'notpresent' | 'down' | 'lowerlayerdown' | 'testing' | 'dormant' | 'up';

/** How a link comes by its own IPv6 addresses (`ip link … addrgenmode`); a number where the mode has no name here. */
export type AddressGeneration = 'eui64' | 'none' | 'stable-privacy' | 'random' | number;

/** What a VXLAN device was made with (`ip -details link show type vxlan`). */
export interface VxlanSettings {
  readonly vni: number;
  /** UDP port of the far ends. */
  readonly port: number;
  /** Source address of tunnel packets; null: the routing table's choice. */
  readonly local: string | null;
  /** Where packets go that no FDB entry fits: a multicast group or one far end. */
  readonly group: string | null;
  /** The device that tunnel packets leave by; null: the routing table's choice. */
  readonly parentIndex: number | null;
  readonly learning: boolean;
  /** 0: that of the node (`auto`). */
  readonly ttl: number;
  /** 1: that of the packet inside (`inherit`). */
  readonly tos: number;
  /** Over IPv4: the outer UDP checksum is set. */
  readonly udpChecksum: boolean;
  /** Over IPv6: the outer UDP checksum is left out, and packets without one are taken. */
  readonly udp6ZeroChecksumTx: boolean;
  readonly udp6ZeroChecksumRx: boolean;
  /** Each packet brings its tunnel along (`external`, flow-based). */
  readonly external: boolean;
}

/** What an IPIP device was made with (`ip -details link show type ipip`). */
export interface IpipSettings {
  readonly local: string | null;
  /** Null: each route says where its far end is. */
  readonly remote: string | null;
  readonly parentIndex: number | null;
  /** 0: that of the packet inside (`inherit`). */
  readonly ttl: number;
  readonly tos: number;
  readonly pathMtuDiscovery: boolean;
}

/** A network interface (`ip link`). */
export interface Link {
  readonly index: number;
  readonly name: string;
  /** IFLA_INFO_KIND: `veth`, `bridge`, `vxlan`, …; null for physical devices and the loopback. */
  readonly kind: string | null;
  /** Lower-case, colons between the bytes; null where the device has no 6-byte hardware address. */
  readonly mac: string | null;
  readonly mtuBytes: number;
  readonly alias: string | null;
  readonly group: number;
  /** IFF_UP: the administrator's wish; `operState` is what came of it. */
  readonly up: boolean;
  /** IFF_* bits of linux/if.h. */
  readonly flags: number;
  readonly operState: OperState;
  /** IFLA_LINK: for a veth end the index of its peer, counted in the peer's namespace. */
  readonly linkedIndex: number | null;
  /**
   * IFLA_LINK_NETNSID: this namespace's number for the one that `linkedIndex` counts in; null when it is this one, -1
   * when the kernel has given that namespace no number.
   */
  readonly linkedNamespaceId: number | null;
  /** IFLA_MASTER: the bridge or bond that the link belongs to. */
  readonly masterIndex: number | null;
  /** Packets that may wait to be sent (`txqueuelen`). */
  readonly txQueueLength: number;
  readonly txQueueCount: number;
  readonly rxQueueCount: number;
  /** Null where IPv6 is off for the link. */
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

/** Route types of linux/rtnetlink.h that Podwire sets; a number for the others. */
export type RouteType =
  'unicast' | 'local' | 'broadcast' | 'multicast' | 'blackhole' | 'unreachable' | 'prohibit' | number;

/**
 * A route (`ip route`). A multipath route has neither `outputIndex` nor `gateway`. IPv6 routes have no scope of their own
 * (`global`), a metric in any case, and the loopback as output where they are blackholes or their like.
 */
export interface Route {
  readonly family: Family;
  /** `0.0.0.0/0` or `::/0` for a default route. */
  readonly destination: string;
  readonly outputIndex: number | null;
  readonly gateway: string | null;
  readonly source: string | null;
  readonly scope: Scope;
  /** Who made the route: 2 kernel, 3 boot, 4 static, … (`/etc/iproute2/rt_protos`). */
  readonly protocol: number;
  readonly table: number;
  /** RTA_PRIORITY; 0 where the kernel sends none. */
  readonly metric: number;
  readonly routeType: RouteType;
  readonly onlink: boolean;
  /** RTNH_F_* bits of linux/rtnetlink.h. */
  readonly flags: number;
}

/** What a rule does with a packet; a number where it has no name here. */
export type RuleAction = 'lookup' | 'blackhole' | 'unreachable' | 'prohibit' | number;

/**
 * A rule that chooses a routing table (`ip rule`). Of what a rule can match only the two prefixes are told; `flags` has
 * FIB_RULE_INVERT where they are what must not match.
 */
export interface Rule {
  readonly family: Family;
  /** `0.0.0.0/0` or `::/0` where it is for all sources; the same for the destination. */
  readonly source: string;
  readonly destination: string;
  readonly action: RuleAction;
  /** 0 where the action is no lookup. */
  readonly table: number;
  /** Rules are asked in its order, the lowest first. */
  readonly priority: number;
  /** Who made the rule, as with routes; 0 where the kernel does not tell (before 4.17). */
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
 * the far end that `destination` is.
 */
export interface FdbEntry {
  readonly linkIndex: number;
  /** Null where the device has no 6-byte hardware addresses. Zero is a tunnel's entry for frames that no other fits. */
  readonly mac: string | null;
  /** Address of the far end; null on devices that are no tunnel. */
  readonly destination: string | null;
  readonly permanent: boolean;
  /** The entry is the device's own, not that of a bridge that the device is a port of. */
  readonly self: boolean;
  /** NUD_* bits of linux/neighbour.h. */
  readonly state: number;
}
