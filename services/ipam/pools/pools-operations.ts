import type { Counter } from '@opentelemetry/api';
import { formatPrefix } from '@podwire/shared/net/prefix';
import type { Logger } from '@podwire/shared/runtime/log';
import { formatCount } from '@podwire/shared/words/format-count';

import type { NodeInquiry } from '../blocks/running-nodes-operations.js';
import type { SilentNodes } from '../blocks/running-nodes.js';
import type { Events } from '../engine/events.js';
import { POOLS_LANE, read, type IpamOptions } from '../engine/updates/operation.js';
import { isLease } from '../records/lease.js';
import type { Page, PageQuery } from '../records/page.js';
import type { Pool } from '../records/pool.js';
import type { Decision, View } from '../records/view.js';
import {
  createPool,
  splitPool,
  updatePool,
  type PoolChange,
  type PoolSplit,
  type PoolSplitRequest,
  type PoolUpdate,
} from './changes.js';
import {
  beginPoolDeletion,
  continuePoolDeletion,
  continuePoolRelease,
  heldInPool,
  NO_HOLDERS,
  type PoolDeleted,
  type PoolDeletionProgress,
  type PoolDeletionRequest,
  type PoolDeletionStep,
} from './deletion.js';
import { PoolForecast } from './forecast.js';
import { getPool, listPools, type PoolListing } from './pools.js';
import type { PoolSpec } from './rules.js';

/**
 * Maximum attempts of a deletion while the view lacks changes of other replicas. After that the background finishes it.
 */
const MAX_ATTEMPTS = 5;

/** Reports changes of pools after the commit. */
export class PoolEvents {
  readonly #log: Logger;
  readonly #upkeepFailures: Counter;

  constructor(events: Events) {
    this.#log = events.log;
    this.#upkeepFailures = events.upkeepFailures;
  }

  poolCreated({ name, prefix, blockSizeBits }: Pool): void {
    const text = `created pool "${name}" ${formatPrefix(prefix)} with blocks of /${blockSizeBits}`;
    this.#log.info({ 'podwire.pool': name }, text);
  }

  poolUpdated({ name, prefix }: Pool): void {
    this.#log.info({ 'podwire.pool': name }, `changed pool "${name}" ${formatPrefix(prefix)}`);
  }

  poolSplit({ name, prefix }: Pool, partsCount: number): void {
    this.#log.info({ 'podwire.pool': name }, `split pool "${name}" ${formatPrefix(prefix)} into ${partsCount}`);
  }

  /** A pool is being deleted and waits for the release of its addresses. */
  poolDraining({ name, prefix }: Pool): void {
    this.#log.info(
      { 'podwire.pool': name },
      `pool "${name}" ${formatPrefix(prefix)} is being deleted and waits for the release of its addresses`,
    );
  }

  poolDeleted({ name, prefix }: Pool, removedBlocksCount: number): void {
    const text = `deleted pool "${name}" ${formatPrefix(prefix)} and its ${formatCount(removedBlocksCount, 'empty block')}`;
    this.#log.info({ 'podwire.pool': name }, text);
  }

  /** A pool that was being deleted was removed with the release of its last address. */
  poolDrained({ name, prefix }: Pool): void {
    const text = `deleted pool "${name}" ${formatPrefix(prefix)} with the release of its last address`;
    this.#log.info({ 'podwire.pool': name }, text);
  }

  /** A pool that another tool has written breaks a rule. Addresses in use stay. */
  poolRefused(name: string, message: string): void {
    this.#log.warn({ 'podwire.pool': name }, `no address is allocated from a pool: ${message}`);
  }

  /** A deletion in the background failed. The next upkeep round retries it. */
  poolDeletionFailed({ name }: Pool, error: unknown): void {
    this.#upkeepFailures.add(1, { task: 'finish-pool-deletions' });
    this.#log.warn(
      { err: error, 'podwire.pool': name },
      `deletion of pool "${name}" failed; the next upkeep round retries it`,
    );
  }
}

/** Manages the ranges that addresses are allocated from. */
export class Pools {
  readonly #options: IpamOptions;
  readonly #events: PoolEvents;
  readonly #inquiry: NodeInquiry;
  readonly #forecast = new PoolForecast();

