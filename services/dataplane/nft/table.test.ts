import type { Address, Family } from '@podwire/shared/net/address';
import { prefixContains, prefixOf, type Prefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { outermost } from './table.js';

/** Prefixes of a small range, so that they overlap. */
const small = (family: Family): fc.Arbitrary<Prefix> =>
  fc
    .record({ bits: fc.nat(255), length: fc.integer({ min: 0, max: 8 }) })
    .map(({ bits, length }) => prefixOf({ family, value: BigInt(bits) << (family === 4 ? 24n : 120n) }, length));

const WORLD: readonly Address[] = ([4, 6] as const).flatMap((family) =>
  Array.from({ length: 256 }, (_, bits) => ({ family, value: BigInt(bits) << (family === 4 ? 24n : 120n) })),
);

describe('the outermost prefixes', () => {
  test('cover the same addresses, and are disjoint', () => {
    fc.assert(
      fc.property(fc.array(fc.oneof(small(4), small(6)), { maxLength: 20 }), (prefixes) => {
        const kept = outermost(prefixes);
        const holds = (among: readonly Prefix[], address: Address) =>
          among.some((candidate) => prefixContains(candidate, address));
        const held = (among: readonly Prefix[]) => WORLD.map((address) => holds(among, address));
        expect(held(kept)).toEqual(held(prefixes));
        for (const one of kept) {
          expect(kept.filter((other) => prefixContains(other, one))).toEqual([one]);
        }
      }),
    );
  });
});
