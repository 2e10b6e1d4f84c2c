import { ordinalOf } from '@podwire/shared/net/prefix';

import { sameAttributes } from '../../../records/attributes.js';
import { attributesAt, type Block } from '../../../records/block.js';
import type { HistoryEntry } from '../../../records/history.js';
import { decodeHistoryEntry } from '../../../records/json/history.js';
import type { RecordKeys } from '../../../records/json/keys.js';
import type { Transaction } from '../../store.js';
import type { HistoryRecord } from './segment-form.js';

interface TransactionHistoryOptions {
  readonly keys: RecordKeys;
  readonly objectOf: (key: string) => string | undefined;
}

interface EntryRecord extends HistoryRecord {
  /** The decoded value; undefined if it cannot be read. */
  readonly entry: HistoryEntry | undefined;
  /** Object of the entry's block. */
  readonly object: string | undefined;
}

/**
 * The entries of the history in a transaction. An entry is true as soon as its block is written, even if a later write of the
 * transaction is refused.
 */
export class TransactionHistory {
  readonly #records: readonly EntryRecord[];

  constructor({ puts }: Pick<Transaction, 'puts'>, { keys, objectOf }: TransactionHistoryOptions) {
    this.#records = puts.flatMap(({ key, value }) => {
      if (!key.startsWith(keys.history)) return [];
      const entry = decodeHistoryEntry(value);
      return [{ key, value, entry, object: entry && objectOf(keys.block(entry.block)) }];
    });
  }

  /** All entries, for a transaction that is written as a whole. */
  get records(): readonly HistoryRecord[] {
    return this.#records;
  }

  /** Whether all entries are of written objects. */
  isOf(isWritten: (object: string) => boolean): boolean {
    return this.of(isWritten).length === this.#records.length;
  }

  /** The entries of written objects. */
  of(isWritten: (object: string) => boolean): readonly HistoryRecord[] {
    return this.#records.filter(({ object }) => object !== undefined && isWritten(object));
  }

  /** The entries of an object whose write has an unknown outcome, by the block before it and the block that was found after it. */
  endedIn(object: string, before: Block | undefined, after: Block | undefined): readonly HistoryRecord[] {
    return this.#records.filter((record) => record.object === object && hasEnded(record.entry, before, after));
  }
}

/** Whether the allocation of an entry has ended, whichever writer ended it. */
function hasEnded(entry: HistoryEntry | undefined, before: Block | undefined, after: Block | undefined): boolean {
  if (!entry || !before || !after) return entry !== undefined && after === undefined;
  const ordinal = ordinalOf(before.prefix, entry.address);
  const [was, is] = [before, after].map((block) => attributesAt(block, ordinal));
  const isSame = was && is && sameAttributes(was, is);
  return isSame !== true || before.sequenceNumbers[ordinal] !== after.sequenceNumbers[ordinal];
}
