import type { AllocatedAddress, NetnsIdentity } from '@podwire/shared/attachment/allocation';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { derivedNames, endpointNameFaults } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { parseAddress, type Family } from '@podwire/shared/net/address';
import { counter, onFirstUse } from '@podwire/shared/telemetry/instruments';

import type { Allocation, Endpoint, NodeAddresses, RecordedPod, TakenLeases } from '../clients/clients.js';
import type { PodRequest } from '../cni/pod-request.js';
import type { AddressRequest, AddressTools } from './address-provider.js';

/** Counts where the addresses of pods came from. */
const allocations = onFirstUse(() => counter('podwire.plugin.addresses'));

type NodeTools = Pick<AddressTools, 'nodeAddresses' | 'nodeName' | 'limits' | 'clock'>;

/** Why the node has no addresses for an attachment; a value of the metric's label `reason`. */
type NoAddresses = Exclude<TakenLeases, { readonly leases: unknown }>['reason'] | 'request' | 'ipam-only';

/** The addresses that the node has for an attachment, or why podwire-ipam has to allocate them. */
export type NodeAllocation =
  { readonly allocation: Allocation } | { readonly allocation?: undefined; readonly reason: NoAddresses };

/**
 * Allocates addresses that the node has without podwire-ipam: addresses in the record of an earlier ADD, or leases for a new
 * attachment that requests nothing.
 * @throws Failure NODE_NAME_TAKEN, or the reason of the limits' signal
 */
export async function nodeAllocation(
  request: AddressRequest,
  netns: NetnsIdentity,
  tools: NodeTools,
): Promise<NodeAllocation> {
  const found = await findAllocation(request, netns, tools);
  allocations().add(1, found.allocation ? { source: 'node', reason: '' } : { source: 'ipam', reason: found.reason });
  return found;
}

async function findAllocation(
  { attachment, pod, config, mode, podRequest }: AddressRequest,
  netns: NetnsIdentity,
  { nodeAddresses, nodeName, limits, clock }: NodeTools,
): Promise<NodeAllocation> {
  if (nodeAddresses.refusal) throw nodeAddresses.refusal;
  // Only a record, which needs a wire, proves to the next process that the lease is taken.
  if (mode.kind !== 'full') return { reason: 'ipam-only' };
  if (nodeAddresses.recorded(attachment)?.isDead || podRequest.addresses.length > 0)
    await returned(attachment, podRequest.addresses, { nodeAddresses, limits, clock });
  const recorded = nodeAddresses.recorded(attachment);
  const repeated = recorded && repeatedAllocation(attachment, recorded, netns);
  if (repeated) return { allocation: repeated };
  const isOfNode = (config.nodeName ?? nodeName) === nodeName;
  // podwire-ipam refuses the name of the endpoint with its reason before the pod is wired.
  const isNameRefused = endpointNameFaults(attachment, pod).length > 0;
  if (isSpecial(podRequest) || !isOfNode || isNameRefused) return { reason: 'request' };
  const taken = await nodeAddresses.take(attachment, requestedFamilies(podRequest), limits.signal);
  if (!taken.leases) return { reason: taken.reason };
  const { leases } = taken;
  const endpoint = endpointOf(attachment, leases);
  return { allocation: { endpoint, alreadyAllocated: false, leases } };
}

/** @throws Failure DEADLINE_EXCEEDED, or the reason of the limits' signal */
async function returned(
  attachment: Attachment,
  addresses: readonly string[],
  { nodeAddresses, limits, clock }: Omit<NodeTools, 'nodeName'>,
): Promise<void> {
  const timeout = new AbortController();
  const text =
    'the addresses of its earlier ADD are not returned yet: podwire-ipam does not answer; check that it runs';
  const cancel = clock.after(limits.deadlineMs - clock.nowMs(), () =>
    timeout.abort(new Failure('DEADLINE_EXCEEDED', text)),
  );
  try {
    await nodeAddresses.returned(attachment, addresses, AbortSignal.any([limits.signal, timeout.signal]));
  } finally {
    cancel();
  }
}

/** Whether podwire-ipam has to decide on the pod's addresses. */
function isSpecial(podRequest: PodRequest): boolean {
  const { pools, addresses, addressesWithoutIpam, macAddress, sourcePrefixes, chosenFamilies } = podRequest;
  const lists = [pools, addresses, addressesWithoutIpam, sourcePrefixes, chosenFamilies];
  return macAddress !== undefined || lists.some((list) => list.length > 0);
}

/** The families of a pod's addresses, as podwire-ipam chooses them. */
export function requestedFamilies({ families }: Pick<PodRequest, 'families'>): readonly Family[] {
  return families.length > 0 ? families : [4];
}

/** The endpoint in the node's record of an attachment; undefined if the record has none of podwire-ipam. */
export function recordedEndpoint(
  attachment: Attachment,
  nodeAddresses: Pick<NodeAddresses, 'recorded'>,
): { readonly endpoint: Endpoint; readonly isBound: boolean } | undefined {
  const recorded = nodeAddresses.recorded(attachment);
  if (!recorded?.allocation || recorded.isDead) return undefined;
  const { addresses, isBound } = recorded.allocation;
  return { endpoint: endpointOf(attachment, addresses), isBound };
}

/**
 * The allocation of an earlier ADD.
 * @returns undefined if podwire-ipam has to record another network namespace for it
 */
function repeatedAllocation(
  attachment: Attachment,
  { allocation, netnsInode }: RecordedPod,
  netns: NetnsIdentity,
): Allocation | undefined {
  if (!allocation || (allocation.isBound && netnsInode !== netns.inode)) return undefined;
  return {
    endpoint: endpointOf(attachment, allocation.addresses),
    alreadyAllocated: true,
    isBound: allocation.isBound,
  };
}

function endpointOf(attachment: Attachment, held: readonly AllocatedAddress[]): Endpoint {
  const addresses = held.flatMap(({ address }) => parseAddress(address) ?? []);
  const { hostInterfaceName, mac } = derivedNames(attachment);
  const names = held.map(({ address, sequenceNumber }) => ({ address, sequenceNumber }));
  return { addresses, addressesFromIpam: true, held: names, macAddress: mac, hostInterfaceName };
}
