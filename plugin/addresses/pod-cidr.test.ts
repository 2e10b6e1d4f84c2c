import { expect, test } from 'vitest';

import { withPodCidrs } from './pod-cidr.js';

const delegate = (ipam: object, type = 'host-local') => ({
  type,
  variables: {},
  configuration: JSON.stringify({ name: 'net', ipam: { type, ...ipam }, later: 1 }),
});
const PLACES = {
  subnet: 'usePodCidr',
  ranges: [[{ subnet: 'usepodcidr' }], [{ subnet: 'usePodCidrIPv6', gateway: 'g' }]],
};

test.each([
  [['10.1.0.0/24', 'fd01::/64'], '10.1.0.0/24', 'fd01::/64'],
  [undefined, '0.0.0.0/0', '::/0'],
])('the podCIDRs %j replace their words in both layouts', (podCidrs, four, six) => {
  expect(JSON.parse(withPodCidrs(delegate(PLACES), podCidrs).configuration)).toEqual({
    name: 'net',
    ipam: { type: 'host-local', subnet: four, ranges: [[{ subnet: four }], [{ subnet: six, gateway: 'g' }]] },
    later: 1,
  });
});

test('a missing podCIDR is refused with its family and its setting', () => {
  const fault = /IPv6 podCIDR, which is not set; set PODWIRE_NODE_POD_CIDR/;
  expect(() => withPodCidrs(delegate(PLACES), ['10.1.0.0/24'])).toThrow(fault);
});

test('other configurations and other plugins stay as they are', () => {
  for (const one of [
    delegate({ subnet: '10.0.0.0/24' }),
    delegate(PLACES, 'whereabouts'),
    delegate({ ranges: 'usePodCidr' }),
  ]) {
    expect(withPodCidrs(one, ['10.1.0.0/24'])).toBe(one);
  }
});
