import { AddressReleaseResult, IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import type {
  AddressBinding,
  AddressReturn,
  BindAddressesRequest,
  BindingResult,
  LeaseAddressesResponse,
  ReturnAddressesRequest,
} from '@podwire/proto/podwire/ipam/v1/lease';
import type { AttachmentRecord } from '@podwire/dataplane/records/record';
import type { AllocatedAddress } from '@podwire/shared/attachment/allocation';
import { Failure } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';

import type { LeaseApi } from './lease-api.js';
import type { IpamSession } from './session.js';

/** Most bindings or returns of a request, and most leases, by the contract. */
export const MAX_BATCH_COUNT = 256;
const MAX_LEASES_COUNT = 256;

const FAMILY: Readonly<Record<Family, IpFamily>> = { 4: IpFamily.IP_FAMILY_IPV4, 6: IpFamily.IP_FAMILY_IPV6 };

/** Makes the node hold this many unbound leases of a family, if there are enough. */
export function leaseAddresses(
  session: IpamSession,
  family: Family,
  count: number,
  signal: AbortSignal,
): Promise<LeaseAddressesResponse> {
  const { nodeName, bootId } = session;
  const request = { nodeName, bootId, family: FAMILY[family], count: Math.min(count, MAX_LEASES_COUNT) };
  return session.call((api, own) => api.leaseAddresses({ ...request, session: own }, signal), signal);
}

/** Binds addresses to attachments. @returns the result of each */
export function bindAddresses(
  session: IpamSession,
  bindings: AddressBinding[],
  signal: AbortSignal,
): Promise<BindingResult[]> {
  const { nodeName } = session;
  const call = async (part: AddressBinding[]): Promise<BindingResult[]> => {
    const send = (api: LeaseApi, own: BindAddressesRequest['session']) =>
      api.bindAddresses({ nodeName, bindings: part, session: own }, signal);
    const { results } = await session.call(send, signal);
    return part.map((_, index) => results[index] ?? refusal('INTERNAL', 'podwire-ipam sent no result'));
  };
  return callInParts(bindings, call, ({ code, message }) => refusal(code, message));
}

function refusal(refusalCode: string, text: string): BindingResult {
  return { endpoint: undefined, refusalCode, refusal: text };
}

/** The result of the return of an address. */
export interface ReturnResult {
  /** Whether it is gone or belongs to another holder. */
  readonly isReturned: boolean;
  /** Sequence number of the node's lease of an address that stays one; 0 if there is none. */
  readonly leaseNumber: bigint;
}

const NOT_RETURNED: ReturnResult = { isReturned: false, leaseNumber: 0n };

/**
 * Returns addresses.
 * @param atSending - called with the returns when the request is sent, and gives the returns to send, in the same order. While the
 * session is still being opened, pods may get the addresses; from this call on podwire-ipam may have them back
 * @returns the result of each
 */
export function returnAddresses(
  session: IpamSession,
  returns: AddressReturn[],
  signal: AbortSignal,
  atSending: (part: AddressReturn[]) => AddressReturn[] = (part) => part,
): Promise<ReturnResult[]> {
  const { nodeName } = session;
  const call = async (part: AddressReturn[]): Promise<ReturnResult[]> => {
    const send = (api: LeaseApi, own: ReturnAddressesRequest['session']) =>
      api.returnAddresses({ nodeName, returns: atSending(part), session: own }, signal);
    const { results, leaseSequenceNumbers } = await session.call(send, signal);
    const { ADDRESS_RELEASE_RESULT_UNREADABLE: unreadable } = AddressReleaseResult;
    return part.map((_, index) => ({
      isReturned: results[index] !== undefined && results[index] !== unreadable,
      leaseNumber: leaseSequenceNumbers[index] ?? 0n,
    }));
  };
  return callInParts(returns, call, () => NOT_RETURNED);
}

/**
 * Calls with all items, or with fewer where podwire-ipam refuses the request as malformed: one item must not hold up the rest.
 * @param refused - the result of an item that is refused alone
 */
async function callInParts<Item, Result>(
  items: Item[],
  call: (part: Item[]) => Promise<Result[]>,
  refused: (failure: Failure) => Result,
): Promise<Result[]> {
  if (items.length === 0) return [];
  try {
    return await call(items);
  } catch (error) {
    if (!(error instanceof Failure) || error.code !== 'INVALID_REQUEST') throw error;
    if (items.length === 1) return [refused(error)];
    const middle = Math.ceil(items.length / 2);
    const first = await callInParts(items.slice(0, middle), call, refused);
    return [...first, ...(await callInParts(items.slice(middle), call, refused))];
  }
}

export function bindingOf(record: AttachmentRecord): AddressBinding {
  const { network, allocation, createdAtMs } = record;
  return {
    attachment: network.attachment,
    pod: allocation?.pod,
    netns: netnsOf(record),
    addresses: [...(allocation?.addresses ?? [])],
    attachTime: new Date(createdAtMs),
  };
}

/** The returns of an ended attachment. */
export function returnsOf(record: AttachmentRecord): AddressReturn[] {
  const { network, allocation, createdAtMs, updatedAtMs, isReused = false } = record;
  const times = { attachTime: new Date(createdAtMs), detachTime: new Date(updatedAtMs) };
  const rest = { attachment: network.attachment, netns: netnsOf(record), keepAsLease: isReused, ...times };
  return (allocation?.addresses ?? []).map((address) => ({ allocation: address, ...rest }));
}

/** The return of a lease that no pod had. */
export function leaseReturn({ address, sequenceNumber }: AllocatedAddress): AddressReturn {
  const allocation = { address, sequenceNumber };
  return { allocation, attachTime: undefined, detachTime: undefined, keepAsLease: false };
}

function netnsOf({ identity, bootId }: AttachmentRecord) {
  return { bootId, inode: identity.inode };
}
