import { IpFamily, type AllocateRequest } from '@podwire/proto/podwire/ipam/v1/address';
import type {
  Endpoint as EndpointMessage,
  NetnsIdentity as NetnsMessage,
  PodIdentity as PodMessage,
} from '@podwire/proto/podwire/ipam/v1/endpoint';
import type { Family } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';

import { endpointKey } from '../allocator/endpoint.js';
import { labelFault, subdomainFault } from '../allocator/names.js';
import type { AllocationRequest, Endpoint, NetnsIdentity, PodIdentity } from '../allocator/records.js';
import { checked, type Checks } from '@podwire/shared/rpc/checks';
import { readAttachment } from './wire-attachment.js';

const MAX_POD_UID_BYTES = 128;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

export function readAllocateRequest(message: AllocateRequest): AllocationRequest {
  return checked('Allocate', (checks) => {
    checks.check('node_name', subdomainFault(message.nodeName));
    return {
      attachment: readAttachment(message.attachment, checks),
      nodeName: message.nodeName,
      pod: message.pod && readPod(message.pod, checks),
      netns: message.netns && readNetns(message.netns, checks),
      families: readFamilies(message.families, checks),
    };
  });
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

const FAMILIES: Partial<Record<IpFamily, Family>> = {
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
  return messages.length === 0 ? [4] : families;
}

export function endpointMessage(endpoint: Endpoint): EndpointMessage {
  const { attachment, nodeName, pod, addresses, mac, hostInterfaceName, netns } = endpoint;
  return {
    attachment: { ...attachment },
    name: endpointKey(endpoint).name,
    nodeName,
    pod: pod && { ...pod },
    addresses: addresses.map(({ address, block, poolName, sequenceNumber }) => ({
      address: formatPrefix(address),
      blockCidr: formatPrefix(block),
      poolName,
      sequenceNumber,
    })),
    macAddress: mac,
    hostInterfaceName,
    netns: netns && { ...netns },
  };
}
