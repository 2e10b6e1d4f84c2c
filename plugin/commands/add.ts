import type { Attachment } from '@podwire/shared/attachment/attachment';
import { violationsFailure, type Failure } from '@podwire/shared/failure/failure';

import type { AddressProvider } from '../addresses/address-provider.js';
import { authorize, readIpamOptions, resultIps } from '../addresses/ipam-addresses.js';
import { endpointOf } from '../addresses/plugin-addresses.js';
import { providerOf } from '../addresses/provider-history.js';
import type { Allocation, Endpoint, Interface, DesiredPod, RecordedAllocation } from '../clients/clients.js';
import { isIpv6 } from '../cni/annotations.js';
import { addResult, writeResult } from '../cni/result.js';
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
  const provider = await preparedProvider(request, tools);

  let progress: Progress = { reached: 'allocating' };
  try {
    const fixed = await fixedAllocation(request, tools);
    const allocation = fixed ?? (await provider.allocate(request, netns, tools));
    const { endpoint, alreadyAllocated, dns, leases } = allocation;
    const held = alreadyAllocated && (await dataplane.isAttached(attachment, limits));

    progress = { reached: 'attaching', held, allocation: endpoint.held, leases };
    const wire = await dataplane.attachPod(desiredPod(request, endpoint), limits, recordOf(request, allocation, tools));
    await recordAdded(attachment, endpoint, tools);

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
    throw await undo({ attachment, provider, progress, error }, tools);
  }
}

/** Fails early if the provider cannot be called, so that the DEL that follows has nothing to release. */
async function preparedProvider({ attachment, mode }: AttachRequest, tools: CommandTools): Promise<AddressProvider> {
  const { knownAllocations, providerHistory } = tools;
  const provider = providerOf(mode);
  try {
    provider.prepare();
  } catch (failure) {
    knownAllocations.recordUnrequested(attachment);
    throw failure;
  }
  knownAllocations.clearFailure(attachment);
  await providerHistory.record(attachment.network, mode);
  return provider;
}

async function recordAdded(attachment: Attachment, { held }: Endpoint, tools: CommandTools): Promise<void> {
  tools.limits.signal.throwIfAborted();
  // The node's record has those of podwire-ipam that it wired.
  if (!tools.nodeAddresses.recorded(attachment)?.allocation) tools.knownAllocations.record(attachment, held);
  await tools.journal.added(attachment);
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
  const addresses = podRequest.addressesWithoutIpam.map((address) => `${address}/${isIpv6(address) ? 128 : 32}`);
  return endpointOf(attachment, addresses);
}

/** Addresses without IPAM count as already allocated, so that only a wire decides whether an earlier ADD holds them. */
async function fixedAllocation(request: AttachRequest, tools: CommandTools): Promise<Allocation | undefined> {
  const endpoint = endpointWithoutIpam(request);
  if (!endpoint) return undefined;
  await authorize(request, tools);
  return { endpoint, alreadyAllocated: true, poolNames: [] };
}

/** What the node records of an allocation; nothing if it is not podwire-ipam's. */
function recordOf(
  { config, pod }: AttachRequest,
  { endpoint, leases, isBound = !leases }: Allocation,
  { nodeName }: CommandTools,
): RecordedAllocation | undefined {
  if (!endpoint.addressesFromIpam) return undefined;
  return { addresses: endpoint.held, nodeName: config.nodeName ?? nodeName, pod, isBound };
}

/** The desired state of an attachment in the kernel. */
export function desiredPod(request: AttachRequest, endpoint: Endpoint): DesiredPod {
  const { attachment, netns, config, podRequest } = request;
  const { macAddress, ...allocated } = endpoint;
  return {
    macAddress: podRequest.macAddress ?? macAddress,
    attachment,
    netns,
    mtuBytes: config.mtuBytes,
    ipForwarding: config.ipForwarding,
    sourcePrefixes: podRequest.sourcePrefixes,
    queueCount: config.queueCount,
    ...allocated,
  };
}

/**
 * ADD of `podwire-ipam`: returns addresses to the calling plugin, which wires the pod. The dataplane is not involved.
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

  const provider = providerOf(request.mode);
  await tools.providerHistory.record(attachment.network, request.mode);
  let progress: Progress = { reached: 'addresses', held: false, allocation: undefined };
  try {
    const allocation = await provider.allocate(request, netns, tools);
    const { endpoint, alreadyAllocated } = allocation;
    progress = { reached: 'addresses', held: alreadyAllocated, allocation: endpoint.held };
    const nodeName = config.nodeName ?? tools.nodeName;
    const ips = await resultIps({ network: attachment.network, nodeName, allocation, options }, tools);
    await recordAdded(attachment, endpoint, tools);
    const rest = options.dns ? { dns: options.dns } : {};
    return writeResult({ interfaces: [], ips, routes: options.routes, rest }, config.cniVersion);
  } catch (error) {
    throw await undo({ attachment, provider, progress, error }, tools);
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