  constructor(options: IpamOptions, inquiry: NodeInquiry) {
    this.#options = options;
    this.#inquiry = inquiry;
    this.#events = new PoolEvents(options.events);
  }

  /** Not idempotent. @throws Failure POOL_EXISTS, POOL_OVERLAP */
  async create(spec: PoolSpec, signal: AbortSignal): Promise<PoolListing> {
    const { updates, clock, newUid, services } = this.#options;
    const creation = { spec, services, uid: newUid(), nowMs: clock.nowMs() };
    const created = await updates.update(POOLS_LANE, (view) => createPool(view, creation), { signal });
    this.#events.poolCreated(created.pool);
    return created;
  }

  /** @throws Failure POOL_NOT_FOUND */
  async get(name: string, signal: AbortSignal): Promise<PoolListing> {
    return this.#withForecast(await read(this.#options, (view) => getPool(view, name), signal));
  }

  async list(query: PageQuery, signal: AbortSignal): Promise<Page<PoolListing>> {
    const { items, more } = await read(this.#options, (view) => listPools(view, query), signal);
    return { items: items.map((listing) => this.#withForecast(listing)), more };
  }

  /** Takes a sample of the use of all pools. Call it about every minute. */
  async sampleUse(signal: AbortSignal): Promise<void> {
    const all = { after: '', limit: Infinity };
    const { items } = await read(this.#options, (view) => listPools(view, all), signal);
    const available = items.map(({ pool, utilization }) => [pool.name, Number(utilization.available)] as const);
    this.#forecast.sample(this.#options.clock.monotonicMs(), new Map(available));
  }

  #withForecast(listing: PoolListing): PoolListing {
    return { ...listing, fullInSeconds: this.#forecast.fullInSeconds(listing.pool.name) };
  }

  /** Idempotent without a version. @throws Failure POOL_NOT_FOUND, STALE_VERSION, POOL_BEING_DELETED */
  async update(change: PoolChange, signal: AbortSignal): Promise<PoolUpdate> {
    const { updates, services } = this.#options;
    const decide = (view: View): Decision<PoolUpdate> => updatePool(view, { services, ...change });
    const updated = await updates.update(POOLS_LANE, decide, { signal });
    if (updated.ok && updated.changed) this.#events.poolUpdated(updated.listing.pool);
    return updated;
  }

  /**
   * Splits a pool into several. Not idempotent.
   * @throws Failure POOL_NOT_FOUND, STALE_VERSION, POOL_BEING_DELETED, POOL_EXISTS, POOL_OVERLAP
   */
  async split(request: PoolSplitRequest, signal: AbortSignal): Promise<PoolSplit> {
    const { updates, clock, newUid } = this.#options;
    const input = { request, uids: Array.from({ length: request.partsCount }, newUid), nowMs: clock.nowMs() };
    const split = await updates.update(POOLS_LANE, (view) => splitPool(view, input), { signal });
    if (split.ok) this.#events.poolSplit(split.former, split.parts.length);
    return split;
  }

  /**
   * Deletes a pool, in several transactions. Repeat it after a failure. {@link finishDeletions} continues it too,
   * unless its mode is to refuse while addresses are in use.
   * @throws Failure POOL_NOT_FOUND, STALE_VERSION, POOL_IN_USE; NODE_IN_USE when addresses are to be released, and pods
   * of nodes that run have some, unless `force`
   */
  async delete(
    { whenInUse, force = false, ...deletion }: PoolDeletionRequest,
    signal: AbortSignal,
  ): Promise<PoolDeleted> {
    const { updates, clock } = this.#options;
    const mode = whenInUse === 'refuse' ? 'refuse' : 'drain';
    const scope = (view: View) => heldInPool(view, deletion.name);
    const pods = (view: View) => heldInPool(view, deletion.name, (attributes) => !isLease(attributes));
    const begin = { whenInUse: mode, nowMs: clock.nowMs(), ...deletion } as const;
    const silent = whenInUse === 'release' ? await this.#inquiry.ask(pods, force, signal) : undefined;
    const original = await updates.update(POOLS_LANE, (view) => beginPoolDeletion(view, begin), { signal });
    // Nodes return leases of a pool that is being deleted.
    if (silent) await this.#inquiry.recall(scope, signal);
    const releasedAddresses = silent ? await this.#releaseAll(original, silent, signal) : 0;
    const end = await this.#runSteps({ original, whenInUse: mode }, signal);
    if (end.state === 'refused') throw end.failure;
    const isGone = end.state === 'done';
    if (!isGone && original.deletionTimeMs === undefined) this.#events.poolDraining(original);
    const holders = end.state === 'held' ? end.holders : NO_HOLDERS;
    const kept = silent && !isGone ? await this.#inquiry.kept(scope, silent, signal) : [];
    return { isGone, removedBlocks: end.removedBlocks, releasedAddresses, kept, holders };
  }

  /**
   * Continues every deletion in progress: leftovers of releases, and deletions of replicas that stopped. Several
   * replicas may run it concurrently. A failed deletion does not stop the next ones.
   */
  async finishDeletions(signal: AbortSignal): Promise<void> {
    const pools = await read(this.#options, (view) => view.pools(), signal);
    for (const original of pools.filter(({ deletionTimeMs }) => deletionTimeMs !== undefined)) {
      try {
        await this.#runSteps({ original, whenInUse: 'drain' }, signal);
      } catch (error) {
        if (signal.aborted) throw error;
        this.#events.poolDeletionFailed(original, error);
      }
    }
  }

  async #releaseAll({ name }: Pool, silent: SilentNodes, signal: AbortSignal): Promise<number> {
    const { updates, events, clock } = this.#options;
    for (let count = 0; ;) {
      const nowMs = clock.nowMs();
      const decide = (view: View) => continuePoolRelease(view, { poolName: name, nowMs, silent });
      const step = await updates.update(POOLS_LANE, decide, { signal });
      count += step.addresses.length;
      if (step.addresses.length > 0) events.addressesReleased(step.addresses);
      if (step.state === 'done') return count;
    }
  }

  /** Runs steps until the next one has to wait for a release. @returns the last one, with all removed blocks */
  async #runSteps(progress: Omit<PoolDeletionProgress, 'nowMs'>, signal: AbortSignal): Promise<PoolDeletionStep> {
    const { updates, clock } = this.#options;
    let removedBlocks = 0;
    for (let attempts = 1; ;) {
      const now = { nowMs: clock.nowMs(), ...progress };
      const decide = (view: View) => continuePoolDeletion(view, now);
      const step = await updates.update(POOLS_LANE, decide, { signal, isFresh: true });
      if (step.state === 'refused') return step;
      removedBlocks += step.removedBlocks;
      if (step.state === 'more' || (step.state === 'behind' && attempts++ < MAX_ATTEMPTS)) continue;
      if (step.state === 'done') this.#events.poolDeleted(progress.original, removedBlocks);
      return { ...step, removedBlocks };
    }
  }
}

/**
 * The update loop for everything except pool operations. The release of a pool's last address removes a pool that is
 * being deleted; this loop reports that once it is durable. Pool operations report it themselves.
 */
export function reportDrainedPools({
  updates,
  events,
}: Pick<IpamOptions, 'updates' | 'events'>): IpamOptions['updates'] {
  const poolEvents = new PoolEvents(events);
  return {
    read: (look, options) => updates.read(look, options),
    peek: (look) => updates.peek(look),
    update: (lane, decide, options) =>
      updates
        .update(lane, (view) => withDrained(decide(view)), options)
        .then(({ outcome, drained }) => {
          for (const pool of drained) poolEvents.poolDrained(pool);
          return outcome;
        }),
  };
}

interface Drained<Outcome> {
  readonly outcome: Outcome;
  /** Pools that the decision removes. */
  readonly drained: readonly Pool[];
}

function withDrained<Outcome>({ changes, outcome }: Decision<Outcome>): Decision<Drained<Outcome>> {
  const drained: Pool[] = [];
  for (const change of changes)
    if (change.type === 'delete' && change.record.kind === 'pool') drained.push(change.record.value);
  return { changes, outcome: { outcome, drained } };
}
