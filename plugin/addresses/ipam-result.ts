import { hash } from 'node:crypto';

import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { derivedNames } from '@podwire/shared/attachment/names';
import { Failure, violationsFailure } from '@podwire/shared/failure/failure';
import { familyBits, formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import { parsePrefix, prefixContains, prefixSize, splitCidr, type Prefix } from '@podwire/shared/net/prefix';
import { z } from 'zod';

import type { Allocation, Endpoint, Ipam, Limits } from '../clients/clients.js';
import type { Wish } from '../cni/pod-request.js';
import { DNS, type Dns } from '../cni/requested.js';
import type { Result, ResultRoute } from '../cni/result.js';
import { addByDelegate, type DelegateTools } from './ipam-plugin.js';
import type { Delegate } from './mode.js';

interface DelegatedRequest {
  readonly attachment: Attachment;
  readonly wish: Wish;
  readonly delegate: Delegate;
}

/**
 * Requests an attachment's addresses from another IPAM plugin. The plugin does not report whether an earlier ADD
 * allocated them, so they count as allocated before: an existing wire then proves that a pod uses them.
 * @throws Failure, as {@link addByDelegate}; ADDRESS_REFUSED when a requested address is missing from the result
 */
export async function delegatedEndpoint(request: DelegatedRequest, tools: DelegateTools): Promise<Allocation> {
  const { attachment, wish, delegate } = request;
  const { addresses, dns } = await addByDelegate(delegate, tools);
  const given = addresses.map((cidr) => cidr.split('/')[0]);
  const missing = wish.addresses.find((address) => !given.includes(address));
  if (missing !== undefined) {
    throw new Failure(
      'ADDRESS_REFUSED',
      `${formatAttachment(attachment)} asks for ${missing}, and IPAM plugin ${delegate.type} gave ${given.join(', ')}; ask for it as that plugin is asked`,
    );
  }
  return { endpoint: endpointOf(attachment, addresses), alreadyAllocated: true, poolNames: [], dns };
}

/** What a result says that the pod's interface has: the record of addresses that another IPAM plugin gave. */
export function answeredEndpoint(attachment: Attachment, prevResult: Result | undefined): Endpoint | undefined {
  const { interfaces = [], ips = [] } = prevResult ?? {};
  const place = interfaces.findIndex(
    ({ name, sandbox }) => name === attachment.interfaceName && (sandbox ?? '') !== '',
  );
  const addresses = ips.flatMap((each) => (each.interface === place ? fullLength(each.address) : []));
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

/** Begins the container IDs under which nodes hold gateways. */
const CONTAINER_ID_PREFIX = 'podwire-gateway-';

const HASH_DIGITS = 32;

/** Where an address is to be reached. */
interface Place {
  readonly network: string;
  readonly nodeName: string;
  /** Name of the pool that the address is of. */
  readonly poolName: string;
}

/**
 * The attachment that owns a node's gateway address in IPAM: one per network and pool. It is kept when pods go, because
 * a bridge keeps the address and a new one per first pod would contradict it. The container ID includes the network:
 * IPAM keys endpoints by node and container ID, as Calico does, so networks would otherwise overwrite each other.
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

interface GatewayCall {
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

/** What a configuration says about the answer of `podwire-ipam` to the plugin above it. */
export interface IpamOptions {
  /** Gateways in place of the node's own, one of a family at most; undefined leaves them to Podwire. */
  readonly gateways: readonly string[] | undefined;
  /** Routes to pass on. */
  readonly routes: readonly ResultRoute[];
  /** DNS settings to pass on; undefined where there are none. */
  readonly dns: Dns | undefined;
}

const GATEWAYS = z.array(
  z.string({ error: 'is no text' }).transform((text, context) => {
    const address = parseAddress(text);
    if (address) return formatAddress(address);
    context.addIssue({ code: 'custom', message: 'is no IP address' });
    return z.NEVER;
  }),
  { error: 'is no list' },
);

const ROUTE = z.looseObject(
  {
    dst: z.string({ error: 'is missing' }).refine((dst) => splitCidr(dst) !== undefined, { error: 'is no CIDR' }),
    gw: z
      .string({ error: 'is no text' })
      .refine((gateway) => parseAddress(gateway) !== undefined, { error: 'is no IP address' })
      .optional(),
  },
  { error: 'is no object' },
);

const OPTIONS = z.object({
  ipam: z.object(
    {
      gateways: GATEWAYS.optional(),
      routes: z.array(ROUTE, { error: 'is no list' }).nullish(),
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
