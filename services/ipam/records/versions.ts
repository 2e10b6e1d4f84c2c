import { compareTexts } from '@podwire/shared/words/order';

/**
 * A record's resource version: an opaque digest of all fields that Podwire knows, including the UID. It is not the
 * store's revision, because a decision reports the version before the commit. All replicas of one release agree on it, and
 * it survives a move of the datastore. A new field must be undefined by default: undefined fields are not in the digest, so
 * replicas of the previous release agree too.
 */
export function versionOf(record: object): string {
  return fnv1a64(JSON.stringify(canonicalize(record)));
}

/** Equal for equal values, independent of the order of their keys. */
function canonicalize(value: unknown): unknown {
  if (typeof value === 'bigint') return String(value);
  if (value instanceof Map) return sortEntries([...value]);
  if (Array.isArray(value)) return value.map(canonicalize);
  return typeof value === 'object' && value !== null ? sortEntries(Object.entries(value)) : value;
}

function sortEntries(entries: readonly (readonly [unknown, unknown])[]): unknown[] {
  return entries
    .filter(([, value]) => value !== undefined)
    .map(([key, value]) => [String(key), canonicalize(value)] as const)
    .sort(([a], [b]) => compareTexts(a, b));
}

/**
 * FNV-1a over the text's UTF-8 bytes (draft-eastlake-fnv), 32 bits. Names that differ only in their last digit, such as
 * node names, get distant values. With FNV-1, which Calico uses, they would be adjacent.
 */
export function fnv1a32(text: string): number {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(text)) hash = Math.imul(hash ^ byte, 0x01000193);
  return hash >>> 0;
}

/** FNV-1a over the text's UTF-8 bytes, 64 bits, as 16 hexadecimal digits. */
function fnv1a64(text: string): string {
  let hash = 0xcbf29ce484222325n;
  for (const byte of new TextEncoder().encode(text)) hash = BigInt.asUintN(64, (hash ^ BigInt(byte)) * 0x100000001b3n);
  return hash.toString(16).padStart(16, '0');
}
