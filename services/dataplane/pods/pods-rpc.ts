import {
  PodServiceService,
  type AttachedPod,
  type Bandwidth as BandwidthMessage,
  type CheckPodResponse,
  type DetachPodRequest,
  type Interface,
  type PodNetwork as PodNetworkMessage,
  type RateLimit as RateLimitMessage,
} from '@podwire/proto/podwire/dataplane/v1/pod';
import type { Attachment as AttachmentMessage } from '@podwire/proto/podwire/net/v1/attachment';
import {
  attachmentFaults,
  formatAttachment,
  interfaceNameFault,
  type Attachment,
} from '@podwire/shared/attachment/attachment';
import {
  bandwidthOf,
  checkRateLimit,
  DIRECTIONS,
  type Bandwidth,
  type RateLimit,
} from '@podwire/shared/attachment/bandwidth';
import { formatHostPortKey, hostPortText, readHostPorts } from '@podwire/shared/attachment/host-port';
import { hostInterfaceName as derivedName } from '@podwire/shared/attachment/names';
import { MAX_QUEUE_COUNT, type Difference, type PodNetwork } from '@podwire/shared/attachment/pod-network';
import { Failure } from '@podwire/shared/failure/failure';
import { familiesOf, familyBits, formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { parseMac } from '@podwire/shared/net/mac';
import {
  defaultRoute,
  formatPrefix,
  hostPrefix,
  parsePrefix,
  prefixContains,
  splitCidr,
  type Prefix,
} from '@podwire/shared/net/prefix';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import { formatPageToken, readPage, type ListScope } from '@podwire/shared/requests/paging';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Handlers, type Unary } from '@podwire/shared/rpc/unary';

import { filteredPod, type AttachmentRecord } from '../records/record.js';
import { GATEWAY, GATEWAY_ADDRESS } from '../wiring/network.js';
import type { ObservedLink } from '../wiring/observed.js';
import type { DetachRequest } from './conflicts.js';
import type { AttachedLink } from './kernel.js';
import type { PodWiring } from './pods.js';

/** Messages of the contract to values and back. Field names are the contract's, from the request's root. */

const ATTACHMENT_FIELDS: Readonly<Record<keyof Attachment, string>> = {
  network: 'network',
  containerId: 'container_id',
  interfaceName: 'interface_name',
};

const HOST_PORT_FIELDS = {
  protocol: 'protocol',
  hostPort: 'host_port',
  podPort: 'pod_port',
  hostAddress: 'host_address',
};

const RATE_LIMIT_FIELDS = { rateBitsPerSecond: 'rate_bits_per_second', burstBits: 'burst_bits' };

const MTU_MIN_BYTES = 68;
/** The kernel disables IPv6 on a link with a smaller MTU (RFC 8200, section 5). */
const IPV6_MTU_MIN_BYTES = 1280;
const MTU_MAX_BYTES = 65_535;
/** The kernel's type of the length is u32. */
const MAX_TX_QUEUE_LENGTH = 2 ** 32 - 1;

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
  const addresses = pod.addresses.map((cidr, position) => readAddress(cidr, `pod.addresses[${position}]`, check));
  const routes = readPrefixes(pod.routes, 'pod.routes', check);
  const sourcePrefixes = readPrefixes(pod.sourcePrefixes, 'pod.source_prefixes', check);
  const reportHostPort = (field: string, reason: string) => check?.check(`pod.host_ports${field}`, reason);
  const hostPorts = readHostPorts(pod.hostPorts, reportHostPort, HOST_PORT_FIELDS);
  const network = {
    netns: pod.netns,
    hostInterfaceName: pod.hostInterfaceName,
    mtuBytes: zeroAsUndefined(pod.mtuBytes),
    ipForwarding: pod.ipForwarding,
    txQueueLength: zeroAsUndefined(pod.txQueueLength),
    queueCount: zeroAsUndefined(pod.queueCount),
    ...(pod.addressesFromIpam === true && { addressesFromIpam: true as const }),
    ...bandwidthField(pod.bandwidth),
  };
  if (check) checkNetwork({ ...network, mac: pod.macAddress, addresses, routes, sourcePrefixes, hostPorts }, check);
  const known = addresses.flatMap((address) => address ?? []);
  return {
    ...network,
    attachment,
    mac: parseMac(pod.macAddress) ?? '',
    addresses: known,
    routes: routes.length > 0 ? routes.flatMap((route) => route ?? []) : familiesOf(known).map(defaultRoute),
    sourcePrefixes: sourcePrefixes.flatMap((prefix) => prefix ?? []),
    hostPorts,
  };
}

