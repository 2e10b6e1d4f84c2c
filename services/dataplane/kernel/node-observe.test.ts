import type { Link } from '@podwire/netlink';
import { expect, test } from 'vitest';

import { NodeLinks, toChange } from './node-observe.js';

const POD: Link = {
  index: 7,
  name: 'podw1',
  kind: 'veth',
  mac: '02:00:00:00:00:01',
  mtuBytes: 1500,
  alias: 'podwire:net/c1/eth0',
  group: 0,
  rootQdisc: 'noqueue',
  up: true,
  flags: 1,
  linkedIndex: 2,
  linkedNamespaceId: 0,
  txQueueLength: 1000,
  txQueueCount: 1,
  rxQueueCount: 1,
  addressGeneration: 'none',
  vxlan: null,
  ipip: null,
};
const TUNNEL_ROUTE = {
  family: 4,
  destination: '10.65.1.0/26',
  gateway: '10.65.1.1',
  source: null,
  scope: 'global',
  protocol: 87,
  table: 254,
  metric: 0,
  routeType: 'unicast',
  onlink: true,
  flags: 4,
} as const;
const RENAMED = { ...POD, name: 'foo' };
const announce = (links: NodeLinks, value: Link) => toChange({ object: 'link', deleted: false, value }, links);

test.each([
  ['', []],
  [', also when a reading was ahead of the announcements', [RENAMED]],
])('a renamed interface of a pod is reported by its earlier name%s', (_, read) => {
  const links = new NodeLinks();
  links.reset([POD]);
  if (read.length > 0) links.reset(read);
  expect(announce(links, RENAMED)).toEqual({ object: 'pod-interface', name: 'podw1', isInterference: true });
  expect(announce(links, RENAMED)).toEqual({ object: 'pod-interface', name: 'foo', isInterference: false });
});

test('a reading of an unknown interface of a pod counts as an announcement', () => {
  const links = new NodeLinks();
  links.reset([]);
  links.reset([POD]);
  expect(announce(links, POD)).toEqual({ object: 'pod-interface', name: 'podw1', isInterference: false });
});

test('a device that Podwire creates is announced once it is up, unless the creation was refused', () => {
  const tunnel: Link = { ...POD, index: 3, name: 'vxlan4.podwire', kind: 'vxlan', alias: null };
  const down = { ...tunnel, up: false };
  const links = new NodeLinks();
  links.markCreating('vxlan4.podwire')();
  expect(announce(links, down)).toMatchObject({ device: { up: false } });
  links.markCreating('vxlan4.podwire');
  expect([announce(links, down), links.nameOf(3)]).toEqual([undefined, 'vxlan4.podwire']);
  expect(announce(links, tunnel)).toMatchObject({ device: { up: true } });
  expect(announce(links, down)).toMatchObject({ device: { up: false } });
  links.markCreating('vxlan4.podwire');
  toChange({ object: 'overrun' }, links);
  expect(announce(links, down)).toMatchObject({ device: { up: false } });
});

test('announcements of a device that Podwire is deleting are not attributed to its successor, unless the deletion was refused', () => {
  const tunnel: Link = { ...POD, index: 3, name: 'vxlan4.podwire', kind: 'vxlan', alias: null };
  const links = new NodeLinks();
  const address = (linkIndex: number): unknown => {
    const of = { linkIndex, address: '10.65.0.1/32', peer: null } as const;
    const value = { ...of, family: 4, scope: 'global', flags: 0, label: null } as const;
    return toChange({ object: 'address', deleted: true, value }, links);
  };
  const route = (outputIndex: number) =>
    toChange({ object: 'route', deleted: false, value: { ...TUNNEL_ROUTE, outputIndex } }, links);
  const ofTunnel = { object: 'address', deleted: true, device: 'vxlan4.podwire', address: '10.65.0.1/32' };
  links.reset([tunnel]);
  links.markDeleting('vxlan4.podwire')();
  expect(address(3)).toEqual(ofTunnel);

  links.markDeleting('vxlan4.podwire');
  expect(announce(links, { ...tunnel, up: false })).toBeUndefined();
  expect([address(3), route(3)]).toEqual([undefined, undefined]);
  links.reset([{ ...tunnel, index: 5 }]);
  expect(toChange({ object: 'link', deleted: true, value: tunnel }, links)).toBeUndefined();
  expect([address(3), address(5)]).toEqual([undefined, ofTunnel]);
  expect(route(5)).toMatchObject({ object: 'route', route: { device: 'vxlan4.podwire' } });
});
