import { addResult } from '../cni/result.js';
import type { PodRequest } from '../request.js';
import type { CommandTools } from './tools.js';
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
  const { ipam, dataplane, limits } = tools;
  const netns = tools.netns.identify(request.netns);

  let progress: Progress = { reached: 'allocating' };
  try {
    const nodeName = config.nodeName ?? tools.nodeName;
    const { endpoint, alreadyAllocated } = await ipam.allocate(
      { attachment, nodeName, pod: request.pod, netns },
      limits,
    );
    const held = alreadyAllocated && (await dataplane.isAttached(attachment, limits));

    progress = { reached: 'attaching', held };
    const wire = await dataplane.attachPod(
      {
        ...endpoint,
        attachment,
        netns: request.netns,
        mtuBytes: config.mtuBytes,
        ipForwarding: config.ipForwarding,
      },
      limits,
    );
    limits.signal.throwIfAborted();

    return addResult({
      cniVersion: config.cniVersion,
      prevResult: config.prevResult,
      hostInterface: { name: wire.hostInterface.name, mac: wire.hostInterface.macAddress },
      podInterface: {
        name: wire.podInterface.name,
        mac: wire.podInterface.macAddress,
        sandbox: request.netns,
      },
      addresses: endpoint.addresses,
    });
  } catch (error) {
    throw await undo({ attachment, progress, error }, tools);
  }
}
