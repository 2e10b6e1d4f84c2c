import { Failure } from '@podwire/shared/failure/failure';

import { makeNode } from '../nodes/nodes.js';
import { requireReadable } from '../records/absence.js';
import type { Change, View } from '../records/view.js';
import type { Node, UnknownNodes } from './records.js';
import type { Labels } from './selector/ast.js';

export interface NodeQuestion {
  readonly nodeName: string;
  readonly unknownNodes: UnknownNodes;
  readonly nowMs: number;
}

/** A node that may have addresses. */
export interface JudgedNode {
  readonly labels: Labels;
  /** What giving it one rests on: its record as it is, or made with the allocation. */
  readonly changes: readonly Change[];
}

/**
 * Whether a node may have addresses. Whoever gives it one expects its record, so that a node whose deletion has begun gets none any
 * more, by whichever replica: the deletion first marks the record, and then gives back all that is there.
 * @throws Failure NODE_NOT_FOUND, NODE_BEING_DELETED; STORE_CORRUPT when its record cannot be read
 */
export function judgeNode(view: View, { nodeName, unknownNodes, nowMs }: NodeQuestion): JudgedNode {
  const node = view.node(nodeName);
  if (!node) requireReadable(view, { kind: 'node', name: nodeName });
  if (!node) return { labels: {}, changes: [{ type: 'put', record: { kind: 'node', value: newNode() } }] };
  if (node.deletionTimeMs !== undefined) {
    const text = `node "${nodeName}" is being deleted and gets no address; once it is gone, register it anew`;
    throw new Failure('NODE_BEING_DELETED', text, { details: { node: nodeName } });
  }
  return { labels: node.labels, changes: [{ type: 'expect', record: { kind: 'node', value: node } }] };

  function newNode(): Node {
    if (unknownNodes.policy === 'refuse') throw nodeNotFound(nodeName);
    return makeNode({ name: nodeName, uid: unknownNodes.uid, nowMs });
  }
}

export function nodeNotFound(nodeName: string): Failure {
  const text = `node "${nodeName}" is not registered; register it, or set PODWIRE_IPAM_UNKNOWN_NODES to register`;
  return new Failure('NODE_NOT_FOUND', text, { details: { node: nodeName } });
}
