import { describe, expect, test } from 'vitest';

import { readName, readNode, readNodePod, readUid } from './objects.js';

describe('a Node', () => {
  test('has its conditions and taints', () => {
    const object = {
      metadata: { name: 'n1', resourceVersion: '7', labels: {} },
      spec: { taints: [{ key: 'a', effect: 'NoSchedule', timeAdded: '2026-01-01T00:00:00Z' }] },
      status: {
        conditions: [
          { type: 'NetworkUnavailable', status: 'True' },
          { type: 'Ready', status: 'True' },
        ],
      },
    };
    expect(readNode(object)).toEqual({
      name: 'n1',
      resourceVersion: '7',
      isReady: true,
      networkUnavailable: 'True',
      // The text is unchanged, because it is written back.
      taints: object.spec.taints,
    });
  });

  test.each([
    [undefined, undefined],
    [{}, { conditions: null }],
    [{ taints: null }, { conditions: [{ type: 'Ready', status: 'Unknown' }] }],
  ])('with the spec %j and the status %j is not ready', (spec, status) => {
    expect(readNode({ metadata: { name: 'n1' }, spec, status })).toMatchObject({
      isReady: false,
      networkUnavailable: undefined,
      taints: [],
    });
  });
});

test.each([
  [{ conditions: [{ type: 'Ready', status: 'True' }] }, undefined, true],
  [{ conditions: [{ type: 'Ready', status: 'True' }] }, '2026-01-01T00:00:00Z', false],
  [{ conditions: [{ type: 'ContainersReady', status: 'True' }] }, undefined, false],
  [undefined, undefined, false],
])('a pod with the status %j, deleted at %j: ready %j', (status, deletionTimestamp, isReady) => {
  const pod = { metadata: { name: 'p', deletionTimestamp }, spec: { nodeName: 'n1' }, status };
  expect(readNodePod(pod)).toEqual({ name: 'p', nodeName: 'n1', isReady });
});

test.each([undefined, null, 'x', {}, { metadata: {} }, { metadata: { name: 1 } }])('%j is nothing', (object) => {
  expect([readNode(object), readNodePod(object), readName(object), readUid(object)]).toEqual(
    Array.from({ length: 4 }, () => undefined),
  );
});
