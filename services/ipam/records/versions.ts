import { compareTexts } from '@podwire/shared/words/order';

import { fnv1a64 } from '../allocator/hash.js';

/**
 * A record's resource version: opaque text that differs when anything differs of what Podwire knows about the record, its UID
 * included. A digest of the record and no revision of the store, because a decision answers with the version of what it is about to
 * write, before there is a revision; so all replicas agree on it, and it survives a move of the datastore.
 */
export function versionOf(record: object): string {
  return fnv1a64(JSON.stringify(canonical(record)));
}

/** The same for equal values, whatever the order of their keys. */
function canonical(value: unknown): unknown {
  if (typeof value === 'bigint') return String(value);
  if (value instanceof Map) return sortEntries([...value]);
  if (Array.isArray(value)) return value.map(canonical);
  return typeof value === 'object' && value !== null ? sortEntries(Object.entries(value)) : value;
}

function sortEntries(entries: readonly (readonly [unknown, unknown])[]): unknown[] {
  return entries
    .filter(([, value]) => value !== undefined)
    .map(([key, value]) => [String(key), canonical(value)] as const)
    .sort(([a], [b]) => compareTexts(a, b));
}
