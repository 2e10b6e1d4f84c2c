/**
 * CNI's primary key: one interface of one container on one network (CNI specification 1.1.0, section 2).
 * Podwire keys everything that it holds for a container by the attachment. The pod's name is no key, because a new sandbox of the pod shares it.
 */
export interface Attachment {
  readonly network: string;
  readonly containerId: string;
  readonly interfaceName: string;
}

/** An invalid field of an attachment, and the reason. */
export interface AttachmentFault {
  readonly field: keyof Attachment;
  readonly reason: string;
}

/**
 * Largest lengths in bytes. The specification sets none. The dataplane records an attachment in an interface alias, which
 * is limited to 255 bytes (IFALIASZ, linux/if.h).
 */
export const MAX_NETWORK_BYTES = 100;
export const MAX_CONTAINER_ID_BYTES = 128;

/** Interface names are NUL-terminated in 16 bytes (IFNAMSIZ, linux/if.h). */
export const MAX_INTERFACE_NAME_BYTES = 15;

const IDENTIFIER = /^[a-zA-Z0-9][a-zA-Z0-9_.-]*$/;

/** All faults of an attachment; empty when it is valid. */
export function attachmentFaults(attachment: Attachment): AttachmentFault[] {
  const faults: AttachmentFault[] = [];
  const check = (field: keyof Attachment, reason: string | undefined) => {
    if (reason !== undefined) faults.push({ field, reason });
  };
  check('network', identifierFault(attachment.network, MAX_NETWORK_BYTES));
  check('containerId', identifierFault(attachment.containerId, MAX_CONTAINER_ID_BYTES));
  check('interfaceName', podInterfaceNameFault(attachment.interfaceName));
  return faults;
}

/** Why a network name or a container ID is invalid (CNI specification 1.1.0, section 2); undefined when it is valid. */
export function identifierFault(text: string, maxBytes: number): string | undefined {
  if (text === '') return 'is empty';
  if (!IDENTIFIER.test(text))
    return `must begin with a letter or a digit and contain only letters, digits, "_", "." and "-"`;
  return Buffer.byteLength(text) > maxBytes ? `is longer than ${maxBytes} bytes` : undefined;
}

/** Why the kernel or Podwire refuses an interface name inside a pod, or undefined when it is valid. */
export function podInterfaceNameFault(name: string): string | undefined {
  return name === 'lo' ? 'must not be the loopback interface' : interfaceNameFault(name);
}

/** The kernel treats this byte as a space of Latin-1 (lib/ctype.c), and so refuses "à" in UTF-8. */
const LATIN1_SPACE = 0xa0;

/**
 * Why the kernel (dev_valid_name, net/core/dev.c) or the CNI specification refuses an interface name, or undefined when it is
 * valid. The kernel would treat "%" as a pattern: `eth%d` becomes eth0. `all` and `default` are sysctl's names for
 * every interface, present and to come (sysctl_dev_name_is_allowed, include/linux/inetdevice.h).
 */
export function interfaceNameFault(name: string): string | undefined {
  if (name === '') return 'is empty';
  if (Buffer.byteLength(name) > MAX_INTERFACE_NAME_BYTES) return `is longer than ${MAX_INTERFACE_NAME_BYTES} bytes`;
  if (name === '.' || name === '..') return 'must not be "." or "..", which name a directory';
  if (name === 'all' || name === 'default') return 'is reserved: sysctl uses it for all interfaces';
  return /[/:%\s\x85\0]/u.test(name) || Buffer.from(name).includes(LATIN1_SPACE)
    ? 'contains "/", ":", "%", white space or a character that the kernel treats as white space'
    : undefined;
}

/** The attachment in one line, for messages and logs: `network/containerId/interfaceName`. */
export function formatAttachment({ network, containerId, interfaceName }: Attachment): string {
  return `${network}/${containerId}/${interfaceName}`;
}

/**
 * Parses the result of {@link formatAttachment}. It is unambiguous, because none of the three parts can contain a slash.
 * @returns undefined when the text is not a valid attachment
 */
export function parseAttachment(text: string): Attachment | undefined {
  const [network, containerId, interfaceName, ...rest] = text.split('/');
  if (network === undefined || containerId === undefined || interfaceName === undefined || rest.length > 0)
    return undefined;
  const attachment = { network, containerId, interfaceName };
  return attachmentFaults(attachment).length === 0 ? attachment : undefined;
}
