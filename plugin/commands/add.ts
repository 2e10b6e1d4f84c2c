import { derivedNames } from '@podwire/shared/attachment/names';
import { Failure, violationsFailure } from '@podwire/shared/failure/failure';
import { splitCidr } from '@podwire/shared/net/prefix';

import { programOf } from '../addresses/ipam-plugin.js';
import {
  delegatedEndpoint,
  configuredGateway,
  isBroadcast,
  nodeGateway,
  poolPrefix,
  readIpamOptions,
  type IpamOptions,
} from '../addresses/ipam-result.js';
import { delegateOf } from '../addresses/mode.js';
import type { Allocation, Endpoint, Interface, NetnsIdentity, DesiredPod } from '../clients/clients.js';
import { isIpv6 } from '../cni/annotations.js';
import { addResult, writeResult, type ResultIp } from '../cni/result.js';
import type { AttachRequest } from '../requests/request.js';
import type { CommandTools } from './context.js';
import { replayPending } from './release.js';
import { undo, type Progress } from './undo.js';

/**
 * ADD: allocates a pod's addresses and creates its wire. Rolls back when it fails or is cancelled.
 *
 * Idempotent: a repeat for the same attachment returns the same result.
 * @returns the result in the form of the configuration's cniVersion
 * @throws Failure, with the failure of the rollback if that failed too
 */
export async function add(request: AttachRequest, tools: CommandTools): Promise<object> {
  const { attachment, config } = request;
  const { dataplane, limits } = tools;
  if (request.mode.kind === 'ipam-only') return addAddresses(request, tools);
  warnIgnored(request, tools);
  const netns = tools.netns.identify(request.netns);

  await replayPending(attachment, tools);
  requireDelegateProgram(request, tools);
  tools.knownAllocations.clearFailure(attachment);
  await tools.providerHistory.record(attachment.network, delegateOf(request.mode));

  let progress: Progress = { reached: 'allocating' };
  try {
    const { endpoint, alreadyAllocated, dns } = await obtainEndpoint(request, netns, tools);
    const held = alreadyAllocated && (await dataplane.isAttached(attachment, limits));

    progress = { reached: 'attaching', held, allocation: endpoint.held };
    const wire = await dataplane.attachPod(desiredPod(request, endpoint), limits);
    limits.signal.throwIfAborted();
    tools.knownAllocations.record(attachment, endpoint.held);
    await tools.journal.added(attachment);

    const { name, mac, mtu } = describe(wire.podInterface);
    return addResult({
      cniVersion: config.cniVersion,
      prevResult: config.prevResult,
      hostInterface: describe(wire.hostInterface),
      podInterface: { name, mac, mtu, sandbox: request.netns },
      addresses: endpoint.addresses,
      dns: config.requestSources.dns ?? dns,
    });
  } catch (error) {
    throw await undo({ attachment, delegate: delegateOf(request.mode), progress, error }, tools);
  }
}

/** Fails early if the delegate's program is missing, so that the DEL that follows has nothing to release. */
function requireDelegateProgram({ attachment, mode }: AttachRequest, { knownAllocations }: CommandTools): void {
  const delegate = delegateOf(mode);
  if (!delegate) return;
  try {
    programOf(delegate, 'ADD');
  } catch (failure) {
    knownAllocations.recordUnrequested(attachment);
    throw failure;
  }
}

/** Warns of settings that Podwire ignores. Requests that it cannot fulfil are errors instead. */
function warnIgnored({ attachment, config, pod }: AttachRequest, { onceLogger }: CommandTools): void {
  onceLogger.warnIgnoredKeys(attachment.network, config.ignoredKeys);
  const name = pod ? `${pod.namespace}/${pod.name}` : attachment.containerId;
  onceLogger.warnIgnoredAnnotations(name, config.requestSources.ignoredAnnotations);
}

function describe({ name, macAddress, mtuBytes }: Interface) {
  return { name, mac: macAddress, mtu: mtuBytes };
}

/** The endpoint of an attachment whose addresses no IPAM allocates; undefined for any other. */
export function endpointWithoutIpam({ attachment, podRequest }: AttachRequest): Endpoint | undefined {
  if (podRequest.addressesWithoutIpam.length === 0) return undefined;
  const { hostInterfaceName, mac } = derivedNames(attachment);
  const addresses = podRequest.addressesWithoutIpam.map((address) => `${address}/${isIpv6(address) ? 128 : 32}`);
  return { addresses, held: [], macAddress: mac, hostInterfaceName };
}

/**
 * Allocates an attachment's addresses. Addresses without IPAM count as already allocated, so that only a wire decides
 * whether an earlier ADD holds them.
 */
async function obtainEndpoint(request: AttachRequest, netns: NetnsIdentity, tools: CommandTools): Promise<Allocation> {
  const { attachment, config, pod, podRequest } = request;
  const fixedEndpoint = endpointWithoutIpam(request);
  const delegate = delegateOf(request.mode);
  if (fixedEndpoint || delegate) await authorize(request, tools);
  if (fixedEndpoint) return { endpoint: fixedEndpoint, alreadyAllocated: true, poolNames: [] };
  if (delegate) return delegatedEndpoint({ attachment, podRequest, delegate }, tools);
  const { families, pools, addresses } = podRequest;
  const nodeName = config.nodeName ?? tools.nodeName;
  const allocation = { attachment, nodeName, pod, netns, families, pools, addresses, policyInput: podRequest };
  return tools.ipam.allocate(allocation, tools.limits);
}

