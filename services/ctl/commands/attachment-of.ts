import { attachmentFaults, formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';

type Message = Attachment | undefined;

/** As it is typed; empty where an answer has none. */
export function attachmentText(attachment: Message): string {
  return attachment ? formatAttachment(attachment) : '';
}

/**
 * The attachment behind a handle, which is `<network>.<container ID>` for containers, and what the holder said of itself.
 * @returns undefined where it is no container's
 */
export function attachmentOf(handleId: string, attributes: Readonly<Record<string, string>>): Attachment | undefined {
  const { network = '', interface: interfaceName = '' } = attributes;
  if (!handleId.startsWith(`${network}.`)) return undefined;
  const attachment = { network, containerId: handleId.slice(network.length + 1), interfaceName };
  return attachmentFaults(attachment).length === 0 ? attachment : undefined;
}
