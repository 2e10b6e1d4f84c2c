import type { Wanted } from '../wiring/network.js';
import type { Observed } from '../wiring/observed.js';
import type { LinkSpec } from '../wiring/step.js';
import { wireState } from '../wiring/wire.js';

/**
 * What is wanted of a pod that has its wire already: all but what later plugins of a chain (`tuning`) and privileged workloads set
 * as they need it, and what keeps no packet from the pod. That is the queue length of its link, whether it forwards, an MTU that is
 * lower than the wire's, and its MAC address, which the node's neighbour entries follow.
 *
 * An MTU of the pod's own is another than the node's end has: one that nobody touched follows the node's.
 */
export function withPodsOwn(wanted: Wanted, { host, pod }: Observed): Wanted {
  if (!host.link || !pod.link || wireState({ host, pod }) !== 'paired') return wanted;
  const isMtuOwn = pod.link.mtuBytes !== host.link.mtuBytes && pod.link.mtuBytes < wanted.pod.link.mtuBytes;
  const mac = pod.link.mac ?? wanted.pod.link.mac;
  const own: LinkSpec = {
    ...wanted.pod.link,
    txQueueLength: undefined,
    ...(isMtuOwn && { mtuBytes: pod.link.mtuBytes }),
    mac,
  };
  const sysctls = wanted.pod.sysctls.filter(({ early }) => early);
  const neighbours = wanted.host.neighbours.map((neighbour) => ({ ...neighbour, mac }));
  return { ...wanted, host: { ...wanted.host, neighbours }, pod: { ...wanted.pod, link: own, sysctls } };
}
