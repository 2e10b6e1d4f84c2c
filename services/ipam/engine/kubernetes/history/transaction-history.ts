import { ordinalOf } from '@podwire/shared/net/prefix';

import { sameAttributes } from '../../../records/attributes.js';
import { attributesAt, type Block } from '../../../records/block.js';
import type { HistoryEntry, ObjectChange } from '../../../records/history.js';
import { decodeChanges, encodeChanges, isApplied, recordOf } from '../../../records/json/history.js';
import { decodeHistoryEntry } from '../../../records/json/history.js';
import type { RecordKeys } from '../../../records/json/keys.js';
import { decodeIfReadable, serialize } from '../../../records/json/registry.js';
import type { RecordValue } from '../../../records/view.js';
import type { Transaction } from '../../store.js';
import type { HistoryRecord } from './segment-form.js';

interface TransactionHistoryOptions {
  readonly keys: RecordKeys;
  readonly objectOf: (key: string) => string | undefined;
}

/** Part of an entry: a release, or the changes of one record. */
interface EntryPart {
  /** Object of the part's record. */
  readonly object: string | undefined;
  /** Key of the part's record. */
  readonly recordKey: string;
  readonly part: HistoryEntry | ObjectChange;
}

interface EntryRecord extends HistoryRecord {
  readonly parts: readonly EntryPart[];
}

/** Records of an object by key. */
type ObjectRecords = { readonly records: ReadonlyMap<string, Uint8Array> } | undefined;

/**
 * The entries of the history in a transaction. A part of an entry is true as soon as its object is written, even if a later write
 * of the transaction is refused.
 */
export class TransactionHistory {
  readonly #keys: RecordKeys;
  readonly #records: readonly EntryRecord[];

  constructor({ puts }: Pick<Transaction, 'puts'>, { keys, objectOf }: TransactionHistoryOptions) {
    this.#keys = keys;
    this.#records = puts.flatMap(({ key, value }) => {
      if (!key.startsWith(keys.history)) return [];
      const parts = partsOf(key, value, keys).map((each) => ({ ...each, object: objectOf(each.recordKey) }));
      return [{ key, value, parts }];
    });
  }

  /** All entries, for a transaction that is written as a whole. */
  get records(): readonly HistoryRecord[] {
    return this.#records;
  }

  /** The entries of written objects. */
  of(isWritten: (object: string) => boolean): readonly HistoryRecord[] {
    return this.#where(({ object }) => object !== undefined && isWritten(object));
  }

  /** The entries of an object whose write has an unknown outcome, by its records before and the ones that were found after it. */
  endedIn(id: string, before: ObjectRecords, after: ObjectRecords): readonly HistoryRecord[] {
    const recordIn = (object: ObjectRecords, key: string): RecordValue | undefined => {
      const value = object?.records.get(key);
      return value && decodeIfReadable(this.#keys, key, value);
    };
    return this.#where(({ object, recordKey, part }) => {
      if (object !== id) return false;
      const [was, is] = [recordIn(before, recordKey), recordIn(after, recordKey)];
      return 'action' in part ? isApplied(part, is) : hasEnded(part, blockOf(was), blockOf(is));
    });
  }

  /** The entries with the parts for which a condition holds. */
  #where(holds: (part: EntryPart) => boolean): HistoryRecord[] {
    return this.#records.flatMap(({ key, value, parts }) => {
      const held = parts.filter(holds);
      if (held.length === 0) return [];
      const changes = held.flatMap(({ part }) => ('action' in part ? part : []));
      return { key, value: held.length < parts.length ? serialize(encodeChanges(changes)) : value };
    });
  }
}

function partsOf(key: string, value: Uint8Array, keys: RecordKeys): Omit<EntryPart, 'object'>[] {
  if (keys.isChange(key))
    return (decodeChanges(value) ?? []).map((part) => ({ recordKey: keys.ofName(recordOf(part)), part }));
  const entry = decodeHistoryEntry(value);
  return entry ? [{ recordKey: keys.block(entry.block), part: entry }] : [];
}

function blockOf(record: RecordValue | undefined): Block | undefined {
  return record?.kind === 'block' ? record.value : undefined;
}

/** Whether the allocation of an entry has ended, whichever writer ended it. */
function hasEnded(entry: HistoryEntry, before: Block | undefined, after: Block | undefined): boolean {
  if (!before || !after) return after === undefined;
  const ordinal = ordinalOf(before.prefix, entry.address);
  const [was, is] = [before, after].map((block) => attributesAt(block, ordinal));
  const isSame = was && is && sameAttributes(was, is);
  return isSame !== true || before.sequenceNumbers[ordinal] !== after.sequenceNumbers[ordinal];
}
