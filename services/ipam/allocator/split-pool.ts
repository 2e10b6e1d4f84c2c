import { Failure, type Violation } from '@podwire/shared/failure/failure';
import { familyBits } from '@podwire/shared/net/address';
import { comparePrefixes, formatPrefix, prefixContains, type Prefix } from '@podwire/shared/net/prefix';
import { counted } from '@podwire/shared/words/counted';

import { poolUtilization } from '../blocks/utilization.js';
import { requirePool, requireVersion, takenAcross, type PoolListing } from '../pools/pools.js';
import { wholeSeconds } from '../records/block.js';
import { subdomainFault } from '../records/names.js';
import type { Change, Decision, RecordValue, View } from '../records/view.js';
import { poolText } from './pool-holders.js';
import type { Pool } from './records.js';
import { stillNotAllocatable } from './update-pool.js';

/** Into how many pools one is split at most: the power of two whose records fit one transaction of etcd, of 128 operations. */
export const MAX_PARTS = 64;

/** What names a pool. */
export type PoolReference =
  { readonly by: 'name'; readonly name: string } | { readonly by: 'range'; readonly range: Prefix };

export interface PoolSplitRequest {
  readonly pool: PoolReference;
  /** A power of two from 2 to {@link MAX_PARTS}. */
  readonly partsCount: number;
  /** Split only if the pool still is of this version; empty for any. */
  readonly resourceVersion: string;
}

export interface PoolSplitInput {
  readonly request: PoolSplitRequest;
  /** One for each part. */
  readonly uids: readonly string[];
  readonly nowMs: number;
}

/** What a pool became, or every fault of the request. */
export type PoolSplit =
  | { readonly ok: true; readonly former: Pool; readonly parts: readonly PoolListing[] }
  | { readonly ok: false; readonly faults: readonly Violation[] };

/**
 * Puts pools of equal size in the place of one, all or none: what is taken from the pool rests on its record, so it is taken
 * before or loses. Blocks say nothing of their pool, so nothing else changes. Not idempotent.
 * @throws Failure POOL_NOT_FOUND, STALE_VERSION, POOL_BEING_DELETED; POOL_EXISTS when the name of a part is taken; POOL_OVERLAP
 * when a block lies across two parts
 */
export function splitPool(view: View, { request, uids, nowMs }: PoolSplitInput): Decision<PoolSplit> {
  const { pool: reference, partsCount, resourceVersion } = request;
  const former = findPool(view, reference);
  requireVersion(former, resourceVersion);
  refuseDeletion(former);
  const faults = partFaults(former, partsCount);
  if (faults.length > 0) return { changes: [], outcome: { ok: false, faults } };
  const others = view.pools().filter(({ name }) => name !== former.name);
  const parts = partsOf(former.prefix, partsCount).map((prefix, index): Pool => ({
    ...former,
    name: partName(former, index),
    uid: uids[index] ?? '',
    prefix,
    createTimeMs: wholeSeconds(nowMs),
    notAllocatable: stillNotAllocatable(others, { ...former, prefix }),
  }));
  for (const part of parts) refuseTaken(view, former, part);
  const record: RecordValue = { kind: 'pool', value: former };
  const puts = parts.map((value): Change => ({ type: 'put', record: { kind: 'pool', value }, like: record }));
  return {
    changes: [{ type: 'expectPools' }, { type: 'delete', record }, ...puts],
    outcome: { ok: true, former, parts: parts.map((pool) => ({ pool, utilization: poolUtilization(view, pool) })) },
  };
}

function findPool(view: View, reference: PoolReference): Pool {
  if (reference.by === 'name') return requirePool(view, reference.name);
  const pool = view.pools().find(({ prefix }) => comparePrefixes(prefix, reference.range) === 0);
  if (pool) return pool;
  const text = `there is no pool ${formatPrefix(reference.range)}; list the pools for their ranges`;
  throw new Failure('POOL_NOT_FOUND', text, { details: { pool: formatPrefix(reference.range) } });
}

function refuseDeletion(pool: Pool): void {
  if (pool.deletionTimeMs === undefined) return;
  const text = `${poolText(pool)} is being deleted, which cannot be taken back; there is nothing to split it for`;
  throw new Failure('POOL_BEING_DELETED', text, { details: { pool: pool.name } });
}

/** Everything about the request that only the pool tells, by the fields of the contract. */
function partFaults(pool: Pool, partsCount: number): Violation[] {
  const { prefix, blockSizeBits } = pool;
  const partBits = partLength(prefix, partsCount);
  const blocks = blockSizeBits < prefix.length ? 0n : 1n << BigInt(blockSizeBits - prefix.length);
  const sizeReason = `is ${partsCount}, and ${poolText(pool)} has room for ${counted(blocks, 'block')} of /${blockSizeBits}; each part needs one`;
  const lastName = partName(pool, partsCount - 1);
  const nameFault = subdomainFault(lastName);
  return [
    ...(partBits > blockSizeBits ? [{ field: 'number', reason: sizeReason }] : []),
    ...(nameFault === undefined
      ? []
      : [{ field: 'name', reason: `makes a part's name that ${nameFault}: ${lastName}` }]),
  ];
}

function refuseTaken(view: View, former: Pool, part: Pool): void {
  if (view.pool(part.name)) {
    const text = `${poolText(former)} cannot be split: there is a pool "${part.name}" already; delete that first`;
    throw new Failure('POOL_EXISTS', text, { details: { pool: part.name } });
  }
  const block = takenAcross(view, part.prefix);
  if (!block || prefixContains(part.prefix, block)) return;
  const text = `${poolText(former)} cannot be split into parts of /${part.prefix.length}: the block ${formatPrefix(block)} lies across several; make fewer parts, or empty the block`;
  throw new Failure('POOL_OVERLAP', text, { details: { block: formatPrefix(block) } });
}

/** Whether a pool is what a split left of another. */
export function isPartOf({ name, prefix }: Pool, former: Pool): boolean {
  return name.startsWith(partStem(former)) && prefixContains(former.prefix, prefix);
}

function partName(pool: Pool, index: number): string {
  return `${partStem(pool)}${index}`;
}

function partStem({ name }: Pool): string {
  return `split-${name}-`;
}

function partLength({ length }: Prefix, partsCount: number): number {
  return length + Math.log2(partsCount);
}

function partsOf(prefix: Prefix, partsCount: number): Prefix[] {
  const length = partLength(prefix, partsCount);
  const size = 1n << BigInt(familyBits(prefix.family) - length);
  return Array.from({ length: partsCount }, (_, index) => ({
    family: prefix.family,
    value: prefix.value + BigInt(index) * size,
    length,
  }));
}
