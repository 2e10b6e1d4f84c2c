import { Failure } from '@podwire/shared/failure/failure';

import {
  releaseHeld,
  nextBatch,
  releaseStep,
  removeBlocks,
  removePool,
  orphanedAffinities,
  type ReleaseStep,
} from '../blocks/release-changes.js';
import { expectSessions, ofFewNodes, RunningNodes, type SilentNodes } from '../blocks/running-nodes.js';
import { dropAffinity } from '../blocks/search.js';
import { requirePool } from '../records/absence.js';
import { countBlocks } from '../records/block-stats.js';
import { heldAddressesIn, usedCount, wholeSeconds, type Block, type HeldAddress } from '../records/block.js';
import { lockedFailure } from '../records/datastore-lock.js';
import { poolVersion, type Pool } from '../records/pool.js';
import type { Change, Decision, View } from '../records/view.js';
import { isPartOf } from './changes.js';
import { describeHolders, poolBlocks, poolText, staleFailure, type PoolHolders } from './pools.js';

/**
 * Deleting a pool, in steps of one transaction each, because a transaction of etcd has at most 128 operations.
 *
 * The first step stops allocation: permanently by a deletion mark, or temporarily by disabling the pool where the
 * deletion is refused while addresses are in use. Creating a block compares the pool's record, so no block is created
 * in the pool after that. When the view shows all earlier commits, a block missing in it does not exist. The following
 * steps remove empty blocks, and the pool with the last one.
 */

export const NO_HOLDERS: PoolHolders = {
  ...{ inUseCount: 0, leasedCount: 0, coolingCount: 0, tunnelCount: 0 },
  ...{ unreadable: undefined, nodes: [] },
};

/** Operations of one step: fewer than etcd allows, to leave room for further records, such as handles. */
const OPERATIONS_PER_STEP = 100;
/** Operations for a block and its affinity. */
const OPERATIONS_PER_BLOCK = 2;

/**
 * How a deletion handles addresses in use: `drain` makes the pool unavailable and waits for their release; `refuse`
 * fails and leaves the pool as it was.
 */
export type WhenInUse = 'drain' | 'refuse';

interface PoolDeletion {
  readonly name: string;
  /** Delete only if the pool still is of this version; empty for any. */
  readonly resourceVersion: string;
  readonly whenInUse: WhenInUse;
  readonly nowMs: number;
}

/**
 * The first step: checks, and stops allocation from the pool. Idempotent for a pool that is being deleted.
 * @returns the pool as it was before
 * @throws Failure POOL_NOT_FOUND, STALE_VERSION, STORE_LOCKED, or POOL_IN_USE when addresses of it are in use and
 * `whenInUse` is `refuse`
 */
export function beginPoolDeletion(view: View, deletion: PoolDeletion): Decision<Pool> {
  const { name, resourceVersion, whenInUse, nowMs } = deletion;
  const pool = requirePool(view, name);
  // Also the version from before the mark, so that a retry after a lost answer continues.
  const versions = [poolVersion(pool), poolVersion({ ...pool, deletionTimeMs: undefined })];
  if (resourceVersion !== '' && !versions.includes(resourceVersion)) throw staleFailure(pool, resourceVersion);
  // The following steps remove its blocks, which the lock forbids.
  if (view.isLocked() && countBlocks(view.blockStatsIn(pool.prefix)) > 0) throw lockedFailure();
  if (whenInUse === 'refuse') {
    const { holders } = poolBlocks(view, pool, nowMs);
    if (holders) throw inUseFailure(pool, holders);
    return { changes: isOutOfUse(pool) ? [] : [putPool(disabledPool(pool))], outcome: pool };
  }
  const isMarked = pool.deletionTimeMs !== undefined;
  return { changes: isMarked ? [] : [putPool({ ...pool, deletionTimeMs: wholeSeconds(nowMs) })], outcome: pool };
}

/** A pool to delete. */
export interface PoolDeletionRequest {
  readonly name: string;
  /** Delete only if the pool still is of this version; empty for any. */
  readonly resourceVersion: string;
  /** How to handle addresses in use; `release` releases them first. */
  readonly whenInUse: WhenInUse | 'release';
  /** Whether `release` asks running nodes instead of refusing. Default: false. */
  readonly force?: boolean | undefined;
}

/** The progress of a pool's deletion. */
export interface PoolDeleted {
  /** Whether the pool is gone; otherwise it is being deleted. */
  readonly isGone: boolean;
  readonly removedBlocks: number;
  readonly releasedAddresses: number;
  /** Addresses that `release` kept, as running nodes may use them. */
  readonly kept: readonly HeldAddress[];
  /** The holders of its addresses. */
  readonly holders: PoolHolders;
}

/** The result of a further step. */
export type PoolDeletionStep =
  /** The pool is gone. */
  | { readonly state: 'done'; readonly removedBlocks: number }
  /** The next step can remove more. */
  | { readonly state: 'more'; readonly removedBlocks: number }
  /** Addresses of the pool are in use or cool down; everything else is removed. */
  | { readonly state: 'held'; readonly removedBlocks: number; readonly holders: PoolHolders }
  /** The view shows nothing left, but it may lack another replica's changes from before the first step. */
  | { readonly state: 'behind'; readonly removedBlocks: number }
  /** An address was allocated before the first step. The pool is restored. */
  | { readonly state: 'refused'; readonly failure: Failure };

export interface PoolDeletionProgress {
  /** Result of {@link beginPoolDeletion}. */
  readonly original: Pool;
  readonly whenInUse: WhenInUse;
  readonly nowMs: number;
}

/**
 * A step after the first: removes empty blocks, and the pool with the last one. Idempotent.
 * @throws Failure CONFLICT when the pool was enabled again or split meanwhile
 */
