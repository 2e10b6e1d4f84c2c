import { hash } from 'node:crypto';

import type { NetnsIdentity } from '@podwire/shared/attachment/allocation';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure, violationsFailure } from '@podwire/shared/failure/failure';
import { familyBits, formatAddress, parseAddress, type Address, type Family } from '@podwire/shared/net/address';
import {
  formatPrefix,
  hostPrefix,
  parsePrefix,
  prefixContains,
  prefixOf,
  prefixSize,
  splitCidr,
  type Prefix,
} from '@podwire/shared/net/prefix';
import { z } from 'zod';

import type { Allocation, Endpoint, Limits, NodeEndpoint } from '../clients/clients.js';
import { DNS, type Dns } from '../cni/request-sources.js';
import type { Result, ResultIp, ResultRoute } from '../cni/result.js';
import type {
  AddressProvider,
  AddressRequest,
  AddressTools,
  IpamAddressesDeps,
  ProvidedAllocation,
} from './address-provider.js';
import { requestedFamilies, nodeAllocation, recordedEndpoint } from './node-allocation.js';

/** podwire-ipam, which lists its allocations and evaluates request policies itself. */
export function ipamAddresses(deps: IpamAddressesDeps): AddressProvider {
  const { ipam, nodeAddresses } = deps;
  const release: AddressProvider['release'] = async (attachment, held = [], limits) => {
    if (held.length > 0) await ipam.releaseHeld(attachment, held, limits);
    else await ipam.release(attachment, limits);
  };
  return {
    type: 'podwire-ipam',
    name: 'podwire-ipam',
    source: {},

    prepare: () => undefined,
    allocate: (request, netns, limits) => allocate(request, netns, { ...deps, limits, release }),
    isRefusal: () => false,
    release,

    async check({ attachment }, limits) {
      const recorded = recordedEndpoint(attachment, nodeAddresses);
      if (recorded?.isBound === false) return recorded.endpoint;
      try {
        return await ipam.getEndpoint(attachment, limits);
      } catch (error) {
        if (recorded && error instanceof Failure && isWithoutAnswer(error)) return recorded.endpoint;
        throw error;
      }
    },

    async collect({ network, nodeName, releaseGarbage }, limits) {
      const collect = (allocations: readonly NodeEndpoint[]): Promise<void> => {
        const ofPods = allocations.filter(({ attachment }) => !isGatewayHolder(attachment));
        return releaseGarbage(ofPods, ({ attachment, held }) => release(attachment, held, limits));
      };
      await collect(await ipam.endpointsOf({ nodeName, network }, limits));
      // Another attachment of the pod's name may have replaced the endpoint of an allocation.
      const isOwn = nodeName === deps.nodeName;
      if (isOwn) await collect(await nodeAddresses.unknownAllocations(network, limits));
    },

    hasAddresses: ({ podRequest }) =>
      podRequest.pools.length === 0 && nodeAddresses.hasLeases(requestedFamilies(podRequest)),
    isServing: (limits) => ipam.isServing(limits),
    refusalOf: async (pod, limits) => nodeAddresses.refusal?.message ?? ipam.refusalOf(pod, limits),
    unreachablePeer: () => ipam.unreachablePeer(),
  };
}

/** The node's addresses come first; podwire-ipam allocates for pods that the node has none for. */
async function allocate(
  request: AddressRequest,
  netns: NetnsIdentity,
  { release, ...tools }: AddressTools & Pick<AddressProvider, 'release'>,
): Promise<ProvidedAllocation> {
  const { ipam, nodeAddresses, limits } = tools;
  const { attachment, config, pod, podRequest } = request;
  const undoOf =
    ({ endpoint: { held } }: Allocation) =>
    (undoLimits: Limits) =>
      release(attachment, held, undoLimits);
  const fromNode = await nodeAllocation(request, netns, tools);
  if (fromNode.allocation) {
    const { leases, ...allocation } = fromNode.allocation;
    if (!leases) return { ...allocation, undo: undoOf(allocation) };
    // podwire-ipam knows no attachment for them.
    const undo = (): Promise<void> => {
      nodeAddresses.giveBack(leases);
      return Promise.resolve();
    };
    return { ...allocation, isBound: false, undo };
  }
  const { families, pools, addresses } = podRequest;
  const nodeName = config.nodeName ?? tools.nodeName;
  const wanted = { attachment, nodeName, pod, netns, families, pools, addresses, policyInput: podRequest };
  try {
    if (nodeName === tools.nodeName) await nodeAddresses.requireName(limits.signal);
    const allocation = await ipam.allocate(wanted, limits);
    const taken = allocation.endpoint.held.find(({ address }) => nodeAddresses.isHeldByOtherPod(attachment, address));
    if (!taken) return { ...allocation, undo: undoOf(allocation) };
    // The datastore was restored, and does not know the other pod yet. The failed ADD releases the allocation.
    throw new Failure(
      'STORE_RESTORED',
      `podwire-ipam allocated ${taken.address}, which another pod of this node has: its datastore was restored from a backup, or another tool released the address; repeat the request`,
    );
  } catch (error) {
    throw withoutLeases(error, fromNode.reason);
  }
}

