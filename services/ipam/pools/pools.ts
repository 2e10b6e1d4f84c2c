import { Failure } from '@podwire/shared/failure/failure';
import { familyBits } from '@podwire/shared/net/address';
import { prefixContains, prefixOf, type Prefix } from '@podwire/shared/net/prefix';

import type { Block, Pool } from '../allocator/records.js';
import type { PoolUtilization } from '../blocks/utilization.js';
import { requireReadable } from '../records/absence.js';
import { versionOf } from '../records/versions.js';
import type { View } from '../records/view.js';

/** Use of addresses by containers, among a pool's `allowedUses`. */
export const WORKLOAD = 'Workload';

/** Selector that matches everything. */
export const ALL = 'all()';

/** Calico's largest blocks have 4096 addresses. */
export const LARGEST_BLOCK_BITS = 12;

/** Why a pool gives no address to anybody, or undefined when it may. What was given from it stays valid. */
export function outOfUse({ disabled, deletionTimeMs, notAllocatable }: Pool): string | undefined {
  if (deletionTimeMs !== undefined) return 'being deleted';
  if (disabled) return 'disabled';
  return notAllocatable === undefined ? undefined : `not allocatable: ${notAllocatable}`;
}

/** The first block that shares addresses with the prefix and can be read: within it, the same, or around it. */
export function overlappingBlock(view: View, prefix: Prefix): Block | undefined {
  for (const block of view.blocksIn(prefix)) return block;
  for (const range of rangesAround(prefix)) {
    const block = view.block(range);
    if (block) return block;
  }
  return undefined;
}

/** The ranges around a prefix that a block may have, the largest first. */
export function* rangesAround(prefix: Prefix): Generator<Prefix, void, void> {
  for (let length = familyBits(prefix.family) - LARGEST_BLOCK_BITS; length < prefix.length; length++)
    yield prefixOf(prefix, length);
}

/** The range of the first block that shares addresses with the prefix, whether or not it can be read. */
export function takenAcross(view: View, prefix: Prefix): Prefix | undefined {
  return overlappingBlock(view, prefix)?.prefix ?? view.unreadableBlock(prefix)?.name.prefix;
}

/** A pool with how much of it is in use. */
export interface PoolListing {
  readonly pool: Pool;
  readonly utilization: PoolUtilization;
}

/** A pool's resource version, see {@link versionOf}. */
export function poolVersion(pool: Pool): string {
  return versionOf(pool);
}

/** The pool that a block lies in. */
export function poolOf(pools: readonly Pool[], block: Prefix): Pool | undefined {
  return pools.find(({ prefix }) => prefixContains(prefix, block));
}

/** @param resourceVersion - empty for any @throws Failure STALE_VERSION */
export function requireVersion(pool: Pool, resourceVersion: string): void {
  if (resourceVersion !== '' && resourceVersion !== poolVersion(pool)) throw staleFailure(pool, resourceVersion);
}

export function staleFailure({ name }: Pool, resourceVersion: string): Failure {
  const text = `pool "${name}" was changed since resource version ${resourceVersion}; read it again and decide anew`;
  return new Failure('STALE_VERSION', text, { details: { pool: name } });
}

/** @throws Failure POOL_NOT_FOUND, STORE_CORRUPT */
export function requirePool(view: View, name: string): Pool {
  const pool = view.pool(name);
  if (pool) return pool;
  requireReadable(view, { kind: 'pool', name });
  const text = `there is no pool "${name}"; list the pools for their names`;
  throw new Failure('POOL_NOT_FOUND', text, { details: { pool: name } });
}
