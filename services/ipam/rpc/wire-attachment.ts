import type { Attachment as AttachmentMessage } from '@podwire/proto/podwire/net/v1/attachment';
import { attachmentFaults, type Attachment } from '@podwire/shared/attachment/attachment';

import type { Checks } from '@podwire/shared/rpc/checks';

/** Names of an attachment's parts in requests. */
export const ATTACHMENT_FIELDS: Record<keyof Attachment, string> = {
  network: 'attachment.network',
  containerId: 'attachment.container_id',
  interfaceName: 'attachment.interface_name',
};

export function readAttachment(message: AttachmentMessage | undefined, checks: Checks): Attachment {
  const { network = '', containerId = '', interfaceName = '' } = message ?? {};
  const attachment = { network, containerId, interfaceName };
  if (!message) checks.check('attachment', 'is missing');
  else for (const { field, reason } of attachmentFaults(attachment)) checks.check(ATTACHMENT_FIELDS[field], reason);
  return attachment;
}
