import { describe, expect, test } from 'vitest';

import { ordinalsWhere } from '../records/block.js';
import type { TestView } from '../testing/test-view.js';
import { audit, calicoAttributes, handleRecord, healthyView, repairAll, takeUnrecorded } from '../testing/damages.js';
import { block, claimedBlock, failureOf, foreignRecord, nodeRecord, NOW_MS, prefix } from '../testing/records.js';
import { beginNodeDeletion, continueNodeDeletion } from './deletion.js';

/**
 * Records of Calico's plugin where a machine's name and its node's differ: attributes that name a deleted node, of an address
 * that a container on another one uses (projectcalico/calico#12257).
 */
const CIDR = 'fd00::c/126';
const HANDLE = 'k8s-pod-network.c9';

function start({ endpointNode = 'n1' } = {}): TestView {
  const view = healthyView();
  for (const name of ['n1', 'n2']) view.put(nodeRecord(name));
  claimedBlock(takeUnrecorded(block(CIDR, 'n1'), calicoAttributes('c9', 'web', 'former'))).forEach((each) =>
    view.put(each),
  );
  view.put(handleRecord(HANDLE, { [CIDR]: 1 }));
  const addresses = [prefix('fd00::c/128')];
  view.put(foreignRecord('e', { nodeName: endpointNode, containerId: 'c9', podName: 'web', addresses }));
  return view;
}

const isHeld = (view: TestView): boolean =>
  ordinalsWhere(view.block(prefix(CIDR)) ?? block(CIDR, 'n1'), ({ handleId }) => handleId === HANDLE).length === 1;

function deleteNode(view: TestView, name: string): void {
  const begin = { name, resourceVersion: '', uid: 'u', nowMs: NOW_MS };
  const node = view.apply(beginNodeDeletion(view, begin));
  while (view.apply(continueNodeDeletion(view, { node, nowMs: NOW_MS })).state === 'more');
}

describe('an address whose attributes name a deleted node, and that a container elsewhere uses', () => {
  test('is not reported as unused, and no repair releases it', () => {
    const view = start();
    expect(audit(view).filter(({ remedy }) => remedy.type === 'release')).toEqual([]);
    repairAll(view);
    expect(isHeld(view)).toBe(true);
  });

  test('stays when the node of that name is deleted, which holds nothing then', () => {
    const view = start();
    expect(failureOf(() => deleteNode(view, 'former')).code).toBe('NODE_NOT_FOUND');
    view.put(nodeRecord('former'));
    deleteNode(view, 'former');
    expect(view.node('former')).toBeUndefined();
    expect(isHeld(view)).toBe(true);
  });

  test('is released when the container was on that very node', () => {
    const view = start({ endpointNode: 'former' });
    deleteNode(view, 'former');
    expect(isHeld(view)).toBe(false);
  });
});