/** Checks a network that this process made like the networks of requests. @throws Failure INVALID_REQUEST */
export function checkedNetwork(method: string, network: PodNetwork): PodNetwork {
  return readChecked(method, (checks) => {
    readAttachment(network.attachment, { at: 'pod.attachment', check: checks });
    checkNetwork(network, checks);
    return network;
  });
}

type CheckedFields =
  'netns' | 'hostInterfaceName' | 'mac' | 'mtuBytes' | 'txQueueLength' | 'queueCount' | 'hostPorts' | 'bandwidth';

/** Checked fields of a network; undefined stands for a text that is reported already. */
interface CheckedNetwork extends Pick<PodNetwork, CheckedFields> {
  readonly addresses: readonly (Address | undefined)[];
  readonly routes: readonly (Prefix | undefined)[];
  readonly sourcePrefixes: readonly (Prefix | undefined)[];
}

function checkNetwork(network: CheckedNetwork, checks: Checks): void {
  const { netns, hostInterfaceName, mac, addresses, routes, sourcePrefixes, mtuBytes = 0 } = network;
  const families = familiesOf(addresses.flatMap((address) => address ?? []));
  checks.check('pod.netns', netnsFault(netns));
  checks.check('pod.host_interface_name', hostInterfaceNameFault(hostInterfaceName));
  checks.check('pod.mac_address', macFault(mac));
  if (addresses.length === 0) checks.check('pod.addresses', 'is empty; a pod has at least one address');
  checkEach(
    'pod.addresses',
    addresses.map((address) => address && hostPrefix(address)),
    unusableFault,
    checks,
  );
  checks.check('pod.mtu_bytes', mtuFault(mtuBytes, families));
  checks.check('pod.tx_queue_length', countFault(network.txQueueLength, MAX_TX_QUEUE_LENGTH));
  checks.check('pod.queue_count', countFault(network.queueCount, MAX_QUEUE_COUNT));
  for (const direction of DIRECTIONS) {
    const limit = network.bandwidth?.[direction];
    const field = (name: keyof RateLimit) => `pod.bandwidth.${direction}.${RATE_LIMIT_FIELDS[name]}`;
    if (limit) checkRateLimit(limit, (name, reason) => checks.check(field(name), reason));
  }
  // Families are unknown for addresses that could not be read.
  const familyFault = ({ family }: Prefix) =>
    families.length > 0 && !families.includes(family)
      ? `is of IPv${family}, but the pod has no IPv${family} address`
      : undefined;
  checkEach('pod.routes', routes, (route) => familyFault(route) ?? routeFault(route), checks);
  checkEach('pod.source_prefixes', sourcePrefixes, (prefix) => familyFault(prefix) ?? unusableFault(prefix), checks);
  for (const { hostAddress, ...hostPort } of network.hostPorts)
    if (hostAddress)
      checks.check(
        `pod.host_ports ${formatHostPortKey({ hostAddress, ...hostPort })}`,
        familyFault(hostPrefix(hostAddress)),
      );
}

