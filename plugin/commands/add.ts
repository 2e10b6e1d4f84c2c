import { derivedNames } from '@podwire/shared/attachment/names';
import { Failure, violationsFailure } from '@podwire/shared/failure/failure';
import { splitCidr } from '@podwire/shared/net/prefix';

import { programOf } from '../addresses/ipam-plugin.js';
import {
  delegatedEndpoint,
  givenGateway,
  isBroadcast,
  nodeGateway,
  poolPrefix,
  readIpamOptions,
  type IpamOptions,
} from '../addresses/ipam-result.js';
import { delegateOf } from '../addresses/mode.js';
import type { Allocation, Endpoint, Interface, NetnsIdentity, WantedPod } from '../clients/clients.js';
import { FLOATING_IPS_PLACE, isIpv6 } from '../cni/annotations.js';
import { addResult, writeResult, type ResultIp } from '../cni/result.js';
import type { PodRequest } from '../requests/request.js';
import type { CommandTools } from './context.js';
import { finishEarlier } from './release.js';
import { undo, type Progress } from './undo.js';

/**
 * ADD: gives a pod its addresses and its wire. What was begun is undone when it fails or is cancelled.
 *
 * Idempotent: repeated for the same attachment it gives the same answer.
 * @returns the result in the form of the configuration's cniVersion
 * @throws Failure with what could not be undone, where that failed too
 */
export async function add(request: PodRequest, tools: CommandTools): Promise<object> {
  const { attachment, config } = request;
  const { dataplane, limits } = tools;
  await refuseUnsupported(request, tools);
  if (request.share.kind === 'addresses') return addAddresses(request, tools);
  noteWithoutEffect(request, tools);
  const netns = tools.netns.identify(request.netns);

  await finishEarlier(attachment, tools);
  requireDelegate(request, tools);
  tools.knownAllocations.rememberAsked(attachment);
  await tools.givers.note(attachment.network, delegateOf(request.share));

  let progress: Progress = { reached: 'allocating' };
  const attaching = dataplane.openAttachPod(limits);
  try {
    const { endpoint, alreadyAllocated, dns } = await obtainEndpoint(request, netns, tools);
    const held = alreadyAllocated && (await dataplane.isAttached(attachment, limits));

    progress = { reached: 'attaching', held, allocation: endpoint.held };
    const wire = await attaching.make(wantedPod(request, endpoint), limits);
    limits.signal.throwIfAborted();
    tools.knownAllocations.remember(attachment, endpoint.held);
    await tools.journal.added(attachment);

    const { name, mac, mtu } = describe(wire.podInterface);
    return addResult({
      cniVersion: config.cniVersion,
      prevResult: config.prevResult,
      hostInterface: describe(wire.hostInterface),
      podInterface: { name, mac, mtu, sandbox: request.netns },
      addresses: endpoint.addresses,
      dns: config.requested.dns ?? dns,
    });
  } catch (error) {
    throw await undo({ attachment, delegate: delegateOf(request.share), progress, error }, tools);
  } finally {
    attaching.close();
  }
}

/** An IPAM plugin without a program can be asked neither for addresses nor, by the DEL that follows, to take any back. */
function requireDelegate({ attachment, share }: PodRequest, { knownAllocations }: CommandTools): void {
  const delegate = delegateOf(share);
  if (!delegate) return;
  try {
    programOf(delegate, 'ADD');
  } catch (failure) {
    knownAllocations.rememberNobodyAsked(attachment);
    throw failure;
  }
}

/** What was asked for and cannot be had is refused; this is what changes nothing about the pod's network. */
function noteWithoutEffect({ attachment, config, pod }: PodRequest, { notices }: CommandTools): void {
  notices.keysWithoutMeaning(attachment.network, config.keysWithoutMeaning);
  const name = pod ? `${pod.namespace}/${pod.name}` : attachment.containerId;
  notices.annotationsWithoutEffect(name, config.requested.annotationsWithoutEffect);
}

function describe({ name, macAddress, mtuBytes }: Interface) {
  return { name, mac: macAddress, mtu: mtuBytes };
}

/** What an attachment has whose addresses IPAM is not asked for; undefined for every other. */
export function endpointWithoutIpam({ attachment, wish }: PodRequest): Endpoint | undefined {
  if (wish.addressesWithoutIpam.length === 0) return undefined;
  const { hostInterfaceName, mac } = derivedNames(attachment);
  const addresses = wish.addressesWithoutIpam.map((address) => `${address}/${isIpv6(address) ? 128 : 32}`);
  return { addresses, held: [], macAddress: mac, hostInterfaceName };
}

/**
 * Rejects unsupported requests before ADD changes anything. Authorization comes first: an unauthorized namespace gets
 * REQUEST_DENIED even for an unsupported request.
 * @throws Failure REQUEST_DENIED, or INVALID_CONFIG with the alternative
 */
async function refuseUnsupported(request: PodRequest, tools: CommandTools): Promise<void> {
  const { floatingIps } = request.wish;
  if (floatingIps.length === 0) return;
  await authorize(request, tools);
  const reason = `asks for floating IPs (${floatingIps.join(', ')}), which Podwire does not make: podwire-dataplane has no NAT for them; remove it, and publish a port of the pod by portMappings or a Service`;
  throw violationsFailure('INVALID_CONFIG', 'request refused', [{ field: FLOATING_IPS_PLACE, reason }]);
}

/**
 * Gets an attachment its addresses: from IPAM, unless it brings its own, which are taken for allocated before.
 * @param netns - of the attachment's namespace
 */
