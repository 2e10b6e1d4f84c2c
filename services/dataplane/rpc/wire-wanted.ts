import type { PodNetwork as PodNetworkMessage } from '@podwire/proto/podwire/dataplane/v1/pod';
import type { Attachment as AttachmentMessage } from '@podwire/proto/podwire/net/v1/attachment';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { checked } from '@podwire/shared/rpc/checks';

import type { PodNetwork } from '../plan/pod-network.js';
import { readAttachment, readPodNetwork } from '../pods/pods-rpc.js';

/** What the node has recorded as wanted of an attachment; undefined where it has nothing. */
export type Recorded = (attachment: Attachment) => PodNetwork | undefined;

interface Asked {
  readonly pod: PodNetworkMessage | undefined;
  readonly recorded?: AttachmentMessage | undefined;
}

/**
 * The wanted state that a request holds, or refers to.
 * @throws Failure INVALID_REQUEST, ATTACHMENT_NOT_FOUND
 */
export function wantedNetwork(method: string, { pod, recorded }: Asked, recordOf: Recorded): PodNetwork {
  if (!recorded) return checked(method, (checks) => readPodNetwork(pod, checks));
  const attachment = checked(method, (check) => {
    check.check('recorded', pod === undefined ? undefined : 'is set beside pod; one of the two is wanted');
    return readAttachment(recorded, { at: 'recorded', check });
  });
  const network = recordOf(attachment);
  if (network) return network;
  const name = formatAttachment(attachment);
  throw new Failure('ATTACHMENT_NOT_FOUND', `${name} is not recorded on this node; ListPods tells which are`);
}
