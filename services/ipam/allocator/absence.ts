import type { Prefix } from '@podwire/shared/net/prefix';

import { makeBlock } from './block.js';
import type { Change, RecordName, View } from './view.js';

/** What follows from a record that a view does not show: nothing, unless it is compared, or known to be unreadable. */

/**
 * Whether there is such a record, but one that cannot be read: then it can neither be written nor compared with, and from its
 * absence in the view nothing follows.
 */
export function cannotRead(view: View, name: RecordName): boolean {
  const wanted = nameText(name);
  for (const record of view.unreadable()) if (nameText(record.name) === wanted) return true;
  return false;
}

/** Text that is one record's name and no other's. */
export function nameText(name: RecordName): string {
  return JSON.stringify(name, (_, value: unknown) => (typeof value === 'bigint' ? String(value) : value));
}

/** There is still no such block. */
export function expectNoBlock(prefix: Prefix): Change {
  // Of the record only its key counts: what is compared is what was seen under it, which is nothing.
  const value = makeBlock({ prefix, owner: { kind: 'host', name: 'none' }, nowMs: 0 });
  return { type: 'expect', record: { kind: 'block', value } };
}
