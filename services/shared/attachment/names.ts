import { hash } from 'node:crypto';

import type { Family } from '../net/address.js';
import { localMac, type Mac } from '../net/mac.js';
import { formatAttachment, type Attachment, type AttachmentFault } from './attachment.js';

/** Prefix of every host interface that Podwire creates. With the hash it fills the kernel's 15 bytes, as Calico's names do. */
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

/** MAC address of the attachment's interface inside the pod. It is derived, so that it need not be stored. */
export function podMac(attachment: Attachment): Mac {
  return macOf(digest(attachment));
}

/** First byte of every tunnel's MAC address: locally administered, unicast. */
const TUNNEL_BYTE = '66';

const TUNNEL_SUFFIX: Readonly<Record<Family, string>> = { 4: '', 6: '-v6' };

/**
 * MAC address of a node's VXLAN device for a family: 0x66, then the first five bytes of SHA-1(node name, with the suffix `-v6`
 * for IPv6). Calico uses the same, so that nodes of either kind can compute every other's.
 */
export function tunnelMac(nodeName: string, family: Family): Mac {
  const bytes = hash('sha1', `${nodeName}${TUNNEL_SUFFIX[family]}`).slice(0, 10).match(/../g) ?? [];
  return [TUNNEL_BYTE, ...bytes].join(':');
}

/** Both derived names, with one hash for both. */
export function derivedNames(attachment: Attachment): Omit<EndpointNames, 'uid'> {
  const digits = digest(attachment);
  return { hostInterfaceName: interfaceNameOf(digits), mac: macOf(digits) };
}

/** The derived fields of an attachment's workload endpoint. */
export interface EndpointNames {
  /**
   * A UUID of version 8 (RFC 9562, section 5.8): 48 bits of the creation time and 74 of a hash of the attachment. A repeated decision
   * yields the same UUID; a new endpoint of the attachment gets another one.
   */
  readonly uid: string;
  readonly hostInterfaceName: string;
  readonly mac: Mac;
}

/** All derived fields, with one hash for all. @param createdAtMs - creation time of the endpoint, in whole epoch milliseconds */
export function endpointNames(attachment: Attachment, createdAtMs: number): EndpointNames {
  const digits = digest(attachment);
  const uid = uidOf(digits, createdAtMs);
  return { uid, hostInterfaceName: interfaceNameOf(digits), mac: macOf(digits) };
}

/** Handle under which IPAM records the addresses of an attachment: Calico's `<network>.<container ID>`. */
export function handleId({ network, containerId }: Attachment): string {
  return `${network}.${containerId}`;
}

/**
 * Why parts of an attachment are not allowed in the name of its workload endpoint. A dash at an end of a part would look like
 * a separator, so two attachments might share a name. Calico refuses them too. Names of nodes and pods have no such dash.
 * @param pod - undefined for a container that is not a Kubernetes pod; the container ID is part of the name then
 */
export function endpointNameFaults(attachment: Attachment, pod: object | undefined): AttachmentFault[] {
  const fields = pod ? (['interfaceName'] as const) : (['containerId', 'interfaceName'] as const);
  return fields.flatMap((field) => {
    const text = attachment[field];
    const reason = 'begins or ends with "-", which is not allowed in the name of a workload endpoint';
    return text.startsWith('-') || text.endsWith('-') ? [{ field, reason }] : [];
  });
}

function uidOf(digits: string, createdAtMs: number): string {
  const time = (((createdAtMs % UID_TIMES) + UID_TIMES) % UID_TIMES).toString(16).padStart(12, '0');
  const variant = VARIANTS.charAt(Number.parseInt(digits.charAt(15), 16) & 0x3);
  return `${time.slice(0, 8)}-${time.slice(8)}-8${digits.slice(12, 15)}-${variant}${digits.slice(16, 19)}-${digits.slice(19, 31)}`;
}

/** Number of values of 48 bits. */
const UID_TIMES = 2 ** 48;

const MAC_DIGITS = 12;

/** Digits that begin with the bits 10. */
const VARIANTS = '89ab';

function interfaceNameOf(digits: string): string {
  return HOST_INTERFACE_PREFIX + digits.slice(0, HASH_DIGITS);
}

function macOf(digits: string): Mac {
  return localMac(digits.slice(-MAC_DIGITS));
}

/** Digest in hexadecimal digits. Each derived name uses digits of its own. A digest in bytes would take twice the time. */
function digest(attachment: Attachment): string {
  return hash('sha256', formatAttachment(attachment), 'hex');
}
