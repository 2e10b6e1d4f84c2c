import { expect, test } from 'vitest';

import { describeMethod, readAddressMethod } from './address-method.js';

test.each([
  ['auto', 4, 'auto'],
  ['none', 6, 'none'],
  ['192.0.2.7/24', 4, '192.0.2.7/24'],
  ['2001:db8::7/64', 6, '2001:db8::7/64'],
  ['interface=eth.*, wlan0', 4, 'interface=eth.*,wlan0'],
  ['skip-interface=docker0', 4, 'skip-interface=docker0'],
  ['cidr=10.0.0.0/8, 192.0.2.0/24', 4, 'cidr=10.0.0.0/8,192.0.2.0/24'],
  ['can-reach=8.8.8.8', 4, 'can-reach=8.8.8.8'],
] as const)('%s of IPv%i is read, and told as %s', (text, family, told) => {
  const read = readAddressMethod(text, family);
  expect(read.ok ? describeMethod(read.method) : read.fault).toBe(told);
});

test.each([
  ['', 4, 'is none of auto, none'],
  ['Auto', 4, 'is none of auto, none'],
  ['192.0.2.7', 4, 'is none of auto, none'],
  ['192.0.2.7/24', 6, 'is an IPv4 address'],
  ['first-found', 4, 'is none of auto, none'],
  ['interface=', 4, 'is none of auto, none'],
  ['interface=(', 4, 'has "(", which is no regular expression'],
  ['interface=eth0,', 4, 'has "", which is no regular expression'],
  ['cidr=10.0.0.1/8', 4, 'has "10.0.0.1/8": has host bits set'],
  ['cidr=fd00::/8', 4, 'has "fd00::/8", which is not IPv4'],
  ['can-reach=example.org', 4, 'has "example.org", which is no IPv4 address'],
  ['can-reach=8.8.8.8', 6, 'has "8.8.8.8", which is no IPv6 address'],
] as const)('%j of IPv%i is refused: %s', (text, family, fault) => {
  const read = readAddressMethod(text, family);
  expect(read.ok ? 'read' : read.fault).toContain(fault);
});
