import { programOf } from '../addresses/ipam-plugin.js';
import { delegateOf } from '../addresses/mode.js';
import type { Interface } from '../clients/clients.js';
import { addResult } from '../cni/result.js';
import { addAddresses } from '../delegate/add-addresses.js';
import type { PodRequest } from '../requests/request.js';
import type { CommandTools } from './context.js';
import { finishEarlier } from './settle-entry.js';
import { undo, type Progress } from './undo.js';
import { obtainEndpoint, refuseUnsupported, wantedPod } from './wanted-pod.js';

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
