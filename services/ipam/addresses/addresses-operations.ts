import { trace, type Counter } from '@opentelemetry/api';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';
import type { Logger } from '@podwire/shared/runtime/log';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Relief } from '../blocks/demand.js';
import { blockOf, unreadableBlockOf } from '../blocks/lookup.js';
import type { NodeInquiry } from '../blocks/running-nodes-operations.js';
import type { SilentNodes } from '../blocks/running-nodes.js';
import { getEndpoint } from '../endpoints/endpoints.js';
import type { Events } from '../engine/events.js';
import { blockLane, nodeLane, read, unknownNodes, type IpamOptions } from '../engine/updates/operation.js';
import type { HeldAddress } from '../records/block.js';
import type { Endpoint, EndpointAddress } from '../records/endpoint.js';
import { isLease } from '../records/lease.js';
import type { View } from '../records/view.js';
import {
  addressHolder,
  getAddress,
  setAttributes,
  type AddressHolder,
  type AddressReport,
  type AttributesChange,
} from './addresses.js';
import { allocate, needOf, type Allocation, type RequestedAllocation } from './allocate/allocate.js';
import { explainAllocation, type ExplainedAllocation } from './allocate/preview.js';
import {
  assignAddresses,
  needOf as needOfAssignment,
  type AssignmentRequest,
  type RequestedAssignment,
  type Assignment,
  type Counts,
  type Shortage,
} from './assign.js';
import {
  continueAddressRelease,
  release,
  addressesToRelease,
  releasable,
  type AddressRelease,
  type AddressReleaseResult,
  type Released,
} from './release.js';

/** Maximum number of addresses in one log line. */
const LOGGED_ADDRESSES = 16;

/** Reports changes of addresses after the commit: counters, log lines, and attributes of the active span. */
class AddressEvents {
  readonly #engine: Events;
  readonly #log: Logger;
  readonly #allocations: Counter;

  constructor(events: Events) {
    this.#engine = events;
    this.#log = events.log;
    this.#allocations = events.counter('podwire.ipam.allocations');
  }

  /** An attachment got its addresses, or the address of a further family. */
  addressesAllocated({ endpoint, claimed, reclaimed, replaced }: Allocation): void {
    this.#allocations.add(1, { result: 'allocated' });
    const facts = this.#describe(endpoint);
    this.#log.info(facts, `allocated ${facts['podwire.addresses'].join(', ')}`);
    this.#engine.blocksClaimed(claimed, endpoint.nodeName);
    for (const block of reclaimed)
      this.#log.info(`block ${formatPrefix(block)} was reclaimed: it was empty and belonged to another node`);
    if (replaced) this.#endpointReplaced(replaced);
  }

  /** AssignAddresses assigned addresses to a handle, or none. */
  addressesAssigned(handleId: string, addresses: readonly EndpointAddress[]): void {
    if (addresses.length === 0) return;
    const texts = addresses.slice(0, LOGGED_ADDRESSES).map(({ address }) => formatAddress(address));
    const more = addresses.length > texts.length ? ` and ${addresses.length - texts.length} more` : '';
    this.#log.info({ 'podwire.handle': handleId }, `assigned ${texts.join(', ')}${more} to handle ${handleId}`);
  }

  /** Allocate was repeated for an attachment that has its addresses. */
  allocationRepeated({ endpoint }: Allocation): void {
    this.#allocations.add(1, { result: 'repeated' });
    const facts = this.#describe(endpoint);
    this.#log.debug(facts, 'allocated already');
  }

  /** An allocation failed. The RPC server logs the failure. */
  allocationFailed(error: unknown): void {
    this.#allocations.add(1, { result: error instanceof Failure ? error.code : 'INTERNAL' });
  }

  /** The attributes of an address were replaced. */
  attributesSet(address: Address): void {
    const text = formatAddress(address);
    this.#log.info({ 'podwire.addresses': [text] }, `set the attributes of ${text}`);
  }

  #endpointReplaced(replaced: Attachment): void {
    this.#log.info(
      `replaced the endpoint of ${formatAttachment(replaced)}, which keeps its addresses until its release`,
    );
  }

  #describe(endpoint: Endpoint) {
    const facts = {
      'podwire.node': endpoint.nodeName,
      'podwire.addresses': endpoint.addresses.map(({ address }) => formatAddress(address)),
    };
    trace.getActiveSpan()?.setAttributes(facts);
    return facts;
  }
}

/** Caller of a release of single addresses. */
interface ReleaseCaller {
  /** The node that calls, as no pod there has the addresses any more; undefined for other callers. */
  readonly callingNode?: string | undefined;
  /** Nodes that were asked and did not answer. */
  readonly silent?: SilentNodes | undefined;
}

interface LaneReleases extends ReleaseCaller {
  readonly laneReleases: readonly AddressRelease[];
}

/** Allocates and releases the addresses of attachments. */
export class Addresses {
  readonly #options: IpamOptions;
  readonly #events: AddressEvents;
  readonly #relief: Relief;
  readonly #inquiry: NodeInquiry;

