import { sameScope, scopeOf, type Scope, type WatchedKind, type WatchedObject } from './watched.js';

/** That an object changed: not what it became, which the catalog knows. */
export interface Recent {
  readonly revision: number;
  readonly key: string;
  readonly kind: WatchedKind;
  /** For objects that were removed. */
  readonly removedName: string | undefined;
  /** What it was in before, as far as the changes are kept, and is no more: who filters by that has to be told. */
  readonly formerScopes: readonly Scope[];
}

export interface RecentChange {
  readonly key: string;
  readonly revision: number;
  readonly before: WatchedObject | undefined;
  readonly after: WatchedObject | undefined;
  /** Name of the object, for one that is removed. */
  readonly removedName: string | undefined;
}

const NONE: readonly Scope[] = [];

/**
 * The recent changes in the order of their revisions, numbered without a gap. Of an object that changed several times the last
 * one alone counts. A few dozen bytes each, whatever the object's size, so that many can be kept.
 */
export class RecentChanges {
  readonly #capacity: number;
  #entries: Recent[] = [];
  readonly #newest = new Map<string, Recent>();
  /** Number of the first entry. */
  #first = 0;
  /** Every change after this revision is here. */
  #afterRevision: number;

  /** @param capacity - how many are kept at least */
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

  append({ key, revision, before, after, removedName }: RecentChange): void {
    const object = after ?? before;
    if (!object) return;
    const scope = after && scopeOf(after);
    const earlier = [...(this.#newest.get(key)?.formerScopes ?? NONE), ...(before ? [scopeOf(before)] : NONE)];
    const former = earlier.filter(
      (one, index) =>
        !(scope && sameScope(one, scope)) && earlier.findIndex((other) => sameScope(one, other)) === index,
    );
    const formerScopes = former.length === 0 ? NONE : former;
    const entry = { revision, key, kind: object.kind, removedName, formerScopes };
    this.#entries.push(entry);
    this.#newest.set(key, entry);
    if (this.#entries.length > 2 * this.#capacity) this.#drop(this.#entries.length - this.#capacity);
  }

  /** The change of a number; undefined when the same object changed again later. */
  at(number: number): Recent | undefined {
    const entry = this.#entries[number - this.#first];
    return entry && this.#newest.get(entry.key) === entry ? entry : undefined;
  }

  /** Revision of the change of a number, which is kept; infinite behind the last one. */
  revisionAt(number: number): number {
    return this.#entries[number - this.#first]?.revision ?? Infinity;
  }

  /** Number of the first change after a revision; undefined when changes after it are no longer kept. */
  numberAfter(revision: number): number | undefined {
    if (revision < this.#afterRevision) return undefined;
    let low = 0;
    for (let high = this.#entries.length; low < high;) {
      const middle = (low + high) >>> 1;
      if ((this.#entries[middle]?.revision ?? 0) > revision) high = middle;
      else low = middle + 1;
    }
    return this.#first + low;
  }

  #drop(count: number): void {
    const dropped = this.#entries.splice(0, count);
    this.#first += count;
    for (const entry of dropped) if (this.#newest.get(entry.key) === entry) this.#newest.delete(entry.key);
    this.#afterRevision = dropped.at(-1)?.revision ?? this.#afterRevision;
  }
}
