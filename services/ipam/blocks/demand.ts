import { Failure } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';

import { requireReadable } from '../records/absence.js';
import type { BlockOwner } from '../records/block.js';
import { makeNode, type Node, type UnknownNodes } from '../records/node.js';
import type { Change, View } from '../records/view.js';
import type { Labels } from '../selectors/parser.js';

/** What addresses are used for; among a pool's `allowedUses`. */
export type PoolUse = 'Workload' | 'Tunnel' | 'LoadBalancer';

/** A demand for addresses of one family, for any kind of owner. */
export interface Demand {
  readonly family: Family;
  readonly use: PoolUse;
  /** Whose blocks come first; blocks that are claimed become its. */
  readonly owner: BlockOwner;
  /** Empty for virtual owners. */
  readonly nodeLabels: Labels;
  /** Empty where no namespace is known. */
  readonly namespaceLabels: Labels;
  /** Whether to ignore the pools' namespaceSelector, because the namespace is left open. Default: false. */
  readonly isAnyNamespace?: boolean | undefined;
  /** Names or CIDRs of the pools to take from, in this order. Where none is of the family, selectors decide. */
  readonly pools: readonly string[];
  /** Blocks of the family that the owner may have in these pools; 0 for what the configuration says. */
  readonly maxBlocksCount: number;
  /** Where the walk over blocks of a single address starts: there is no place to keep together, and every taker has its own. */
  readonly seed: string;
  readonly nowMs: number;
}

interface NodeRequest {
  readonly nodeName: string;
  readonly unknownNodes: UnknownNodes;
  readonly nowMs: number;
}

/** A node that may have addresses. */
export interface AuthorizedNode {
  readonly labels: Labels;
  /** What giving it one rests on: its record as it is, or made with the allocation. */
  readonly changes: readonly Change[];
}

/**
 * Whether a node may get addresses. An allocation compares the node's record, so a node whose deletion has begun gets
 * no more from any replica: the deletion first marks the record, and then releases everything the node holds.
 * @throws Failure NODE_NOT_FOUND, NODE_BEING_DELETED; STORE_CORRUPT when its record cannot be read
 */
export function authorizeNode(view: View, { nodeName, unknownNodes, nowMs }: NodeRequest): AuthorizedNode {
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
