import { expect, test } from 'vitest';

import { takeOrdinals } from '../records/block.js';
import { leaseAttributes } from '../records/lease.js';
import { block, NOW_MS, prefix, session } from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { ReservedAddresses } from '../reservations/reservations.js';
import { holdersText, leasesIn, leasesText, sumLeases } from './leased-addresses.js';

const lease = (nodeName: string) => leaseAttributes({ nodeName, bootId: 'b', nowMs: NOW_MS });

test('leases of a block are counted by node, without reserved addresses', () => {
  const held = takeOrdinals(block('10.0.0.0/29', 'n1'), [0], { ...lease('n1'), handleId: 'net.c1' });
  expect(leasesIn(held)).toEqual([]);
  const leased = takeOrdinals(takeOrdinals(held, [1, 2], lease('n2')), [3], lease('n1'));
  expect(leasesIn(leased)).toEqual([
    { nodeName: 'n1', count: 1 },
    { nodeName: 'n2', count: 2 },
  ]);
  const reserved = new ReservedAddresses([prefix('10.0.0.2/31')]);
  expect(leasesIn(leased, reserved)).toEqual([{ nodeName: 'n2', count: 1 }]);
  expect(leasesIn({ ...leased, attributes: leased.attributes.map((each) => ({ ...each, releasedAtMs: 1 })) })).toEqual(
    [],
  );
});

test('leases of several blocks in words', () => {
  const sum = sumLeases([
    [{ nodeName: 'n2', count: 3 }],
    [],
    [
      { nodeName: 'n1', count: 1 },
      { nodeName: 'n2', count: 2 },
    ],
  ]);
  expect(leasesText(sum)).toBe('6 leased to n1 (1), n2 (5)');
  expect(leasesText([{ nodeName: 'n1', count: 4 }])).toBe('4 leased to n1');
  expect(leasesText([])).toBeUndefined();
  const many = Array.from({ length: 6 }, (_, index) => ({ nodeName: index === 0 ? '' : `n${index}`, count: 1 }));
  expect(leasesText(many)).toBe('6 leased to an unknown node (1), n1 (1), n2 (1), n3 (1), 2 more nodes');
});

test('nodes that hold leases are named, with the remedy if they do not return them', () => {
  const view = new TestView([
    { kind: 'nodeSession', value: session('n1') },
    { kind: 'nodeSession', value: session('n2', { heardAtMs: NOW_MS - 300_000 }) },
  ]);
  const leases = ['n1', 'n2', 'n3', 'n4', 'n5'].map((nodeName) => ({ nodeName, count: 2 }));
  expect(holdersText(view, leases)).toBe(
    'start podwire-node on the nodes that hold leases and do not answer, or run "podwirectl delete node NODE" for nodes that are gone: ' +
      'n2 (2, last heard of at 2026-08-22T06:28:25.100Z, gives them to pods until 2026-08-22T07:28:25.100Z), ' +
      'n1 (2, last heard of at 2026-08-22T06:33:25.100Z, gives them to pods until 2026-08-22T07:33:25.100Z), n3 (2), n4 (2) and 1 more',
  );
  expect(holdersText(view, [])).toBeUndefined();
});
