import type { RecordedAllocation } from '@podwire/shared/attachment/allocation';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import { violationsFailure, type Failure } from '@podwire/shared/failure/failure';
import { familiesOf } from '@podwire/shared/net/address';
import { defaultRoute, formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';

import type { AddressProvider, ProvidedAllocation } from '../addresses/address-provider.js';
import { allocateAnother, hasBroadcast, hostRoutes, ipamResult, readOptions } from '../addresses/ipam-addresses.js';
import type { Providers } from '../addresses/providers.js';
import type { Dataplane, Endpoint, Ipam, Limits, Wire } from '../clients/clients.js';
import { addResult, writeResult } from '../cni/result.js';
import type { KnownAllocations } from '../journal/known-allocations.js';
import type { NetnsReader } from '../requests/netns.js';
import type { OnceLogger } from '../requests/once-logger.js';
import type { AttachRequest } from '../requests/request.js';
import { undo, type UndoDeps } from './release.js';

export interface AddDeps extends UndoDeps {
  readonly dataplane: Pick<Dataplane, 'attachPod' | 'isAttached'>;
  readonly ipam: Ipam;
  readonly providers: Providers;
  readonly known: KnownAllocations;
  readonly netns: NetnsReader;
  /** Default for network configurations without a node name. */
  readonly nodeName: string;
  readonly onceLogger: OnceLogger;
}

/**
 * ADD: allocates a pod's addresses and creates its wire. Rolls back when it fails or is cancelled.
 *
 * Idempotent: a repeat for the same attachment returns the same result. The rollback does not touch what an earlier ADD of the
 * attachment both allocated and wired, as a running pod uses it. An allocation without a wire is a leftover of an interrupted ADD.
 * @returns the result in the form of the configuration's cniVersion
 * @throws Failure, with the failure of the rollback if that failed too
 */
export async function add(request: AttachRequest, limits: Limits, deps: AddDeps): Promise<object> {
  const { attachment, config } = request;
  const { dataplane, releases } = deps;
  if (request.mode.kind === 'ipam-only') return addAddresses(request, limits, deps);
  // Requests that Podwire cannot fulfil are errors instead.
  deps.onceLogger.warnIgnoredKeys(request.attachment.network, request.config.ignoredKeys);
  const netns = deps.netns.identify(request.netns);

  await releases.complete(attachment, limits);
  const provider = await preparedProvider(request, limits, deps);

  let allocation: ProvidedAllocation | undefined;
  let isHeld = false;
  try {
    const allocated = await provider.allocate(request, netns, limits);
    isHeld = allocated.alreadyAllocated && (await dataplane.isAttached(attachment, limits));
    allocation = allocated;
    const { endpoint, dns } = allocation;

    const wire = await dataplane.attachPod(podNetwork(request, endpoint), limits, recordOf(request, allocation, deps));
    limits.signal.throwIfAborted();
    await releases.added(attachment, endpoint.held);

    return addResult({
      cniVersion: config.cniVersion,
      prevResult: config.prevResult,
      hostInterface: describe(wire.host),
      podInterface: { ...describe(wire.pod), sandbox: request.netns },
      addresses: endpoint.addresses.map((address) => formatPrefix(hostPrefix(address))),
      routes: endpoint.addressesFromIpam ? hostRoutes(endpoint) : [],
      dns: config.requestSources.dns ?? dns,
    });
  } catch (error) {
    if (isHeld) throw error;
    // If Allocate has not answered, a wire proves that an earlier ADD holds the addresses.
    const action = allocation ? 'detach-and-release' : 'release-unless-attached';
    throw await undo({ attachment, provider, allocation, action, error }, limits, deps);
  }
}

/** Fails early if the provider cannot be called, so that the DEL that follows has nothing to release. */
async function preparedProvider(
  request: AttachRequest,
  limits: Limits,
  { known, providers }: AddDeps,
): Promise<AddressProvider> {
  const { attachment, mode } = request;
  const provider = providers.ofRequest(request);
  try {
    await provider.prepare(limits);
  } catch (failure) {
    known.recordUnrequested(attachment);
    throw failure;
  }
  known.clearFailure(attachment);
  await providers.record(attachment.network, mode);
  return provider;
}

function describe({ name, mac, mtuBytes }: Wire['pod']) {
  return { name, mac: mac ?? '', mtu: mtuBytes };
}

/** Part of an allocation that the node records; nothing if it is not podwire-ipam's. */
function recordOf(
  { config, pod }: AttachRequest,
  { endpoint, isBound = true }: ProvidedAllocation,
  { nodeName }: AddDeps,
): RecordedAllocation | undefined {
  if (!endpoint.addressesFromIpam) return undefined;
  return { addresses: endpoint.held, nodeName: config.nodeName ?? nodeName, pod, isBound };
}

/** The wanted network of an attachment. */
export function podNetwork(request: AttachRequest, endpoint: Endpoint): PodNetwork {
  const { attachment, netns, config, pod, podRequest } = request;
  const { addresses, addressesFromIpam, macAddress, hostInterfaceName } = endpoint;
  return {
    attachment,
    netns,
    hostInterfaceName,
    mac: podRequest.macAddress ?? macAddress,
    addresses,
    routes: familiesOf(addresses).map(defaultRoute),
    mtuBytes: config.mtuBytes,
    ipForwarding: config.ipForwarding,
    sourcePrefixes: podRequest.sourcePrefixes,
    hostPorts: podRequest.hostPorts,
    ...(podRequest.bandwidth && { bandwidth: podRequest.bandwidth }),
    txQueueLength: undefined,
    queueCount: config.queueCount,
    ...(addressesFromIpam ? { addressesFromIpam } : { otherIpam: { pod } }),
  };
}

/** Concurrent ADDs may pass an address that none can use on to each other. */
const MAX_REPLACED_COUNT = 5;

/**
 * ADD of `podwire-ipam`: returns addresses to the calling plugin, which wires the pod. The dataplane is not involved.
 *
 * Idempotent: a repeat for the same attachment returns the same result.
 * @returns an IPAM result in the form of the configuration's cniVersion
 * @throws Failure, with the rollback's failures if that failed too
 */
async function addAddresses(request: AttachRequest, limits: Limits, deps: AddDeps): Promise<object> {
  const { attachment, config, podRequest } = request;
  const { ipam, releases } = deps;
  const options = readOptions(request.configuration);
  if (podRequest.addressesWithoutIpam.length > 0) throw withoutIpamFailure();
  const netns = deps.netns.identify(request.netns, { allowsOwn: request.overridesNetns });
  await releases.complete(attachment, limits);

  const provider = deps.providers.ofRequest(request);
  await deps.providers.record(attachment.network, request.mode);
  let allocation: ProvidedAllocation | undefined;
  try {
    allocation = await provider.allocate(request, netns, limits);
    const nodeName = config.nodeName ?? deps.nodeName;
    const isChosen = podRequest.addresses.length === 0 && !allocation.alreadyAllocated;
    const allocate = () => provider.allocate(request, netns, limits);
    for (let count = 0; count < MAX_REPLACED_COUNT && isChosen && !options.isRouting; count++) {
      if (!hasBroadcast(allocation)) break;
      allocation = await allocateAnother({ request, nodeName, allocation, allocate }, { ipam, limits });
    }
    const result = await ipamResult({ request, nodeName, allocation, options }, { ipam, limits });
    limits.signal.throwIfAborted();
    await releases.added(attachment, allocation.endpoint.held);
    const rest = options.dns ? { dns: options.dns } : {};
    return writeResult({ interfaces: [], ...result, rest }, config.cniVersion);
  } catch (error) {
    if (allocation?.alreadyAllocated) throw error;
    throw await undo({ attachment, provider, allocation, action: 'release', error }, limits, deps);
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
