import type { Duration } from '@podwire/proto/google/protobuf/duration';
import type { IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import {
  LeaseServiceService,
  type AddressBinding as BindingMessage,
  type AddressReturn as ReturnMessage,
  type AllocationName as NameMessage,
  type BindAddressesRequest,
  type BindingResult as BindingResultMessage,
  type LeaseAddressesRequest,
  type LeasedAddress,
  type ReturnAddressesRequest,
} from '@podwire/proto/podwire/ipam/v1/lease';
import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { endpointNameFaults } from '@podwire/shared/attachment/names';
import { formatAddress, type Family } from '@podwire/shared/net/address';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary } from '@podwire/shared/rpc/unary';

import { RELEASE_RESULTS } from '../addresses/addresses-rpc.js';
import { endpointMessage } from '../endpoints/endpoints-rpc.js';
import { ATTACHMENT_FIELDS, checkUuid, FAMILIES, readAttachment, readNetns } from '../messages/parts.js';
import { readPod, type RequirePod } from '../messages/request-parts.js';
import { subdomainFault } from '../records/names.js';
import { LEASE_VALID_MS } from '../records/session.js';
import type { Binding } from './bindings.js';
import { reportEndpointsHandler, reportInventoryHandler } from './inventory-rpc.js';
import type { BindingResult, Leases, NodeCaller } from './leases-operations.js';
import type { Lease, LeaseRequest } from './leases.js';
import type { AddressReturn } from './returns.js';
import { openSessionHandler, readName, readSession } from './session-rpc.js';

export interface LeaseServiceDeps {
  readonly requirePod: RequirePod;
  /** How long nodes collect bindings and returns. */
  readonly settlement: { readonly quietMs: number; readonly longestMs: number };
}

export function leaseService(leases: Leases, unary: Unary, { requirePod, settlement }: LeaseServiceDeps): RpcService {
  return unaryService(LeaseServiceService, unary, {
    openSession: openSessionHandler(leases),
    reportInventory: reportInventoryHandler(leases),
    reportEndpoints: reportEndpointsHandler(leases, requirePod),
    leaseAddresses: async (message, { signal }) => {
      const list = await leases.lease(readLeaseRequest(message), signal);
      return {
        addresses: list.leases.map(leaseMessage),
        explanation: list.explanation,
        limit: Math.min(list.limit, LARGEST_UINT32),
        validFor: VALID_FOR,
        coolDown: durationMessage(list.coolDownMs),
        sessionRevision: BigInt(list.sessionRevision),
        settleAfter: durationMessage(settlement.quietMs),
        settleWithin: durationMessage(settlement.longestMs),
      };
    },
    bindAddresses: async (message, { signal, caller }) => {
      const { bindings, ...node } = readBindRequest(message);
      const check = ({ pod }: Binding): Promise<void> => requirePod(caller, pod, signal);
      const { results, sessionRevision } = await leases.bind(node, bindings, signal, check);
      return { results: results.map(bindingResultMessage), sessionRevision: BigInt(sessionRevision) };
    },
    returnAddresses: async (message, { signal }) => {
      const { returns, ...caller } = readReturnRequest(message);
      const { results, leaseNumbers, sessionRevision } = await leases.giveBack(caller, returns, signal);
      return {
        results: results.map(({ state }) => RELEASE_RESULTS[state]),
        leaseSequenceNumbers: [...leaseNumbers],
        sessionRevision: BigInt(sessionRevision),
      };
    },
    recallLeases: async ({ nodeName }, { signal }) => {
      readChecked('RecallLeases', (checks) => checks.check('node_name', subdomainFault(nodeName)));
      return { recalled: await leases.recall(nodeName, signal) };
    },
  });
}

const VALID_FOR = durationMessage(LEASE_VALID_MS);

const LARGEST_UINT32 = 2 ** 32 - 1;

/** Limit of leases of a node, and of bindings and returns in a request. */
const MAX_COUNT = 256;

function readLeaseRequest({ nodeName, bootId, family, count, session }: LeaseAddressesRequest): LeaseRequest {
  return readChecked('LeaseAddresses', (checks) => {
    checks.check('node_name', subdomainFault(nodeName));
    checkUuid('boot_id', bootId, checks);
    if (session && session.bootId !== bootId) checks.check('session.boot_id', 'differs from boot_id');
    if (count > MAX_COUNT) checks.check('count', `is ${count}; at most ${MAX_COUNT} are allowed`);
    return { nodeName, bootId, family: readFamily(family, checks), count, session: readSession(session, checks) };
  });
}

