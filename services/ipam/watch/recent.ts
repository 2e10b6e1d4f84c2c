import { sameScope, scopeOf, type Scope, type WatchedKind, type WatchedObject } from './watched.js';

/** That an object changed: not what it became, which the catalog knows. */
export interface Recent {
  readonly key: string;
  readonly kind: WatchedKind;
  /** What it was in before, as far as the changes are kept, and is no more: who filters by that has to be told. */
  readonly formerScopes: readonly Scope[];
}

export interface RecentChange {
  readonly key: string;
  readonly revision: number;
  readonly before: WatchedObject | undefined;
  readonly after: WatchedObject | undefined;
}

const NONE: readonly Scope[] = [];

/** So many lists of scopes are shared at most: more than the nodes of a large cluster have pools. */
const MAX_SHARED_COUNT = 20_000;

/**
 * The recent changes in the order of their revisions, numbered without a gap. Of an object that changed several times the last
 * one alone counts, and of the others nothing stays but their place. A few dozen bytes each beside the object's key, whatever
 * the object's size, so that many can be kept.
 */
export class RecentChanges {
  readonly #capacity: number;
  /** Undefined where the same object changed again later. */
  #entries: (Recent | undefined)[] = [];
  /** Of the entries, one by one. */
  #revisions: number[] = [];
  /** Numbers of the entries that count, by key. */
  readonly #newest = new Map<string, number>();
  /** Nearly every object that is removed was one node's and of one pool. */
  readonly #shared = new Map<string, readonly Scope[]>();
  /** Number of the first entry. */
  #first = 0;
  /** Every change after this revision is here. */
  #afterRevision: number;

  /** @param capacity - how many are kept at least; an eighth more at most */
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

  append({ key, revision, before, after }: RecentChange): void {
    const object = after ?? before;
    if (!object) return;
    const number = this.nextNumber;
    const known = this.#newest.get(key);
    const earlier = known === undefined ? NONE : (this.at(known)?.formerScopes ?? NONE);
    if (known !== undefined) this.#entries[known - this.#first] = undefined;
    this.#entries.push({ key, kind: object.kind, formerScopes: this.#formerScopes(earlier, before, after) });
    this.#revisions.push(revision);
    this.#newest.set(key, number);
    if (this.#entries.length > this.#capacity + this.#capacity / 8) this.#drop(this.#entries.length - this.#capacity);
  }

  /** The change of a number; undefined when the same object changed again later. */
  at(number: number): Recent | undefined {
    return this.#entries[number - this.#first];
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

  #formerScopes(
    earlier: readonly Scope[],
    before: WatchedObject | undefined,
    after: WatchedObject | undefined,
  ): readonly Scope[] {
    if (!before && earlier.length === 0) return NONE;
    const now = after && scopeOf(after);
    const all = before ? [...earlier, scopeOf(before)] : earlier;
    const former = all.filter(
      (one, index) => !(now && sameScope(one, now)) && all.findIndex((other) => sameScope(one, other)) === index,
    );
    return former.length === 0 ? NONE : this.#share(former);
  }

  /** The same list for all that were in the same. */
  #share(scopes: readonly Scope[]): readonly Scope[] {
    const name = JSON.stringify(scopes);
    const known = this.#shared.get(name);
    if (known) return known;
    if (this.#shared.size >= MAX_SHARED_COUNT) this.#shared.clear();
    this.#shared.set(name, scopes);
    return scopes;
  }

  #drop(count: number): void {
    const dropped = this.#entries.splice(0, count);
    for (const entry of dropped) if (entry) this.#newest.delete(entry.key);
    this.#afterRevision = this.#revisions.splice(0, count).at(-1) ?? this.#afterRevision;
    this.#first += count;
  }
}
