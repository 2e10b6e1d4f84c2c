import { AddressReleaseResult, IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import { LeaseServiceService, type AddressBinding, type AddressReturn } from '@podwire/proto/podwire/ipam/v1/lease';
import { Failure } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';
import type { CallLimits, Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { AttachmentRecord } from '../records/record.js';
import type { LeaseBook } from './lease.js';

/** Timeout of one call to podwire-ipam; the caller retries it later. */
const CALL_TIMEOUT_MS = 5000;

/** The largest request of the contract. */
const MAX_RETURNS_COUNT = 256;
const MAX_LEASES_COUNT = 256;

const FAMILY: Readonly<Record<Family, IpFamily>> = { 4: IpFamily.IP_FAMILY_IPV4, 6: IpFamily.IP_FAMILY_IPV6 };

interface LeaseBookOptions {
  readonly peer: Pick<Peer, 'call' | 'description'>;
  readonly clock: Clock;
  readonly nodeName: string;
  readonly bootId: string;
}

/** podwire-ipam over gRPC. */
export function ipamLeaseBook({ peer, clock, nodeName, bootId }: LeaseBookOptions): LeaseBook {
  const limits = (signal: AbortSignal): CallLimits => ({ deadlineMs: clock.nowMs() + CALL_TIMEOUT_MS, signal });
  const { leaseAddresses, bindAddresses, returnAddresses } = LeaseServiceService;
  const bind = (bindings: AddressBinding[], signal: AbortSignal): Promise<(string | undefined)[]> => {
    const call = async (part: AddressBinding[]) => {
      const { results } = await peer.call(bindAddresses, { nodeName, bindings: part }, limits(signal));
      return part.map((_, index) => {
        const result = results[index];
        if (!result) return `${peer.description} sent no result`;
        return result.refusalCode === '' ? undefined : result.refusal;
      });
    };
    return callInParts(bindings, call, ({ message }) => message);
  };
  const giveBack = async (returns: readonly AddressReturn[], signal: AbortSignal): Promise<boolean[]> => {
    const call = async (part: AddressReturn[]) => {
      const { results } = await peer.call(returnAddresses, { nodeName, returns: part }, limits(signal));
      const { ADDRESS_RELEASE_RESULT_UNREADABLE: unreadable } = AddressReleaseResult;
      return part.map((_, index) => results[index] !== undefined && results[index] !== unreadable);
    };
    const isFreed: boolean[] = [];
    for (const batch of batchesOf(returns)) isFreed.push(...(await callInParts(batch, call, () => false)));
    return isFreed;
  };
  return {
    async lease(family, count, signal) {
      const request = { nodeName, bootId, family: FAMILY[family], count: Math.min(count, MAX_LEASES_COUNT) };
      const { addresses, explanation } = await peer.call(leaseAddresses, request, limits(signal));
      const leases = addresses.map(({ address, sequenceNumber, poolName, outdated }) => {
        return { address, sequenceNumber, poolName, isOutdated: outdated };
      });
      return { leases, explanation };
    },

    bind: (records, signal) => bind(records.map(bindingOf), signal),

    async adopt({ attachment, addresses }, signal) {
      const attachTime = new Date(clock.nowMs());
      const [refusal] = await bind([{ attachment, addresses: [...addresses], attachTime }], signal);
      return refusal;
    },

    async return(records, signal) {
      const returns = records.map(returnsOf);
      const isFreed = (await giveBack(returns.flat(), signal)).values();
      return returns.map((ofRecord) => ofRecord.map(() => isFreed.next().value === true).every(Boolean));
    },

    async returnLeases(leases, signal) {
      const returns = leases.map(({ address, sequenceNumber }): AddressReturn => {
        return {
          allocation: { address, sequenceNumber },
          attachTime: undefined,
          detachTime: undefined,
          keepAsLease: false,
        };
      });
      await giveBack(returns, signal);
    },
  };
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
  try {
    return await call(items);
  } catch (error) {
    if (!(error instanceof Failure) || error.code !== 'INVALID_REQUEST') throw error;
    if (items.length <= 1) return items.map(() => refused(error));
    const middle = Math.ceil(items.length / 2);
    const parts = [items.slice(0, middle), items.slice(middle)];
    const results: Result[] = [];
    for (const part of parts) results.push(...(await callInParts(part, call, refused)));
    return results;
  }
}

/**
 * Requests of the contract, in order: each names an address once. An address is returned twice when the answer to its first return
 * was lost, and the node has leased it again and given it up meanwhile.
 */
function batchesOf(returns: readonly AddressReturn[]): AddressReturn[][] {
  const batches: AddressReturn[][] = [];
  let named = new Set<string | undefined>();
  for (const each of returns) {
    const address = each.allocation?.address;
    const last = batches.at(-1);
    if (last && last.length < MAX_RETURNS_COUNT && !named.has(address)) last.push(each);
    else {
      batches.push([each]);
      named = new Set();
    }
    named.add(address);
  }
  return batches;
}

function netnsOf({ identity, bootId }: AttachmentRecord) {
  return { bootId, inode: identity.inode };
}

function bindingOf(record: AttachmentRecord): AddressBinding {
  const { network, allocation, createdAtMs } = record;
  return {
    attachment: network.attachment,
    pod: allocation?.pod,
    netns: netnsOf(record),
    addresses: [...(allocation?.addresses ?? [])],
    attachTime: new Date(createdAtMs),
  };
}

function returnsOf(record: AttachmentRecord): AddressReturn[] {
  const { network, allocation, createdAtMs, updatedAtMs } = record;
  const times = { attachTime: new Date(createdAtMs), detachTime: new Date(updatedAtMs) };
  const rest = { attachment: network.attachment, netns: netnsOf(record), ...times };
  return (allocation?.addresses ?? []).map((address) => ({ allocation: address, keepAsLease: false, ...rest }));
}
