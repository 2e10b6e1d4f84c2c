import type {
  AttachedPod,
  AttachPodRequest,
  AttachPodResponse,
  CheckPodRequest,
  CheckPodResponse,
  CollectGarbageRequest,
  CollectGarbageResponse,
  DetachPodRequest,
  DetachPodResponse,
  GetPodRequest,
  GetPodResponse,
  Interface,
  ListPodsRequest,
  ListPodsResponse,
  PodNetwork as PodNetworkMessage,
  RepairPodRequest,
  RepairPodResponse,
} from '@podwire/proto/podwire/dataplane/v1/pod';
import type { Attachment as AttachmentMessage } from '@podwire/proto/podwire/net/v1/attachment';
import {
  attachmentFaults,
  formatAttachment,
  identifierFault,
  interfaceNameFault,
  MAX_NETWORK_BYTES,
  type Attachment,
} from '@podwire/shared/attachment/attachment';
import { hostInterfaceName as derivedName } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { familyBits, formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { parseMac } from '@podwire/shared/net/mac';
import {
  defaultRoute,
  formatPrefix,
  parsePrefix,
  prefixContains,
  splitCidr,
  type Prefix,
} from '@podwire/shared/net/prefix';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import { formatPageToken, readPageSize, readPageToken, type ListScope } from '@podwire/shared/requests/paging';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Difference } from '../wiring/difference.js';
import { familiesOf, GATEWAY, GATEWAY_ADDRESS, type PodNetwork } from '../wiring/network.js';
import type { ObservedLink } from '../wiring/observed.js';
import type { DetachRequest, PageRequest } from './conflicts.js';
import type { GarbageCollector, GarbageRequest } from './garbage.js';
import type { AttachedLink } from './kernel.js';
import type { Dataplane } from './pods.js';

/** Messages of the contract to values and back. Field names are those of the contract, from the request's root. */

const ATTACHMENT_FIELDS: Readonly<Record<keyof Attachment, string>> = {
  network: 'network',
  containerId: 'container_id',
  interfaceName: 'interface_name',
};

const MTU_MIN_BYTES = 68;
/** With a smaller MTU the kernel disables IPv6 on the link (RFC 8200, section 5). */
const IPV6_MTU_MIN_BYTES = 1280;
const MTU_MAX_BYTES = 65_535;
const QUEUE_COUNT_MAX = 4096;

/** Ranges that no pod address can be in, each with its purpose. */
const UNUSABLE: readonly (readonly [cidr: string, purpose: string])[] = [
  ['0.0.0.0/8', '"this network"'],
  ['127.0.0.0/8', 'loopback'],
  ['169.254.0.0/16', 'link-local addresses, the pods’ gateway among them'],
  ['224.0.0.0/4', 'multicast'],
  ['240.0.0.0/4', 'future use, and broadcast'],
  ['::/96', 'loopback, and addresses that represent IPv4 ones'],
  ['fe80::/10', 'link-local addresses, the pods’ gateway among them'],
  ['ff00::/8', 'multicast'],
];

/** IPv6 destinations that cannot have a gateway. The kernel has its own routes to them on every link. */
const UNROUTABLE: readonly string[] = ['::/96', 'fe80::/10', 'ff00::/8'];

/** Reads the pod of a request; records faults in the checks. */
export function readPodNetwork(message: PodNetworkMessage | undefined, checks: Checks): PodNetwork {
  if (!message) checks.check('pod', 'is missing');
  const pod = message ?? ABSENT_POD;
  const check = message ? checks : undefined;
  const attachment = readAttachment(pod.attachment, { at: 'pod.attachment', check });
  check?.check('pod.netns', netnsFault(pod.netns));
  check?.check('pod.host_interface_name', hostInterfaceNameFault(pod.hostInterfaceName));
  const mac = parseMac(pod.macAddress);
  check?.check(
    'pod.mac_address',
    mac === undefined ? `is ${quote(pod.macAddress)}: not a unicast MAC address` : undefined,
  );
  const addresses = readAddresses(pod.addresses, check);
  check?.check('pod.mtu_bytes', mtuFault(pod.mtuBytes, familiesOf(addresses)));
  check?.check('pod.queue_count', queueCountFault(pod.queueCount));
  return {
    attachment,
    netns: pod.netns,
    hostInterfaceName: pod.hostInterfaceName,
    mac: mac ?? '',
    addresses,
    routes:
      pod.routes.length > 0
        ? readPrefixes(pod.routes, { at: 'pod.routes', addresses, check, faultOf: routeFault })
        : familiesOf(addresses).map(defaultRoute),
    mtuBytes: zeroAsUndefined(pod.mtuBytes),
    ipForwarding: pod.ipForwarding,
    sourcePrefixes: readPrefixes(pod.sourcePrefixes, {
      at: 'pod.source_prefixes',
      addresses,
      check,
      faultOf: sourcePrefixFault,
    }),
    txQueueLength: zeroAsUndefined(pod.txQueueLength),
    queueCount: zeroAsUndefined(pod.queueCount),
    ...(pod.addressesFromIpam === true && { addressesFromIpam: true }),
  };
}

