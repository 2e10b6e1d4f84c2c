import { formatAttachment, parseAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { HOST_MAC } from '@podwire/shared/attachment/names';
import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';
import { formatPrefix, hostPrefix, type Prefix } from '@podwire/shared/net/prefix';

import type { LinkSpec, Neighbour, Route, Rule, SysctlKey } from './step.js';

/**
 * Marks the routes that Podwire made, on the node and in pods ("W"). Not among those of linux/rtnetlink.h and iproute2's
 * rt_protos (release 6.1), nor 80, which is Calico's.
 */
export const ROUTE_PROTOCOL = 87;

/**
 * Metric of every route, unless another interface of the pod has the destination already: the best that IPv4 has, and the one
 * that `ip -6 route` gives.
 */
export const METRIC: Readonly<Record<Family, number>> = { 4: 0, 6: 1024 };

/** Where nothing else is known: Ethernet's. */
export const USUAL_MTU_BYTES = 1500;

/** Begins the alias of every host interface that Podwire made. */
const ALIAS_PREFIX = 'podwire:';

export interface WantedSysctl {
  readonly key: SysctlKey;
  readonly value: string;
  /** The link that the key belongs to; undefined when it is the namespace's own. */
  readonly device: string | undefined;
  /** A failure to set it is a warning. */
  readonly optional: boolean;
  /** In the pod: has to be set before its link comes up and gets addresses. */
  readonly early: boolean;
  /** Takes addresses and routes of this family from the link: what Podwire has there is deleted before, so that it can be put back. */
  readonly disables: Family | undefined;
  /** A sysctl that sets this one as well: when that is set, this is set too, so that undoing gives it back its own value. */
  readonly follows: SysctlKey | undefined;
}

/** The wanted state of one end of the wire and of what is around it in its namespace. */
export interface WantedEnd {
  readonly link: LinkSpec;
  /** Undefined: any will do. */
  readonly alias: string | undefined;
  /** CIDRs. Those on the node's end are addresses that the kernel may give it by itself as well. */
  readonly addresses: readonly string[];
  /** In the order in which the kernel takes them: a next hop's own route first. */
  readonly routes: readonly Route[];
  /** None as long as nothing is known of the pod's other interfaces (`source-routing.ts`). */
  readonly rules: readonly Rule[];
  readonly neighbours: readonly Neighbour[];
  readonly sysctls: readonly WantedSysctl[];
}

/** The whole wanted state of one attachment. Both links are wanted up. */
export interface Wanted {
  readonly attachment: Attachment;
  readonly host: WantedEnd;
  readonly pod: WantedEnd;
}

/** The alias that records an attachment on its host interface. At most 254 bytes; the kernel takes 255. */
export function aliasOf(attachment: Attachment): string {
  return ALIAS_PREFIX + formatAttachment(attachment);
}

/** Reads what {@link aliasOf} wrote; undefined for any other alias. */
export function attachmentOfAlias(alias: string | null): Attachment | undefined {
  return alias?.startsWith(ALIAS_PREFIX) ? parseAttachment(alias.slice(ALIAS_PREFIX.length)) : undefined;
}

/** The kernel's state that gives a pod its network (calico.md 4.6 to 4.8), of the families that it has addresses of. */
export function desired(network: PodNetwork, node: NodeDefaults = { mtuBytes: USUAL_MTU_BYTES }): Wanted {
  const { attachment, hostInterfaceName, mac, txQueueLength, queueCount } = network;
  const common = { mtuBytes: network.mtuBytes ?? node.mtuBytes, txQueueLength, queueCount };
  return {
    attachment,
    host: hostEnd(network, { name: hostInterfaceName, mac: HOST_MAC, ...common }),
    pod: podEnd(network, { name: attachment.interfaceName, mac, ...common }),
  };
}

function hostEnd({ attachment, addresses, sourcePrefixes, mac }: PodNetwork, link: LinkSpec): WantedEnd {
  const { name } = link;
  const families = familiesOf(addresses);
  const hasOtherSources = sourcePrefixes.some(({ family }) => family === 4);
  return {
    link,
    alias: aliasOf(attachment),
    // The kernel makes it too, but only when both ends are up, and not where `addr_gen_mode` is another.
    addresses: families.includes(6) ? [HOST_LINK_LOCAL] : [],
    routes: addresses.map((address) => onLink(formatPrefix(hostPrefix(address)), address.family, name)),
    rules: [],
    // Permanent ones do not count towards the kernel's limit (gc_thresh3), and are never collected: a full table cuts no pod off.
    neighbours: addresses.map((address) => ({ device: name, address: formatAddress(address), mac })),
    sysctls: [
      ...(families.includes(4) ? hostSysctls4(name) : []),
      // Strict: a pod sends from its own addresses alone; without one of IPv4, from none. With further prefixes the guard of
      // `filters` does this alone: an interface without an IPv4 address drops in loose mode (2) what it drops in strict.
      ofLink(['net', 'ipv4', 'conf', name, 'rp_filter'], hasOtherSources ? '0' : '1'),
      ...(families.includes(6) ? hostSysctls6(name) : [withoutIpv6(name)]),
      // A pod must not reconfigure the node by router advertisements. The key is missing where IPv6 is off.
      { ...ofLink(['net', 'ipv6', 'conf', name, 'accept_ra'], '0'), optional: true },
    ],
  };
}

function hostSysctls4(name: string): WantedSysctl[] {
  return [
    // Packets from the pod to 127.0.0.0/8 that port mappings redirect are no martians.
    ofLink(['net', 'ipv4', 'conf', name, 'route_localnet'], '1'),
    // Without it the kernel waits up to 0.8 s before it answers for the gateway.
    { ...ofLink(['net', 'ipv4', 'neigh', name, 'proxy_delay'], '0'), optional: true },
    ofLink(['net', 'ipv4', 'conf', name, 'proxy_arp'], '1'),
    ofLink(['net', 'ipv4', 'conf', name, 'forwarding'], '1'),
  ];
}

/**
 * A pod without IPv6 addresses would reach services of the node by the link-local address that the kernel gives each interface. The key is
 * missing where the kernel has no IPv6. The pod's end is left alone: nothing answers it.
 */
function withoutIpv6(name: string): WantedSysctl {
  return { ...ofLink(['net', 'ipv6', 'conf', name, 'disable_ipv6'], '1'), optional: true, disables: 6 };
}

function hostSysctls6(name: string): WantedSysctl[] {
  const key = (setting: string): SysctlKey => ['net', 'ipv6', 'conf', name, setting];
  return [
    // The node may have switched IPv6 off for interfaces to come. First, as an address is refused while it is off.
    ofLink(key('disable_ipv6'), '0'),
    // The gateway's address comes back by itself after the link was down. Kernels before 4.11 know no other way.
    { ...ofLink(key('addr_gen_mode'), '0'), optional: true },
    // Nobody else can have it, and a pod that claims it must not take it from the node.
    ofLink(key('accept_dad'), '0'),
    ofLink(key('proxy_ndp'), '1'),
    ofLink(key('forwarding'), '1'),
  ];
}

function podEnd({ addresses, routes, ipForwarding }: PodNetwork, link: LinkSpec): WantedEnd {
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
    addresses: addresses.map((address) => formatPrefix(hostPrefix(address))),
    // A link-local next hop needs no route of its own.
    routes: [...(families.includes(4) ? [onLink(`${GATEWAY[4]}/32`, 4, name)] : []), ...viaGateway],
    rules: [],
    neighbours: families.map((family) => ({ device: name, address: GATEWAY[family], mac: HOST_MAC })),
    sysctls: [
      ...(families.includes(6) ? podSysctls6(name) : []),
      ...(families.includes(4) ? [ofNamespace(['net', 'ipv4', 'ip_forward'], forwarding)] : []),
      ...(families.includes(6) ? [ofNamespace(['net', 'ipv6', 'conf', 'all', 'forwarding'], forwarding)] : []),
    ],
  };
}

