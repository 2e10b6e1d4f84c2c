import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { RecentChanges, type Item } from './recent-changes.js';

const SEED = Date.now() & 0x7fffffff;
const FIRST_REVISION = 10;

/** Each key's object has one of two names, or is missing. */
const step = fc.record({ key: fc.constantFrom('a', 'b', 'c'), after: fc.constantFrom('x', 'y', undefined) });

interface RecentChange {
  readonly key: string;
  readonly revision: number;
  readonly before: Item['object'] | undefined;
  readonly after: Item['object'] | undefined;
}

/** Reports changes as the catalog does. */
class Telling {
  readonly recent: RecentChanges;
  readonly items = new Map<string, Item>();

  constructor(capacity: number) {
    this.recent = new RecentChanges(capacity);
    this.recent.listed(FIRST_REVISION);
  }

  append({ key, revision, after }: RecentChange): void {
    const item = this.items.get(key);
    if (!after) {
      this.items.delete(key);
      if (item) this.recent.removed(item, revision);
      return;
    }
    const now = item ?? { key, object: after, createdRevision: revision, encoded: undefined, changeNumber: -1 };
    this.items.set(key, now);
    this.recent.changed(now, revision);
  }
}

function changesOf(steps: readonly { readonly key: string; readonly after: string | undefined }[]): RecentChange[] {
  const now = new Map<string, Item['object'] | undefined>();
  return steps.map(({ key, after }, index) => {
    const before = now.get(key);
    const object = after === undefined ? undefined : { kind: after };
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
        all.forEach(({ key, revision }, number) => {
          if (number < first) return;
          expect(recent.revisionAt(number)).toBe(revision);
          const isLast = all.findLastIndex((other) => other.key === key) === number;
          const entry = recent.at(number);
          expect(entry?.key).toBe(isLast ? key : undefined);
          expect(entry?.item).toBe(isLast ? told.items.get(key) : undefined);
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

  test('include changes of the lock, which are dropped like all other changes', () => {
    const told = new Telling(8);
    const { recent } = told;
    recent.setLock(true, 11);
    told.append({ key: 'a', revision: 12, before: undefined, after: { kind: 'x' } });
    expect([recent.at(0), recent.numberAfter(11)]).toMatchObject([{ kind: undefined }, 1]);
    for (let revision = 13; revision < 30; revision++) recent.setLock(revision % 2 === 0, revision);
    expect(recent.firstNumber).toBeGreaterThan(1);
    expect(recent.at(recent.nextNumber - 1)).toMatchObject({ kind: undefined });
  });
});
