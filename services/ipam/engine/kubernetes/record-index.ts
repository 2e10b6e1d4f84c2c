import { SortedList, TEXT_ORDER } from '../sorted-list.js';
import type { StoredRecord } from '../store.js';
import type { DerivedRecords } from './derived-records.js';

/** The revision of all records that exist when the store is opened. */
export const FIRST_REVISION = 1;

/** The records of objects, and the records derived from them, in key order and with the revisions of their last changes. */
export class RecordIndex {
  readonly #derived: DerivedRecords;
  readonly #records = new Map<string, StoredRecord>();
  /** Revisions of derived records that have changed since the start. */
  readonly #derivedRevisions = new Map<string, number>();
  #keys = new SortedList(TEXT_ORDER);

  constructor(derived: DerivedRecords) {
    this.#derived = derived;
  }

  /** Adds the keys of all derived records, whose values need no change. */
  addDerived(): void {
    for (const key of this.#derived.keys()) this.#keys = this.#keys.with(key);
  }

  /** Updates keys, values and revisions. @param changes - undefined for removed records */
  apply(changes: ReadonlyMap<string, Uint8Array | undefined>, revision: number): void {
    for (const [key, value] of changes) {
      this.#keys = value ? this.#keys.with(key) : this.#keys.without(key);
      const revisions = this.#derived.covers(key) ? this.#derivedRevisions : undefined;
      if (!value) {
        this.#records.delete(key);
        revisions?.delete(key);
      } else if (revisions) revisions.set(key, revision);
      else this.#records.set(key, { key, value, modRevision: revision });
    }
  }

  get(key: string): StoredRecord | undefined {
    const stored = this.#records.get(key);
    if (stored || !this.#derived.covers(key)) return stored;
    const value = this.#derived.value(key);
    return value && { key, value, modRevision: this.#derivedRevisions.get(key) ?? FIRST_REVISION };
  }

  /** @returns 0 if there is no such record */
  modRevision(key: string): number {
    if (this.#derived.covers(key))
      return this.#derived.has(key) ? (this.#derivedRevisions.get(key) ?? FIRST_REVISION) : 0;
    return this.#records.get(key)?.modRevision ?? 0;
  }

  /** In key order. @param after - the records begin after this key; undefined for all */
  *under(prefix: string, after?: string): Generator<StoredRecord, void, void> {
    for (const key of this.#keys.from(after ?? prefix)) {
      if (!key.startsWith(prefix)) {
        if (key > prefix) return;
        continue;
      }
      const record = key === after ? undefined : this.get(key);
      if (record) yield record;
    }
  }

  *changedUnder(prefix: string, revision: number): Generator<StoredRecord, void, void> {
    for (const record of this.under(prefix)) if (record.modRevision > revision) yield record;
  }
}
