import { hash } from 'node:crypto';

import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { derivedNames } from '@podwire/shared/attachment/names';
import { Failure, violationsFailure } from '@podwire/shared/failure/failure';
import { familyBits, formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import { parsePrefix, prefixContains, prefixSize, splitCidr, type Prefix } from '@podwire/shared/net/prefix';
import { z } from 'zod';

import type { Allocation, Endpoint, Ipam, Limits } from '../clients/clients.js';
import type { PodRequest } from '../cni/pod-request.js';
import { DNS, type Dns } from '../cni/request-sources.js';
import type { Result, ResultRoute } from '../cni/result.js';
import { addByDelegate, type DelegateTools } from './ipam-plugin.js';
import type { Delegate } from './mode.js';

interface DelegatedRequest {
  readonly attachment: Attachment;
  readonly podRequest: PodRequest;
  readonly delegate: Delegate;
}

/**
 * Requests an attachment's addresses from another IPAM plugin. The plugin does not report whether an earlier ADD
 * allocated them, so they count as allocated before: an existing wire then proves that a pod uses them.
 * @throws Failure, as {@link addByDelegate}; ADDRESS_REFUSED when a requested address is missing from the result
 */
export async function delegatedEndpoint(request: DelegatedRequest, tools: DelegateTools): Promise<Allocation> {
  const { attachment, podRequest, delegate } = request;
  const { addresses, dns } = await addByDelegate(delegate, tools);
  const returned = addresses.map((cidr) => cidr.split('/')[0]);
  const missing = podRequest.addresses.find((address) => !returned.includes(address));
  if (missing !== undefined) {
    throw new Failure(
      'ADDRESS_REFUSED',
      `${formatAttachment(attachment)} requests ${missing}, but IPAM plugin ${delegate.type} returned ${returned.join(', ')}; request it in the way that plugin supports`,
    );
  }
  return { endpoint: endpointOf(attachment, addresses), alreadyAllocated: true, poolNames: [], dns };
}

/** The pod's addresses according to a result of ADD: the only record of a delegate's addresses. */
export function endpointFromResult(attachment: Attachment, prevResult: Result | undefined): Endpoint | undefined {
  const { interfaces = [], ips = [] } = prevResult ?? {};
  const podInterfaceIndex = interfaces.findIndex(
    ({ name, sandbox }) => name === attachment.interfaceName && (sandbox ?? '') !== '',
  );
  const addresses = ips.flatMap((each) => (each.interface === podInterfaceIndex ? fullLength(each.address) : []));
  return addresses.length === 0 ? undefined : endpointOf(attachment, addresses);
}

function fullLength(cidr: string): string[] {
  const address = splitCidr(cidr)?.address;
  return address ? [`${formatAddress(address)}/${familyBits(address.family)}`] : [];
}

function endpointOf(attachment: Attachment, addresses: readonly string[]): Endpoint {
  const { hostInterfaceName, mac } = derivedNames(attachment);
  return { addresses, held: [], macAddress: mac, hostInterfaceName };
}

/** Prefix of the container IDs that own gateway addresses. */
const CONTAINER_ID_PREFIX = 'podwire-gateway-';

const HASH_DIGITS = 32;

/** A node's gateway address is unique for these. */
interface GatewayScope {
  readonly network: string;
  readonly nodeName: string;
  readonly poolName: string;
}

/**
 * The attachment that owns a node's gateway address in IPAM: one per network and pool. It is kept when pods go, because
 * a bridge keeps the address and a new one per first pod would contradict it. The container ID includes the network:
 * IPAM keys endpoints by node and container ID, as Calico does, so networks would otherwise overwrite each other.
 */
function gatewayHolder({ network, nodeName, poolName }: GatewayScope): Attachment {
  const digest = hash('sha256', `${network} ${nodeName} ${poolName}`, 'hex').slice(0, HASH_DIGITS);
  return { network, containerId: `${CONTAINER_ID_PREFIX}${digest}`, interfaceName: 'gateway' };
}

/** Whether an attachment owns a node's gateway address instead of a pod's address. */
export function isGatewayHolder({ containerId, interfaceName }: Attachment): boolean {
  return containerId.startsWith(CONTAINER_ID_PREFIX) && interfaceName === 'gateway';
}

/** The node's gateway address in a pool, allocated from that pool. Idempotent. */
export async function nodeGateway(scope: GatewayScope, prefix: Prefix, call: GatewayCall): Promise<string | undefined> {
  const { ipam, limits } = call;
  const { endpoint } = await ipam.allocate(
    {
      attachment: gatewayHolder(scope),
      nodeName: scope.nodeName,
      pod: undefined,
      netns: undefined,
      families: [prefix.family],
      pools: [scope.poolName],
      addresses: [],
    },
    limits,
  );
  const [first] = endpoint.addresses;
  const address = first === undefined ? undefined : splitCidr(first)?.address;
  return address && formatAddress(address);
}

interface GatewayCall {
  readonly ipam: Ipam;
  readonly limits: Limits;
}

/** The first configured gateway inside the prefix. */
export function configuredGateway(gateways: readonly string[], prefix: Prefix): string | undefined {
  return gateways.find((text) => {
    const address = parseAddress(text);
    return address !== undefined && prefixContains(prefix, address);
  });
}

/** The prefix of a pool. @throws Failure INTERNAL when podwire-ipam returns an invalid CIDR */
export async function poolPrefix(poolName: string, { ipam, limits }: GatewayCall): Promise<Prefix> {
  const cidr = await ipam.poolCidr(poolName, limits);
  const parsed = parsePrefix(cidr);
  if (parsed.ok) return parsed.prefix;
  throw new Failure(
    'INTERNAL',
    `podwire-ipam: pool ${poolName} has the CIDR ${JSON.stringify(cidr)}, which is invalid`,
  );
}

/** Fewest host bits of an IPv4 prefix that has a broadcast address (RFC 3021). */
const MIN_BROADCAST_BITS = 2;

/** Whether the kernel treats the address as the broadcast address of the prefix. */
export function isBroadcast(address: Address, prefix: Prefix): boolean {
  if (address.family === 6 || familyBits(4) - prefix.length < MIN_BROADCAST_BITS) return false;
  return address.value === prefix.value + prefixSize(prefix) - 1n;
}

/** Options of the network configuration for the result of `podwire-ipam`. */
export interface IpamOptions {
  /** Gateways instead of the node's own, at most one of each family; undefined: the node's own. */
  readonly gateways: readonly string[] | undefined;
  /** Routes for the result. */
  readonly routes: readonly ResultRoute[];
  /** DNS settings for the result; undefined if there are none. */
  readonly dns: Dns | undefined;
}

const GATEWAYS = z.array(
  z.string({ error: 'must be a string' }).transform((text, context) => {
    const address = parseAddress(text);
    if (address) return formatAddress(address);
    context.addIssue({ code: 'custom', message: 'must be an IP address' });
    return z.NEVER;
  }),
  { error: 'must be a list' },
);

const ROUTE = z.looseObject(
  {
    dst: z.string({ error: 'is missing' }).refine((dst) => splitCidr(dst) !== undefined, { error: 'must be a CIDR' }),
    gw: z
      .string({ error: 'must be a string' })
      .refine((gateway) => parseAddress(gateway) !== undefined, { error: 'must be an IP address' })
      .optional(),
  },
  { error: 'must be an object' },
);

const OPTIONS = z.object({
  ipam: z.object(
    {
      gateways: GATEWAYS.optional(),
      routes: z.array(ROUTE, { error: 'must be a list' }).nullish(),
      dns: DNS.optional(),
    },
    { error: 'is missing' },
  ),
});

/**
 * Reads the options.
 * @param text - the network configuration, a JSON object
 * @throws Failure INVALID_CONFIG that lists every malformed key
 */
export function readIpamOptions(text: string): IpamOptions {
  const parsed = OPTIONS.safeParse(JSON.parse(text));
  if (parsed.success) {
    const { gateways, routes, dns } = parsed.data.ipam;
    return { gateways, routes: routes ?? [], dns };
  }
  const violations = parsed.error.issues.map(({ path, message }) => ({ field: path.join('.'), reason: message }));
  throw violationsFailure('INVALID_CONFIG', 'network configuration refused', violations);
}
