import { formatAttachment } from '@podwire/shared/attachment/attachment';

import { attachmentOf } from '../../records/attributes.js';
import type { RecordKeys } from '../../records/json/keys.js';
import { decodeIfReadable } from '../../records/json/registry.js';
import type { Transaction } from '../store.js';
import type { ApiObject, HolderDetails } from './object-api.js';

/** The holders that the transaction's endpoints describe, by formatted attachment. */
export function detailsIn({ puts }: Pick<Transaction, 'puts'>, keys: RecordKeys): ReadonlyMap<string, HolderDetails> {
  const details = new Map<string, HolderDetails>();
  for (const { key, value } of puts) {
    const record = key.startsWith(keys.endpoints) ? decodeIfReadable(keys, key, value) : undefined;
    if (record?.kind !== 'endpoint') continue;
    for (const one of [{ kind: 'endpoint', value: record.value } as const, ...(record.value.replaced ?? [])]) {
      if (one.kind !== 'endpoint') continue;
      const { attachment, pod, netns } = one.value;
      details.set(formatAttachment(attachment), { podUid: pod?.uid ?? '', netns });
    }
  }
  return details;
}

interface BlockRecords {
  /** The records of the block's object. */
  readonly records: ReadonlyMap<string, Uint8Array>;
  /** The object before the transaction. */
  readonly base: ApiObject | undefined;
  /** From the transaction. */
  readonly details: ReadonlyMap<string, HolderDetails>;
}

/** The details of the holders that a block has now: from the transaction, or as before. */
export function detailsFor(
  { records, base, details }: BlockRecords,
  keys: RecordKeys,
): ReadonlyMap<string, HolderDetails> {
  const kept = new Map<string, HolderDetails>();
  for (const [key, value] of records) {
    const record = decodeIfReadable(keys, key, value);
    if (record?.kind !== 'block') continue;
    for (const attributes of record.value.attributes) {
      const attachment = attachmentOf(attributes);
      const name = attachment && formatAttachment(attachment);
      const known = name === undefined ? undefined : (details.get(name) ?? base?.details.get(name));
      if (name !== undefined && known) kept.set(name, known);
    }
  }
  return kept;
}
