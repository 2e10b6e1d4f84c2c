import fc from 'fast-check';
import { expect, test } from 'vitest';

import { localMac, parseMac } from './mac.js';

const bytes = fc.uint8Array({ minLength: 6, maxLength: 6 });
const written = (mac: Uint8Array) =>
  Buffer.from(mac)
    .toString('hex')
    .replace(/..(?=.)/g, '$&:');

test('a unicast address is accepted in either case, a multicast one and zero are refused', () => {
  fc.assert(
    fc.property(bytes, (mac) => {
      const text = written(mac);
      const unicast = mac[0]! % 2 === 0 && mac.some((byte) => byte !== 0);
      expect(parseMac(text)).toBe(unicast ? text : undefined);
      expect(parseMac(text.toUpperCase())).toBe(unicast ? text : undefined);
    }),
  );
});

test.each([
  '',
  '00:00:00:00:00:00',
  'ff:ff:ff:ff:ff:ff',
  '01:00:5e:00:00:01',
  '02:00:00:00:00',
  '02:00:00:00:00:00:00',
  '02-00-00-00-00-01',
  '0200.0000.0001',
  '02:00:00:00:00:1',
  '02:00:00:00:00:0g',
  '02:00:00:00:00:01 ',
])('refuses %j', (text) => {
  expect(parseMac(text)).toBeUndefined();
});

test('a local address differs from its bytes in the two flags of the first only', () => {
  fc.assert(
    fc.property(bytes, (from) => {
      const mac = localMac(Buffer.from(from).toString('hex'));
      const first = Number.parseInt(mac.slice(0, 2), 16);
      expect(parseMac(mac)).toBe(mac);
      expect(first & 0b11).toBe(0b10);
      expect(first >> 2).toBe(from[0]! >> 2);
      expect(mac.slice(2)).toBe(written(from).slice(2));
    }),
  );
});
