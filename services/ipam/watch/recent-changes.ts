import {
  isInSameScope,
  isSameScope,
  scopeOf,
  type Item,
  type Scope,
  type WatchedKind,
  type WatchedObject,
} from './watched-objects.js';

export type RecentChange = ObjectChange | LockChange;

/** A change of an object, with its current state, not that of the change. */
interface ObjectChange {
  readonly kind: WatchedKind;
  readonly key: string;
  /** Undefined when there is no such object any more. */
  readonly item: Item | undefined;
  /**
   * Scopes that the object has left, as far as changes are kept; watchers that filter by these scopes need the
   * notification.
   */
  readonly formerScopes: readonly Scope[];
}

/** A change of the datastore's lock. It concerns every stream, whatever its query. */
interface LockChange {
  readonly kind: 'lock';
}

const LOCK_CHANGE: LockChange = { kind: 'lock' };
const NO_SCOPES: readonly Scope[] = [];

/** Maximum shared scope lists: more than the node and pool pairs of a large cluster. */
const MAX_SHARED_COUNT = 20_000;

/**
 * The recent changes in the order of their revisions, numbered without a gap. Only an object's last change counts; an
 * earlier one leaves just an empty place. To keep many, a change of an existing object is the item itself in the list.
 * A removed object, or one that left a scope, takes a few dozen bytes beside its key.
 */
export class RecentChanges {
  readonly #capacity: number;
  /** A plain item if it left no scope; undefined where the same object changed again later. */
  #entries: (Item | RecentChange | undefined)[] = [];
  /** The revision of each entry. */
  #revisions: number[] = [];
  /** Numbers of the entries of objects that were removed, by kind and key. */
  readonly #removed = new Map<WatchedKind, Map<string, number>>();
  /** Most removed objects belonged to one node and one pool. */
  readonly #shared = new Map<string, readonly Scope[]>();
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

  /** @param before - the previous object; undefined for a new item */
  changed(item: Item, before: WatchedObject | undefined, revision: number): void {
    const { key, object } = item;
    const earlier = before ? this.#forget(item.changeNumber) : this.#forgetRemoval(object.kind, key);
    item.changeNumber = this.nextNumber;
    const isInSame = earlier.length === 0 && (!before || isInSameScope(before, object));
    const formerScopes = isInSame ? NO_SCOPES : this.#formerScopes(earlier, before, object);
    const isPlain = formerScopes.length === 0;
    this.#append(isPlain ? item : { kind: object.kind, key, item, formerScopes }, revision);
  }

  /** @param item - already removed from the catalog */
  removed({ key, object, changeNumber }: Item, revision: number): void {
    const { kind } = object;
    const formerScopes = this.#formerScopes(this.#forget(changeNumber), object, undefined);
    const removed = this.#removed.get(kind) ?? new Map<string, number>();
    this.#removed.set(kind, removed.set(key, this.nextNumber));
    this.#append({ kind, key, item: undefined, formerScopes }, revision);
  }

  lockChanged(revision: number): void {
    this.#append(LOCK_CHANGE, revision);
  }

  /** The change of a number; undefined when the same object changed again later. */
  at(number: number): RecentChange | undefined {
    const entry = this.#entries[number - this.#first];
    if (!entry || !isItem(entry)) return entry;
    return { kind: entry.object.kind, key: entry.key, item: entry, formerScopes: NO_SCOPES };
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

  /** Removes a change that a later one replaces. @returns its former scopes */
  #forget(number: number): readonly Scope[] {
    const index = number - this.#first;
    const entry = index < 0 ? undefined : this.#entries[index];
    if (!entry) return NO_SCOPES;
    this.#entries[index] = undefined;
    return isRemovalOrMove(entry) ? entry.formerScopes : NO_SCOPES;
  }

  #forgetRemoval(kind: WatchedKind, key: string): readonly Scope[] {
    const removed = this.#removed.get(kind);
    const number = removed?.get(key);
    if (number === undefined) return NO_SCOPES;
    removed?.delete(key);
    return this.#forget(number);
  }

  #formerScopes(
    earlier: readonly Scope[],
    before: WatchedObject | undefined,
    after: WatchedObject | undefined,
  ): readonly Scope[] {
    const now = after && scopeOf(after);
    const all = before ? [...earlier, scopeOf(before)] : earlier;
    const former = all.filter(
      (one, index) => !(now && isSameScope(one, now)) && all.findIndex((other) => isSameScope(one, other)) === index,
    );
    return former.length === 0 ? NO_SCOPES : this.#share(former);
  }

  /** One shared list for equal scopes. */
  #share(scopes: readonly Scope[]): readonly Scope[] {
    const name = JSON.stringify(scopes);
    const known = this.#shared.get(name);
    if (known) return known;
    if (this.#shared.size >= MAX_SHARED_COUNT) this.#shared.clear();
    this.#shared.set(name, scopes);
    return scopes;
  }

  #drop(count: number): void {
    for (const entry of this.#entries.splice(0, count))
      if (entry && isRemovalOrMove(entry) && !entry.item) this.#removed.get(entry.kind)?.delete(entry.key);
    this.#afterRevision = this.#revisions.splice(0, count).at(-1) ?? this.#afterRevision;
    this.#first += count;
  }
}

function isItem(entry: Item | RecentChange): entry is Item {
  return 'object' in entry;
}

function isRemovalOrMove(entry: Item | RecentChange): entry is ObjectChange {
  return 'formerScopes' in entry;
}
