import { createHash } from 'node:crypto';

import type { Attachment } from '@podwire/shared/attachment/attachment';

import type { PodNetwork } from '@podwire/shared/attachment/pod-network';

/** Network of attachments made through Calico's contract. No network of Podwire's own plugin may have this name. */
export const CALICO_NETWORK = 'calico';

/** Number of hexadecimal digits, as in the container IDs of containerd. */
const DIGITS = 64;

/**
 * The attachment of a pod that Calico's plugin wires. Calico's Del carries only the namespace and the interface, so the container
 * ID is derived from the namespace's path.
 */
export function calicoAttachment({ netns, interfaceName }: CalicoInterface): Attachment {
  const containerId = createHash('sha256').update(netns).digest('hex').slice(0, DIGITS);
  return { network: CALICO_NETWORK, containerId, interfaceName };
}

interface CalicoInterface {
  readonly netns: string;
  readonly interfaceName: string;
}

/** Whether Calico's contract made the attachment, as opposed to a network with the same name. */
export function isCalicoAttachment({ attachment, netns }: Pick<PodNetwork, 'attachment' | 'netns'>): boolean {
  const { network, containerId, interfaceName } = attachment;
  return network === CALICO_NETWORK && containerId === calicoAttachment({ netns, interfaceName }).containerId;
}
