import { Failure } from '@podwire/shared/failure/failure';
import type { Prefix } from '@podwire/shared/net/prefix';

import { makeBlock, type BlockOwner } from './block.js';
import type { Pool } from './pool.js';
import type { Change, RecordName, UnreadableRecord, View } from './view.js';

/** Records that a view does not show. A decision may rely on their absence only if the commit compares it. */

/**
 * Whether the record exists but cannot be read. It can be neither written nor compared, and its absence from the view
 * proves nothing.
 */
export function cannotRead(view: View, name: RecordName): boolean {
  return view.unreadableRecord(name) !== undefined;
}

/**
 * Precondition of decisions that need to know whether the record exists.
 * @throws Failure STORE_CORRUPT when the record exists but cannot be read
 */
export function requireReadable(view: View, name: RecordName): void {
  const record = view.unreadableRecord(name);
  if (record) throw corruptFailure(record);
}

export function corruptFailure({ key, reason }: UnreadableRecord): Failure {
  const text = `record ${key} cannot be read: ${reason}; correct or delete it in the datastore`;
  return new Failure('STORE_CORRUPT', text, { details: { key, reason } });
}

/** Expects at the commit that there is no such affinity. Compares nothing where an unreadable one exists. */
function expectNoAffinity(view: View, owner: BlockOwner, block: Prefix): Change[] {
  if (cannotRead(view, { kind: 'affinity', owner, block })) return [];
  // The commit, as with a block, compares what the view had under the key: nothing.
  return [{ type: 'expect', record: { kind: 'affinity', value: { owner, block, state: 'confirmed' } } }];
}

/** Removes an affinity, or expects at the commit that there still is none. */
export function removeAffinity(view: View, owner: BlockOwner, block: Prefix): Change[] {
  const value = view.affinity(owner, block);
  return value ? [{ type: 'delete', record: { kind: 'affinity', value } }] : expectNoAffinity(view, owner, block);
}

/** Expects at the commit that a block is as in the view, or missing. Compares nothing where an unreadable one exists. */
export function expectBlock(view: View, prefix: Prefix): Change[] {
  if (cannotRead(view, { kind: 'block', prefix })) return [];
  // Only the key of a missing record counts: the commit compares what the view had under it, which is nothing.
  const value = view.block(prefix) ?? makeBlock({ prefix, owner: { kind: 'host', name: 'none' }, nowMs: 0 });
  return [{ type: 'expect', record: { kind: 'block', value } }];
}

/** @throws Failure POOL_NOT_FOUND, STORE_CORRUPT */
export function requirePool(view: View, name: string): Pool {
  const pool = view.pool(name);
  if (pool) return pool;
  requireReadable(view, { kind: 'pool', name });
  const text = `there is no pool "${name}"; list the pools for their names`;
  throw new Failure('POOL_NOT_FOUND', text, { details: { pool: name } });
}
