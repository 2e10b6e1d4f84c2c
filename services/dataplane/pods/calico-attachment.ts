import { createHash } from 'node:crypto';

import type { Attachment } from '@podwire/shared/attachment/attachment';

import type { PodNetwork } from '../wiring/network.js';

/** Network of all attachments that come by Calico's contract: no network of Podwire's own plugin is called so. */
export const CALICO_NETWORK = 'calico';

/** Number of hexadecimal digits, as in the container IDs of containerd. */
const DIGITS = 64;

/**
 * The attachment of a pod that Calico's plugin wires: all that its Del has is the namespace and the interface, so the container ID is
 * derived from the namespace's path.
 */
export function calicoAttachment({ netns, interfaceName }: CalicoPlace): Attachment {
  const containerId = createHash('sha256').update(netns).digest('hex').slice(0, DIGITS);
  return { network: CALICO_NETWORK, containerId, interfaceName };
}

interface CalicoPlace {
  readonly netns: string;
  readonly interfaceName: string;
}

/** Whether a pod came by Calico's contract, and not from a network that somebody has called as it is called here. */
export function isCalicos({ attachment, netns }: Pick<PodNetwork, 'attachment' | 'netns'>): boolean {
  const { network, containerId, interfaceName } = attachment;
  return network === CALICO_NETWORK && containerId === calicoAttachment({ netns, interfaceName }).containerId;
}
