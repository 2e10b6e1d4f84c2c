import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { parseAddress, type Address } from '@podwire/shared/net/address';

import type { PodNetwork } from './pod-network.js';

export function address(text: string): Address {
  const parsed = parseAddress(text);
  if (!parsed) throw new Error(`${text} is no address`);
  return parsed;
}

export const DEFAULT_ROUTE = { family: 4, value: 0n, length: 0 } as const;
const DEFAULT_ROUTE_IPV6 = { family: 6, value: 0n, length: 0 } as const;

/** What pods of IPv4, of IPv6 and of both families have. */
export const BY_FAMILY = {
  IPv4: { addresses: [address('10.65.0.7')], routes: [DEFAULT_ROUTE] },
  IPv6: { addresses: [address('fd65::7')], routes: [DEFAULT_ROUTE_IPV6] },
  'both families': {
    addresses: [address('10.65.0.7'), address('fd65::7')],
    routes: [DEFAULT_ROUTE, DEFAULT_ROUTE_IPV6],
  },
} as const satisfies Record<string, Partial<PodNetwork>>;

/** A pod as a caller wants it, with names derived as the plugin derives them. */
export function podNetwork(containerId: string, rest: Partial<PodNetwork> = {}): PodNetwork {
  const attachment = { network: 'net', containerId, interfaceName: 'eth0' };
  return {
    attachment,
    netns: `/run/netns/${containerId}`,
    hostInterfaceName: hostInterfaceName(attachment),
    mac: podMac(attachment),
    addresses: [address('10.65.0.7')],
    routes: [DEFAULT_ROUTE],
    mtuBytes: 1500,
    ipForwarding: false,
    sourcePrefixes: [],
    txQueueLength: undefined,
    queueCount: undefined,
    ...rest,
  };
}

/** Another interface of a pod, `net1`, on another network, of both families. */
export function secondInterface(pod: string): PodNetwork {
  return podNetwork(pod, {
    ...BY_FAMILY['both families'],
    addresses: [address('10.66.0.7'), address('fd66::7')],
    attachment: { ...podNetwork(pod).attachment, interfaceName: 'net1' },
    hostInterfaceName: 'podwsecond',
    mac: '02:00:00:00:01:01',
  });
}
