import type { Change, Decision, View } from '../records/view.js';

/** Requests to a node: podwire-ipam raises a number in the node's record, which the node watches. */

/**
 * Asks a node for its inventory. Without effect on a node that is not registered.
 * @returns whether the node was asked
 */
export function requestInventory(view: View, nodeName: string): Decision<boolean> {
  const changes = raiseCount(view, nodeName, 'inventoryRequestCount');
  return { changes, outcome: changes.length > 0 };
}

/** Makes a node list its leases and return the leases that it does not need. */
export function requestLeases(view: View, nodeName: string): Change[] {
  return raiseCount(view, nodeName, 'leaseRecallCount');
}

function raiseCount(view: View, nodeName: string, count: 'inventoryRequestCount' | 'leaseRecallCount'): Change[] {
  const node = view.node(nodeName);
  if (!node) return [];
  return [{ type: 'put', record: { kind: 'node', value: { ...node, [count]: (node[count] ?? 0) + 1 } } }];
}