async function obtainEndpoint(request: PodRequest, netns: NetnsIdentity, tools: CommandTools): Promise<Allocation> {
  const { attachment, config, pod, wish } = request;
  const own = endpointWithoutIpam(request);
  const delegate = delegateOf(request.share);
  if (own || delegate) await authorize(request, tools);
  if (own) return { endpoint: own, alreadyAllocated: true, poolNames: [] };
  if (delegate) return delegatedEndpoint({ attachment, wish, delegate }, tools);
  const { families, pools, addresses } = wish;
  const nodeName = config.nodeName ?? tools.nodeName;
  const allocation = { attachment, nodeName, pod, netns, families, pools, addresses, asked: wish };
  return tools.ipam.allocate(allocation, tools.limits);
}

/**
 * Asks for what a pod is to get without Allocate, which judges the rest. Where it asks for nothing, IPAM need not be there.
 * @throws Failure REQUEST_DENIED
 */
async function authorize({ pod, wish }: PodRequest, { ipam, limits }: CommandTools): Promise<void> {
  const { addresses, addressesWithoutIpam, chosenFamilies, macAddress, sourcePrefixes, floatingIps } = wish;
  const lists = [addresses, addressesWithoutIpam, chosenFamilies, sourcePrefixes, floatingIps];
  const asksForSomething = macAddress !== undefined || lists.some((list) => list.length > 0);
  if (pod && asksForSomething) await ipam.authorize({ pod, addresses, asked: wish }, limits);
}

/** What the kernel is to hold of an attachment. */
export function wantedPod(request: PodRequest, endpoint: Endpoint): WantedPod {
  const { attachment, netns, config, wish, share } = request;
  const { macAddress, ...allocated } = endpoint;
  return {
    macAddress: wish.macAddress ?? macAddress,
    attachment,
    netns,
    mtuBytes: config.mtuBytes,
    ipForwarding: config.ipForwarding,
    sourcePrefixes: wish.sourcePrefixes,
    queueCount: config.queueCount,
    addressesFromIpam: wish.addressesWithoutIpam.length === 0 && delegateOf(share) === undefined,
    ...allocated,
  };
}

/**
 * ADD of `podwire-ipam`: returns addresses to the calling plugin, which wires the pod. The dataplane is not involved.
 *
 * The address has the prefix length of its pool, because `ptp` and `bridge` derive routes from it and fail with a
 * full-length one. The gateway is in that prefix: the node's own in the pool, unless the configuration names one.
 *
 * Idempotent: repeated for the same attachment it gives the same answer.
 * @returns an IPAM result in the form of the configuration's cniVersion
 * @throws Failure, with the rollback's failures if that failed too
 */
async function addAddresses(request: PodRequest, tools: CommandTools): Promise<object> {
  const { attachment, config, wish } = request;
  const options = readIpamOptions(request.configuration);
  if (wish.addressesWithoutIpam.length > 0) throw withoutIpam();
  const netns = tools.netns.identify(request.netns, { allowsOwn: request.overridesNetns });
  await finishEarlier(attachment, tools);

  let progress: Progress = { reached: 'addresses', held: false, allocation: undefined };
  try {
    const allocation = await obtainEndpoint(request, netns, tools);
    const { endpoint, alreadyAllocated } = allocation;
    progress = { reached: 'addresses', held: alreadyAllocated, allocation: endpoint.held };
    const ips = await ipsOf({ request, allocation, options }, tools);
    tools.limits.signal.throwIfAborted();
    tools.knownAllocations.remember(attachment, endpoint.held);
    await tools.journal.added(attachment);
    const rest = options.dns ? { dns: options.dns } : {};
    return writeResult({ interfaces: [], ips, routes: options.routes, rest }, config.cniVersion);
  } catch (error) {
    throw await undo({ attachment, progress, error }, tools);
  }
}

function withoutIpam(): Failure {
  return violationsFailure('INVALID_CONFIG', 'request refused', [
    { field: 'ipAddrsNoIpam', reason: 'asks for addresses without IPAM, and podwire-ipam is run as IPAM; remove it' },
  ]);
}

interface Answering {
  readonly request: PodRequest;
  readonly allocation: Allocation;
  readonly options: IpamOptions;
}

/** The addresses as interfaces get them. @throws Failure ADDRESS_REFUSED for one that no interface of its pool can have */
function ipsOf({ request, allocation, options }: Answering, tools: CommandTools): Promise<ResultIp[]> {
  const { endpoint, poolNames } = allocation;
  const { network } = request.attachment;
  const nodeName = request.config.nodeName ?? tools.nodeName;
  return Promise.all(
    endpoint.addresses.map(async (cidr, index) => {
      const poolName = poolNames[index] ?? '';
      const address = splitCidr(cidr)?.address;
      if (!address) throw new Failure('INTERNAL', `podwire-ipam: answered ${JSON.stringify(cidr)} for an address`);
      const prefix = await poolPrefix(poolName, tools);
      const text = cidr.slice(0, cidr.indexOf('/'));
      if (isBroadcast(address, prefix)) {
        throw new Failure(
          'ADDRESS_REFUSED',
          `${text} is the broadcast address of pool ${poolName}, which no interface beside others can have; reserve it, and repeat the request`,
        );
      }
      const place = { network, nodeName, poolName };
      const gateway = options.gateways
        ? givenGateway(options.gateways, prefix)
        : await nodeGateway(place, prefix, tools);
      if (gateway === text) {
        throw new Failure(
          'ADDRESS_REFUSED',
          `${text} is the gateway of the configuration; reserve it, and repeat the request`,
        );
      }
      return { address: `${text}/${prefix.length}`, ...(gateway !== undefined && { gateway }) };
    }),
  );
}
