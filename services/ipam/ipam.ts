import type { Attachment } from '@podwire/shared/attachment/attachment';
import type { Clock } from '@podwire/shared/runtime/clock';

import { allocate, type Allocation } from './allocator/allocate.js';
import { createPool, type PoolSpec } from './allocator/create-pool.js';
import { beginPoolDeletion, continuePoolDeletion, type PoolDeletion } from './allocator/delete-pool.js';
import { heldBy } from './allocator/holding.js';
import {
  getEndpoint,
  getPool,
  listBlocks,
  listPools,
  type BlockListing,
  type BlockQuery,
  type Page,
  type PoolQuery,
} from './allocator/listing.js';
import type { PoolListing } from './allocator/pools.js';
import type { AllocationRequest, Endpoint } from './allocator/records.js';
import { release, type Released } from './allocator/release.js';
import type { View } from './allocator/view.js';
import type { Events } from './events.js';
import type { Updater } from './store/update.js';

export interface IpamOptions {
  /** The compare-and-swap loop over the datastore. */
  readonly updates: Pick<Updater, 'update'>;
  readonly events: Events;
  readonly clock: Clock;
  /** Makes a UUID. */
  readonly newUid: () => string;
}

/**
 * What IPAM does, each a decision of `allocator/` handed to the store's update loop, and told to `events` once it is durable.
 * Every method fails with CONFLICT, STORE_UNAVAILABLE, DEADLINE_EXCEEDED or CANCELLED besides the failures it names.
 */
export class Ipam {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  /** Gives an attachment its addresses. Idempotent. @throws Failure NO_POOL, POOLS_EXHAUSTED */
  async allocate(request: AllocationRequest, signal: AbortSignal): Promise<Allocation> {
    const { updates, events, clock } = this.#options;
    const nowMs = clock.nowMs();
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
    const lane = await this.#read((view) => laneOf(view, attachment), signal);
    const released = await this.#options.updates.update(lane, (view) => release(view, attachment), { signal });
    this.#options.events.addressesReleased(released.addresses);
    return released;
  }

  /** @throws Failure ENDPOINT_NOT_FOUND */
  getEndpoint(attachment: Attachment, signal: AbortSignal): Promise<Endpoint> {
    return this.#read((view) => getEndpoint(view, attachment), signal);
  }

  /** Not idempotent. @throws Failure POOL_EXISTS, POOL_OVERLAP */
  async createPool(spec: PoolSpec, signal: AbortSignal): Promise<PoolListing> {
    const { updates, events, clock, newUid } = this.#options;
    const creation = { spec, uid: newUid(), nowMs: clock.nowMs() };
    const created = await updates.update(POOLS_LANE, (view) => createPool(view, creation), { signal });
    events.poolCreated(created.pool);
    return created;
  }

  /** @throws Failure POOL_NOT_FOUND */
  getPool(name: string, signal: AbortSignal): Promise<PoolListing> {
    return this.#read((view) => getPool(view, name), signal);
  }

  listPools(query: PoolQuery, signal: AbortSignal): Promise<Page<PoolListing>> {
    return this.#read((view) => listPools(view, query), signal);
  }

  /**
   * Removes a pool with its empty blocks. Several transactions: when it fails between them, the pool stays, disabled; repeat it.
   * @returns how many blocks went with it
   * @throws Failure POOL_NOT_FOUND, STALE_VERSION, POOL_IN_USE
   */
  async deletePool(deletion: PoolDeletion, signal: AbortSignal): Promise<number> {
    const { updates, events } = this.#options;
    const pool = await updates.update(POOLS_LANE, (view) => beginPoolDeletion(view, deletion), { signal });
    for (let removed = 0; ;) {
      const step = await updates.update(POOLS_LANE, (view) => continuePoolDeletion(view, pool), { signal });
      if (step.state === 'refused') throw step.failure;
      removed += step.removedBlocks;
      if (step.state === 'more') continue;
      events.poolDeleted(pool, removed);
      return removed;
    }
  }

  listBlocks(query: BlockQuery, signal: AbortSignal): Promise<Page<BlockListing>> {
    return this.#read((view) => listBlocks(view, query), signal);
  }

  #read<Result>(look: (view: View) => Result, signal: AbortSignal): Promise<Result> {
    return this.#options.updates.update(READS_LANE, (view) => ({ changes: [], outcome: look(view) }), { signal });
  }
}

/** Reads have nothing to commit, and so never wait in their lane. */
const READS_LANE = 'reads';
const POOLS_LANE = 'pools';

/** All that changes the blocks of one node goes into one lane, so that it does not lose its comparisons to itself. */
function nodeLane(nodeName: string): string {
  return `node/${nodeName}`;
}

/** The lane of the node whose block the attachment's address is from. Only a choice of the cheaper way: any lane is right. */
function laneOf(view: View, attachment: Attachment): string {
  const [held] = heldBy(view, attachment);
  return nodeLane(held?.block.owner?.name ?? '');
}
