import { lastIndex } from '@podwire/shared/words/order';

/** An object: the same item while one exists under its key, through all its changes. */
export interface Item {
  /** Differs from the keys of all objects, of whatever kind. */
  readonly key: string;
  readonly object: { readonly kind: string };
  /** Revision of its creation; items are ordered by it. */
  readonly createdRevision: number;
  /** Its encoded change, if it was needed and the cache had room. */
  encoded: Uint8Array | undefined;
  /** Number of its last recent change, which may be dropped already; -1 before the first. */
  changeNumber: number;
}

/** A change of an object, with its current state, not that of the change; or of the datastore's lock. */
export interface RecentChange {
  /** Kind of the object; undefined for the lock, which concerns every stream, whatever its query. */
  readonly kind: string | undefined;
  readonly key: string;
  /** The object; undefined after its deletion. */
  readonly item: Item | undefined;
}

const LOCK_CHANGE: RecentChange = { kind: undefined, key: '', item: undefined };

const DEFAULT_CAPACITY = 64_000;

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
  /** Numbers of the entries of objects that were removed, by key. */
  readonly #removed = new Map<string, number>();
  /** Number of the first entry. */
  #first = 0;
  /** Every change after this revision is kept. */
  #afterRevision = Infinity;
  #revision = -1;
  #isLocked = false;
  #listener = (): void => undefined;
  /** Bytes of the encoded changes that items keep. */
  encodedBytes = 0;

  /** @param capacity - minimum number of kept changes; at most an eighth more are kept */
  constructor(capacity = DEFAULT_CAPACITY) {
    this.#capacity = capacity;
  }

  /** All changes up to this revision were received; negative until the objects have been listed. */
  get revision(): number {
    return this.#revision;
  }

  /** Whether Calico's tools have locked the datastore, as of the revision. */
  get isLocked(): boolean {
    return this.#isLocked;
  }

  /** Number of the oldest change that is kept. */
  get firstNumber(): number {
    return this.#first;
  }

  /** Number that the next change gets. */
  get nextNumber(): number {
    return this.#first + this.#entries.length;
  }

  /** @param listener - called after the changes of each revision */
  listen(listener: () => void): void {
    this.#listener = listener;
  }

  /** The changes so far are the first list; all changes after its revision are kept. */
  listed(revision: number): void {
    this.#drop(this.#entries.length);
    this.#afterRevision = revision;
    this.reached(revision);
  }

  /** All changes up to this revision have been added. */
  reached(revision: number): void {
    this.#revision = Math.max(this.#revision, revision);
    this.#listener();
  }

  /** An object is new or has changed. */
  changed(item: Item, revision: number): void {
    this.#forget(item);
    const removal = this.#removed.get(item.key);
    if (removal !== undefined) this.#empty(removal);
    this.#removed.delete(item.key);
    item.changeNumber = this.nextNumber;
    this.#append(item, revision);
  }

  removed(item: Item, revision: number): void {
    this.#forget(item);
    const { key, object } = item;
    this.#removed.set(key, this.nextNumber);
    this.#append({ kind: object.kind, key, item: undefined }, revision);
  }

  setLock(isLocked: boolean, revision: number): void {
    if (isLocked === this.#isLocked) return;
    this.#isLocked = isLocked;
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
    return this.#first + lastIndex(this.#revisions, (each) => each <= revision) + 1;
  }

  #append(entry: Item | RecentChange, revision: number): void {
    this.#entries.push(entry);
    this.#revisions.push(revision);
    if (this.#entries.length > this.#capacity + this.#capacity / 8) this.#drop(this.#entries.length - this.#capacity);
  }

  /** A later change replaces the item's last one, and its encoding. */
  #forget(item: Item): void {
    this.encodedBytes -= item.encoded?.length ?? 0;
    item.encoded = undefined;
    this.#empty(item.changeNumber);
  }

  #empty(number: number): void {
    const index = number - this.#first;
    if (index >= 0) this.#entries[index] = undefined;
  }

  #drop(count: number): void {
    for (const entry of this.#entries.splice(0, count)) if (entry && !isItem(entry)) this.#removed.delete(entry.key);
    this.#afterRevision = this.#revisions.splice(0, count).at(-1) ?? this.#afterRevision;
    this.#first += count;
  }
}

function isItem(entry: Item | RecentChange): entry is Item {
  return 'object' in entry;
}
