import type { Wanted } from './desired.js';
import type { Observed } from './observed.js';
import type { LinkSpec } from './step.js';
import { wireState } from './wire.js';

/**
 * What is wanted of a pod that has its wire already: all but what later plugins of a chain (`tuning`) and privileged workloads set
 * as they need it, and what keeps no packet from the pod. That is the queue length of its link, whether it forwards, an MTU that is
 * lower than the wire's, and its MAC address.
 *
 * An MTU of the pod's own is another than the node's end has: one that nobody touched follows the node's.
 */
export function withPodsOwn(wanted: Wanted, { host, pod }: Observed): Wanted {
  if (!host.link || !pod.link || wireState({ host, pod }) !== 'paired') return wanted;
  const isMtuOwn = pod.link.mtuBytes !== host.link.mtuBytes && pod.link.mtuBytes < wanted.pod.link.mtuBytes;
  const own: LinkSpec = {
    ...wanted.pod.link,
    txQueueLength: undefined,
    ...(isMtuOwn && { mtuBytes: pod.link.mtuBytes }),
    ...(pod.link.mac !== null && { mac: pod.link.mac }),
  };
  const sysctls = wanted.pod.sysctls.filter(({ early }) => early);
  return { ...wanted, pod: { ...wanted.pod, link: own, sysctls } };
}
