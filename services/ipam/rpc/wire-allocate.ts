import { IpFamily, type AllocateRequest } from '@podwire/proto/podwire/ipam/v1/address';
import type { NetnsIdentity as NetnsMessage, PodIdentity as PodMessage } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { parseAddress, type Address, type Family } from '@podwire/shared/net/address';
import { parsePrefix } from '@podwire/shared/net/prefix';
import { checked, type Checks } from '@podwire/shared/rpc/checks';

import { endpointNameFaults } from '../allocator/endpoint.js';
import { labelFault, subdomainFault } from '../allocator/names.js';
import type { AskedAllocation, NetnsIdentity, PodIdentity } from '../allocator/records.js';
import { ATTACHMENT_FIELDS, readAttachment } from './wire-attachment.js';

const MAX_POD_UID_BYTES = 128;
const MAX_POOLS_COUNT = 64;
const MAX_LABELS_COUNT = 64;
/** Kubernetes' own bounds: a prefix of 253, a slash, and a name of 63. */
const MAX_LABEL_NAME_BYTES = 317;
const MAX_LABEL_VALUE_BYTES = 63;
const MAX_BLOCKS_COUNT = 1_000_000;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

export function readAllocateRequest(message: AllocateRequest): AskedAllocation {
  return checked('Allocate', (checks) => readAllocation(message, checks));
}

/** What an allocation is asked to be, whichever method asks. */
export function readAllocation(message: AllocateRequest, checks: Checks): AskedAllocation {
  checks.check('node_name', subdomainFault(message.nodeName));
  const attachment = readAttachment(message.attachment, checks);
  const pod = message.pod && readPod(message.pod, checks);
  for (const { field, reason } of endpointNameFaults({ attachment, nodeName: message.nodeName, pod }))
    checks.check(ATTACHMENT_FIELDS[field], reason);
  const netns = message.netns && readNetns(message.netns, checks);
  const families = readFamilies(message.families, checks);
  const addresses = readAddresses(message.addresses, checks);
  checkOnePerFamily(addresses, families, checks);
  const implied = addresses.length > 0 ? [...new Set(addresses.map(({ family }) => family))] : [4 as const];
  return {
    attachment,
    nodeName: message.nodeName,
    pod,
    netns,
    families: families.length === 0 ? implied : families,
    addresses,
    pools: readPools(message.pools, checks),
    namespaceLabels: readLabels('namespace_labels', message.namespaceLabels, checks),
    maxBlocksCount: readBlockCap(message.maxBlocksPerNode, checks),
  };
}

function readPod({ namespace, name, uid }: PodMessage, checks: Checks): PodIdentity {
  checks.check('pod.namespace', labelFault(namespace));
  checks.check('pod.name', subdomainFault(name));
  const tooLong = Buffer.byteLength(uid) > MAX_POD_UID_BYTES;
  checks.check('pod.uid', tooLong ? `is longer than ${MAX_POD_UID_BYTES} bytes` : undefined);
  return { namespace, name, uid };
}

function readNetns({ bootId, inode }: NetnsMessage, checks: Checks): NetnsIdentity {
  checks.check('netns.boot_id', UUID.test(bootId) ? undefined : 'is not a UUID in lower case');
  checks.check('netns.inode', inode > 0n ? undefined : 'is 0; inodes are numbered from 1');
  return { bootId, inode };
}

export const FAMILIES: Partial<Record<IpFamily, Family>> = {
  [IpFamily.IP_FAMILY_UNSPECIFIED]: 4,
  [IpFamily.IP_FAMILY_IPV4]: 4,
  [IpFamily.IP_FAMILY_IPV6]: 6,
};

function readFamilies(messages: readonly IpFamily[], checks: Checks): Family[] {
  const families: Family[] = [];
  messages.forEach((message, index) => {
    const family = FAMILIES[message];
    if (!family) checks.check(`families[${index}]`, `is ${message}, which is no family: IPv4 is 4, IPv6 is 6`);
    else if (families.includes(family)) checks.check(`families[${index}]`, `is IPv${family} a second time`);
    else families.push(family);
  });
  return families;
}

export function readAddresses(texts: readonly string[], checks: Checks): Address[] {
  return texts.flatMap((text, index) => {
    const address = parseAddress(text);
    checks.check(`addresses[${index}]`, address ? undefined : 'is no IPv4 or IPv6 address without prefix length');
    return address ?? [];
  });
}

/** Each attachment has one address of a family. */
function checkOnePerFamily(addresses: readonly Address[], families: readonly Family[], checks: Checks): void {
  addresses.forEach(({ family }, index) => {
    const repeated = addresses.slice(0, index).some((other) => other.family === family);
    if (repeated)
      checks.check(`addresses[${index}]`, `is a second IPv${family} address; an attachment has one of each family`);
    if (families.length > 0 && !families.includes(family))
      checks.check(`addresses[${index}]`, `is an IPv${family} address, and families does not have that`);
  });
}

export function readPools(texts: readonly string[], checks: Checks): readonly string[] {
  if (texts.length > MAX_POOLS_COUNT)
    checks.check('pools', `has ${texts.length} entries; at most ${MAX_POOLS_COUNT} are allowed`);
  texts.slice(0, MAX_POOLS_COUNT).forEach((text, index) => {
    const parsed = parsePrefix(text);
    if (parsed.ok) return;
    const fault = text.includes('/') ? parsed.fault : subdomainFault(text);
    checks.check(`pools[${index}]`, fault === undefined ? undefined : `${fault}; give the name of a pool, or its CIDR`);
  });
  return texts;
}

export function readLabels(
  field: string,
  labels: Readonly<Record<string, string>>,
  checks: Checks,
): Readonly<Record<string, string>> {
  const entries = Object.entries(labels);
  if (entries.length > MAX_LABELS_COUNT)
    checks.check(field, `has ${entries.length} labels; at most ${MAX_LABELS_COUNT} are allowed`);
  for (const [name, value] of entries.slice(0, MAX_LABELS_COUNT)) {
    if (name === '') checks.check(field, 'has a label without a name');
    if (Buffer.byteLength(name) > MAX_LABEL_NAME_BYTES)
      checks.check(field, `has a label whose name is longer than ${MAX_LABEL_NAME_BYTES} bytes`);
    if (Buffer.byteLength(value) > MAX_LABEL_VALUE_BYTES)
      checks.check(`${field}["${name}"]`, `is longer than ${MAX_LABEL_VALUE_BYTES} bytes`);
  }
  return labels;
}

export function readBlockCap(count: number, checks: Checks): number {
  const tooMany = count > MAX_BLOCKS_COUNT;
  checks.check('max_blocks_per_node', tooMany ? `is ${count}; at most ${MAX_BLOCKS_COUNT} are allowed` : undefined);
  return count;
}
