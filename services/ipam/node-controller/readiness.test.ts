import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { describe, expect, test } from 'vitest';

import type { ClusterNode } from '../api-server/objects.js';
import { isServing, nodesWithPod, patchesOf, STARTUP_TAINT } from './readiness.js';

const node = (rest: Partial<ClusterNode> = {}): ClusterNode => ({
  ...{ name: 'n1', resourceVersion: '7', isReady: true, networkUnavailable: 'False', taints: [] },
  ...rest,
});

const pod = (nodeName: string, isReady = true) => ({ name: `podwire-node-${nodeName}`, nodeName, isReady });

describe('a node serves', () => {
  test.each([
    [node(), [pod('n1')], true],
    [node({ isReady: false }), [pod('n1')], false],
    [node(), [pod('n1', false)], false],
    [node(), [pod('n2'), pod('')], false],
    [undefined, [pod('n1')], false],
    // While the DaemonSet is updated with a surge, one of two is enough.
    [node(), [pod('n1', false), pod('n1')], true],
  ])('if its kubelet and its pod are ready: %#', (value, pods, expected) => {
    expect(isServing(value, nodesWithPod(pods))).toBe(expected);
  });
});

describe('the patches', () => {
  const other = { key: 'other', effect: 'NoExecute', timeAdded: '2026-01-01T00:00:00Z' };
  const startup = { key: STARTUP_TAINT, effect: 'NoSchedule' };

  test('of a node that lacks nothing are none', () => {
    expect(patchesOf(node({ taints: [other] }), 0)).toEqual([]);
  });

  test.each([undefined, 'True', 'Unknown'])('set NetworkUnavailable from %j to False', (networkUnavailable) => {
    const [patch, ...more] = patchesOf(node({ networkUnavailable }), Date.parse('2026-08-22T06:33:25.100Z'));
    expect(more).toEqual([]);
    expect(patch).toMatchObject({
      path: '/api/v1/nodes/n1/status',
      contentType: 'application/strategic-merge-patch+json',
      body: {
        status: {
          conditions: [
            {
              type: 'NetworkUnavailable',
              status: 'False',
              reason: 'PodwireIsUp',
              lastTransitionTime: '2026-08-22T06:33:25Z',
            },
          ],
        },
      },
    });
  });

  test('remove the startup taint of any effect and no other, at this version of the Node only', () => {
    const taints = [startup, other, { ...startup, effect: 'NoExecute' }];
    expect(patchesOf(node({ taints }), 0)).toMatchObject([
      {
        path: '/api/v1/nodes/n1',
        contentType: 'application/merge-patch+json',
        body: { metadata: { resourceVersion: '7' }, spec: { taints: [other] } },
      },
    ]);
    expect(patchesOf(node({ taints: [startup] }), 0)).toMatchObject([{ body: { spec: { taints: null } } }]);
  });
});

test.each(['startup-taint.yaml', 'node-readiness-rule.yaml'])('the example %s has the taint', (file) => {
  const examples = join(import.meta.dirname, '../../../deploy/kubernetes/examples');
  expect(readFileSync(join(examples, file), 'utf8')).toContain(`key: ${STARTUP_TAINT}`);
});
