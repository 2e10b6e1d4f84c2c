import { formatPrefix } from '@podwire/shared/net/prefix';

import type { Handle } from '../block.js';
import { field, readCount, readObject, readPrefix } from './fields.js';
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
  return { id: name.id, blocks };
}

export function encodeHandle({ blocks }: Handle, stored: JsonObject): JsonObject {
  return { deleted: false, ...stored, block: Object.fromEntries(blocks) };
}
