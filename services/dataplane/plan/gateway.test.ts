import { formatAddress } from '@podwire/shared/net/address';
import { expect, test } from 'vitest';

import { GATEWAY, HOST_LINK_LOCAL, linkLocal } from './gateway.js';

test('the gateways are Calico’s', () => {
  expect(GATEWAY).toEqual({ 4: '169.254.1.1', 6: 'fe80::ecee:eeff:feee:eeee' });
  expect(HOST_LINK_LOCAL).toBe('fe80::ecee:eeff:feee:eeee/64');
});

// The kernel's own: ip link add x address MAC type dummy; ip link set x up; ip -6 address show dev x
test.each([
  ['02:00:00:00:00:07', 'fe80::ff:fe00:7'],
  ['00:16:3e:12:34:56', 'fe80::216:3eff:fe12:3456'],
  ['ee:ee:ee:ee:ee:ee', 'fe80::ecee:eeff:feee:eeee'],
])('an interface with the MAC address %s has the link-local address %s', (mac, address) => {
  expect(formatAddress(linkLocal(mac))).toBe(address);
});
