import { Failure } from '@podwire/shared/failure/failure';
import { formatPrefix, prefixContains, prefixesOverlap, type Prefix } from '@podwire/shared/net/prefix';

import { poolText } from '../allocator/pool-holders.js';
import type { Pool } from '../allocator/records.js';
import { poolUtilization } from '../blocks/utilization.js';
import { corruptFailure } from '../records/absence.js';
import { wholeSeconds } from '../records/block.js';
import type { Decision, View } from '../records/view.js';
import { overlappingBlock, type PoolListing } from './pools.js';
import type { PoolSpec } from './rules.js';

interface PoolCreation {
  readonly spec: PoolSpec;
  readonly uid: string;
  readonly nowMs: number;
}

/**
 * Makes a pool, provided that no other is made or changed at the same time.
 * @throws Failure POOL_EXISTS, or POOL_OVERLAP when the range overlaps another pool's, or blocks of another size; STORE_CORRUPT when a
 * pool cannot be read, as it may overlap
 */
export function createPool(view: View, creation: PoolCreation): Decision<PoolListing> {
  const { spec } = creation;
  const existing = view.pool(spec.name);
  if (existing) {
    const text = `pool "${spec.name}" exists already${drainNote(existing)}; choose another name, or delete it first`;
    throw new Failure('POOL_EXISTS', text, { details: { pool: spec.name } });
  }
  // Of a pool that cannot be read the range is not known.
  for (const record of view.unreadable()) if (record.name.kind === 'pool') throw corruptFailure(record);
  refuseOverlap(view, spec);
  const pool = makePool(creation);
  return {
    changes: [{ type: 'expectPools' }, { type: 'put', record: { kind: 'pool', value: pool } }],
    outcome: { pool, utilization: poolUtilization(view, pool) },
  };
}

/** The pool's record. */
export function makePool({ spec, uid, nowMs }: PoolCreation): Pool {
  const createTimeMs = wholeSeconds(nowMs);
  return { ...spec, labels: {}, uid, createTimeMs, deletionTimeMs: undefined, notAllocatable: undefined };
}

function refuseOverlap(view: View, { name, prefix, blockSizeBits }: PoolSpec): void {
  const subject = `pool "${name}" ${formatPrefix(prefix)}`;
  const other = view.pools().find((pool) => prefixesOverlap(pool.prefix, prefix));
  if (other) {
    const text = `${subject} overlaps ${poolText(other)}${drainNote(other)}; choose another range`;
    throw new Failure('POOL_OVERLAP', text, { details: { pool: other.name } });
  }
  const block = blockOfOtherSize(view, prefix, blockSizeBits);
  if (block) {
    const text = `${subject} with blocks of /${blockSizeBits} overlaps the block ${formatPrefix(block)}, which a former pool left because addresses of it are in use, or which cannot be read; choose blocks of /${block.length} or another range`;
    throw new Failure('POOL_OVERLAP', text, { details: { block: formatPrefix(block) } });
  }
}

function drainNote({ deletionTimeMs }: Pool): string {
  return deletionTimeMs === undefined ? '' : ', which is being deleted and goes with the last of its addresses';
}

/** Such blocks within a range, by their keys, or one around it. */
function unreadableAcross(view: View, prefix: Prefix): Prefix[] {
  const first = view.unreadableBlock(prefix)?.name.prefix;
  if (!first || !prefixContains(prefix, first)) return first ? [first] : [];
  return [...view.unreadable()].flatMap(({ name }) =>
    name.kind === 'block' && prefixContains(prefix, name.prefix) ? [name.prefix] : [],
  );
}

function blockOfOtherSize(view: View, prefix: Prefix, blockSizeBits: number): Prefix | undefined {
  for (const block of view.blocksIn(prefix)) if (block.prefix.length !== blockSizeBits) return block.prefix;
  const across = [overlappingBlock(view, prefix)?.prefix, ...unreadableAcross(view, prefix)];
  return across.find((block) => block && block.length !== blockSizeBits);
}