/** What has to be before the pod's link comes up. Runtimes switch IPv6 off in a pod's namespace. */
function podSysctls6(name: string): WantedSysctl[] {
  const key = (device: string, setting: string): SysctlKey => ['net', 'ipv6', 'conf', device, setting];
  // `all` comes after those that it sets as well: undone before them, it leaves them their own values.
  const all = ofNamespace(key('all', 'disable_ipv6'), '0');
  const others = ['lo', 'default'].map((device) => ofNamespace(key(device, 'disable_ipv6'), '0'));
  const switches = [...others.map((sysctl) => ({ ...sysctl, follows: all.key })), all];
  const own = [ofLink(key(name, 'disable_ipv6'), '0'), ofLink(key(name, 'accept_dad'), '0')];
  return [...switches, ...own].map((sysctl) => ({ ...sysctl, early: true }));
}

/** The families that a pod has addresses of. */
export function familiesOf(addresses: readonly Address[]): Family[] {
  return ([4, 6] as const).filter((family) => addresses.some((address) => address.family === family));
}

/** A sysctl whose key has the link's name as its fourth segment. */
function ofLink(key: SysctlKey, value: string): WantedSysctl {
  return { ...ofNamespace(key, value), device: key[3] };
}

function ofNamespace(key: SysctlKey, value: string): WantedSysctl {
  return { key, value, device: undefined, optional: false, early: false, disables: undefined, follows: undefined };
}

