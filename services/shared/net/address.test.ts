import { isIPv4, isIPv6 } from 'node:net';

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { compareAddresses, familyBits, formatAddress, parseAddress, type Address } from './address.js';

const ipv4 = fc.bigInt({ min: 0n, max: 2n ** 32n - 1n }).map((value): Address => ({ family: 4, value }));

/** Groups of an IPv6 address, often zero, so that runs of zeros of all lengths and positions occur. */
const groups = fc.array(fc.oneof(fc.constant(0), fc.integer({ min: 0, max: 0xffff })), { minLength: 8, maxLength: 8 });

const valueOf = (parts: readonly number[]) => BigInt(`0x${parts.map((part) => hex(part).padStart(4, '0')).join('')}`);
const isMapped = (value: bigint) => value >> 32n === 0xffffn;
const hex = (part: number) => part.toString(16);

/** RFC 5952 by trying every run of zeros: the longest of two or more is left out, the first of equals. */
function canonical(parts: readonly number[]): string {
  let best = { start: 0, length: 1 };
  for (let start = 0; start < 8; start++) {
    for (let length = 1; start + length <= 8; length++) {
      const zeros = parts.slice(start, start + length).every((part) => part === 0);
      if (zeros && length > best.length) best = { start, length };
    }
  }
  if (best.length === 1) return parts.map(hex).join(':');
  const before = parts.slice(0, best.start).map(hex).join(':');
  const behind = parts
    .slice(best.start + best.length)
    .map(hex)
    .join(':');
  return `${before}::${behind}`;
}

describe('IPv4', () => {
  test('is written as four decimal bytes and read back', () => {
    fc.assert(
      fc.property(ipv4, (address) => {
        const bytes = [24n, 16n, 8n, 0n].map((shift) => (address.value / 2n ** shift) % 256n);
        expect(formatAddress(address)).toBe(bytes.join('.'));
        expect(parseAddress(bytes.join('.'))).toEqual(address);
      }),
    );
  });

  test.each([
    '',
    '1.2.3',
    '1.2.3.4.5',
    '1.2.3.256',
    '01.2.3.4',
    '1.2.3.04',
    '1.2.3.00',
    '0x1.2.3.4',
    '1.2.3.4 ',
    '16909060',
    '1.2.3.-4',
    '١.2.3.4',
  ])('refuses %j', (text) => {
    expect(parseAddress(text)).toBeUndefined();
  });
});

describe('IPv6', () => {
  test('is written in the form of RFC 5952', () => {
    fc.assert(
      fc.property(groups, (parts) => {
        expect(formatAddress({ family: 6, value: valueOf(parts) })).toBe(canonical(parts));
      }),
      { numRuns: 1000 },
    );
  });

  test('is read in every form of RFC 4291', () => {
    const written = fc.record({
      parts: groups,
      width: fc.integer({ min: 1, max: 4 }),
      upper: fc.boolean(),
      start: fc.nat(7),
      length: fc.nat(8),
      dotted: fc.boolean(),
    });
    fc.assert(
      fc.property(written, ({ parts, width, upper, start, length, dotted }) => {
        const zeroed = parts.map((part, place) => (place >= start && place < start + length ? 0 : part));
        const value = valueOf(zeroed);
        fc.pre(!isMapped(value) && !(dotted && value >> 32n === 0n));
        const texts = zeroed.map((part) => hex(part).padStart(width, '0'));
        const tail = [zeroed[6]! >> 8, zeroed[6]! & 255, zeroed[7]! >> 8, zeroed[7]! & 255].join('.');
        const full = dotted ? [...texts.slice(0, 6), tail] : texts;
        const end = Math.min(start + length, full.length - (dotted ? 1 : 0));
        const compressed =
          end > start ? `${full.slice(0, start).join(':')}::${full.slice(end).join(':')}` : full.join(':');
        const text = upper ? compressed.toUpperCase() : compressed;
        expect(parseAddress(text), text).toEqual({ family: 6, value });
      }),
      { numRuns: 1000 },
    );
  });

  test.each([
    'fe80::1%eth0',
    '::1%',
    '::ffff:192.0.2.1',
    '::ffff:c000:201',
    '0:0:0:0:0:ffff:c000:0201',
    ':::',
    '1::2::3',
    '1:2:3:4:5:6:7',
    '1:2:3:4:5:6:7:8:9',
    '1:2:3:4:5:6:7::8:9',
    '::12345',
    '::g',
    '[::1]',
    '::1 ',
    '::192.0.2.1',
    '0::192.0.2.1',
    '64:ff9b::192.0.2.01',
    '64:ff9b::010.0.0.1',
    '64:ff9b::192.0.2',
    '64:ff9b::192.0.2.256',
    '1:2:3:4:5:6:7:192.0.2.1',
    ':1:2:3:4:5:6:7',
  ])('refuses %j', (text) => {
    expect(parseAddress(text)).toBeUndefined();
  });
});

test('addresses are parsed like the system does, except zones, IPv4-mapped and IPv4-compatible addresses', () => {
  const units = ['0', '1', 'f', 'F0', 'ffff', '01', '255', '256', ':', '::', '.', '1.2.3.4', '0.0.1', '%1', 'g', ' '];
  const texts = fc.oneof(
    fc.array(fc.constantFrom(...units), { maxLength: 12 }).map((parts) => parts.join('')),
    fc.array(fc.constantFrom('0', '1', '00', '01', '255', '256', ''), { maxLength: 5 }).map((parts) => parts.join('.')),
    fc
      .tuple(groups.map(canonical), fc.nat(40), fc.constantFrom('', '0', ':', '::', '.1', ':1.2.3.4', ':1.2.3.04'))
      .map(([text, place, extra]) => text.slice(0, place) + extra + text.slice(place)),
  );
  const zeroed = (text: string) => /^[0:]+:(ffff:)?[^:]*\./i.test(text) || /^[0:]+:ffff:[^:.]+:[^:.]+$/i.test(text);
  const expected = (text: string) => isIPv4(text) || (isIPv6(text) && !text.includes('%') && !zeroed(text));
  fc.assert(
    fc.property(texts, (text) => {
      expect(parseAddress(text) !== undefined).toBe(expected(text));
    }),
    { numRuns: 20_000 },
  );
});

test('addresses are ordered by family, then as numbers', () => {
  const any = fc.oneof(
    ipv4,
    groups.map((parts): Address => ({ family: 6, value: valueOf(parts) })),
  );
  const key = ({ family, value }: Address) => `${family}${value.toString(16).padStart(32, '0')}`;
  fc.assert(
    fc.property(any, any, (a, b) => {
      const expected = key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0;
      expect(Math.sign(compareAddresses(a, b))).toBe(expected);
    }),
  );
});

test('a family has the number of bits of its addresses', () => {
  expect([familyBits(4), familyBits(6)]).toEqual([32, 128]);
});