function checkEach(
  field: string,
  list: readonly (Prefix | undefined)[],
  faultOf: (prefix: Prefix) => string | undefined,
  checks: Checks,
): void {
  const texts = list.map((prefix) => prefix && formatPrefix(prefix));
  for (const [position, prefix] of list.entries()) {
    if (!prefix) continue;
    const first = texts.indexOf(texts[position]);
    const repeatFault = first < position ? `repeats [${first}]` : undefined;
    checks.check(`${field}[${position}]`, faultOf(prefix) ?? repeatFault);
  }
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
  hostPorts: [],
  txQueueLength: 0,
  queueCount: 0,
};

/** A network's bandwidth, unchecked; no field without a limit. */
function bandwidthField(message: BandwidthMessage | undefined): Pick<PodNetwork, 'bandwidth'> {
  const limit = (each: RateLimitMessage | undefined): RateLimit | undefined =>
    each && {
      rateBitsPerSecond: Number(each.rateBitsPerSecond),
      burstBits: zeroAsUndefined(Number(each.burstBits)),
    };
  const bandwidth = bandwidthOf(limit(message?.ingress), limit(message?.egress));
  return bandwidth ? { bandwidth } : {};
}

/** The contract's form of a network's bandwidth. */
export function bandwidthMessage(bandwidth: Bandwidth | undefined): BandwidthMessage | undefined {
  const message = (limit: RateLimit | undefined): RateLimitMessage | undefined =>
    limit && {
      rateBitsPerSecond: BigInt(limit.rateBitsPerSecond),
      burstBits: BigInt(limit.burstBits ?? 0),
    };
  return bandwidth && { ingress: message(bandwidth.ingress), egress: message(bandwidth.egress) };
}

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

function macFault(mac: string): string | undefined {
  return parseMac(mac) === undefined ? `is ${quote(mac)}: not a unicast MAC address` : undefined;
}

function countFault(count: number | undefined, max: number): string | undefined {
  const isCount = count === undefined || (Number.isInteger(count) && count >= 0 && count <= max);
  return isCount ? undefined : `is ${count}; it has to be 0, or from 1 to ${max}`;
}

function readAddress(cidr: string, field: string, check: Checks | undefined): Address | undefined {
  const parts = splitCidr(cidr);
  if (!parts) check?.check(field, `is ${quote(cidr)}: not a CIDR like 10.65.0.7/32`);
  else if (parts.length !== familyBits(parts.address.family))
    check?.check(field, `is ${quote(cidr)}: its length has to be ${familyBits(parts.address.family)}`);
  else return parts.address;
  return undefined;
}

function readPrefixes(cidrs: readonly string[], field: string, check: Checks | undefined): (Prefix | undefined)[] {
  return cidrs.map((cidr, position) => {
    const parsed = parsePrefix(cidr);
    if (parsed.ok) return parsed.prefix;
    check?.check(`${field}[${position}]`, `is ${quote(cidr)}: ${parsed.fault}`);
    return undefined;
  });
}

function contains(range: string, inner: Prefix): boolean {
  const parsed = parsePrefix(range);
  return parsed.ok && prefixContains(parsed.prefix, inner);
}

function routeFault(prefix: Prefix): string | undefined {
  const { family, length, value } = prefix;
  const isGateway = length === familyBits(family) && value === GATEWAY_ADDRESS[family].value;
  if (isGateway) return `is ${GATEWAY[family]}, the gateway itself; every pod already has a route to it`;
  const unroutable = UNROUTABLE.find((range) => contains(range, prefix));
  return unroutable && `is in ${unroutable}, which cannot be routed through a gateway`;
}

function unusableFault(prefix: Prefix): string | undefined {
  const unusable = UNUSABLE.find(([range]) => contains(range, prefix));
  const text = prefix.length === familyBits(prefix.family) ? formatAddress(prefix) : formatPrefix(prefix);
  return unusable && `is ${text}, in ${unusable[0]}, which is reserved for ${unusable[1]}`;
}

function quote(text: string): string {
  return JSON.stringify(text);
}

function interfaceMessage({ name, index, mac, mtuBytes }: ObservedLink): Interface {
  return { name, index, macAddress: mac ?? '', mtuBytes };
}