/** The kernel knows scopes in IPv4 only. */
function onLink(destination: string, family: Family, device: string): Route {
  const scope = family === 4 ? 'link' : 'global';
  return { destination, device, gateway: undefined, metric: METRIC[family], scope, protocol: ROUTE_PROTOCOL };
}

/**
 * Next hop of every pod (as Calico). Nobody has the one of IPv4: a neighbour entry, and proxy ARP, lead to the host's end. The one
 * of IPv6 is on every host end, and the same everywhere, as it derives from the MAC address that they share.
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

/** The host end's IPv6 address with the length that the kernel gives it when it makes one itself. */
export const HOST_LINK_LOCAL = `${GATEWAY[6]}/64`;

/**
 * The link-local address of an interface that derives it from its MAC address (RFC 4291, sections 2.5.6 and appendix A): fe80::/64
 * and the modified EUI-64, with the universal/local bit turned and ff:fe in the middle. The kernel's `addr_gen_mode` 0.
 */
export function linkLocal(mac: Mac): Address {
  const [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0] = mac.split(':').map((byte) => Number.parseInt(byte, 16));
  const interfaceId = [a ^ 0x02, b, c, 0xff, 0xfe, d, e, f].reduce((id, byte) => (id << 8n) | BigInt(byte), 0n);
  return { family: 6, value: (0xfe80n << 112n) | interfaceId };
}

/** What a pod's network takes from its node. */
interface NodeDefaults {
  /** MTU of pods that ask for none. */
  readonly mtuBytes: number;
}

/** What a caller wants for one attachment, every field checked. */
export interface PodNetwork {
  readonly attachment: Attachment;
  /** Path of the pod's network namespace. */
  readonly netns: string;
  readonly hostInterfaceName: string;
  /** MAC address of the pod's end. */
  readonly mac: Mac;
  /** At least one. */
  readonly addresses: readonly Address[];
  /** Destinations that the pod reaches through its gateway; the default routes have been filled in. */
  readonly routes: readonly Prefix[];
  /** Undefined: as the node's. */
  readonly mtuBytes: number | undefined;
  /** Whether the pod forwards packets between its own interfaces. */
  readonly ipForwarding: boolean;
  /** What the pod may send from besides its addresses. */
  readonly sourcePrefixes: readonly Prefix[];
  /** Packets that may wait to be sent at each end; undefined: the kernel's default. */
  readonly txQueueLength: number | undefined;
  /** Of transmit queues, and of receive queues, at each end; undefined: the kernel's default. */
  readonly queueCount: number | undefined;
  /** podwire-ipam gave the addresses: a wire that is lost whole is restored only while it has them for the attachment. */
  readonly addressesFromIpam?: true;
}

/** Of the rules: behind those that workloads number themselves, before `main` (32766) and what `ip rule` numbers (from 32765 down). */
export const RULE_PRIORITY = 30_087;

/** Numbers of the tables: {@link ROUTE_PROTOCOL} in the highest of four bytes, 1459617792 to 1476395007. */
const TABLES_FROM = ROUTE_PROTOCOL * 2 ** 24;
const HASH_BITS = 24;

/**
 * Routing table of an interface of a pod: derived from its name there, so that what is its own is known without asking anybody. The hash is
 * FNV-1a, whose low bits tell names apart that differ in their last characters.
 */
export function tableOf(interfaceName: string): number {
  const hash = [...Buffer.from(interfaceName)].reduce((sum, byte) => Math.imul(sum ^ byte, FNV_PRIME), FNV_OFFSET);
  return TABLES_FROM + ((hash >>> 0) & (2 ** HASH_BITS - 1));
}

/** Whether a rule is one of Podwire's for an interface, whichever that is: nobody else has its protocol, priority and table. */
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
