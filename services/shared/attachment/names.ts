import { hash } from 'node:crypto';

import { localMac, type Mac } from '../net/mac.js';
import { formatAttachment, type Attachment } from './attachment.js';

/** Prefix of every host interface that Podwire makes. With the hash it fills the kernel's 15 bytes, as Calico's names do. */
export const HOST_INTERFACE_PREFIX = 'podw';

const HASH_DIGITS = 11;

/** MAC address of every host interface, the same everywhere, so that pods never see it change (as Calico). */
export const HOST_MAC: Mac = 'ee:ee:ee:ee:ee:ee';

/**
 * Name of the attachment's interface on the host: {@link HOST_INTERFACE_PREFIX} and 44 bits of a hash of the attachment.
 * A hash, as container IDs have no length limit; of the whole attachment, so that a pod's next sandbox gets another name.
 */
export function hostInterfaceName(attachment: Attachment): string {
  return interfaceNameOf(digest(attachment));
}

/** MAC address of the attachment's interface inside the pod: derived, so that nothing has to be written after it is made. */
export function podMac(attachment: Attachment): Mac {
  return macOf(digest(attachment));
}

/** Both of them, for little more than the price of one. */
export function derivedNames(attachment: Attachment): { readonly hostInterfaceName: string; readonly mac: Mac } {
  const bytes = digest(attachment);
  return { hostInterfaceName: interfaceNameOf(bytes), mac: macOf(bytes) };
}

/** Handle under which IPAM records the addresses of an attachment: Calico's `<network>.<container ID>`. */
export function handleId({ network, containerId }: Attachment): string {
  return `${network}.${containerId}`;
}

/**
 * UID of an attachment's workload endpoint: derived, so that a decision that runs twice makes one, and another one for each
 * time an attachment is made. A UUID of version 8 (RFC 9562, section 5.8).
 * @param createdAtMs - when it was made, in epoch milliseconds
 */
export function endpointUid(attachment: Attachment, createdAtMs: number): string {
  const bytes = hash('sha256', `${formatAttachment(attachment)} ${createdAtMs}`, 'buffer');
  bytes.writeUInt8((bytes.readUInt8(6) & 0x0f) | 0x80, 6);
  bytes.writeUInt8((bytes.readUInt8(8) & 0x3f) | 0x80, 8);
  const text = (from: number, to: number): string => bytes.toString('hex', from, to);
  return `${text(0, 4)}-${text(4, 6)}-${text(6, 8)}-${text(8, 10)}-${text(10, 16)}`;
}

function interfaceNameOf(bytes: Buffer): string {
  return HOST_INTERFACE_PREFIX + bytes.toString('hex', 0, Math.ceil(HASH_DIGITS / 2)).slice(0, HASH_DIGITS);
}

function macOf(bytes: Buffer): Mac {
  return localMac(bytes.subarray(-6));
}

function digest(attachment: Attachment): Buffer {
  return hash('sha256', formatAttachment(attachment), 'buffer');
}
