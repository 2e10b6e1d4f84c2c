import type { Item, WatchedKind } from './watched-objects.js';

export type RecentChange = ObjectChange | LockChange;

/** A change of an object, with its current state, not that of the change. */
interface ObjectChange {
  readonly kind: WatchedKind;
  readonly key: string;
  /** Undefined when there is no such object any more. */
  readonly item: Item | undefined;
}

/** A change of the datastore's lock. It concerns every stream, whatever its query. */
interface LockChange {
  readonly kind: 'lock';
}

const LOCK_CHANGE: LockChange = { kind: 'lock' };

/**
 * The recent changes in the order of their revisions, numbered without a gap. Only an object's last change counts; an
 * earlier one leaves just an empty place. To keep many, a change of an existing object is the item itself in the list.
 * A removed object takes a few dozen bytes beside its key.
 */
export class RecentChanges {
  readonly #capacity: number;
  /** An item for a change of it; undefined where the same object changed again later. */
  #entries: (Item | RecentChange | undefined)[] = [];
  /** The revision of each entry. */
  #revisions: number[] = [];
  /** Numbers of the entries of objects that were removed, by kind and key. */
  readonly #removed = new Map<WatchedKind, Map<string, number>>();
  /** Number of the first entry. */
  #first = 0;
  /** Every change after this revision is kept. */
  #afterRevision: number;

  /** @param capacity - minimum number of kept changes; at most an eighth more are kept */
  constructor(afterRevision: number, capacity: number) {
    this.#afterRevision = afterRevision;
    this.#capacity = capacity;
  }

  /** Number of the oldest change that is kept. */
  get firstNumber(): number {
    return this.#first;
  }

  /** Number that the next change gets. */
  get nextNumber(): number {
    return this.#first + this.#entries.length;
  }

  /** An object is new or has changed. */
  changed(item: Item, revision: number): void {
    this.#forget(item.changeNumber);
    this.#forgetRemoval(item.object.kind, item.key);
    item.changeNumber = this.nextNumber;
    this.#append(item, revision);
  }

  /** @param item - already removed from the catalog */
  removed({ key, object: { kind }, changeNumber }: Item, revision: number): void {
    this.#forget(changeNumber);
    const removed = this.#removed.get(kind) ?? new Map<string, number>();
    this.#removed.set(kind, removed.set(key, this.nextNumber));
    this.#append({ kind, key, item: undefined }, revision);
  }

  lockChanged(revision: number): void {
    this.#append(LOCK_CHANGE, revision);
  }

  /** The change of a number; undefined when the same object changed again later. */
  at(number: number): RecentChange | undefined {
    const entry = this.#entries[number - this.#first];
    if (!entry || !isItem(entry)) return entry;
    return { kind: entry.object.kind, key: entry.key, item: entry };
  }

  /** Revision of the change of a number, which is kept; infinite behind the last one. */
  revisionAt(number: number): number {
    return this.#revisions[number - this.#first] ?? Infinity;
  }

  /** Number of the first change after a revision; undefined when changes after it are no longer kept. */
  numberAfter(revision: number): number | undefined {
    if (revision < this.#afterRevision) return undefined;
    let low = 0;
    for (let high = this.#revisions.length; low < high;) {
      const middle = (low + high) >>> 1;
      if ((this.#revisions[middle] ?? 0) > revision) high = middle;
      else low = middle + 1;
    }
    return this.#first + low;
  }

  #append(entry: Item | RecentChange, revision: number): void {
    this.#entries.push(entry);
    this.#revisions.push(revision);
    if (this.#entries.length > this.#capacity + this.#capacity / 8) this.#drop(this.#entries.length - this.#capacity);
  }

  /** Removes a change that a later one replaces. */
  #forget(number: number): void {
    const index = number - this.#first;
    if (index >= 0) this.#entries[index] = undefined;
  }

  #forgetRemoval(kind: WatchedKind, key: string): void {
    const removed = this.#removed.get(kind);
    const number = removed?.get(key);
    if (number === undefined) return;
    removed?.delete(key);
    this.#forget(number);
  }

  #drop(count: number): void {
    for (const entry of this.#entries.splice(0, count))
      if (entry && !isItem(entry) && entry.kind !== 'lock') this.#removed.get(entry.kind)?.delete(entry.key);
    this.#afterRevision = this.#revisions.splice(0, count).at(-1) ?? this.#afterRevision;
    this.#first += count;
  }
}

function isItem(entry: Item | RecentChange): entry is Item {
  return 'object' in entry;
}
