/** What the kernel says about its objects. `null` is an attribute that the kernel did not send. */

/** Address family as in `ip -4` and `ip -6`. */
export type Family = 4 | 6;

/** RFC 2863 operational state, as `ip link` prints it. */
export type OperState = 'unknown' | 'notpresent' | 'down' | 'lowerlayerdown' | 'testing' | 'dormant' | 'up';

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

/** A route (`ip route`). A multipath route has neither `outputIndex` nor `gateway`. */
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