const ABSENT_POD: PodNetworkMessage = {
  attachment: undefined,
  netns: '',
  hostInterfaceName: '',
  macAddress: '',
  addresses: [],
  routes: [],
  mtuBytes: 0,
  ipForwarding: false,
  sourcePrefixes: [],
  txQueueLength: 0,
  queueCount: 0,
};

/** The contract uses zero for an absent value. */
function zeroAsUndefined(value: number): number | undefined {
  return value === 0 ? undefined : value;
}

interface FieldContext {
  /** Path of the message's field. */
  readonly at: string;
  /** Undefined: the enclosing message is missing, which is already reported. */
  readonly check: Checks | undefined;
}

export function readAttachment(message: AttachmentMessage | undefined, { at, check }: FieldContext): Attachment {
  const { network = '', containerId = '', interfaceName = '' } = message ?? {};
  const attachment = { network, containerId, interfaceName };
  if (!message) check?.check(at, 'is missing');
  else
    for (const { field, reason } of attachmentFaults(attachment))
      check?.check(`${at}.${ATTACHMENT_FIELDS[field]}`, reason);
  return attachment;
}

/** Why the name is invalid for a link of the node, or undefined. */
function hostInterfaceNameFault(name: string): string | undefined {
  return name === 'lo' ? 'is the loopback interface; choose another name' : interfaceNameFault(name);
}

/** Why the path is invalid for a pod's network namespace, or undefined. */
function netnsFault(path: string): string | undefined {
  if (path === '') return 'is empty; pass the path of the pod’s network namespace (CNI_NETNS)';
  if (path.includes('\0')) return 'contains a zero byte';
  return path.startsWith('/') ? undefined : `is ${quote(path)}: not an absolute path`;
}

function mtuFault(mtuBytes: number, families: readonly Family[]): string | undefined {
  const leastBytes = families.includes(6) ? IPV6_MTU_MIN_BYTES : MTU_MIN_BYTES;
  if (mtuBytes === 0 || (mtuBytes >= leastBytes && mtuBytes <= MTU_MAX_BYTES)) return undefined;
  const why = leastBytes > MTU_MIN_BYTES && mtuBytes >= MTU_MIN_BYTES ? ' for a pod with IPv6 addresses' : '';
  return `is ${mtuBytes}; it has to be 0 or from ${leastBytes} to ${MTU_MAX_BYTES}${why}`;
}

function queueCountFault(count: number): string | undefined {
  return count > QUEUE_COUNT_MAX ? `is ${count}; it has to be 0, or from 1 to ${QUEUE_COUNT_MAX}` : undefined;
}

function readAddresses(cidrs: readonly string[], check: Checks | undefined): Address[] {
  if (cidrs.length === 0) check?.check('pod.addresses', 'is empty; a pod has at least one address');
  return cidrs.flatMap((cidr, position) => {
    const parts = splitCidr(cidr);
    check?.check(`pod.addresses[${position}]`, addressFault(cidr, parts) ?? repeatFault(cidrs, position));
    return parts ? [parts.address] : [];
  });
}

function addressFault(cidr: string, parts: ReturnType<typeof splitCidr>): string | undefined {
  if (!parts) return `is ${quote(cidr)}: not a CIDR like 10.65.0.7/32`;
  const { address, length } = parts;
  if (length !== familyBits(address.family))
    return `is ${quote(cidr)}: its length has to be ${familyBits(address.family)}`;
  const unusable = UNUSABLE.find(([range]) => contains(range, address));
  return unusable && `is ${formatAddress(address)}, in ${unusable[0]}, which is reserved for ${unusable[1]}`;
}