interface PodServiceDeps {
  readonly dataplane: PodWiring;
  readonly recorded: RecordLookup;
}

export function podService({ dataplane, recorded }: PodServiceDeps, unary: Unary): RpcService {
  return unaryService(PodServiceService, unary, {
    attachPod: async ({ pod }, { signal }) => {
      const network = readChecked('AttachPod', (checks) => readPodNetwork(pod, checks));
      const attached = await dataplane.attach(network, signal);
      return {
        hostInterface: interfaceMessage(attached.host),
        podInterface: interfaceMessage(attached.pod),
        changes: attached.changes,
      };
    },
    detachPod: detachPod(dataplane),
    checkPod: async (request, { signal }) =>
      differencesMessage(await dataplane.check(wantedNetwork('CheckPod', request, recorded), signal)),
    repairPod: async (request, { signal }) =>
      differencesMessage(await dataplane.repair(wantedNetwork('RepairPod', request, recorded), signal)),
    listPods: async (message) => {
      const { limit, after } = readChecked('ListPods', (checks) => readPage(message, SCOPE, checks));
      const following = (await dataplane.list()).filter(({ link }) => link.name > after);
      const links = following.slice(0, limit);
      const last = following.length > limit ? links.at(-1)?.link.name : undefined;
      return {
        pods: links.map((link) => attachedPodMessage(link, recorded)),
        nextPageToken: formatPageToken(SCOPE, last),
      };
    },
  });
}

const SCOPE: ListScope = ['pods'];

export function detachPod(dataplane: PodWiring): Handlers<PodServiceService>['detachPod'] {
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

function attachedPodMessage({ attachment, link, addresses }: AttachedLink, recorded: RecordLookup): AttachedPod {
  const record = recorded(attachment);
  const pod = record && filteredPod(record).pod;
  return {
    attachment,
    hostInterface: interfaceMessage(link),
    addresses: [...addresses],
    up: link.running,
    hostPorts: (record?.network.hostPorts ?? []).map(hostPortText),
    bandwidth: bandwidthMessage(record?.network.bandwidth),
    podNamespace: pod?.namespace ?? '',
    podName: pod?.name ?? '',
  };
}

/** Most differences in one answer: a pod can fill its namespace with thousands of routes, and messages have a size limit. */
const REPORTED_DIFFERENCES_MAX = 100;

/** The first differences of a pod, and the count of the rest. */
export function differencesMessage(found: readonly Difference[]): CheckPodResponse {
  const differences = found.slice(0, REPORTED_DIFFERENCES_MAX);
  return { differences, moreDifferences: found.length - differences.length };
}

/** The node's record of an attachment; undefined when it has none. */
export type RecordLookup = (attachment: Attachment) => Pick<AttachmentRecord, 'network' | 'allocation'> | undefined;

interface NetworkSelector {
  readonly pod: PodNetworkMessage | undefined;
  readonly recorded?: AttachmentMessage | undefined;
}

/**
 * The wanted state that a request contains or refers to.
 * @throws Failure INVALID_REQUEST, ATTACHMENT_NOT_FOUND
 */
function wantedNetwork(method: string, { pod, recorded }: NetworkSelector, recordOf: RecordLookup): PodNetwork {
  if (!recorded) return readChecked(method, (checks) => readPodNetwork(pod, checks));
  const attachment = readChecked(method, (check) => {
    check.check('recorded', pod === undefined ? undefined : 'is set together with pod; set only one of the two');
    return readAttachment(recorded, { at: 'recorded', check });
  });
  const record = recordOf(attachment);
  if (record) return record.network;
  throw notFoundFailure(attachment, 'is not recorded');
}

function notFoundFailure(attachment: Attachment, reason: string): Failure {
  const message = `${formatAttachment(attachment)} ${reason} on this node; list the node’s attachments with ListPods`;
  return new Failure('ATTACHMENT_NOT_FOUND', message);
}
