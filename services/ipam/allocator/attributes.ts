import type { Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';

import type { AllocationAttributes, AllocationRequest, PodIdentity } from './records.js';

/** The attributes of a container's address: Calico's `node`, `namespace`, `pod`, `timestamp`, and two that tell attachments apart. */

/** Who holds an address, as its attributes tell. */
export interface Holder {
  readonly nodeName: string;
  /** Without UID, which is not among the attributes. */
  readonly pod: PodIdentity | undefined;
}

export function attributesFor(
  { attachment, nodeName, pod }: Pick<AllocationRequest, 'attachment' | 'nodeName' | 'pod'>,
  nowMs: number,
): AllocationAttributes {
  return {
    handleId: handleId(attachment),
    owner: {
      node: nodeName,
      timestamp: calicoTime(nowMs),
      network: attachment.network,
      interface: attachment.interfaceName,
      ...(pod ? { namespace: pod.namespace, pod: pod.name } : {}),
    },
    releasedAtMs: undefined,
  };
}

/**
 * Whether the attributes are those of the attachment. The handle alone does not tell: two interfaces of one container share
 * it, and so do network `a.b` with container `c` and network `a` with container `b.c`.
 */
export function belongsTo(attachment: Attachment): (attributes: AllocationAttributes) => boolean {
  const handle = handleId(attachment);
  return (attributes) =>
    attributes.handleId === handle &&
    attributes.owner.network === attachment.network &&
    attributes.owner.interface === attachment.interfaceName;
}

export function holderOf({ owner }: AllocationAttributes): Holder {
  const { node = '', namespace, pod } = owner;
  const known = namespace !== undefined && pod !== undefined;
  return { nodeName: node, pod: known ? { namespace, name: pod, uid: '' } : undefined };
}

/** A time as Go prints it and Calico stores it: `2026-08-22 06:33:25.1 +0000 UTC`. */
function calicoTime(timeMs: number): string {
  const [date = '', time = ''] = new Date(timeMs).toISOString().replace('Z', '').split('T');
  return `${date} ${time.replace(/\.?0+$/, '')} +0000 UTC`;
}