function contains(range: string, inner: Address | Prefix): boolean {
  const parsed = parsePrefix(range);
  return parsed.ok && prefixContains(parsed.prefix, inner);
}

interface PrefixList {
  /** Path of the message's field. */
  readonly at: string;
  readonly addresses: readonly Address[];
  readonly check: Checks | undefined;
  /** The fault of a prefix in a family that the pod has an address of. */
  readonly faultOf: (prefix: Prefix) => string | undefined;
}

function readPrefixes(cidrs: readonly string[], { at, addresses, check, faultOf }: PrefixList): Prefix[] {
  const families = familiesOf(addresses);
  // Families are unknown for addresses that could not be read.
  const isOtherFamily = ({ family }: Prefix) => families.length > 0 && !families.includes(family);
  const fault = (prefix: Prefix) =>
    isOtherFamily(prefix)
      ? `is of IPv${prefix.family}, but the pod has no IPv${prefix.family} address`
      : faultOf(prefix);
  return cidrs.flatMap((cidr, position) => {
    const parsed = parsePrefix(cidr);
    const reason = parsed.ok ? fault(parsed.prefix) : `is ${quote(cidr)}: ${parsed.fault}`;
    check?.check(`${at}[${position}]`, reason ?? repeatFault(cidrs, position));
    return parsed.ok ? [parsed.prefix] : [];
  });
}

function routeFault(prefix: Prefix): string | undefined {
  const { family, length, value } = prefix;
  const isGateway = length === familyBits(family) && value === GATEWAY_ADDRESS[family].value;
  if (isGateway) return `is ${GATEWAY[family]}, the gateway itself; every pod already has a route to it`;
  const unroutable = UNROUTABLE.find((range) => contains(range, prefix));
  return unroutable && `is in ${unroutable}, which cannot be routed through a gateway`;
}

function sourcePrefixFault(prefix: Prefix): string | undefined {
  const unusable = UNUSABLE.find(([range]) => contains(range, prefix));
  return unusable && `is ${formatPrefix(prefix)}, in ${unusable[0]}, which is reserved for ${unusable[1]}`;
}

function repeatFault(list: readonly string[], position: number): string | undefined {
  const first = list.indexOf(list[position] ?? '');
  return first < position ? `repeats [${first}]` : undefined;
}

function quote(text: string): string {
  return JSON.stringify(text);
}

function interfaceMessage({ name, index, mac, mtuBytes }: ObservedLink): Interface {
  return { name, index, macAddress: mac ?? '', mtuBytes };
}

export function attachPod(dataplane: Dataplane): Handler<AttachPodRequest, AttachPodResponse> {
  return async ({ pod }, { signal }) => {
    const network = readChecked('AttachPod', (checks) => readPodNetwork(pod, checks));
    const attached = await dataplane.attach(network, signal);
    return {
      hostInterface: interfaceMessage(attached.host),
      podInterface: interfaceMessage(attached.pod),
      changes: attached.changes,
    };
  };
}

export function checkPod(
  dataplane: Dataplane,
  recorded: RecordedNetworkLookup,
): Handler<CheckPodRequest, CheckPodResponse> {
  return async (request, { signal }) => {
    const network = wantedNetwork('CheckPod', request, recorded);
    return differencesMessage(await dataplane.check(network, signal));
  };
}

export function collectGarbage(garbage: GarbageCollector): Handler<CollectGarbageRequest, CollectGarbageResponse> {
  return async (message, { signal }) => {
    const { removed, failed } = await garbage.collect(readGarbageRequest(message), signal);
    return {
      removed: [...removed],
      failures: failed.map(({ attachment, failure: { code, message: text } }) => ({ attachment, code, message: text })),
    };
  };
}

/** @throws Failure INVALID_REQUEST */
export function readGarbageRequest({ validAttachments, network }: CollectGarbageRequest): GarbageRequest {
  return readChecked('CollectGarbage', (check) => {
    if (!validAttachments) check.check('valid_attachments', 'is missing; set it to an empty list if nothing may stay');
    if (network !== '') check.check('network', identifierFault(network, MAX_NETWORK_BYTES));
    const valid = (validAttachments?.attachments ?? []).map((attachment, position) =>
      readAttachment(attachment, { at: `valid_attachments.attachments[${position}]`, check }),
    );
    return { valid, network: network === '' ? undefined : network };
  });
}

