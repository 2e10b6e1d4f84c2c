import { formatPrefix } from '@podwire/shared/net/prefix';

import type { Handle } from '../block.js';
import { anyValue, exactly, field, readCount, readObject, readPrefix, type FieldChecks } from './fields.js';
import type { JsonObject } from './json.js';
import type { RecordName } from './keys.js';

/** Calico's IPAMHandle (libcalico-go/lib/backend/model/ipam_handle.go): the ID is only in the key. */

const LARGEST_COUNT = 2 ** 31 - 1;

export function decodeHandle(raw: JsonObject, name: RecordName & { kind: 'handle' }): Handle {
  const source = field(raw, 'block');
  const object = readObject(source);
  const blocks = new Map<string, number>();
  for (const cidr of Object.keys(object)) {
    const entry = field(object, cidr, source.path);
    const prefix = readPrefix({ path: `${entry.path} (its name)`, value: cidr });
    blocks.set(formatPrefix(prefix), readCount(entry, LARGEST_COUNT));
  }
  return { id: name.id, blocks: shared(blocks) };
}

/** Most handles have one address, and dozens name the same block: they share one map, which takes a twelfth of the memory. */
const MAX_SHARED = 20_000;
const ofOneAddress = new Map<string, Handle['blocks']>();

function shared(blocks: Handle['blocks']): Handle['blocks'] {
  const [block, another] = blocks.keys();
  if (block === undefined || another !== undefined || blocks.get(block) !== 1) return blocks;
  const known = ofOneAddress.get(block);
  if (known) return known;
  if (ofOneAddress.size >= MAX_SHARED) ofOneAddress.clear();
  ofOneAddress.set(block, blocks);
  return blocks;
}

/** A stored handle within these needs no JSON for a rewrite. */
export const HANDLE_FIELDS: FieldChecks = { deleted: exactly(false), block: anyValue };

export function encodeHandle({ blocks }: Handle, stored: JsonObject): JsonObject {
  return { deleted: false, ...stored, block: Object.fromEntries(blocks) };
}
