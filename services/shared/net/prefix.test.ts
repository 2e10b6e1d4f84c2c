import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { formatAddress, parseAddress, type Address, type Family } from './address.js';
import {
  addressAt,
  comparePrefixes,
  defaultRoute,
  formatPrefix,
  hostPrefix,
  ordinalOf,
  parsePrefix,
  prefixContains,
  prefixesOverlap,
  prefixOf,
  prefixSize,
  splitCidr,
  type Prefix,
} from './prefix.js';

const BITS = { 4: 32, 6: 128 } as const;

const address = fc
  .constantFrom<Family>(4, 6)
  .chain((family) =>
    fc.bigInt({ min: 0n, max: 2n ** BigInt(BITS[family]) - 1n }).map((value): Address => ({ family, value })),
  );
const addressAndLength = address.chain((of) => fc.tuple(fc.constant(of), fc.nat(BITS[of.family])));

/** Prefixes of 1 to 32 addresses that lie close together, so that they often overlap; of both families. */
const small = fc
  .record({ family: fc.constantFrom<Family>(4, 6), offset: fc.nat(63), hostBits: fc.nat(5) })
  .map(({ family, offset, hostBits }): Prefix => {
    const value = 0x0a000000n + BigInt(offset - (offset % 2 ** hostBits));
    return { family, value, length: BITS[family] - hostBits };
  });

/** All addresses of a prefix, one by one. */
function members({ family, value, length }: Prefix): string[] {
  return Array.from({ length: 2 ** (BITS[family] - length) }, (_, place) =>
    formatAddress({ family, value: value + BigInt(place) }),
  );
}

const parsed = (text: string): Prefix => {
  const result = parsePrefix(text);
  expect(result.ok, text).toBe(true);
  return result.ok ? result.prefix : expect.unreachable();
};

describe('text', () => {
  test('a prefix is written and read back', () => {
    fc.assert(
      fc.property(addressAndLength, ([of, length]) => {
        const prefix = prefixOf(of, length);
        fc.pre(parseAddress(formatAddress(prefix)) !== undefined);
        expect(formatPrefix(prefix)).toBe(`${formatAddress(prefix)}/${length}`);
        expect(parsed(formatPrefix(prefix))).toEqual(prefix);
      }),
    );
  });

  test('host bits are refused, and only they', () => {
    fc.assert(
      fc.property(addressAndLength, ([of, length]) => {
        fc.pre(parseAddress(formatAddress(of)) !== undefined);
        const bits = of.value.toString(2).padStart(BITS[of.family], '0');
        const result = parsePrefix(`${formatAddress(of)}/${length}`);
        expect(result.ok).toBe(!bits.slice(length).includes('1'));
        expect(result).toMatchObject(result.ok ? { prefix: of } : { fault: 'has host bits set' });
      }),
    );
  });

  test.each([
    '10.0.0.0',
    '10.0.0.0/',
    '/8',
    '10.0.0.0/33',
    '10.0.0.0/08',
    '10.0.0.0/-1',
    '10.0.0.0/8/8',
    '10.0.0.0/8 ',
    '10.0.0/8',
    '010.0.0.0/8',
    '10.0.0.0/255.0.0.0',
    'fd00::/129',
    'fd00::%eth0/64',
    '::ffff:10.0.0.0/104',
    'fd00::/1e1',
  ])('%j is not a CIDR', (text) => {
    expect(parsePrefix(text)).toEqual({ ok: false, fault: 'not a CIDR' });
    expect(splitCidr(text)).toBeUndefined();
  });

  test("an interface'an interface’s address keeps the bits after its network’s length's length", () => {
    expect(splitCidr('10.0.0.5/24')).toEqual({ address: { family: 4, value: 0x0a000005n }, length: 24 });
  });
});

describe('sets of addresses', () => {
  test('the prefix that an address lies in keeps only its first bits', () => {
    fc.assert(
      fc.property(addressAndLength, ([of, length]) => {
        const bits = of.value.toString(2).padStart(BITS[of.family], '0');
        const kept = bits.slice(0, length).padEnd(BITS[of.family], '0');
        expect(prefixOf(of, length)).toEqual({ family: of.family, value: BigInt(`0b${kept}`), length });
      }),
    );
  });

  test('contains and overlap agree with the sets', () => {
    fc.assert(
      fc.property(small, small, (a, b) => {
        const inA = new Set(members(a));
        const ofB = members(b);
        expect(prefixContains(a, b)).toBe(ofB.every((member) => inA.has(member)));
        expect(prefixesOverlap(a, b)).toBe(ofB.some((member) => inA.has(member)));
      }),
      { numRuns: 2000 },
    );
  });

  test('an address is contained exactly when its host prefix is', () => {
    fc.assert(
      fc.property(small, small, (prefix, { family, value }) => {
        const expected = members(prefix).includes(formatAddress({ family, value }));
        expect(prefixContains(prefix, { family, value })).toBe(expected);
        expect(prefixContains(prefix, hostPrefix({ family, value }))).toBe(expected);
      }),
      { numRuns: 1000 },
    );
  });

  test('a longer prefix does not contain the address of a shorter one', () => {
    expect(prefixContains(parsed('10.0.0.0/24'), parsed('10.0.0.0/16'))).toBe(false);
    expect(prefixContains(parsed('10.0.0.0/16'), parsed('10.0.0.0/16'))).toBe(true);
  });

  test('size, position and address count the members', () => {
    fc.assert(
      fc.property(small, (prefix) => {
        const all = members(prefix);
        const places = all.map((_, place) => place);
        expect(prefixSize(prefix)).toBe(BigInt(all.length));
        expect(places.map((place) => formatAddress(addressAt(prefix, place)))).toEqual(all);
        expect(places.map((place) => ordinalOf(prefix, addressAt(prefix, place)))).toEqual(places);
      }),
    );
  });

  test('the default route holds every address of its family', () => {
    fc.assert(
      fc.property(address, (of) => {
        expect(prefixContains(defaultRoute(of.family), of)).toBe(true);
        expect(prefixContains(defaultRoute(of.family === 4 ? 6 : 4), of)).toBe(false);
      }),
    );
    expect([defaultRoute(4), defaultRoute(6)].map(formatPrefix)).toEqual(['0.0.0.0/0', '::/0']);
    expect([defaultRoute(4), defaultRoute(6)].map(prefixSize)).toEqual([2n ** 32n, 2n ** 128n]);
  });
});

test('prefixes are ordered by family, first address, then length', () => {
  const ordered = [
    '0.0.0.0/0',
    '10.0.0.0/8',
    '10.0.0.0/24',
    '10.0.0.0/32',
    '10.0.1.0/24',
    '::/0',
    '::/128',
    'fd00::/8',
  ];
  fc.assert(
    fc.property(fc.shuffledSubarray(ordered, { minLength: ordered.length }), (shuffled) => {
      expect(shuffled.map(parsed).sort(comparePrefixes).map(formatPrefix)).toEqual(ordered);
    }),
  );
});
