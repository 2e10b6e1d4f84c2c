import fc from 'fast-check';
import { expect, test } from 'vitest';

import { LayeredMap } from './layered-map.js';

test('property: an upper map shows the lower map with its own changes, and does not change it', () => {
  const key = fc.constantFrom('a', 'b', 'c', 'd');
  const changes = fc.array(fc.record({ key, value: fc.option(fc.nat(9), { nil: undefined }) }), { maxLength: 6 });
  fc.assert(
    fc.property(fc.array(changes, { minLength: 1, maxLength: 4 }), (layers) => {
      let map: LayeredMap<string, { readonly value: number }> | undefined;
      const oracle = new Map<string, { readonly value: number }>();
      for (const layer of layers) {
        const [below, shownBelow] = [map, new Map(oracle)];
        map = new LayeredMap(below);
        for (const { key: changed, value: number } of layer) {
          const value = number === undefined ? undefined : { value: number };
          if (!value) {
            map.delete(changed);
            oracle.delete(changed);
          } else {
            map.set(changed, value);
            oracle.set(changed, value);
          }
        }
        expect(new Map(map.entries())).toEqual(oracle);
        expect(new Set(map.values())).toEqual(new Set(oracle.values()));
        for (const each of ['a', 'b', 'c', 'd']) expect(map.get(each)).toBe(oracle.get(each));
        if (below) expect(new Map(below.entries())).toEqual(shownBelow);
      }
    }),
  );
});
