import type { Affinity, AffinityState } from '../block.js';
import { field, isAbsent, readText, unreadable } from './fields.js';
import type { JsonObject } from './json.js';
import type { RecordName } from './keys.js';

/** Calico's BlockAffinity (libcalico-go/lib/backend/model/block_affinity.go): owner and block are only in the key. */

export function decodeAffinity(raw: JsonObject, name: RecordName & { kind: 'affinity' }): Affinity {
  return { owner: name.owner, block: name.block, state: decodeState(raw) };
}

/** Records of old releases are empty: they were written only after the claim had succeeded. */
function decodeState(raw: JsonObject): AffinityState {
  const source = field(raw, 'state');
  if (isAbsent(source)) return 'confirmed';
  const text = readText(source);
  switch (text) {
    case '':
      return 'confirmed';
    case 'pending':
    case 'confirmed':
    case 'pendingDeletion':
      return text;
    default:
      throw unreadable(source, 'pending, confirmed or pendingDeletion');
  }
}

export function encodeAffinity({ state }: Affinity, stored: JsonObject): JsonObject {
  return { deleted: false, ...stored, state };
}
