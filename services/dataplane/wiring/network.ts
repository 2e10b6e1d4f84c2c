import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import { formatAttachment, parseAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { HOST_MAC } from '@podwire/shared/attachment/names';
import { familiesOf, formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';
import { formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';

import { tokenBucket } from './token-bucket.js';
import type { LinkSpec, Neighbour, Route, Rule, SysctlKey, TokenBucket } from './step.js';

/**
 * Protocol of Podwire's routes, on the node and in pods: "W" in ASCII. Not assigned in linux/rtnetlink.h or iproute2's
 * rt_protos (release 6.1), nor 80, which is Calico's.
 */
export const ROUTE_PROTOCOL = 87;

/**
 * Metric of every route unless another interface of the pod already has the destination: the best for IPv4, and the default of
 * `ip -6 route`.
 */
export const METRIC: Readonly<Record<Family, number>> = { 4: 0, 6: 1024 };

/** Fallback MTU: Ethernet's. */
export const DEFAULT_MTU_BYTES = 1500;

/** Prefix of the alias of Podwire's host interfaces. */
const ALIAS_PREFIX = 'podwire:';

export interface WantedSysctl {
  readonly key: SysctlKey;
  readonly value: string;
  /** The link that owns the key; undefined when the namespace does. */
  readonly device: string | undefined;
  /** A failure to set it is a warning. */
  readonly optional: boolean;
  /** Whether it must be set in the pod before its link comes up and gets addresses. */
  readonly early: boolean;
  /**
   * Setting it removes addresses and routes of this family from the link: Podwire's are deleted first, so that a rollback can
   * restore them.
   */
  readonly disables: Family | undefined;
  /** A sysctl that also changes this one: when that is set, this one is set too, so that a rollback restores its own value. */
  readonly follows: SysctlKey | undefined;
}

/** The wanted state of one end of the wire and its surroundings in the namespace. */
export interface WantedEnd {
  readonly link: LinkSpec;
  /** Undefined: any. */
  readonly alias: string | undefined;
  /** Limit of the packets that leave by the link; undefined: none. */
  readonly bucket: TokenBucket | undefined;
  /** CIDRs. The kernel may also create the ones on the node's end. */
  readonly addresses: readonly string[];
  /** Routes in the order that the kernel requires: a next hop's own route first. */
  readonly routes: readonly Route[];
  /** Empty until the pod's other interfaces are known (`source-routing.ts`). */
  readonly rules: readonly Rule[];
  readonly neighbours: readonly Neighbour[];
  readonly sysctls: readonly WantedSysctl[];
}

/** The whole wanted state of one attachment. Both links must be up. */
export interface Wanted {
  readonly attachment: Attachment;
  readonly host: WantedEnd;
  readonly pod: WantedEnd;
}

/** The host interface's alias, which names its attachment. At most 254 bytes; the kernel allows 255. */
export function aliasOf(attachment: Attachment): string {
  return ALIAS_PREFIX + formatAttachment(attachment);
}

/** Reads the output of {@link aliasOf}; undefined for any other alias. */
export function attachmentOfAlias(alias: string | null): Attachment | undefined {
  return alias?.startsWith(ALIAS_PREFIX) ? parseAttachment(alias.slice(ALIAS_PREFIX.length)) : undefined;
}

/** The kernel state of a pod's network, for the families that it has addresses of. */
export function wantedState(network: PodNetwork, node: NodeDefaults = { mtuBytes: DEFAULT_MTU_BYTES }): Wanted {
  const { attachment, hostInterfaceName, mac, txQueueLength, queueCount } = network;
  const common = { mtuBytes: network.mtuBytes ?? node.mtuBytes, txQueueLength, queueCount };
  return {
    attachment,
    host: hostEnd(network, { name: hostInterfaceName, mac: HOST_MAC, ...common }),
    pod: podEnd(network, { name: attachment.interfaceName, mac, ...common }),
  };
}

function hostEnd({ attachment, addresses, sourcePrefixes, mac, bandwidth }: PodNetwork, link: LinkSpec): WantedEnd {
  const { name } = link;
  const families = familiesOf(addresses);
  const hasOtherSources = sourcePrefixes.some(({ family }) => family === 4);
  return {
    link,
    alias: aliasOf(attachment),
    bucket: bandwidth?.ingress && tokenBucket(bandwidth.ingress, link.mtuBytes),
    // The kernel creates it too, but only when both ends are up, and only with the default `addr_gen_mode`.
    addresses: families.includes(6) ? [HOST_LINK_LOCAL] : [],
    routes: addresses.map((address) => onLinkRoute(formatPrefix(hostPrefix(address)), address.family, name)),
    rules: [],
    // Permanent entries do not count towards the kernel's limit (gc_thresh3), and are never collected: a full table disconnects
    // no pod.
    neighbours: addresses.map((address) => ({ device: name, address: formatAddress(address), mac })),
    sysctls: [
      ...(families.includes(4) ? hostSysctls4(name) : []),
      // Strict: a pod sends only from its own addresses; without an IPv4 address, from none. With further prefixes the guard of
      // `filters` does this alone: an interface without an IPv4 address drops the same packets in loose mode (2) as in strict.
      linkSysctl(['net', 'ipv4', 'conf', name, 'rp_filter'], hasOtherSources ? '0' : '1'),
      ...(families.includes(6) ? hostSysctls6(name) : [ipv6DisabledSysctl(name)]),
      // A pod must not reconfigure the node by router advertisements. The key is missing when IPv6 is off.
      { ...linkSysctl(['net', 'ipv6', 'conf', name, 'accept_ra'], '0'), optional: true },
    ],
  };
}

function hostSysctls4(name: string): WantedSysctl[] {
  return [
    // For host ports of 127.0.0.1: the kernel would drop the pod's replies to the node's 127.0.0.1 as martians.
    linkSysctl(['net', 'ipv4', 'conf', name, 'route_localnet'], '1'),
    // Otherwise the kernel delays its answer for the gateway by up to 0.8 s.
    { ...linkSysctl(['net', 'ipv4', 'neigh', name, 'proxy_delay'], '0'), optional: true },
    linkSysctl(['net', 'ipv4', 'conf', name, 'proxy_arp'], '1'),
    linkSysctl(['net', 'ipv4', 'conf', name, 'forwarding'], '1'),
  ];
}

/**
 * A pod without IPv6 addresses could otherwise reach services of the node by the link-local address that the kernel gives each
 * interface. The key is missing when the kernel has no IPv6. The pod's end needs no change, as the node does not answer it.
 */
function ipv6DisabledSysctl(name: string): WantedSysctl {
  return { ...linkSysctl(['net', 'ipv6', 'conf', name, 'disable_ipv6'], '1'), optional: true, disables: 6 };
}

function hostSysctls6(name: string): WantedSysctl[] {
  const key = (setting: string): SysctlKey => ['net', 'ipv6', 'conf', name, setting];
  return [
    // The node may disable IPv6 on new interfaces. First, because a disabled interface refuses addresses.
    linkSysctl(key('disable_ipv6'), '0'),
    // The kernel restores the gateway's address after the link was down. Kernels before 4.11 have no other way.
    { ...linkSysctl(key('addr_gen_mode'), '0'), optional: true },
    // The address is unique to the gateway; a pod that claims it must not take it from the node.
    linkSysctl(key('accept_dad'), '0'),
    linkSysctl(key('proxy_ndp'), '1'),
    linkSysctl(key('forwarding'), '1'),
  ];
}

function podEnd({ addresses, routes, ipForwarding, bandwidth }: PodNetwork, link: LinkSpec): WantedEnd {
  const { name } = link;
  const families = familiesOf(addresses);
  const forwarding = ipForwarding ? '1' : '0';
  const viaGateway = routes.map((prefix): Route => {
    const { family } = prefix;
    const route = { gateway: GATEWAY[family], scope: 'global', protocol: ROUTE_PROTOCOL } as const;
    return { destination: formatPrefix(prefix), device: name, metric: METRIC[family], ...route };
  });
  return {
    link,
    alias: undefined,
    bucket: bandwidth?.egress && tokenBucket(bandwidth.egress, link.mtuBytes),
    addresses: addresses.map((address) => formatPrefix(hostPrefix(address))),
    // A link-local next hop needs no route of its own.
    routes: [...(families.includes(4) ? [onLinkRoute(`${GATEWAY[4]}/32`, 4, name)] : []), ...viaGateway],
    rules: [],
    neighbours: families.map((family) => ({ device: name, address: GATEWAY[family], mac: HOST_MAC })),
    sysctls: [
      ...(families.includes(6) ? podSysctls6(name) : []),
      ...(families.includes(4) ? [namespaceSysctl(['net', 'ipv4', 'ip_forward'], forwarding)] : []),
      ...(families.includes(6) ? [namespaceSysctl(['net', 'ipv6', 'conf', 'all', 'forwarding'], forwarding)] : []),
    ],
  };
}

/** Settings required before the pod's link comes up. Runtimes disable IPv6 in a pod's namespace. */
function podSysctls6(name: string): WantedSysctl[] {
  const key = (device: string, setting: string): SysctlKey => ['net', 'ipv6', 'conf', device, setting];
  // `all` follows the keys that it also changes: rolled back first, it leaves them their own values.
  const all = namespaceSysctl(key('all', 'disable_ipv6'), '0');
  const namespaceSysctls = ['lo', 'default'].map((device) => namespaceSysctl(key(device, 'disable_ipv6'), '0'));
  const switches = [...namespaceSysctls.map((sysctl) => ({ ...sysctl, follows: all.key })), all];
  const own = [linkSysctl(key(name, 'disable_ipv6'), '0'), linkSysctl(key(name, 'accept_dad'), '0')];
  return [...switches, ...own].map((sysctl) => ({ ...sysctl, early: true }));
}

/** A sysctl whose key has the link's name as its fourth segment. */
function linkSysctl(key: SysctlKey, value: string): WantedSysctl {
  return { ...namespaceSysctl(key, value), device: key[3] };
}

function namespaceSysctl(key: SysctlKey, value: string): WantedSysctl {
  return { key, value, device: undefined, optional: false, early: false, disables: undefined, follows: undefined };
}

/** The kernel has scopes in IPv4 only. */
function onLinkRoute(destination: string, family: Family, device: string): Route {
  const scope = family === 4 ? 'link' : 'global';
  return { destination, device, gateway: undefined, metric: METRIC[family], scope, protocol: ROUTE_PROTOCOL };
}

/**
 * Next hop of every pod, as in Calico. The IPv4 one is on no interface: a neighbour entry and proxy ARP lead to the host end. The
 * IPv6 one is on every host end, and always the same, as it derives from their common MAC address.
 */
export const GATEWAY_ADDRESS: Readonly<Record<Family, Address>> = {
  4: { family: 4, value: 0xa9_fe_01_01n },
  6: linkLocal(HOST_MAC),
};

/** {@link GATEWAY_ADDRESS} as text: `169.254.1.1` and `fe80::ecee:eeff:feee:eeee`. */
export const GATEWAY: Readonly<Record<Family, string>> = {
  4: formatAddress(GATEWAY_ADDRESS[4]),
  6: formatAddress(GATEWAY_ADDRESS[6]),
};

/** The host end's IPv6 address with the prefix length that the kernel uses when it creates one. */
export const HOST_LINK_LOCAL = `${GATEWAY[6]}/64`;

/**
 * The link-local address derived from a MAC address (RFC 4291, sections 2.5.6 and appendix A): fe80::/64 and the modified EUI-64,
 * with the universal/local bit inverted and ff:fe in the middle. The kernel's `addr_gen_mode` 0.
 */
export function linkLocal(mac: Mac): Address {
  const [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0] = mac.split(':').map((byte) => Number.parseInt(byte, 16));
  const interfaceId = [a ^ 0x02, b, c, 0xff, 0xfe, d, e, f].reduce((id, byte) => (id << 8n) | BigInt(byte), 0n);
  return { family: 6, value: (0xfe80n << 112n) | interfaceId };
}

/** Node-dependent defaults of a pod's network. */
interface NodeDefaults {
  /** MTU of pods that request none. */
  readonly mtuBytes: number;
}

/**
 * Priority of the rules: after rules that workloads number themselves, before `main` (32766) and what `ip rule` numbers (from
 * 32765 down).
 */
export const RULE_PRIORITY = 30_087;

/** Table numbers: {@link ROUTE_PROTOCOL} in the highest of four bytes, 1459617792 to 1476395007. */
const TABLES_FROM = ROUTE_PROTOCOL * 2 ** 24;
const HASH_BITS = 24;

/**
 * Routing table of a pod's interface: derived from its name there, so that Podwire's rules can be identified without a record.
 * The hash is FNV-1a, whose low bits distinguish names that differ in their last characters.
 */
export function tableOf(interfaceName: string): number {
  const hash = [...Buffer.from(interfaceName)].reduce((sum, byte) => Math.imul(sum ^ byte, FNV_PRIME), FNV_OFFSET);
  return TABLES_FROM + ((hash >>> 0) & (2 ** HASH_BITS - 1));
}

/** Whether a rule is Podwire's for any interface: the combination of protocol, priority and table is unique to it. */
export function isSourceRule({ table, priority, protocol }: SourceRule): boolean {
  return protocol === ROUTE_PROTOCOL && priority === RULE_PRIORITY && table >>> HASH_BITS === ROUTE_PROTOCOL;
}

interface SourceRule {
  readonly table: number;
  readonly priority: number;
  readonly protocol: number;
}

const FNV_PRIME = 0x01_00_01_93;
const FNV_OFFSET = 0x81_1c_9d_c5;
