import { Failure } from '@podwire/shared/failure/failure';
import type { Prefix } from '@podwire/shared/net/prefix';

import { makeBlock, type BlockOwner } from './block.js';
import type { Pool } from './pool.js';
import type { Change, RecordName, UnreadableRecord, View } from './view.js';

/** What follows from a record that a view does not show: nothing, unless it is compared, or known to be unreadable. */

/**
 * Whether there is such a record, but one that cannot be read: then it can neither be written nor compared with, and from its
 * absence in the view nothing follows.
 */
export function cannotRead(view: View, name: RecordName): boolean {
  return view.unreadableRecord(name) !== undefined;
}

/**
 * For what cannot be decided without a record, whether it exists or not.
 * @throws Failure STORE_CORRUPT when there is one, but one that cannot be read
 */
export function requireReadable(view: View, name: RecordName): void {
  const record = view.unreadableRecord(name);
  if (record) throw corruptFailure(record);
}

export function corruptFailure({ key, reason }: UnreadableRecord): Failure {
  const text = `record ${key} cannot be read: ${reason}; correct or delete it in the datastore`;
  return new Failure('STORE_CORRUPT', text, { details: { key, reason } });
}

/** Text that is one record's name and no other's. */
export function recordNameText(name: RecordName): string {
  return JSON.stringify(name, (_, value: unknown) => (typeof value === 'bigint' ? String(value) : value));
}

/** There is still no such affinity; nothing where there is one that cannot be read. */
export function expectNoAffinity(view: View, owner: BlockOwner, block: Prefix): Change[] {
  if (cannotRead(view, { kind: 'affinity', owner, block })) return [];
  // As with a block, what is compared is what was seen under its key.
  return [{ type: 'expect', record: { kind: 'affinity', value: { owner, block, state: 'confirmed' } } }];
}

/** There is still no such block. */
export function expectNoBlock(prefix: Prefix): Change {
  // Of the record only its key counts: what is compared is what was seen under it, which is nothing.
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
