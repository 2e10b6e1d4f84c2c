import fc from 'fast-check';
import { expect, test, vi } from 'vitest';

import { BucketMap } from './watched-cluster.js';

const key = fc.oneof(fc.constantFrom('a', 'b', '', '10.65.0.0/26', '__proto__'), fc.string({ maxLength: 3 }));
const change = fc.tuple(key, fc.option(fc.nat(), { nil: undefined }));

const sorted = (entries: Iterable<[string, number]>) => [...entries].sort(([a], [b]) => (a < b ? -1 : 1));

test('property: after any changes it equals a map, and earlier maps are unchanged', () => {
  fc.assert(
    fc.property(fc.array(fc.array(change, { maxLength: 8 }), { maxLength: 8 }), (rounds) => {
      let map = BucketMap.empty<number>();
      const oracle = new Map<string, number>();
      const history: { readonly map: BucketMap<number>; readonly expected: [string, number][] }[] = [];
      for (const changes of rounds) {
        map = map.with(new Map(changes));
        for (const [name, value] of new Map(changes)) {
          if (value === undefined) oracle.delete(name);
          else oracle.set(name, value);
        }
        history.push({ map, expected: sorted(oracle) });
      }
      for (const { map: then, expected } of history) {
        expect(sorted(then)).toEqual(expected);
        expect(then.size).toBe(expected.length);
        expect([...then.keys()].sort()).toEqual(expected.map(([name]) => name).sort());
        expect([...then.values()].sort()).toEqual(expected.map(([, value]) => value).sort());
        const seen: [string, number][] = [];
        then.forEach((value, name) => seen.push([name, value]));
        expect(sorted(seen)).toEqual(expected);
        for (const [name] of rounds.flat()) {
          const [, value] = expected.find(([other]) => other === name) ?? [];
          expect([then.has(name), then.get(name)]).toEqual([value !== undefined, value]);
        }
      }
    }),
  );
});

test('a change of one entry in 10,000 copies a small part of them', () => {
  const cidrs = Array.from(
    { length: 10_000 },
    (_, at) => `10.${65 + (at >> 10)}.${(at >> 2) & 255}.${(at & 3) * 64}/26`,
  );
  const map = BucketMap.empty<number>().with(new Map(cidrs.map((cidr, at) => [cidr, at])));
  expect(map.size).toBe(10_000);
  const original = Object.getOwnPropertyDescriptor(Map.prototype, 'set')!.value;
  let copied = 0;
  const set = vi.spyOn(Map.prototype, 'set').mockImplementation(function (this: Map<unknown, unknown>, name, value) {
    copied++;
    return Reflect.apply(original, this, [name, value]);
  });
  const changed = map.with(new Map([['10.65.0.0/26', 1]]));
  set.mockRestore();
  expect(changed.get('10.65.0.0/26')).toBe(1);
  expect(copied).toBeGreaterThan(1);
  expect(copied).toBeLessThan(200);
});
