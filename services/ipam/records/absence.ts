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

/** A unique text for a record's name. */
export function recordNameText(name: RecordName): string {
  return JSON.stringify(name, (_, value: unknown) => (typeof value === 'bigint' ? String(value) : value));
}

/** Expects at the commit that there is no such affinity. Compares nothing where an unreadable one exists. */
export function expectNoAffinity(view: View, owner: BlockOwner, block: Prefix): Change[] {
  if (cannotRead(view, { kind: 'affinity', owner, block })) return [];
  // The commit, as with a block, compares what the view had under the key: nothing.
  return [{ type: 'expect', record: { kind: 'affinity', value: { owner, block, state: 'confirmed' } } }];
}

/** Expects at the commit that there is no such block. */
export function expectNoBlock(prefix: Prefix): Change {
  // Only the record's key counts: the commit compares what the view had under it, which is nothing.
  const value = makeBlock({ prefix, owner: { kind: 'host', name: 'none' }, nowMs: 0 });
  return { type: 'expect', record: { kind: 'block', value } };
}

/** @throws Failure POOL_NOT_FOUND, STORE_CORRUPT */
export function requirePool(view: View, name: string): Pool {
  const pool = view.pool(name);
  if (pool) return pool;
  requireReadable(view, { kind: 'pool', name });
  const text = `there is no pool "${name}"; list the pools for their names`;
  throw new Failure('POOL_NOT_FOUND', text, { details: { pool: name } });
}
