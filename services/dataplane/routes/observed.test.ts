import { expect, test } from 'vitest';

import { isPodInterface, isRouted, ownerOf } from './observed.js';

type Route = Parameters<typeof ownerOf>[0];

const route = (change: Partial<Route>): Route => ({
  protocol: 87,
  type: 'unicast',
  device: 'eth0',
  gateway: undefined,
  ...change,
});

test.each<readonly [string, Partial<Route>, string]>([
  ['by a gateway', { gateway: '10.0.0.2' }, 'node'],
  ['on a tunnel', { device: 'vxlan4.podwire' }, 'node'],
  ['on the other tunnels', { device: 'ipip.podwire' }, 'node'],
  ['nowhere', { type: 'blackhole', device: undefined }, 'node'],
  ['by several ways', { device: undefined }, 'node'],
  ['of a type that Podwire never makes', { type: 'other' }, 'node'],
  ['to a pod', { device: 'podw1234' }, 'pod'],
  ['to a pod whose interface has a name of its own', { device: 'cali1234' }, 'pod'],
  ['of another protocol, by a gateway', { protocol: 4, gateway: '10.0.0.2' }, 'foreign'],
  ['of another protocol, on a tunnel of ours', { protocol: 4, device: 'vxlan4.podwire' }, 'foreign'],
  ['of Calico', { protocol: 80, type: 'blackhole', device: undefined }, 'foreign'],
])('the owner of a route: %s', (_, change, owner) => {
  expect(ownerOf(route(change))).toBe(owner);
});

test.each<readonly [Partial<Route>, boolean]>([
  [{ protocol: 4, gateway: '10.0.0.2' }, true],
  [{ protocol: 4, device: undefined }, true],
  [{ protocol: 4 }, false],
  [{ protocol: 4, type: 'blackhole', device: undefined }, false],
  [{ gateway: '10.0.0.2' }, false],
])('whether a route has a router: %j', (change, expected) => {
  expect(isRouted(route(change))).toBe(expected);
});

test.each([
  ['podw1', null, true],
  ['eth7', 'podwire:net/a/eth0', true],
  ['eth7', 'uplink', false],
  ['vxlan4.podwire', null, false],
])('whether %s (%s) is a pod’s: %s', (name, alias, expected) => {
  expect(isPodInterface({ name, alias })).toBe(expected);
});