/**
 * Authorizes what Allocate does not: it evaluates the policies itself. A pod without requests does not need podwire-ipam.
 * @throws Failure REQUEST_DENIED
 */
async function authorize({ pod, podRequest }: AttachRequest, { ipam, limits }: CommandTools): Promise<void> {
  const { addresses, addressesWithoutIpam, chosenFamilies, macAddress, sourcePrefixes } = podRequest;
  const lists = [addresses, addressesWithoutIpam, chosenFamilies, sourcePrefixes];
  const hasRequests = macAddress !== undefined || lists.some((list) => list.length > 0);
  if (pod && hasRequests) await ipam.authorize({ pod, addresses, policyInput: podRequest }, limits);
}

/** The desired state of an attachment in the kernel. */
export function desiredPod(request: AttachRequest, endpoint: Endpoint): DesiredPod {
  const { attachment, netns, config, podRequest, mode } = request;
  const { macAddress, ...allocated } = endpoint;
  return {
    macAddress: podRequest.macAddress ?? macAddress,
    attachment,
    netns,
    mtuBytes: config.mtuBytes,
    ipForwarding: config.ipForwarding,
    sourcePrefixes: podRequest.sourcePrefixes,
    queueCount: config.queueCount,
    addressesFromIpam: podRequest.addressesWithoutIpam.length === 0 && delegateOf(mode) === undefined,
    ...allocated,
  };
}

/**
 * ADD of `podwire-ipam`: returns addresses to the calling plugin, which wires the pod. The dataplane is not involved.
 *
 * The address has the prefix length of its pool, because `ptp` and `bridge` derive routes from it and fail with a
 * full-length one. The gateway is in that prefix: the node's own in the pool, unless the configuration names one.
 *
 * Idempotent: a repeat for the same attachment returns the same result.
 * @returns an IPAM result in the form of the configuration's cniVersion
 * @throws Failure, with the rollback's failures if that failed too
 */
async function addAddresses(request: AttachRequest, tools: CommandTools): Promise<object> {
  const { attachment, config, podRequest } = request;
  const options = readIpamOptions(request.configuration);
  if (podRequest.addressesWithoutIpam.length > 0) throw withoutIpamFailure();
  const netns = tools.netns.identify(request.netns, { allowsOwn: request.overridesNetns });
  await replayPending(attachment, tools);

  let progress: Progress = { reached: 'addresses', held: false, allocation: undefined };
  try {
    const allocation = await obtainEndpoint(request, netns, tools);
    const { endpoint, alreadyAllocated } = allocation;
    progress = { reached: 'addresses', held: alreadyAllocated, allocation: endpoint.held };
    const ips = await ipsOf({ request, allocation, options }, tools);
    tools.limits.signal.throwIfAborted();
    tools.knownAllocations.record(attachment, endpoint.held);
    await tools.journal.added(attachment);
    const rest = options.dns ? { dns: options.dns } : {};
    return writeResult({ interfaces: [], ips, routes: options.routes, rest }, config.cniVersion);
  } catch (error) {
    throw await undo({ attachment, progress, error }, tools);
  }
}

function withoutIpamFailure(): Failure {
  return violationsFailure('INVALID_CONFIG', 'request refused', [
    {
      field: 'ipAddrsNoIpam',
      reason: 'requests addresses without IPAM, but podwire-ipam runs as the IPAM plugin; remove it',
    },
  ]);
}

interface IpamResultInput {
  readonly request: AttachRequest;
  readonly allocation: Allocation;
  readonly options: IpamOptions;
}

/** The addresses of the result. @throws Failure ADDRESS_REFUSED for an address that no interface of its pool can have */
function ipsOf({ request, allocation, options }: IpamResultInput, tools: CommandTools): Promise<ResultIp[]> {
  const { endpoint, poolNames } = allocation;
  const { network } = request.attachment;
  const nodeName = request.config.nodeName ?? tools.nodeName;
  return Promise.all(
    endpoint.addresses.map(async (cidr, index) => {
      const poolName = poolNames[index] ?? '';
      const address = splitCidr(cidr)?.address;
      if (!address) throw new Failure('INTERNAL', `podwire-ipam: returned the invalid address ${JSON.stringify(cidr)}`);
      const prefix = await poolPrefix(poolName, tools);
      const text = cidr.slice(0, cidr.indexOf('/'));
      if (isBroadcast(address, prefix)) {
        throw new Failure(
          'ADDRESS_REFUSED',
          `${text} is the broadcast address of pool ${poolName}, which no interface can have; reserve it and repeat the request`,
        );
      }
      const scope = { network, nodeName, poolName };
      const gateway = options.gateways
        ? configuredGateway(options.gateways, prefix)
        : await nodeGateway(scope, prefix, tools);
      if (gateway === text) {
        throw new Failure(
          'ADDRESS_REFUSED',
          `${text} is the gateway of the configuration; reserve it and repeat the request`,
        );
      }
      return { address: `${text}/${prefix.length}`, ...(gateway !== undefined && { gateway }) };
    }),
  );
}
