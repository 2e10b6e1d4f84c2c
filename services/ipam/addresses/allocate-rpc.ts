import type { AllocateRequest } from '@podwire/proto/podwire/ipam/v1/address';
import type { PodIdentity as PodMessage } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { parsePrefix } from '@podwire/shared/net/prefix';
import { checked, type Checks } from '@podwire/shared/rpc/checks';

import type { AskedAllocation, PodIdentity } from '../allocator/records.js';
import { NAME_LABEL } from '../allocator/request-policy/namespace.js';
import type { Labels } from '../allocator/selector/ast.js';
import { checkOnePerFamily, readAddresses, readFamilies } from '../messages/parts.js';
import { readPoolChoices, readRequests } from '../messages/request-parts.js';
import { endpointNameFaults } from '../records/endpoint.js';
import { labelFault, subdomainFault } from '../records/names.js';
import { ATTACHMENT_FIELDS, readAttachment } from '../rpc/wire-attachment.js';
import { readNetns } from '../rpc/wire-netns.js';

const MAX_POD_UID_BYTES = 128;
const MAX_POOLS_COUNT = 64;
const MAX_LABELS_COUNT = 64;
/** Kubernetes' own bounds: a prefix of 253, a slash, and a name of 63. */
const MAX_LABEL_NAME_BYTES = 317;
const MAX_LABEL_VALUE_BYTES = 63;
const MAX_BLOCKS_COUNT = 1_000_000;

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
  const netns = message.netns && readNetns('netns', message.netns, checks);
  const families = readFamilies('families', message.families, checks);
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
    poolChoices: readPoolChoices(message.poolChoices, message.pools, checks),
    requests: readRequests(message.requests, checks),
    namespaceLabels: readNamespaceLabels(message.namespaceLabels, pod, checks),
    maxBlocksCount: readBlockCap(message.maxBlocksPerNode, checks),
  };
}

export function readPod({ namespace, name, uid }: PodMessage, checks: Checks): PodIdentity {
  checks.check('pod.namespace', labelFault(namespace));
  checks.check('pod.name', subdomainFault(name));
  const tooLong = Buffer.byteLength(uid) > MAX_POD_UID_BYTES;
  checks.check('pod.uid', tooLong ? `is longer than ${MAX_POD_UID_BYTES} bytes` : undefined);
  return { namespace, name, uid };
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

/** Labels of a pod's namespace; none where there is no pod. */
export function readNamespaceLabels(message: Labels, pod: PodIdentity | undefined, checks: Checks): Labels {
  const labels = readLabels('namespace_labels', message, checks);
  const name = Object.hasOwn(labels, NAME_LABEL) ? labels[NAME_LABEL] : undefined;
  if (pod && name !== undefined && name !== pod.namespace)
    checks.check(`namespace_labels["${NAME_LABEL}"]`, `is "${name}", and the pod is in namespace "${pod.namespace}"`);
  return labels;
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