export function detachPod(dataplane: Dataplane): Handler<DetachPodRequest, DetachPodResponse> {
  return async (message, { signal }) => ({ removed: await dataplane.detach(readDetachment(message), signal) });
}

/** @throws Failure INVALID_REQUEST */
export function readDetachment({ attachment, hostInterfaceName, netns }: DetachPodRequest): DetachRequest {
  return readChecked('DetachPod', (check) => {
    if (netns !== undefined) check.check('netns', netnsFault(netns));
    if (hostInterfaceName !== '') check.check('host_interface_name', hostInterfaceNameFault(hostInterfaceName));
    const named = readAttachment(attachment, { at: 'attachment', check });
    const name = hostInterfaceName === '' ? derivedName(named) : hostInterfaceName;
    return { attachment: named, hostInterfaceName: name, netns };
  });
}

/** Fails with ATTACHMENT_NOT_FOUND when the kernel holds no pair of the attachment. */
export function getPod(dataplane: Dataplane): Handler<GetPodRequest, GetPodResponse> {
  return async (message) => {
    const attachment = readChecked('GetPod', (check) =>
      readAttachment(message.attachment, { at: 'attachment', check }),
    );
    const attached = await dataplane.find(attachment);
    if (!attached) throw notFoundFailure(attachment, 'has no veth pair');
    return { pod: attachedPodMessage(attached) };
  };
}

const SCOPE: ListScope = ['pods'];

export function listPods(dataplane: Dataplane): Handler<ListPodsRequest, ListPodsResponse> {
  return async (message) => {
    const { links, last } = await dataplane.list(readPage(message));
    return {
      pods: links.map(attachedPodMessage),
      nextPageToken: last === undefined ? '' : formatPageToken(SCOPE, last),
    };
  };
}

function readPage(message: ListPodsRequest): PageRequest {
  return readChecked('ListPods', (checks) => ({
    limit: readPageSize(message, checks),
    after: readPageToken(message, SCOPE, checks),
  }));
}

function attachedPodMessage({ attachment, link, addresses }: AttachedLink): AttachedPod {
  return { attachment, hostInterface: interfaceMessage(link), addresses: [...addresses], up: link.running };
}

export function repairPod(
  dataplane: Dataplane,
  recorded: RecordedNetworkLookup,
): Handler<RepairPodRequest, RepairPodResponse> {
  return async (request, { signal }) => {
    const network = wantedNetwork('RepairPod', request, recorded);
    return differencesMessage(await dataplane.repair(network, signal));
  };
}

/** Most differences in one answer: a pod can fill its namespace with thousands of routes, and messages have a size limit. */
const REPORTED_DIFFERENCES_MAX = 100;

/** The first differences of a pod, and the count of the rest. */
export function differencesMessage(found: readonly Difference[]): CheckPodResponse {
  const differences = found.slice(0, REPORTED_DIFFERENCES_MAX);
  return { differences, moreDifferences: found.length - differences.length };
}

/** The wanted state that the node has recorded for an attachment; undefined when it has none. */
export type RecordedNetworkLookup = (attachment: Attachment) => PodNetwork | undefined;

interface NetworkSelector {
  readonly pod: PodNetworkMessage | undefined;
  readonly recorded?: AttachmentMessage | undefined;
}

/**
 * The wanted state that a request contains or refers to.
 * @throws Failure INVALID_REQUEST, ATTACHMENT_NOT_FOUND
 */
function wantedNetwork(
  method: string,
  { pod, recorded }: NetworkSelector,
  recordOf: RecordedNetworkLookup,
): PodNetwork {
  if (!recorded) return readChecked(method, (checks) => readPodNetwork(pod, checks));
  const attachment = readChecked(method, (check) => {
    check.check('recorded', pod === undefined ? undefined : 'is set together with pod; set only one of the two');
    return readAttachment(recorded, { at: 'recorded', check });
  });
  const network = recordOf(attachment);
  if (network) return network;
  throw notFoundFailure(attachment, 'is not recorded');
}

function notFoundFailure(attachment: Attachment, reason: string): Failure {
  const message = `${formatAttachment(attachment)} ${reason} on this node; list the node’s attachments with ListPods`;
  return new Failure('ATTACHMENT_NOT_FOUND', message);
}
