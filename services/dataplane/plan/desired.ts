import { formatAttachment, parseAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { HOST_MAC } from '@podwire/shared/attachment/names';
import { formatAddress, type Address } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';

import type { PodNetwork } from './pod-network.js';
import type { LinkSpec, Neighbour, Route, SysctlKey } from './step.js';

/**
 * Marks the routes that Podwire made, on the node and in pods ("W"). Not among those of linux/rtnetlink.h and iproute2's
 * rt_protos (release 6.1), nor 80, which is Calico's.
 */
export const ROUTE_PROTOCOL = 87;

/** Next hop of every pod (as Calico). Nobody has the address: a neighbour entry, and proxy ARP, lead to the host's end. */
export const GATEWAY = '169.254.1.1';

/** {@link GATEWAY} as a number, for comparisons. */
export const GATEWAY_ADDRESS: Address = { family: 4, value: 0xa9_fe_01_01n };

/** Begins the alias of every host interface that Podwire made. */
const ALIAS_PREFIX = 'podwire:';

export interface WantedSysctl {
  readonly key: SysctlKey;
  readonly value: string;
  /** The link that the key belongs to; undefined when it is the namespace's own. */
  readonly device: string | undefined;
  /** A failure to set it is a warning. */
  readonly optional: boolean;
}

/** The wanted state of one end of the wire and of what is around it in its namespace. */
export interface WantedEnd {
  readonly link: LinkSpec;
  /** Undefined: whatever it is. */
  readonly alias: string | undefined;
  /** CIDRs. */
  readonly addresses: readonly string[];
  /** In the order in which the kernel takes them: a next hop's own route first. */
  readonly routes: readonly Route[];
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

/** The kernel's state that gives a pod its network (calico.md 4.6 to 4.8). IPv4; the callers have refused everything else. */
export function desired(network: PodNetwork): Wanted {
  return { attachment: network.attachment, host: hostEnd(network), pod: podEnd(network) };
}

function hostEnd({ attachment, hostInterfaceName: name, addresses, mtuBytes }: PodNetwork): WantedEnd {
  const sysctl = (key: SysctlKey, value: string): WantedSysctl => ({ key, value, device: name, optional: false });
  return {
    link: { name, mac: HOST_MAC, mtuBytes },
    alias: aliasOf(attachment),
    addresses: [],
    routes: addresses.map((address) => onLink(formatPrefix(hostPrefix(address)), name)),
    neighbours: [],
    sysctls: [
      // Packets from the pod to 127.0.0.0/8 that port mappings redirect are no martians.
      sysctl(['net', 'ipv4', 'conf', name, 'route_localnet'], '1'),
      // Without it the kernel waits up to 0.8 s before it answers for the gateway.
      { ...sysctl(['net', 'ipv4', 'neigh', name, 'proxy_delay'], '0'), optional: true },
      sysctl(['net', 'ipv4', 'conf', name, 'proxy_arp'], '1'),
      sysctl(['net', 'ipv4', 'conf', name, 'forwarding'], '1'),
      // Strict: a pod sends from its own addresses alone.
      sysctl(['net', 'ipv4', 'conf', name, 'rp_filter'], '1'),
      // A pod must not reconfigure the node by router advertisements. The key is missing where IPv6 is off.
      { ...sysctl(['net', 'ipv6', 'conf', name, 'accept_ra'], '0'), optional: true },
    ],
  };
}

function podEnd({ attachment, mac, addresses, routes, mtuBytes, ipForwarding }: PodNetwork): WantedEnd {
  const name = attachment.interfaceName;
  const viaGateway = routes.map((prefix): Route => {
    const destination = formatPrefix(prefix);
    return { destination, device: name, gateway: GATEWAY, scope: 'global', protocol: ROUTE_PROTOCOL };
  });
  return {
    link: { name, mac, mtuBytes },
    alias: undefined,
    addresses: addresses.map((address) => `${formatAddress(address)}/32`),
    routes: [onLink(`${GATEWAY}/32`, name), ...viaGateway],
    neighbours: [{ device: name, address: GATEWAY, mac: HOST_MAC }],
    sysctls: [
      { key: ['net', 'ipv4', 'ip_forward'], value: ipForwarding ? '1' : '0', device: undefined, optional: false },
    ],
  };
}

function onLink(destination: string, device: string): Route {
  return { destination, device, gateway: undefined, scope: 'link', protocol: ROUTE_PROTOCOL };
}