function isWithoutAnswer({ code }: Failure): boolean {
  return code === 'UNREACHABLE' || code === 'DEADLINE_EXCEEDED';
}

/** Says that the node has no leases either, when podwire-ipam does not answer. */
function withoutLeases(error: unknown, reason: string): unknown {
  const hadNone = reason === 'unavailable' || reason === 'exhausted';
  if (!hadNone || !(error instanceof Failure) || !isWithoutAnswer(error)) return error;
  const { code, message, details, traceId } = error;
  return new Failure(code, `${message}; no leased address is left on the node`, { details, traceId, cause: error });
}

type IpamCall = Pick<AddressTools, 'ipam' | 'limits'>;

/**
 * Authorizes requests without Allocate, which evaluates the policies itself. A pod without requests does not need podwire-ipam.
 * @throws Failure REQUEST_DENIED
 */
export async function authorize({ pod, podRequest }: AddressRequest, { ipam, limits }: IpamCall): Promise<void> {
  const { addresses, addressesWithoutIpam, chosenFamilies, macAddress, sourcePrefixes } = podRequest;
  const lists = [addresses, addressesWithoutIpam, chosenFamilies, sourcePrefixes];
  const hasRequests = macAddress !== undefined || lists.some((list) => list.length > 0);
  if (pod && hasRequests) await ipam.authorize({ pod, addresses, policyInput: podRequest }, limits);
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
async function nodeGateway(scope: GatewayScope, family: Family, call: IpamCall): Promise<Address | undefined> {
  const { ipam, limits } = call;
  const request = {
    attachment: gatewayHolder(scope),
    nodeName: scope.nodeName,
    pod: undefined,
    netns: undefined,
    families: [family],
    pools: [scope.poolName],
    addresses: [],
  };
  const { endpoint } = await ipam.allocate(request, limits);
  return endpoint.addresses[0];
}

/** The first configured gateway inside the prefix. */
function configuredGateway(gateways: readonly string[], prefix: Prefix): Address | undefined {
  const parsed = gateways.flatMap((text) => parseAddress(text) ?? []);
  return parsed.find((address) => prefixContains(prefix, address));
}

/** @throws Failure INTERNAL when podwire-ipam returns an invalid CIDR */
function validPrefix(cidr: string): Prefix {
  const parsed = parsePrefix(cidr);
  if (parsed.ok) return parsed.prefix;
  throw new Failure('INTERNAL', `podwire-ipam: the CIDR ${JSON.stringify(cidr)} of a pool or a block is invalid`);
}

/** Fewest host bits of an IPv4 prefix that has a broadcast address (RFC 3021). */
const MIN_BROADCAST_BITS = 2;

/** Whether the kernel treats the address as the broadcast address of the prefix. */
function isBroadcast(address: Address, prefix: Prefix): boolean {
  if (address.family === 6 || familyBits(4) - prefix.length < MIN_BROADCAST_BITS) return false;
  return address.value === prefix.value + prefixSize(prefix) - 1n;
}

/** Whether an address is the last one of its IPv4 block: pods on a segment with that block could not reach it. */
export function hasBroadcast({ endpoint, origins = [] }: Allocation): boolean {
  const blocks = origins.map(({ blockCidr }) => validPrefix(blockCidr));
  return endpoint.addresses.some((address, index) => {
    const block = blocks[index];
    return block !== undefined && isBroadcast(address, block);
  });
}

/** A chosen allocation whose address nothing could use. */
interface UnusableAllocation {
  readonly request: AddressRequest;
  readonly nodeName: string;
  readonly allocation: ProvidedAllocation;
  /** Allocates for the request again. */
  readonly allocate: () => Promise<ProvidedAllocation>;
}

/**
 * Replaces an allocation with the last address of a block. Another interface of the container holds that address meanwhile, as the
 * block may have no other one; GC finds it if this process ends.
 */
export async function allocateAnother(
  { request, nodeName, allocation, allocate }: UnusableAllocation,
  { ipam, limits }: IpamCall,
): Promise<ProvidedAllocation> {
  const holder = { ...request.attachment, interfaceName: 'broadcast' };
  const addresses = allocation.endpoint.addresses.filter(({ family }) => family === 4).map(formatAddress);
  const hold = { attachment: holder, nodeName, pod: undefined, netns: undefined, families: [], pools: [], addresses };
  await allocation.undo(limits);
  // It fails if another pod has the address by now, which then gets another one the same way.
  await ipam.allocate(hold, limits).catch(() => undefined);
  try {
    return await allocate();
  } finally {
    await ipam.release(holder, limits).catch(() => undefined);
  }
}

/** The smallest segment with all addresses of a block in which its gateway can be used. */
function segmentOf(block: Prefix, gateway: Address): Prefix {
  const isUsable = prefixContains(block, gateway) && !isBroadcast(gateway, block);
  return isUsable ? block : segmentOf(prefixOf(block, block.length - 1), gateway);
}

/** Options of the network configuration for the result of `podwire-ipam`. */
export interface ResultOptions {
  /** Whether the main plugin routes its pods: a pod has no segment, and its address needs no gateway. */
  readonly isRouting: boolean;
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
  type: z.string().catch(''),
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
export function readOptions(text: string): ResultOptions {
  const parsed = OPTIONS.safeParse(JSON.parse(text));
  if (parsed.success) {
    const { gateways, routes, dns } = parsed.data.ipam;
    return { isRouting: parsed.data.type === 'calico', gateways, routes: routes ?? [], dns };
  }
  const violations = parsed.error.issues.map(({ path, message }) => ({ field: path.join('.'), reason: message }));
  throw violationsFailure('INVALID_CONFIG', 'network configuration refused', violations);
}

interface ResultAddresses {
  readonly request: Pick<AddressRequest, 'attachment' | 'podRequest'>;
  readonly nodeName: string;
  readonly allocation: Allocation;
  readonly options: ResultOptions;
}

/**
 * Addresses and routes of the result of `podwire-ipam`.
 *
 * Routes under a main plugin that routes are Calico's: the block's prefix length, full length for a requested address, and one
 * route per address. Other main plugins, such as `ptp` and `bridge`, put the pod on a segment with its gateway. The segment is the
 * node's block and gateway, or the pool if the configuration names the gateways, because nodes then share it.
 * @throws Failure ADDRESS_REFUSED for an address that no interface of its segment can have
 */
export async function ipamResult(wanted: ResultAddresses, tools: IpamCall): Promise<Pick<Result, 'ips' | 'routes'>> {
  const { request, allocation, options } = wanted;
  const { isRouting } = options;
  const ips = await Promise.all(
    allocation.endpoint.addresses.map(async (address, index): Promise<ResultIp> => {
      const { poolName = '', blockCidr = '' } = allocation.origins?.[index] ?? {};
      const block = validPrefix(blockCidr);
      if (!isRouting) return segmentIp(address, { ...wanted, poolName, block }, tools);
      const isRequested = request.podRequest.addresses.includes(formatAddress(address));
      return { address: `${formatAddress(address)}/${isRequested ? familyBits(address.family) : block.length}` };
    }),
  );
  return { ips, routes: [...options.routes, ...(isRouting ? hostRoutes(allocation.endpoint) : [])] };
}

/** One route per address, as in the results of Calico's plugins. */
export function hostRoutes({ addresses }: Pick<Endpoint, 'addresses'>): ResultRoute[] {
  return addresses.map((address) => ({ dst: formatPrefix(hostPrefix(address)) }));
}

async function segmentIp(
  address: Address,
  {
    request,
    nodeName,
    options,
    poolName,
    block,
  }: ResultAddresses & { readonly poolName: string; readonly block: Prefix },
  tools: IpamCall,
): Promise<ResultIp> {
  const { network } = request.attachment;
  const { gateways } = options;
  const pool = gateways && validPrefix(await tools.ipam.poolCidr(poolName, tools.limits));
  const gateway = pool
    ? configuredGateway(gateways, pool)
    : await nodeGateway({ network, nodeName, poolName }, address.family, tools);
  const segment = pool ?? (gateway ? segmentOf(block, gateway) : block);
  const text = formatAddress(address);
  if (isBroadcast(address, segment)) {
    throw new Failure(
      'ADDRESS_REFUSED',
      `${text} is the broadcast address of ${formatPrefix(segment)}, which no interface can have; reserve it and repeat the request`,
    );
  }
  if (gateway?.value === address.value) {
    throw new Failure(
      'ADDRESS_REFUSED',
      `${text} is the gateway of the configuration; reserve it and repeat the request`,
    );
  }
  return { address: `${text}/${segment.length}`, ...(gateway && { gateway: formatAddress(gateway) }) };
}
