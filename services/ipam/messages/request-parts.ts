import {
  IpFamily,
  type PodRequests as RequestsMessage,
  type PoolChoice as ChoiceMessage,
} from '@podwire/proto/podwire/ipam/v1/address';
import type { PodIdentity as PodMessage } from '@podwire/proto/podwire/ipam/v1/endpoint';
import type { Failure } from '@podwire/shared/failure/failure';
import { parseAddress, type Address } from '@podwire/shared/net/address';
import { parseMac } from '@podwire/shared/net/mac';
import { parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import type { Checks } from '@podwire/shared/requests/checks';
import type { Caller } from '@podwire/shared/tls/caller';

import type { PodIdentity } from '../records/attributes.js';
import { labelFault, NAME_LABEL, subdomainFault } from '../records/names.js';
import { NO_REQUESTS, type PodRequests, type PoolChoice } from '../records/request-policy.js';
import type { Labels } from '../selectors/parser.js';
import { FAMILIES, readFamilies } from './parts.js';

/** @throws Failure ACCESS_DENIED when the caller is a node and the pod is another node's; the signal's */
export type RequirePod = (caller: Caller, pod: PodIdentity | undefined, signal: AbortSignal) => Promise<void>;

/** Receives a pod whose allocation was refused. */
export type ReportRefusal = (pod: PodIdentity, failure: Failure) => void;

const MAX_ADDRESSES_COUNT = 32;
const MAX_PREFIXES_COUNT = 256;

export function readRequests(message: RequestsMessage | undefined, checks: Checks): PodRequests {
  if (!message) return NO_REQUESTS;
  const mac = message.macAddress === '' ? undefined : parseMac(message.macAddress);
  if (message.macAddress !== '' && mac === undefined)
    checks.check('requests.mac_address', `is ${JSON.stringify(message.macAddress)}; must be a unicast MAC address`);
  return {
    families: readFamilies('requests.families', message.families, checks),
    addressesWithoutIpam: readHosts('requests.addresses_without_ipam', message.addressesWithoutIpam, checks),
    mac,
    sourcePrefixes: readPrefixes('requests.source_prefixes', message.sourcePrefixes, checks),
  };
}

/** @param pools - the request's */
export function readPoolChoices(
  messages: readonly ChoiceMessage[],
  pools: readonly string[],
  checks: Checks,
): PoolChoice[] {
  return messages.map(({ pool, family, isConfigured }, index) => {
    const field = `pool_choices[${index}]`;
    if (!pools.includes(pool)) checks.check(`${field}.pool`, `is "${pool}"; must be one of pools`);
    const known = FAMILIES[family];
    if (!known) checks.check(`${field}.family`, `is ${family}; must be 4 (IPv4) or 6 (IPv6)`);
    return { pool, family: family === IpFamily.IP_FAMILY_UNSPECIFIED ? undefined : known, isConfigured };
  });
}

function readHosts(field: string, texts: readonly string[], checks: Checks): Address[] {
  return bounded(field, texts, { count: MAX_ADDRESSES_COUNT, checks }).flatMap((text, index) => {
    const address = parseAddress(text);
    checks.check(`${field}[${index}]`, address ? undefined : 'must be an IPv4 or IPv6 address without prefix length');
    return address ?? [];
  });
}

function readPrefixes(field: string, texts: readonly string[], checks: Checks): Prefix[] {
  return bounded(field, texts, { count: MAX_PREFIXES_COUNT, checks }).flatMap((text, index) => {
    const parsed = parsePrefix(text);
    if (parsed.ok) return parsed.prefix;
    checks.check(`${field}[${index}]`, parsed.fault === 'has host bits set' ? parsed.fault : `is ${parsed.fault}`);
    return [];
  });
}

interface Bound {
  readonly count: number;
  readonly checks: Checks;
}

function bounded(field: string, texts: readonly string[], { count, checks }: Bound): readonly string[] {
  if (texts.length > count) checks.check(field, `has ${texts.length} entries; at most ${count} are allowed`);
  return texts.slice(0, count);
}

const MAX_POD_UID_BYTES = 128;
const MAX_POOLS_COUNT = 64;
const MAX_LABELS_COUNT = 64;
/** Kubernetes' own bounds: a prefix of 253, a slash, and a name of 63. */
const MAX_LABEL_NAME_BYTES = 317;
const MAX_LABEL_VALUE_BYTES = 63;
const MAX_BLOCKS_COUNT = 1_000_000;

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
    checks.check(`pools[${index}]`, fault === undefined ? undefined : `${fault}; use the name or the CIDR of a pool`);
  });
  return texts;
}

/** Labels of a pod's namespace; none where there is no pod. */
export function readNamespaceLabels(message: Labels, pod: PodIdentity | undefined, checks: Checks): Labels {
  const labels = readLabels('namespace_labels', message, checks);
  const name = Object.hasOwn(labels, NAME_LABEL) ? labels[NAME_LABEL] : undefined;
  if (pod && name !== undefined && name !== pod.namespace)
    checks.check(`namespace_labels["${NAME_LABEL}"]`, `is "${name}", but the pod is in namespace "${pod.namespace}"`);
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
