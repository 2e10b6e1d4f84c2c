import { IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import type { NetnsIdentity as NetnsMessage } from '@podwire/proto/podwire/ipam/v1/endpoint';
import type { Attachment as AttachmentMessage } from '@podwire/proto/podwire/net/v1/attachment';
import { attachmentFaults, type Attachment } from '@podwire/shared/attachment/attachment';
import { parseAddress, type Address, type Family } from '@podwire/shared/net/address';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';

import type { NetnsIdentity } from '../records/attributes.js';
import { subdomainFault } from '../records/names.js';

/** The name of the object that a request is about. */
export function readObjectName(method: string, name: string): string {
  return readChecked(method, (checks) => {
    checks.check('name', subdomainFault(name));
    return name;
  });
}

export const FAMILIES: Partial<Record<IpFamily, Family>> = {
  [IpFamily.IP_FAMILY_UNSPECIFIED]: 4,
  [IpFamily.IP_FAMILY_IPV4]: 4,
  [IpFamily.IP_FAMILY_IPV6]: 6,
};

export function readFamilies(field: string, messages: readonly IpFamily[], checks: Checks): Family[] {
  const families: Family[] = [];
  messages.forEach((message, index) => {
    const family = FAMILIES[message];
    if (!family) checks.check(`${field}[${index}]`, `is ${message}; must be 4 (IPv4) or 6 (IPv6)`);
    else if (families.includes(family)) checks.check(`${field}[${index}]`, `is IPv${family} a second time`);
    else families.push(family);
  });
  return families;
}

export function readAddresses(texts: readonly string[], checks: Checks): Address[] {
  return texts.flatMap((text, index) => {
    const address = parseAddress(text);
    checks.check(`addresses[${index}]`, address ? undefined : 'must be an IPv4 or IPv6 address without prefix length');
    return address ?? [];
  });
}

/** Each attachment has one address of a family. */
export function checkOnePerFamily(addresses: readonly Address[], families: readonly Family[], checks: Checks): void {
  addresses.forEach(({ family }, index) => {
    const repeated = addresses.slice(0, index).some((other) => other.family === family);
    if (repeated)
      checks.check(`addresses[${index}]`, `is a second IPv${family} address; an attachment has one of each family`);
    if (families.length > 0 && !families.includes(family))
      checks.check(`addresses[${index}]`, `is an IPv${family} address, but families does not include IPv${family}`);
  });
}

/** Field names of an attachment in requests. */
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

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

export function checkUuid(field: string, text: string, checks: Checks): void {
  checks.check(field, UUID.test(text) ? undefined : 'is not a UUID in lower case');
}

/** @param field - name of the field for violations */
export function readNetns(field: string, { bootId, inode }: NetnsMessage, checks: Checks): NetnsIdentity {
  checkUuid(`${field}.boot_id`, bootId, checks);
  checks.check(`${field}.inode`, inode > 0n ? undefined : 'is 0; inodes are numbered from 1');
  return { bootId, inode };
}

/** Placeholder for an invalid address; the request is refused. */
const NO_ADDRESS: Address = { family: 4, value: 0n };

export function readAddress(field: string, text: string, checks: Checks): Address {
  const address = parseAddress(text);
  checks.check(field, address ? undefined : 'must be an IPv4 or IPv6 address without prefix length');
  return address ?? NO_ADDRESS;
}

export function dateOf(timeMs: number | undefined): Date | undefined {
  return timeMs === undefined ? undefined : new Date(timeMs);
}

export const FAMILY_MESSAGES: Readonly<Record<Family, IpFamily>> = {
  4: IpFamily.IP_FAMILY_IPV4,
  6: IpFamily.IP_FAMILY_IPV6,
};