export function continuePoolDeletion(view: View, progress: PoolDeletionProgress): Decision<PoolDeletionStep> {
  const { original, whenInUse, nowMs } = progress;
  const pool = view.pool(original.name);
  if (pool?.uid !== original.uid) {
    refuseSplit(view, progress);
    return { changes: [], outcome: { state: 'done', removedBlocks: 0 } };
  }
  if (!isOutOfUse(pool) || (whenInUse === 'drain' && pool.deletionTimeMs === undefined)) {
    const text = `pool "${pool.name}" was enabled again while it was being deleted; delete it again`;
    throw new Failure('CONFLICT', text, { details: { pool: pool.name } });
  }
  const { empty, holders } = poolBlocks(view, pool, nowMs);
  if (holders && whenInUse === 'refuse') return restorePool(pool, { original, holders });
  const blocks = firstBlocks(empty);
  const removedBlocks = blocks.length;
  const changes = removeBlocks(view, { blocks, kept: [], ended: [], nowMs });
  if (empty.length > removedBlocks) return { changes, outcome: { state: 'more', removedBlocks } };
  if (holders) return { changes, outcome: { state: 'held', removedBlocks, holders } };
  return finishDeletion(view, { pool, blocks, changes });
}

/** A marked pool cannot be split. An unmarked one was disabled by the first step, so its parts are disabled, too. */
function refuseSplit(view: View, { original, whenInUse }: PoolDeletionProgress): void {
  const parts = view.pools().filter((pool) => isPartOf(pool, original));
  if (whenInUse !== 'refuse' || parts.length === 0) return;
  const text = `${poolText(original)} was split while it was being deleted; delete its parts, or enable them: ${parts.map(({ name }) => name).join(', ')}`;
  throw new Failure('CONFLICT', text, { details: { pool: original.name } });
}

/**
 * The first blocks, as many as one step can remove, at least one. Each address reserved by Windows takes an entry of the history.
 */
function firstBlocks(blocks: readonly Block[]): Block[] {
  let operations = 0;
  const end = blocks.findIndex((block, index) => {
    operations += OPERATIONS_PER_BLOCK + usedCount(block);
    return index > 0 && operations > OPERATIONS_PER_STEP;
  });
  return end < 0 ? [...blocks] : blocks.slice(0, end);
}

interface FinishInput {
  readonly pool: Pool;
  /** The last blocks of the pool, removed with it. */
  readonly blocks: readonly Block[];
  readonly changes: readonly Change[];
}

function finishDeletion(view: View, { pool, blocks, changes }: FinishInput): Decision<PoolDeletionStep> {
  const removedBlocks = blocks.length;
  const orphans = orphanedAffinities(view, pool, blocks);
  const step = orphans.slice(0, Math.max(0, OPERATIONS_PER_STEP - changes.length));
  const removals = [...changes, ...step.map(dropAffinity)];
  if (orphans.length > step.length) return { changes: removals, outcome: { state: 'more', removedBlocks } };
  return view.showsAllBefore({ kind: 'pool', value: pool })
    ? { changes: [...removals, removePool(pool)], outcome: { state: 'done', removedBlocks } }
    : { changes: removals, outcome: { state: 'behind', removedBlocks } };
}

/** Reverts the first step, unless the pool was changed since, or was disabled before. */
function restorePool(
  pool: Pool,
  { original, holders }: { readonly original: Pool; readonly holders: PoolHolders },
): Decision<PoolDeletionStep> {
  const isOurs = !isOutOfUse(original) && poolVersion(pool) === poolVersion(disabledPool(original));
  return {
    changes: isOurs ? [putPool(original)] : [],
    outcome: { state: 'refused', failure: inUseFailure(pool, holders) },
  };
}

function isOutOfUse({ disabled, deletionTimeMs }: Pool): boolean {
  return disabled || deletionTimeMs !== undefined;
}

function disabledPool(pool: Pool): Pool {
  return { ...pool, disabled: true };
}

function putPool(value: Pool): Change {
  return { type: 'put', record: { kind: 'pool', value } };
}

function inUseFailure(pool: Pool, holders: PoolHolders): Failure {
  const tunnels = holders.tunnelCount > 0 ? ', in which nodes replace or release their tunnel addresses' : '';
  const text = `${poolText(pool)} cannot be deleted: addresses of it are in use (${describeHolders(holders)}); release them first, or delete it in drain mode${tunnels}`;
  return new Failure('POOL_IN_USE', text, { details: { pool: pool.name, allocated: String(holders.inUseCount) } });
}

interface PoolRelease {
  readonly nowMs: number;
  /** Default: none. */
  readonly silent?: SilentNodes | undefined;
  readonly poolName: string;
}

/**
 * Releases the addresses of a pool for all holders, as many per step as fit in a transaction, except what nodes that run
 * may use. Empty blocks keep their owners, unless the pool is being deleted.
 *
 * Idempotent; a missing pool has no addresses.
 */
export function continuePoolRelease(view: View, { poolName, nowMs, silent }: PoolRelease): Decision<ReleaseStep> {
  const running = new RunningNodes(view, silent);
  const unused = heldInPool(view, poolName, (attributes) => !running.mayUse(attributes));
  const batch = nextBatch(view, ofFewNodes(view, unused));
  return releaseStep(batch, [...releaseHeld(view, batch, nowMs), ...expectSessions(view, batch)]);
}

/** The addresses of a pool that are in use or leased. */
export function* heldInPool(
  view: View,
  poolName: string,
  isWanted: Parameters<typeof heldAddressesIn>[1] = () => true,
): Generator<HeldAddress, void, void> {
  const pool = view.pool(poolName);
  if (pool) for (const block of view.blocksIn(pool.prefix)) yield* heldAddressesIn(block, isWanted);
}