function readFamily(message: IpFamily, checks: Checks): Family {
  const family = FAMILIES[message];
  if (!family) checks.check('family', `is ${message}; must be 4 (IPv4) or 6 (IPv6)`);
  return family ?? 4;
}

interface BindRequest extends NodeCaller {
  readonly bindings: readonly Binding[];
}

function readBindRequest({ nodeName, session, bindings: messages }: BindAddressesRequest): BindRequest {
  return readChecked('BindAddresses', (checks) => {
    checks.check('node_name', subdomainFault(nodeName));
    checkCount('bindings', messages, checks);
    const known = new Set<string>();
    const bindings = messages.slice(0, MAX_COUNT).map((message, index) => {
      const within = checks.within(`bindings[${index}]`);
      const binding = readBinding(message, nodeName, within);
      const name = formatAttachment(binding.attachment);
      if (message.attachment && known.has(name))
        within.check('attachment', 'is repeated; bind all of its addresses together');
      known.add(name);
      return binding;
    });
    return { nodeName, session: readSession(session, checks), bindings };
  });
}

function readBinding(message: BindingMessage, nodeName: string, checks: Checks): Binding {
  const attachment = readAttachment(message.attachment, checks);
  const pod = message.pod && readPod(message.pod, checks);
  for (const { field, reason } of endpointNameFaults(attachment, pod)) checks.check(ATTACHMENT_FIELDS[field], reason);
  const netns = message.netns && readNetns('netns', message.netns, checks);
  if (message.addresses.length === 0) checks.check('addresses', 'is empty');
  const addresses = message.addresses.map((name, index) => readName(`addresses[${index}]`, name, checks));
  addresses.forEach(({ address: { family } }, index) => {
    if (addresses.slice(0, index).some(({ address }) => address.family === family))
      checks.check(`addresses[${index}]`, `is a second IPv${family} address; an attachment has one of each family`);
  });
  if (!message.attachTime) checks.check('attach_time', 'is missing');
  return { attachment, pod, netns, addresses, attachedAtMs: message.attachTime?.getTime() ?? 0 };
}

interface ReturnRequest extends NodeCaller {
  readonly returns: readonly AddressReturn[];
}

function readReturnRequest({ nodeName, session, returns: messages }: ReturnAddressesRequest): ReturnRequest {
  return readChecked('ReturnAddresses', (checks) => {
    checks.check('node_name', subdomainFault(nodeName));
    checkCount('returns', messages, checks);
    const known = new Set<string>();
    const returns = messages.slice(0, MAX_COUNT).map((message, index) => {
      const within = checks.within(`returns[${index}]`);
      const returned = readReturn(message, within);
      if (message.keepAsLease && !message.attachment) within.check('keep_as_lease', 'is set without an attachment');
      const text = formatAddress(returned.allocation.address);
      if (message.allocation && known.has(text)) within.check('allocation.address', `is ${text} a second time`);
      known.add(text);
      return returned;
    });
    return { nodeName, session: readSession(session, checks), returns };
  });
}

const NO_NAME: NameMessage = { address: '', sequenceNumber: 0n };

function readReturn(message: ReturnMessage, checks: Checks): AddressReturn {
  const allocation = readName('allocation', message.allocation ?? NO_NAME, checks);
  if (!message.attachment) {
    if (message.netns) checks.check('netns', 'is set without an attachment');
    return { allocation, use: undefined };
  }
  const attachment = readAttachment(message.attachment, checks);
  const netns = message.netns && readNetns('netns', message.netns, checks);
  if (!message.detachTime) checks.check('detach_time', 'is missing');
  const detachedAtMs = message.detachTime?.getTime() ?? 0;
  const attachedAtMs = message.attachTime?.getTime();
  return { allocation, use: { attachment, netns, attachedAtMs, detachedAtMs, isKept: message.keepAsLease } };
}

function checkCount(field: string, messages: readonly unknown[], checks: Checks): void {
  if (messages.length > MAX_COUNT)
    checks.check(field, `has ${messages.length} entries; at most ${MAX_COUNT} are allowed`);
}

function durationMessage(ms: number): Duration {
  return { seconds: BigInt(Math.floor(ms / 1000)), nanos: (ms % 1000) * 1_000_000 };
}

function leaseMessage({ address, sequenceNumber, poolName, isOutdated }: Lease): LeasedAddress {
  return { address: formatAddress(address), sequenceNumber, poolName, outdated: isOutdated };
}

function bindingResultMessage(result: BindingResult): BindingResultMessage {
  if (result.ok) return { endpoint: endpointMessage(result.endpoint), refusalCode: '', refusal: '' };
  const { code, message } = result.refusal;
  return { endpoint: undefined, refusalCode: code, refusal: message };
}
