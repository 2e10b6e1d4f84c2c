import { createPool, type PoolSpec } from '../allocator/create-pool.js';
import { beginPoolDeletion, continuePoolDeletion, type PoolDeletion } from '../allocator/delete-pool.js';
import { getPool, listPools, type Page, type PoolQuery } from '../allocator/listing.js';
import type { PoolListing } from '../allocator/pools.js';
import { POOLS_LANE, read, type IpamOptions } from './options.js';

/** Manages the ranges that addresses are taken from. */
export class Pools {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  /** Not idempotent. @throws Failure POOL_EXISTS, POOL_OVERLAP */
  async create(spec: PoolSpec, signal: AbortSignal): Promise<PoolListing> {
    const { updates, events, clock, newUid } = this.#options;
    const creation = { spec, uid: newUid(), nowMs: clock.nowMs() };
    const created = await updates.update(POOLS_LANE, (view) => createPool(view, creation), { signal });
    events.poolCreated(created.pool);
    return created;
  }

  /** @throws Failure POOL_NOT_FOUND */
  get(name: string, signal: AbortSignal): Promise<PoolListing> {
    return read(this.#options, (view) => getPool(view, name), signal);
  }

  list(query: PoolQuery, signal: AbortSignal): Promise<Page<PoolListing>> {
    return read(this.#options, (view) => listPools(view, query), signal);
  }

  /**
   * Removes a pool with its empty blocks. Several transactions: when it fails between them, the pool stays, disabled; repeat it.
   * @returns how many blocks went with it
   * @throws Failure POOL_NOT_FOUND, STALE_VERSION, POOL_IN_USE
   */
  async delete(deletion: PoolDeletion, signal: AbortSignal): Promise<number> {
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
}
