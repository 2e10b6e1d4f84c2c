import { Failure } from '@podwire/shared/failure/failure';
import type { Address, Family } from '@podwire/shared/net/address';

import { requireReadable } from '../records/absence.js';
import type { BlockOwner } from '../records/block.js';
import { makeNode, type Node, type UnknownNodes } from '../records/node.js';
import type { Change, View } from '../records/view.js';
import type { Labels } from '../selectors/parser.js';

/** The use of addresses, one of a pool's `allowedUses`. */
export type PoolUse = 'Workload' | 'Tunnel' | 'LoadBalancer';

/** A demand for addresses of one family, for any kind of owner. */
export interface Demand {
  readonly family: Family;
  readonly use: PoolUse;
  /** Its blocks are tried first, and it gets the claimed blocks. */
  readonly owner: BlockOwner;
  /** Empty for virtual owners. */
  readonly nodeLabels: Labels;
  /** Empty when no namespace is known. */
  readonly namespaceLabels: Labels;
  /** Whether to ignore the pools' namespaceSelector, because the namespace is left open. Default: false. */
  readonly isAnyNamespace?: boolean | undefined;
  /** Names or CIDRs of the pools to allocate from, in this order. If none is of the family, selectors decide. */
  readonly pools: readonly string[];
  /** Limit of the owner's blocks of the family in these pools; 0 for the configured one. */
  readonly maxBlocksCount: number;
  /** Whether to take nothing from blocks of other owners: none is reclaimed, and none borrowed from. Default: false. */
  readonly sparesOtherNodes?: boolean | undefined;
  /**
   * Whether the last free addresses of a pool are kept for nodes that hold less than their share, as they are for the
   * pods of nodes. Default: false.
   */
  readonly isLimitedToShare?: boolean | undefined;
  /**
   * Decides the start of the walk over blocks of a single address. Such blocks need no locality, so each request starts
   * elsewhere.
   */
  readonly seed: string;
  readonly nowMs: number;
}

/** Why a pool cannot serve a demand, and the remedy. */
export interface Obstacle {
  readonly reason: string;
  readonly remedy: string;
}

/** The addresses that an operation takes, if it can. */
export interface Need {
  /** Addresses that it takes from pools. */
  readonly demands: (view: View) => readonly Demand[];
  /** The addresses that it requests. */
  readonly addresses: readonly Address[];
}

/** Makes room for operations that are refused because addresses are in use. */
export interface Relief {
  /**
   * Runs an operation, and repeats it while room may be made.
   * @throws the failure of the first run, unless a repetition succeeds or fails for another reason
   */
  readonly attempt: <Result>(need: Need, run: () => Promise<Result>, signal: AbortSignal) => Promise<Result>;
}

interface NodeRequest {
  readonly nodeName: string;
  readonly unknownNodes: UnknownNodes;
  readonly nowMs: number;
}

/** A node that may get addresses. */
export interface AuthorizedNode {
  readonly labels: Labels;
  /** Precondition of an allocation: the unchanged record, or its creation in the same transaction. */
  readonly changes: readonly Change[];
}

/**
 * Refuses nodes that may not get addresses. An allocation compares the node's record, which a deletion marks before it
 * releases the node's addresses. So no replica allocates to a node that is being deleted.
 * @throws Failure NODE_NOT_FOUND, NODE_BEING_DELETED; STORE_CORRUPT when its record cannot be read
 */
export function authorizeNode(view: View, { nodeName, unknownNodes, nowMs }: NodeRequest): AuthorizedNode {
  const node = view.node(nodeName);
  if (!node) requireReadable(view, { kind: 'node', name: nodeName });
  if (!node) return { labels: {}, changes: [{ type: 'put', record: { kind: 'node', value: newNode() } }] };
  if (node.deletionTimeMs !== undefined) {
    const text = `node "${nodeName}" is being deleted and gets no address; register it again after the deletion`;
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
