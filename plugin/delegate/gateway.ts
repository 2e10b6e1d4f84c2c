import { hash } from 'node:crypto';

import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import { familyBits } from '@podwire/shared/net/address';
import { parsePrefix, prefixContains, prefixSize, splitCidr, type Prefix } from '@podwire/shared/net/prefix';

import type { Ipam, Limits } from '../clients/clients.js';

/** Begins the container IDs under which nodes hold gateways. */
const CONTAINER_ID_PREFIX = 'podwire-gateway-';

const HASH_DIGITS = 32;

/** Where an address is to be reached. */
export interface Place {
  readonly network: string;
  readonly nodeName: string;
  /** Name of the pool that the address is of. */
  readonly poolName: string;
}

/**
 * Who holds a node's gateway at IPAM: one for each network and pool. It stays when pods go: a bridge keeps the address, and one that is
 * given anew for each first pod would contradict it. The network is part of the container ID, too: IPAM's endpoints are kept by node and
 * container ID, as Calico's, and that of one network would take the place of another's.
 */
function gatewayHolder({ network, nodeName, poolName }: Place): Attachment {
  const digest = hash('sha256', `${network} ${nodeName} ${poolName}`, 'hex').slice(0, HASH_DIGITS);
  return { network, containerId: `${CONTAINER_ID_PREFIX}${digest}`, interfaceName: 'gateway' };
}

/** Whether an attachment holds a node's gateway, and no pod's address. */
export function isGatewayHolder({ containerId, interfaceName }: Attachment): boolean {
  return containerId.startsWith(CONTAINER_ID_PREFIX) && interfaceName === 'gateway';
}

/** The node's own gateway in a pool, from that pool; the same at every call. */
export async function nodeGateway(place: Place, prefix: Prefix, call: GatewayCall): Promise<string | undefined> {
  const { ipam, limits } = call;
  const { endpoint } = await ipam.allocate(
    {
      attachment: gatewayHolder(place),
      nodeName: place.nodeName,
      pod: undefined,
      netns: undefined,
      families: [prefix.family],
      pools: [place.poolName],
      addresses: [],
    },
    limits,
  );
  const [first] = endpoint.addresses;
  const address = first === undefined ? undefined : splitCidr(first)?.address;
  return address && formatAddress(address);
}

export interface GatewayCall {
  readonly ipam: Ipam;
  readonly limits: Limits;
}

/** The one of the given gateways that is on the link of a prefix. */
export function givenGateway(gateways: readonly string[], prefix: Prefix): string | undefined {
  return gateways.find((text) => {
    const address = parseAddress(text);
    return address !== undefined && prefixContains(prefix, address);
  });
}

/** The prefix of a pool. @throws Failure INTERNAL when IPAM answers what is none */
export async function poolPrefix(poolName: string, { ipam, limits }: GatewayCall): Promise<Prefix> {
  const cidr = await ipam.poolCidr(poolName, limits);
  const parsed = parsePrefix(cidr);
  if (parsed.ok) return parsed.prefix;
  throw new Failure('INTERNAL', `podwire-ipam: pool ${poolName} has the CIDR ${JSON.stringify(cidr)}, which is none`);
}

/** Fewest host bits of an IPv4 prefix that has a broadcast address (RFC 3021). */
const MIN_BROADCAST_BITS = 2;

/** Whether the kernel would take packets to the address, on an interface of that prefix, for everybody. */
export function isBroadcast(address: Address, prefix: Prefix): boolean {
  if (address.family === 6 || familyBits(4) - prefix.length < MIN_BROADCAST_BITS) return false;
  return address.value === prefix.value + prefixSize(prefix) - 1n;
}
