import type { Attachment } from '@podwire/shared/attachment/attachment';
import type { Address } from '@podwire/shared/net/address';
import { hostPrefix } from '@podwire/shared/net/prefix';

import { getEndpoint } from '../allocator/listing.js';
import type { AskedAllocation, Endpoint } from '../allocator/records.js';
import {
  continueAddressRelease,
  type AddressHolder,
  type AddressRelease,
  type AddressReleaseResult,
} from '../allocator/release-addresses.js';
import { setAttributes, type AttributesChange } from '../allocator/set-attributes.js';
import { blockOf, unreadableBlockOf } from '../blocks/lookup.js';
import { blockLane, nodeLane, read, unknownNodes, type IpamOptions } from '../engine/updates/operation.js';
import type { View } from '../records/view.js';
import { getAddress, type AddressReport } from './addresses.js';
import { allocate, type Allocation } from './allocate.js';
import { release, releasedWith, type Released } from './release.js';

/** Gives addresses to attachments and takes them back. */
export class Addresses {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  /** Gives an attachment its addresses. Idempotent. @throws Failure as the decision `allocate` does */
  async allocate(asked: AskedAllocation, signal: AbortSignal): Promise<Allocation> {
    const { updates, events, clock } = this.#options;
    const nowMs = clock.nowMs();
    const request = { unknownNodes: unknownNodes(this.#options), ...asked };
    try {
      const lane = nodeLane(request.nodeName);
      const allocation = await updates.update(lane, (view) => allocate(view, { request, nowMs }), { signal });
      if (allocation.added.length > 0) events.addressesAllocated(allocation);
      else events.allocationRepeated(allocation);
      return allocation;
    } catch (error) {
      events.allocationFailed(error);
      throw error;
    }
  }

  /** Gives back all that an attachment holds. Idempotent. */
  async release(attachment: Attachment, signal: AbortSignal): Promise<Released> {
    const { updates, events, clock } = this.#options;
    const lane = await updates.peek((view) => laneOf(view, attachment));
    const nowMs = clock.nowMs();
    const released = await updates.update(lane, (view) => release(view, attachment, nowMs), { signal });
    events.addressesReleased(released.addresses);
    return released;
  }

  /**
   * Gives back addresses by themselves, in as many transactions as it takes. Idempotent.
   * @param releases - no address twice
   * @returns what became of each, in their order
   */
  async releaseEach(releases: readonly AddressRelease[], signal: AbortSignal): Promise<AddressReleaseResult[]> {
    const lanes = await this.#options.updates.peek((view) => byLane(view, releases));
    const results = new Map<AddressRelease, AddressReleaseResult>();
    await Promise.all(
      [...lanes].map(async ([lane, wanted]) => {
        const given = await this.#releaseInLane(lane, wanted, signal);
        for (const [index, release] of wanted.entries()) {
          const result = given[index];
          if (result) results.set(release, result);
        }
      }),
    );
    return releases.flatMap((release) => results.get(release) ?? []);
  }

  /** What is known of an address. */
  get(address: Address, signal: AbortSignal): Promise<AddressReport> {
    const nowMs = this.#options.clock.nowMs();
    return read(this.#options, (view) => getAddress(view, address, nowMs), signal);
  }

  /** Replaces what the owner of an address says of itself. @throws Failure ADDRESS_NOT_ALLOCATED, ALLOCATION_MISMATCH */
  async setAttributes(change: AttributesChange, signal: AbortSignal): Promise<AddressHolder> {
    const { updates, events } = this.#options;
    const lane = await updates.peek((view) => blockLane(blockOf(view, change.address)));
    const holder = await updates.update(lane, (view) => setAttributes(view, change), { signal });
    events.attributesSet(change.address);
    return holder;
  }

  /** @throws Failure ENDPOINT_NOT_FOUND */
  getEndpoint(attachment: Attachment, signal: AbortSignal): Promise<Endpoint> {
    return read(this.#options, (view) => getEndpoint(view, attachment), signal);
  }

  async #releaseInLane(
    lane: string,
    wanted: readonly AddressRelease[],
    signal: AbortSignal,
  ): Promise<AddressReleaseResult[]> {
    const { updates, events, clock } = this.#options;
    const results: AddressReleaseResult[] = [];
    while (results.length < wanted.length) {
      const releases = wanted.slice(results.length);
      const step = { releases, nowMs: clock.nowMs() };
      // An address that turns out to be nobody's is not compared at the commit: only a fresh view tells that nobody got it since.
      const isFresh = releases.length > 1;
      const given = await updates.update(lane, (view) => continueAddressRelease(view, step), { signal, isFresh });
      const released = releases.filter((_, index) => given.results[index]?.state === 'released');
      events.addressesReleased(released.map(({ address }) => hostPrefix(address)));
      results.push(...given.results);
    }
    return results;
  }
}

function laneOf(view: View, attachment: Attachment): string {
  const [held] = releasedWith(view, attachment);
  return blockLane(held?.block);
}

/** The releases of a block share its lane, and lanes do not wait for each other. */
function byLane(view: View, releases: readonly AddressRelease[]): Map<string, AddressRelease[]> {
  const lanes = new Map<string, AddressRelease[]>();
  for (const release of releases) {
    const { address } = release;
    const lane = blockLane(unreadableBlockOf(view, address) ? undefined : blockOf(view, address));
    const others = lanes.get(lane);
    if (others) others.push(release);
    else lanes.set(lane, [release]);
  }
  return lanes;
}
