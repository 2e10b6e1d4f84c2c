import { describe, expect, test } from 'vitest';

import { allocate } from '../addresses/allocate/allocate.js';
import type { UnknownNodes } from '../records/node.js';
import { failureOf, node, nodeRecord, NOW_MS, poolRecord, request } from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { authorizeNode } from './demand.js';

const REFUSE: UnknownNodes = { policy: 'refuse' };
const REGISTER: UnknownNodes = { policy: 'register', uid: 'uid-new' };
const judge = (view: TestView, unknownNodes: UnknownNodes) =>
  authorizeNode(view, { nodeName: 'n1', unknownNodes, nowMs: NOW_MS });

test.each([REFUSE, REGISTER])('a registered node is expected to stay as it is, whatever the policy', (policy) => {
  const view = new TestView([nodeRecord('n1', { labels: { zone: 'a' } })]);
  expect(judge(view, policy)).toEqual({
    labels: { zone: 'a' },
    changes: [{ type: 'expect', record: nodeRecord('n1', { labels: { zone: 'a' } }) }],
  });
});

test('an unregistered node is registered with its addresses, without labels', () => {
  const view = new TestView([poolRecord('p', '10.0.0.0/26')]);
  const asked = request('c1', { unknownNodes: REGISTER });
  view.apply(allocate(view, { request: asked, nowMs: NOW_MS }));
  expect(view.nodes()).toEqual([node('n1', { uid: 'uid-new', createTimeMs: NOW_MS - 100 })]);
  view.apply(allocate(view, { request: { ...asked, ...request('c2') }, nowMs: NOW_MS }));
  expect(view.nodes()).toHaveLength(1);
});

describe('no address is allocated', () => {
  test('to an unregistered node where that is refused, and nothing is written', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/26')]);
    const asked = request('c1', { unknownNodes: REFUSE });
    expect(failureOf(() => allocate(view, { request: asked, nowMs: NOW_MS }))).toMatchObject({
      code: 'NODE_NOT_FOUND',
      message: expect.stringContaining('register it, or set PODWIRE_IPAM_UNKNOWN_NODES to register'),
    });
  });

  test('to a node that is being deleted; held addresses are still returned', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/26')]);
    const held = view.apply(allocate(view, { request: request('c1'), nowMs: NOW_MS }));
    view.put(nodeRecord('n1', { deletionTimeMs: NOW_MS }));
    const refused = failureOf(() => allocate(view, { request: request('c2'), nowMs: NOW_MS }));
    expect(refused.code).toBe('NODE_BEING_DELETED');
    const again = allocate(view, { request: request('c1'), nowMs: NOW_MS });
    expect(again.changes).toEqual([]);
    expect(again.outcome.endpoint).toEqual(held.endpoint);
  });
});
