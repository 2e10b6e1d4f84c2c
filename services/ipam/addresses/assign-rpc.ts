import {
  BlockVerdict as VerdictMessage,
  type AssignAddressesRequest,
  type AssignAddressesResponse,
  type AssignedAddress,
  type ExplainedPool,
  type FamilyAssignment,
  type NodeLeases as NodeLeasesMessage,
} from '@podwire/proto/podwire/ipam/v1/address';
import { AddressUse } from '@podwire/proto/podwire/ipam/v1/pool';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { ADDRESS_USES } from '@podwire/shared/requests/pool-words';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';

import type { NodeLeases } from '../blocks/leased-addresses.js';
import { FAMILY_MESSAGES, readAddresses } from '../messages/parts.js';
import { readBlockCap, readLabels, readPools } from '../messages/request-parts.js';
import { RESERVED_ATTRIBUTES } from '../records/attributes.js';
import type { BlockOwner } from '../records/block.js';
import type { EndpointAddress } from '../records/endpoint.js';
import { isLeaseHandle } from '../records/lease.js';
import { handleFault, subdomainFault } from '../records/names.js';
import type { BlockVerdict, PoolExplanation } from './allocate/refusal.js';
import type { RequestedAssignment, Assignment } from './assign.js';

const MAX_COUNT = 4096;
const MAX_ADDRESSES_COUNT = 32;
const MAX_PER_HANDLE_COUNT = 1_000_000;
const MAX_ATTRIBUTES_COUNT = 32;
const MAX_ATTRIBUTE_NAME_BYTES = 64;
const MAX_ATTRIBUTE_VALUE_BYTES = 1024;

/** The only virtual owner that Calico knows. */
const LOAD_BALANCER_OWNER: BlockOwner = { kind: 'virtual', name: 'load-balancer' };

/** A node would give the addresses to pods, or return them. */
function reservedHandleFault(handleId: string): string | undefined {
  return isLeaseHandle(handleId) ? 'begins as the handles of leases; choose another handle' : undefined;
}

export function readAssignAddressesRequest(message: AssignAddressesRequest): RequestedAssignment {
  return readChecked('AssignAddresses', (checks) => {
    checks.check('handle_id', handleFault(message.handleId) ?? reservedHandleFault(message.handleId));
    const use = ADDRESS_USES.wordOf(message.use);
    if (!use) checks.check('use', 'is missing or unknown; set the use of the addresses');
    checkCounts(message, checks);
    return {
      handleId: message.handleId,
      owner: readOwner(message, checks),
      use: use ?? 'Workload',
      counts: { 4: message.ipv4Count, 6: message.ipv6Count },
      addresses: readRequestedAddresses(message, checks),
      pools: readPools(message.pools, checks),
      namespaceLabels: readLabels('namespace_labels', message.namespaceLabels, checks),
      maxBlocksCount: readBlockCap(message.maxBlocksPerNode, checks),
      maxPerHandleCount: message.maxPerHandle,
      attributes: readAttributes(message.attributes, checks),
      allOrNothing: message.allOrNothing,
    };
  });
}

function readOwner({ use, nodeName }: AssignAddressesRequest, checks: Checks): BlockOwner {
  if (use !== AddressUse.ADDRESS_USE_LOAD_BALANCER) {
    checks.check('node_name', subdomainFault(nodeName));
    return { kind: 'host', name: nodeName };
  }
  checks.check('node_name', nodeName === '' ? undefined : 'is set; addresses of load balancers belong to no node');
  return LOAD_BALANCER_OWNER;
}

function checkCounts({ ipv4Count, ipv6Count, addresses, maxPerHandle }: AssignAddressesRequest, checks: Checks): void {
  if (ipv4Count + ipv6Count + addresses.length === 0)
    checks.check('ipv4_count', 'is 0, and so is ipv6_count, and there are no addresses; set one of them');
  for (const [field, count] of Object.entries({ ipv4_count: ipv4Count, ipv6_count: ipv6Count })) {
    if (count > MAX_COUNT) checks.check(field, `is ${count}; at most ${MAX_COUNT} are allowed`);
    if (count > 0 && addresses.length > 0) checks.check(field, 'is set together with addresses; set only one of them');
    if (maxPerHandle > 0 && count > maxPerHandle)
      checks.check(
        field,
        `is ${count}, and max_per_handle is ${maxPerHandle}; raise max_per_handle or lower the count`,
      );
  }
  if (maxPerHandle > MAX_PER_HANDLE_COUNT)
    checks.check('max_per_handle', `is ${maxPerHandle}; at most ${MAX_PER_HANDLE_COUNT} is allowed`);
}

