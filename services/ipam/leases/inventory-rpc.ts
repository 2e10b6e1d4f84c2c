import type {
  LeaseServiceService,
  AllocationName as NameMessage,
  InventoryAttachment,
  InventoryFinding as FindingMessage,
  ReportEndpointsRequest,
  ReportInventoryRequest,
  UnknownAllocation as UnknownMessage,
} from '@podwire/proto/podwire/ipam/v1/lease';
import { endpointNameFaults } from '@podwire/shared/attachment/names';
import { formatAddress } from '@podwire/shared/net/address';
import { parseMac } from '@podwire/shared/net/mac';
import { hostPrefix } from '@podwire/shared/net/prefix';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import type { Handlers } from '@podwire/shared/rpc/unary';

import { dateOf, readAddress, readAttachment } from '../messages/parts.js';
import { readPod, type RequirePod } from '../messages/request-parts.js';
import { subdomainFault } from '../records/names.js';
import type { AllocationName } from './bindings.js';
import type { HeldAttachment, InventoryFinding, UnknownAllocation } from './inventory.js';
import type { Leases, ReportRequest } from './leases-operations.js';
import type { EndpointReport, ReportedEndpoint } from './reported-endpoints.js';
import { readName, readSession } from './session-rpc.js';

export function reportInventoryHandler(leases: Leases): Handlers<LeaseServiceService>['reportInventory'] {
  return async (message, { signal }) => {
    const report = await leases.report(readReportRequest(message), signal);
    return {
      equal: report.isEqual,
      findings: report.findings.map(findingMessage),
      unknown: report.unknown.map(unknownMessage),
      sessionRevision: BigInt(report.sessionRevision),
    };
  };
}

export function reportEndpointsHandler(
  leases: Leases,
  requirePod: RequirePod,
): Handlers<LeaseServiceService>['reportEndpoints'] {
  return async (message, { signal, caller }) => {
    const request = readEndpointsRequest(message);
    const check = ({ pod }: ReportedEndpoint): Promise<void> => requirePod(caller, pod, signal);
    const { sessionRevision, leftOutCount } = await leases.reportEndpoints(request, signal, check);
    return { sessionRevision: BigInt(sessionRevision), leftOut: leftOutCount };
  };
}

const MAX_ENDPOINTS_COUNT = 1024;
const MAX_ADDRESSES_COUNT = 32;

function readEndpointsRequest({ nodeName, session, endpoints }: ReportEndpointsRequest): Omit<EndpointReport, 'nowMs'> {
  return readChecked('ReportEndpoints', (checks) => {
    checks.check('node_name', subdomainFault(nodeName));
    checkCount('endpoints', { count: endpoints.length, max: MAX_ENDPOINTS_COUNT }, checks);
    const read = endpoints.slice(0, MAX_ENDPOINTS_COUNT).map((message, index): ReportedEndpoint => {
      const within = checks.within(`endpoints[${index}]`);
      const attachment = readAttachment(message.attachment, within);
      const pod = message.pod && readPod(message.pod, within);
      const { addresses: hosts } = message;
      if (hosts.length > MAX_ADDRESSES_COUNT)
        within.check('addresses', `has ${hosts.length} entries; at most ${MAX_ADDRESSES_COUNT} are allowed`);
      const addresses = hosts.map(({ address }, at) => readAddress(`addresses[${at}].address`, address, within));
      const mac = parseMac(message.macAddress);
      if (mac === undefined) within.check('mac_address', 'must be a unicast MAC address');
      return { attachment, pod, addresses: addresses.map(hostPrefix), mac: mac ?? '' };
    });
    // One without a name must not hold up the rest.
    const named = read.filter(({ attachment, pod }) => endpointNameFaults(attachment, pod).length === 0);
    return { nodeName, session: readSession(session, checks), endpoints: named };
  });
}

const DIGEST_BYTES = 32;
const MAX_ATTACHMENTS_COUNT = 4096;
const MAX_LEASES_COUNT = 1024;

function readReportRequest(message: ReportInventoryRequest): ReportRequest {
  const { nodeName, session, digest, whole, attachments, leases } = message;
  return readChecked('ReportInventory', (checks) => {
    checks.check('node_name', subdomainFault(nodeName));
    if (digest.length !== DIGEST_BYTES) checks.check('digest', `has ${digest.length} bytes; must have ${DIGEST_BYTES}`);
    checkCount('attachments', { count: attachments.length, max: MAX_ATTACHMENTS_COUNT }, checks);
    checkCount('leases', { count: leases.length, max: MAX_LEASES_COUNT }, checks);
    const read = attachments
      .slice(0, MAX_ATTACHMENTS_COUNT)
      .map((each, index) => readHeld(each, checks.within(`attachments[${index}]`)));
    const names = leases.slice(0, MAX_LEASES_COUNT).map((each, index) => readName(`leases[${index}]`, each, checks));
    return {
      nodeName,
      session: readSession(session, checks),
      digest: Buffer.from(digest),
      inventory: whole ? { attachments: read, leases: names } : undefined,
    };
  });
}

function checkCount(field: string, { count, max }: { readonly count: number; readonly max: number }, checks: Checks) {
  if (count > max) checks.check(field, `has ${count} entries; at most ${max} are allowed`);
}

function readHeld({ attachment, pod, addresses, ended }: InventoryAttachment, checks: Checks): HeldAttachment {
  return {
    attachment: readAttachment(attachment, checks),
    pod: pod && readPod(pod, checks),
    addresses: addresses.map((name, index) => readName(`addresses[${index}]`, name, checks)),
    isEnded: ended,
  };
}

function nameMessage({ address, sequenceNumber }: AllocationName): NameMessage {
  return { address: formatAddress(address), sequenceNumber };
}

function findingMessage({ attachment, allocation, holder, currentSequenceNumber }: InventoryFinding): FindingMessage {
  return { attachment, allocation: nameMessage(allocation), holder, currentSequenceNumber };
}

function unknownMessage({ attachment, allocation, netns, allocatedAtMs }: UnknownAllocation): UnknownMessage {
  return { attachment, allocation: nameMessage(allocation), netns, allocateTime: dateOf(allocatedAtMs) };
}
