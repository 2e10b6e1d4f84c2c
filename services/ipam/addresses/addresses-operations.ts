import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import type { Address, Family } from '@podwire/shared/net/address';
import { hostPrefix } from '@podwire/shared/net/prefix';
import { counted } from '@podwire/shared/words/counted';

import { blockOf, unreadableBlockOf } from '../blocks/lookup.js';
import { getEndpoint } from '../endpoints/endpoints.js';
import { blockLane, nodeLane, read, unknownNodes, type IpamOptions } from '../engine/updates/operation.js';
import type { Endpoint, EndpointAddress } from '../records/endpoint.js';
import type { View } from '../records/view.js';
import {
  getAddress,
  setAttributes,
  type AddressHolder,
  type AddressReport,
  type AttributesChange,
} from './addresses.js';
import { allocate, type Allocation, type AskedAllocation } from './allocate.js';
import { assignAddresses, type AskedAssignment, type Assignment, type Counts, type Shortage } from './assign.js';
import { explainAllocation, type ExplainedAllocation } from './preview.js';
import {
  continueAddressRelease,
  release,
  releasedWith,
  type AddressRelease,
  type AddressReleaseResult,
  type Released,
} from './release.js';

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

interface ExplainLimits {
  readonly maxBlocksCount: number;
}

/** Gives addresses to handles that are no attachments', and tells what would become of an allocation. */
export class Assignments {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  /**
   * Gives a handle addresses, in as many transactions as it takes. When a later one fails, what the earlier ones gave stays with
   * the handle, and the failure says so.
   * @throws Failure as the decision `assignAddresses` does
   */
  async assign(asked: AskedAssignment, signal: AbortSignal): Promise<Assignment> {
    const { updates, events, clock } = this.#options;
    const request = { unknownNodes: unknownNodes(this.#options), ...asked };
    const nowMs = clock.nowMs();
    const lane = asked.owner.kind === 'host' ? nodeLane(asked.owner.name) : `virtual/${asked.owner.name}`;
    const given: EndpointAddress[] = [];
    const held: EndpointAddress[] = [];
    const shortages = new Map<Family, Shortage>();
    let left: Counts | undefined;
    do {
      const step = left;
      const decided = await updates
        .update(lane, (view) => assignAddresses(view, { request, nowMs, left: step }), { signal })
        .catch((error: unknown) => {
          throw withProgress(error, asked.handleId, given.length);
        });
      given.push(...decided.given);
      held.push(...decided.held);
      for (const [family, shortage] of decided.shortages) shortages.set(family, shortage);
      left = decided.left;
      events.addressesAssigned(asked.handleId, decided.given);
    } while (left);
    return { given, held, shortages };
  }

  /** What Allocate would answer, and look at. Changes nothing. */
  explain(
    asked: AskedAllocation,
    { maxBlocksCount }: ExplainLimits,
    signal: AbortSignal,
  ): Promise<ExplainedAllocation> {
    const request = { unknownNodes: unknownNodes(this.#options), ...asked };
    const nowMs = this.#options.clock.nowMs();
    return read(this.#options, (view) => explainAllocation(view, { request, nowMs, maxBlocksCount }), signal);
  }
}

/** The failure of a step, with what the steps before it gave. */
function withProgress(error: unknown, handleId: string, givenCount: number): unknown {
  if (!(error instanceof Failure) || givenCount === 0) return error;
  const { code, message, violations, details } = error;
  const given = counted(
    givenCount,
    'address was given before that and stays',
    'addresses were given before that and stay',
  );
  const text = `${message}; ${given} with handle ${handleId}: release what it has, or ask for the rest`;
  return new Failure(code, text, { violations, details: { ...details, assigned: String(givenCount) }, cause: error });
}
