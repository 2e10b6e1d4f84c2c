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
  up: true,
  flags: 1,
  operState: 'up',
  linkedIndex: 2,
  linkedNamespaceId: 0,
  masterIndex: null,
  txQueueLength: 1000,
  txQueueCount: 1,
  rxQueueCount: 1,
  addressGeneration: 'none',
  vxlan: null,
  ipip: null,
};
const RENAMED = { ...POD, name: 'foo' };
const tell = (links: NodeLinks, value: Link) => toChange({ object: 'link', deleted: false, value }, links);

test.each([
  ['', []],
  [', also where a reading was ahead of what is told', [RENAMED]],
])('a pod’s interface that is renamed is told by its earlier name%s', (_, read) => {
  const links = new NodeLinks();
  links.reset([POD]);
  if (read.length > 0) links.reset(read);
  expect(tell(links, RENAMED)).toEqual({ object: 'pod-interface', name: 'podw1', isMeddledWith: true });
  expect(tell(links, RENAMED)).toEqual({ object: 'pod-interface', name: 'foo', isMeddledWith: false });
});

test('what is read of a pod’s interface that is not known is as good as told', () => {
  const links = new NodeLinks();
  links.reset([]);
  links.reset([POD]);
  expect(tell(links, POD)).toEqual({ object: 'pod-interface', name: 'podw1', isMeddledWith: false });
});

test('what is told of a device that Podwire has deleted itself is not taken for the next one of its name, unless it was refused', () => {
  const tunnel: Link = { ...POD, index: 3, name: 'vxlan4.podwire', kind: 'vxlan', alias: null };
  const links = new NodeLinks();
  const address = (linkIndex: number): unknown => {
    const of = { linkIndex, address: '10.65.0.1/32', peer: null } as const;
    const value = { ...of, family: 4, scope: 'global', flags: 0, label: null } as const;
    return toChange({ object: 'address', deleted: true, value }, links);
  };
  const ofTunnel = { object: 'address', deleted: true, device: 'vxlan4.podwire', address: '10.65.0.1/32' };
  links.reset([tunnel]);
  links.deleting('vxlan4.podwire')();
  expect(address(3)).toEqual(ofTunnel);

  links.deleting('vxlan4.podwire');
  expect(tell(links, { ...tunnel, up: false })).toBeUndefined();
  expect(address(3)).toBeUndefined();
  links.reset([{ ...tunnel, index: 5 }]);
  expect(toChange({ object: 'link', deleted: true, value: tunnel }, links)).toBeUndefined();
  expect([address(3), address(5)]).toEqual([undefined, ofTunnel]);
});
