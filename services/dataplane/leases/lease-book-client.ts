import { AddressReleaseResult, IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import { LeaseServiceService, type AddressBinding, type AddressReturn } from '@podwire/proto/podwire/ipam/v1/lease';
import type { Family } from '@podwire/shared/net/address';
import type { CallLimits, Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { AttachmentRecord } from '../pods/record.js';
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
  const bind = async (bindings: AddressBinding[], signal: AbortSignal): Promise<(string | undefined)[]> => {
    const { results } = await peer.call(bindAddresses, { nodeName, bindings }, limits(signal));
    return bindings.map((_, index) => {
      const result = results[index];
      if (!result) return `${peer.description} sent no result`;
      return result.refusalCode === '' ? undefined : result.refusal;
    });
  };
  const giveBack = async (returns: readonly AddressReturn[], signal: AbortSignal): Promise<boolean[]> => {
    const isFreed: boolean[] = [];
    for (const batch of batchesOf(returns)) {
      const { results } = await peer.call(returnAddresses, { nodeName, returns: batch }, limits(signal));
      for (const index of batch.keys())
        isFreed.push(
          results[index] !== undefined && results[index] !== AddressReleaseResult.ADDRESS_RELEASE_RESULT_UNREADABLE,
        );
    }
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
        return { allocation: { address, sequenceNumber }, attachTime: undefined, detachTime: undefined };
      });
      await giveBack(returns, signal);
    },
  };
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
  return (allocation?.addresses ?? []).map((address) => ({ allocation: address, ...rest }));
}