  constructor(options: IpamOptions, relief: Relief, inquiry: NodeInquiry) {
    this.#options = options;
    this.#events = new AddressEvents(options.events);
    this.#relief = relief;
    this.#inquiry = inquiry;
  }

  /** Allocates the addresses of an attachment. Idempotent. @throws Failure like the decision `allocate` */
  async allocate(input: RequestedAllocation, signal: AbortSignal): Promise<Allocation> {
    const { updates, clock } = this.#options;
    const request = { unknownNodes: unknownNodes(this.#options), ...input };
    const attempt = (): Promise<Allocation> => {
      const nowMs = clock.nowMs();
      return updates.update(nodeLane(request.nodeName), (view) => allocate(view, { request, nowMs }), { signal });
    };
    try {
      const allocation = await this.#relief.attempt(needOf(request, clock.nowMs()), attempt, signal);
      if (allocation.added.length > 0) this.#events.addressesAllocated(allocation);
      else this.#events.allocationRepeated(allocation);
      return allocation;
    } catch (error) {
      this.#events.allocationFailed(error);
      throw error;
    }
  }

  /** Releases all addresses of an attachment. Idempotent. */
  async release(attachment: Attachment, signal: AbortSignal): Promise<Released> {
    const { updates, events, clock } = this.#options;
    const lane = await updates.peek((view) => laneOf(view, attachment));
    const nowMs = clock.nowMs();
    const released = await updates.update(lane, (view) => release(view, attachment, nowMs), { signal });
    events.addressesReleased(released.addresses);
    return released;
  }

  /**
   * Releases single addresses for an operator: asks the nodes that run first.
   * @param releases - without duplicate addresses
   * @returns the result of each, in their order
   * @throws Failure NODE_IN_USE when pods of nodes that run have some, unless `force`
   */
  async releaseUnused(
    releases: readonly AddressRelease[],
    force: boolean,
    signal: AbortSignal,
  ): Promise<AddressReleaseResult[]> {
    const find = (view: View) => releases.map((release) => releasable(view, release));
    const before = await read(this.#options, find, signal);
    const scope = (view: View): HeldAddress[] => find(view).flatMap((held) => held ?? []);
    const silent = await this.#inquiry.ask(scope, force, signal);
    const results = await this.releaseEach(releases, signal, { silent });
    // A recalled lease was returned before its release.
    return results.map((result, index) => {
      const held = before[index];
      const isReturned = held !== undefined && isLease(held.attributes) && result.state === 'notAllocated';
      return isReturned ? { state: 'released', holder: addressHolder(held) } : result;
    });
  }

  /**
   * Releases single addresses, in several transactions if necessary. Addresses that running nodes may use are kept, except by the
   * calling node. Idempotent.
   * @param releases - without duplicate addresses
   * @returns the result of each, in their order
   */
  async releaseEach(
    releases: readonly AddressRelease[],
    signal: AbortSignal,
    caller: ReleaseCaller = {},
  ): Promise<AddressReleaseResult[]> {
    const lanes = await this.#options.updates.peek((view) => groupByLane(view, releases));
    const results = new Map<AddressRelease, AddressReleaseResult>();
    await Promise.all(
      [...lanes].map(async ([lane, laneReleases]) => {
        const laneResults = await this.#releaseInLane(lane, { laneReleases, ...caller }, signal);
        for (const [index, release] of laneReleases.entries()) {
          const result = laneResults[index];
          if (result) results.set(release, result);
        }
      }),
    );
    return releases.flatMap((release) => results.get(release) ?? []);
  }

  /** Reports the state of an address. */
  get(address: Address, signal: AbortSignal): Promise<AddressReport> {
    const nowMs = this.#options.clock.nowMs();
    return read(this.#options, (view) => getAddress(view, address, nowMs), signal);
  }

  /** Replaces the owner attributes of an address. @throws Failure ADDRESS_NOT_ALLOCATED, ALLOCATION_MISMATCH */
  async setAttributes(change: AttributesChange, signal: AbortSignal): Promise<AddressHolder> {
    const { updates } = this.#options;
    const lane = await updates.peek((view) => blockLane(blockOf(view, change.address)));
    const holder = await updates.update(lane, (view) => setAttributes(view, change), { signal });
    this.#events.attributesSet(change.address);
    return holder;
  }

  /** @throws Failure ENDPOINT_NOT_FOUND */
  getEndpoint(attachment: Attachment, signal: AbortSignal): Promise<Endpoint> {
    return read(this.#options, (view) => getEndpoint(view, attachment), signal);
  }

  async #releaseInLane(
    lane: string,
    { laneReleases, ...caller }: LaneReleases,
    signal: AbortSignal,
  ): Promise<AddressReleaseResult[]> {
    const { updates, events, clock } = this.#options;
    const results: AddressReleaseResult[] = [];
    while (results.length < laneReleases.length) {
      const releases = laneReleases.slice(results.length);
      const step = { releases, nowMs: clock.nowMs(), ...caller };
      // The commit does not compare an address that was found free. Only a fresh view shows that it has not been
      // allocated since.
      const isFresh = releases.length > 1;
      const outcome = await updates.update(lane, (view) => continueAddressRelease(view, step), { signal, isFresh });
      const released = releases.filter((_, index) => outcome.results[index]?.state === 'released');
      events.addressesReleased(released.map(({ address }) => hostPrefix(address)));
      results.push(...outcome.results);
    }
    return results;
  }
}

function laneOf(view: View, attachment: Attachment): string {
  const [held] = addressesToRelease(view, attachment);
  return blockLane(held?.block);
}

/** Releases of one block share a lane; lanes run concurrently. */
function groupByLane(view: View, releases: readonly AddressRelease[]): Map<string, AddressRelease[]> {
  const lanes = new Map<string, AddressRelease[]>();
  for (const release of releases) {
    const { address } = release;
    const lane = blockLane(unreadableBlockOf(view, address) ? undefined : blockOf(view, address));
    const queue = lanes.get(lane);
    if (queue) queue.push(release);
    else lanes.set(lane, [release]);
  }
  return lanes;
}

interface ExplainLimits {
  readonly maxBlocksCount: number;
}

/** Assigns addresses to handles that do not belong to an attachment, and previews allocations. */
export class Assignments {
  readonly #options: IpamOptions;
  readonly #events: AddressEvents;
  readonly #relief: Relief;

  constructor(options: IpamOptions, relief: Relief) {
    this.#options = options;
    this.#events = new AddressEvents(options.events);
    this.#relief = relief;
  }

  /**
   * Assigns addresses to a handle, in several transactions if necessary. If a later one fails, the handle keeps the
   * addresses of the earlier ones, and the failure says so.
   * @throws Failure like the decision `assignAddresses`
   */
  async assign(input: RequestedAssignment, signal: AbortSignal): Promise<Assignment> {
    const nowMs = this.#options.clock.nowMs();
    const request = { unknownNodes: unknownNodes(this.#options), ...input };
    const progress: Progress = { newAddresses: [], held: [], shortages: new Map() };
    const attempt = () => this.#assignMissing({ request, nowMs, progress }, signal);
    try {
      await this.#relief.attempt(needOfAssignment(request, nowMs), attempt, signal);
    } catch (error) {
      if (progress.shortages.size === 0) throw withProgress(error, input.handleId, progress.newAddresses.length);
    }
    return progress;
  }

  /** @throws Failure POOLS_EXHAUSTED after a shortage, besides the failures of the decision */
  async #assignMissing({ request, nowMs, progress }: ProgressInput, signal: AbortSignal): Promise<void> {
    const { owner, handleId } = request;
    const { newAddresses, held, shortages } = progress;
    const lane = owner.kind === 'host' ? nodeLane(owner.name) : `virtual/${owner.name}`;
    let left = missingOf(shortages);
    shortages.clear();
    do {
      const input = { request, nowMs, left };
      const decided = await this.#options.updates.update(lane, (view) => assignAddresses(view, input), { signal });
      newAddresses.push(...decided.newAddresses);
      held.push(...decided.held);
      for (const [family, shortage] of decided.shortages) shortages.set(family, shortage);
      left = decided.left;
      this.#events.addressesAssigned(handleId, decided.newAddresses);
    } while (left);
    const [shortage] = shortages.values();
    if (shortage) throw new Failure('POOLS_EXHAUSTED', shortage.text);
  }

  /** Previews an Allocate, with the pools and blocks that it considers. Changes nothing. */
  explain(
    input: RequestedAllocation,
    { maxBlocksCount }: ExplainLimits,
    signal: AbortSignal,
  ): Promise<ExplainedAllocation> {
    const request = { unknownNodes: unknownNodes(this.#options), ...input };
    const nowMs = this.#options.clock.nowMs();
    return read(this.#options, (view) => explainAllocation(view, { request, nowMs, maxBlocksCount }), signal);
  }
}

/** Progress of an assignment. */
interface Progress extends Assignment {
  readonly newAddresses: EndpointAddress[];
  readonly held: EndpointAddress[];
  readonly shortages: Map<Family, Shortage>;
}

interface ProgressInput {
  readonly request: AssignmentRequest;
  readonly nowMs: number;
  readonly progress: Progress;
}

/** @returns undefined before the first step */
function missingOf(shortages: ReadonlyMap<Family, Shortage>): Counts | undefined {
  const missing = (family: Family) => shortages.get(family)?.missingCount ?? 0;
  return shortages.size === 0 ? undefined : { 4: missing(4), 6: missing(6) };
}

/** The failure of a step, with the number of addresses of earlier steps. */
function withProgress(error: unknown, handleId: string, assignedCount: number): unknown {
  if (!(error instanceof Failure) || assignedCount === 0) return error;
  const { code, message, violations, details } = error;
  const progress = formatCount(
    assignedCount,
    'address was assigned before the failure and stays',
    'addresses were assigned before the failure and stay',
  );
  const text = `${message}; ${progress} with handle ${handleId}: release them, or request the rest`;
  return new Failure(code, text, {
    violations,
    details: { ...details, assigned: String(assignedCount) },
    cause: error,
  });
}
