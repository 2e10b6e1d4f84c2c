import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { poolRecord } from '../testing/records.js';
import { RecentChanges } from './recent-changes.js';
import type { Item, WatchedObject } from './watched-objects.js';

const SEED = Date.now() & 0x7fffffff;
const FIRST_REVISION = 10;

/** Pools are in a scope of their own name, so that a change of name is one of scope. */
function pool(name: string): WatchedObject {
  const record = poolRecord(name, '10.65.0.0/16');
  if (record.kind !== 'pool') throw new Error('a pool is expected');
  return record;
}

function nameOfPool(object: WatchedObject | undefined): string | undefined {
  return object?.kind === 'pool' ? object.value.name : undefined;
}

/** Each key's object is in one of two scopes, or missing. */
const step = fc.record({ key: fc.constantFrom('a', 'b', 'c'), after: fc.constantFrom('x', 'y', undefined) });

interface RecentChange {
  readonly key: string;
  readonly revision: number;
  readonly before: WatchedObject | undefined;
  readonly after: WatchedObject | undefined;
}

/** Reports changes as the catalog does. */
class Telling {
  readonly recent: RecentChanges;
  readonly items = new Map<string, Item>();

  constructor(capacity: number) {
    this.recent = new RecentChanges(FIRST_REVISION, capacity);
  }

  append({ key, revision, after }: RecentChange): void {
    const item = this.items.get(key);
    if (!after) {
      this.items.delete(key);
      if (item) this.recent.removed(item, revision);
      return;
    }
    const before = item?.object;
    const now = item ?? { key, object: after, createdRevision: revision, encoded: undefined, changeNumber: -1 };
    now.object = after;
    this.items.set(key, now);
    this.recent.changed(now, before, revision);
  }
}

function objectAt(recent: RecentChanges, number: number) {
  const entry = recent.at(number);
  return entry?.kind === 'lock' ? expect.unreachable() : entry;
}

function changesOf(steps: readonly { readonly key: string; readonly after: string | undefined }[]): RecentChange[] {
  const now = new Map<string, WatchedObject | undefined>();
  return steps.map(({ key, after }, index) => {
    const before = now.get(key);
    const object = after === undefined ? undefined : pool(after);
    now.set(key, object);
    return { key, revision: FIRST_REVISION + 1 + Math.floor(index / 2), before, after: object };
  });
}

describe('recent changes', () => {
  test(`equal a list of all changes for the kept ones (seed ${SEED})`, () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 80 }), fc.constantFrom(4, 16, 1000), (steps, capacity) => {
        const all = changesOf(steps).filter(({ before, after }) => before ?? after);
        const told = new Telling(capacity);
        const { recent } = told;
        for (const change of all) told.append(change);
        expect(recent.nextNumber).toBe(all.length);
        const first = recent.firstNumber;
        expect(all.length - first).toBeGreaterThanOrEqual(Math.min(capacity, all.length));
        expect(all.length - first).toBeLessThanOrEqual(capacity + capacity / 8);
        all.forEach(({ key, revision, after }, number) => {
          if (number < first) return;
          expect(recent.revisionAt(number)).toBe(revision);
          const isLast = all.findLastIndex((other) => other.key === key) === number;
          const entry = objectAt(recent, number);
          expect(entry?.key).toBe(isLast ? key : undefined);
          expect(entry?.item).toBe(isLast ? told.items.get(key) : undefined);
          if (entry) {
            const former = entry.formerScopes.flatMap(({ poolNames }) => poolNames);
            expect(former).not.toContain(nameOfPool(after));
            expect(new Set(former).size).toBe(former.length);
            // At least every scope that it was in since the first kept change.
            const before = (changes: readonly RecentChange[]): (string | undefined)[] =>
              changes.filter((other) => other.key === key && other.before).map((other) => nameOfPool(other.before));
            const wanted = before(all.slice(first)).filter((name) => name !== nameOfPool(after));
            expect(former).toEqual(expect.arrayContaining(wanted));
            expect(before(all)).toEqual(expect.arrayContaining(former));
          }
        });
        for (let revision = FIRST_REVISION; revision <= FIRST_REVISION + all.length; revision++) {
          const expected = all.findIndex((change) => change.revision > revision);
          const number = recent.numberAfter(revision);
          if (number === undefined) expect(first).toBeGreaterThan(0);
          else expect(number).toBe(expected < 0 ? all.length : expected);
        }
        if (all.length > 0) expect(recent.numberAfter(all.at(-1)?.revision ?? 0)).toBe(all.length);
      }),
      { seed: SEED },
    );
  });

  test('share the scopes of removed objects, and keep only the place of objects that changed again', () => {
    const told = new Telling(100);
    const { recent } = told;
    for (const key of ['a', 'b']) {
      told.append({ key, revision: 11, before: undefined, after: pool('x') });
      told.append({ key, revision: 12, before: pool('x'), after: undefined });
    }
    expect(objectAt(recent, 0)).toBeUndefined();
    expect(objectAt(recent, 1)?.formerScopes).toEqual([{ nodeName: '', poolNames: ['x'] }]);
    expect(objectAt(recent, 3)?.formerScopes).toBe(objectAt(recent, 1)?.formerScopes);
  });

  test('include changes of the lock, which are dropped like all other changes', () => {
    const told = new Telling(8);
    const { recent } = told;
    recent.lockChanged(11);
    told.append({ key: 'a', revision: 12, before: undefined, after: pool('x') });
    expect([recent.at(0), recent.numberAfter(11)]).toEqual([{ kind: 'lock' }, 1]);
    for (let revision = 13; revision < 30; revision++) recent.lockChanged(revision);
    expect(recent.firstNumber).toBeGreaterThan(1);
    expect(recent.at(recent.nextNumber - 1)).toEqual({ kind: 'lock' });
  });
});