function readRequestedAddresses({ addresses: texts }: AssignAddressesRequest, checks: Checks) {
  if (texts.length > MAX_ADDRESSES_COUNT)
    checks.check('addresses', `has ${texts.length} entries; at most ${MAX_ADDRESSES_COUNT} are allowed`);
  const addresses = readAddresses(texts.slice(0, MAX_ADDRESSES_COUNT), checks);
  addresses.forEach(({ family, value }, index) => {
    const repeated = addresses.slice(0, index).some((other) => other.family === family && other.value === value);
    if (repeated) checks.check('addresses', `has ${texts[index] ?? 'an address'} twice`);
  });
  return addresses;
}

function readAttributes(
  attributes: Readonly<Record<string, string>>,
  checks: Checks,
): Readonly<Record<string, string>> {
  const entries = Object.entries(attributes);
  if (entries.length > MAX_ATTRIBUTES_COUNT)
    checks.check('attributes', `has ${entries.length} entries; at most ${MAX_ATTRIBUTES_COUNT} are allowed`);
  for (const [name, value] of entries.slice(0, MAX_ATTRIBUTES_COUNT)) {
    const bytes = Buffer.byteLength(name);
    if (bytes === 0 || bytes > MAX_ATTRIBUTE_NAME_BYTES)
      checks.check('attributes', `has a name of ${bytes} bytes; 1 to ${MAX_ATTRIBUTE_NAME_BYTES} are allowed`);
    if (RESERVED_ATTRIBUTES.includes(name)) checks.check(`attributes["${name}"]`, 'is set by the service; omit it');
    if (Buffer.byteLength(value) > MAX_ATTRIBUTE_VALUE_BYTES)
      checks.check(`attributes["${name}"]`, `is longer than ${MAX_ATTRIBUTE_VALUE_BYTES} bytes`);
  }
  return attributes;
}

export function assignmentMessage(request: RequestedAssignment, assignment: Assignment): AssignAddressesResponse {
  const { newAddresses, held, shortages } = assignment;
  const addresses = [
    ...newAddresses.map((address) => assigned(address, false)),
    ...held.map((address) => assigned(address, true)),
  ];
  const families = ([4, 6] as const).flatMap((family): FamilyAssignment[] => {
    const requested = request.counts[family] + request.addresses.filter((address) => address.family === family).length;
    const count = [...newAddresses, ...held].filter(({ address }) => address.family === family).length;
    const shortage = shortages.get(family);
    if (requested === 0) return [];
    const explained = { explanation: shortage?.text ?? '', pools: shortage?.pools.map(explainedPool) ?? [] };
    return [{ family: FAMILY_MESSAGES[family], requested, assigned: count, ...explained }];
  });
  return { addresses, families };
}

const assigned = (
  { address, block, poolName, sequenceNumber }: EndpointAddress,
  alreadyHeld: boolean,
): AssignedAddress => ({
  address: formatPrefix(address),
  blockCidr: formatPrefix(block),
  poolName,
  sequenceNumber,
  alreadyHeld,
});

const VERDICTS: Readonly<Record<BlockVerdict, VerdictMessage>> = {
  open: VerdictMessage.BLOCK_VERDICT_OPEN,
  full: VerdictMessage.BLOCK_VERDICT_FULL,
  'of other owners': VerdictMessage.BLOCK_VERDICT_OTHER_OWNER,
  'without an owner': VerdictMessage.BLOCK_VERDICT_NO_OWNER,
  reserved: VerdictMessage.BLOCK_VERDICT_RESERVED,
  unreadable: VerdictMessage.BLOCK_VERDICT_UNREADABLE,
};

export function nodeLeasesMessage({ nodeName, count }: NodeLeases): NodeLeasesMessage {
  return { nodeName, leased: BigInt(count) };
}

export function explainedPool({ pool, skipReason, blocks, more, noClaim }: PoolExplanation): ExplainedPool {
  return {
    name: pool.name,
    cidr: formatPrefix(pool.prefix),
    passedOverReason: skipReason ?? '',
    blocks: blocks.map(({ prefix, verdict, reason, leases }) => ({
      cidr: formatPrefix(prefix),
      verdict: VERDICTS[verdict],
      reason,
      leases: leases.map(nodeLeasesMessage),
    })),
    moreBlocks: [...more].map(([verdict, count]) => ({ verdict: VERDICTS[verdict], count })),
    noClaimReason: noClaim ?? '',
  };
}
