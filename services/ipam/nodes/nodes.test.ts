import { expect, test } from 'vitest';

import { failureOf } from '../allocator/failure.fixture.js';
import { takeOrdinals } from '../records/block.js';
import { MapView } from '../records/testing/map-view.js';
import { block, claimedBlock, fullBlock, host, nodeRecord, prefix } from '../testing/records.js';
import { getNode, listNodes } from './nodes.js';

const ATTRIBUTES = { handleId: 'net.c1', owner: { node: 'n1' }, releasedAtMs: undefined };

test('a node has the blocks that it and they agree on', () => {
  const view = new MapView([
    nodeRecord('n1'),
    ...claimedBlock(takeOrdinals(block('10.0.0.0/30', 'n1'), [0, 1], ATTRIBUTES)),
    ...claimedBlock(fullBlock('10.0.0.8/29', 'n1')),
    ...claimedBlock(fullBlock('10.0.1.0/30', 'n2')),
    // The affinity of a claim that another node won, and one whose block is gone.
    { kind: 'block', value: block('10.0.2.0/30', 'n2') },
    { kind: 'affinity', value: { owner: host('n1'), block: prefix('10.0.2.0/30'), state: 'pending' } },
    { kind: 'affinity', value: { owner: host('n1'), block: prefix('10.0.3.0/30'), state: 'pending' } },
  ]);
  expect(getNode(view, 'n1').utilization).toMatchObject({ blocks: 2, capacity: 12, allocated: 10 });
});

test('nodes are listed in the order of their names, in pages', () => {
  const view = new MapView(['c', 'a', 'b', 'd'].map((name) => nodeRecord(name)));
  const names = (after: string, limit: number) => {
    const { items, more } = listNodes(view, { after, limit });
    return [items.map(({ node }) => node.name).join(''), more];
  };
  expect([names('', 2), names('b', 2), names('b', 1), names('bb', 9), names('d', 1), names('', 4)]).toEqual([
    ['ab', true],
    ['cd', false],
    ['c', true],
    ['cd', false],
    ['', false],
    ['abcd', false],
  ]);
});

test('a node that is not known is not found', () => {
  expect(failureOf(() => getNode(new MapView(), 'n1'))).toMatchObject({
    code: 'NODE_NOT_FOUND',
    details: { node: 'n1' },
  });
});
