import { Failure } from '@podwire/shared/failure/failure';
import type { Prefix } from '@podwire/shared/net/prefix';

import type { Node } from '../allocator/records.js';
import { continueNodeRelease } from '../allocator/release-node.js';
import { endpointsOfNode } from '../endpoints/endpoints.js';
import { wholeSeconds } from '../records/block.js';
import { lockedFailure } from '../records/datastore-lock.js';
import type { Change, Decision, View } from '../records/view.js';
import { makeNode, requireNode, requireNodeVersion } from './nodes.js';

/**
 * Deleting a node, in steps of one transaction each. The first marks the record. Whoever gives the node an address or a block expects
 * its record as it was seen, so nothing is given from then on; the following steps give back what was given before, and the
 * last removes the record. Cut off after the first, it can be taken up by anybody.
 */

interface NodeDeletion {
  readonly name: string;
  /** Delete only if the node still is of this version; empty for any. Ignored once the deletion has begun. */
  readonly resourceVersion: string;
  /** For the mark of a node that is not known but holds something. */
  readonly uid: string;
  readonly nowMs: number;
}

/** Endpoints removed by one step that have no address any more. */
const ENDPOINTS_PER_STEP = 50;

/**
 * The first step: checks, and marks the node. One that has no record but holds something, as Calico leaves behind, gets a marked one.
 * @returns the node as marked
 * @throws Failure NODE_NOT_FOUND when there is no record and nothing that the node holds; STALE_VERSION; STORE_LOCKED
 */
export function beginNodeDeletion(view: View, { name, resourceVersion, uid, nowMs }: NodeDeletion): Decision<Node> {
  const stored = view.node(name) ?? unknownHolder(view, { name, uid, nowMs });
  if (stored.deletionTimeMs !== undefined && view.node(name)) return { changes: [], outcome: stored };
  requireNodeVersion(stored, resourceVersion);
  // What follows gives back what the node holds.
  if (view.isLocked()) throw lockedFailure();
  const node = { ...stored, deletionTimeMs: wholeSeconds(nowMs) };
  return { changes: [{ type: 'put', record: { kind: 'node', value: node } }], outcome: node };
}

function unknownHolder(view: View, { name, uid, nowMs }: Omit<NodeDeletion, 'resourceVersion'>): Node {
  const holdsNothing = releaseStep(view, { name, nowMs }).state === 'done';
  return holdsNothing ? requireNode(view, name) : makeNode({ name, uid, nowMs });
}

/** What one further step came to. */
export interface NodeDeletionStep {
  /**
   * `more`: take another step. `behind`: what others committed before the mark is not all known here yet; try again soon. `done`:
   * the node is gone.
   */
  readonly state: 'more' | 'behind' | 'done';
  /** What the step gave back, of full length. */
  readonly addresses: readonly Prefix[];
  /** Number of blocks that the node gave up. */
  readonly blocks: number;
  /** Whether this step removed the node's record, and not another replica's. */
  readonly isRemoved: boolean;
}

interface NodeDeletionProgress {
  /** What {@link beginNodeDeletion} returned. */
  readonly node: Node;
  readonly nowMs: number;
}

const NOTHING = { addresses: [], blocks: 0, isRemoved: false };

/**
 * A step after the first. Idempotent; any number of replicas may take steps at the same time.
 * @throws Failure CONFLICT when somebody took the mark away
 */
export function continueNodeDeletion(
  view: View,
  { node: { name, uid }, nowMs }: NodeDeletionProgress,
): Decision<NodeDeletionStep> {
  const node = view.node(name);
  if (node?.uid !== uid) return { changes: [], outcome: { state: 'done', ...NOTHING } };
  if (node.deletionTimeMs === undefined) {
    const text = `the mark that node "${name}" is being deleted was taken away meanwhile; delete it once more`;
    throw new Failure('CONFLICT', text, { details: { node: name } });
  }
  const { state, changes, addresses } = releaseStep(view, { name, nowMs });
  if (state === 'more') {
    const blocks = changes.filter((change) => change.type === 'delete' && change.record.kind === 'affinity').length;
    return { changes, outcome: { state, addresses, blocks, isRemoved: false } };
  }
  if (!view.showsAllBefore({ kind: 'node', value: node }))
    return { changes: [], outcome: { state: 'behind', ...NOTHING } };
  return {
    changes: [{ type: 'delete', record: { kind: 'node', value: node } }],
    outcome: { state, ...NOTHING, isRemoved: true },
  };
}

interface Step {
  readonly state: 'more' | 'done';
  readonly changes: readonly Change[];
  readonly addresses: readonly Prefix[];
}

/** Addresses and blocks first, then the endpoints that are left, also those of other writers. */
function releaseStep(view: View, { name, nowMs }: { readonly name: string; readonly nowMs: number }): Step {
  const { changes, outcome } = continueNodeRelease(view, { nodeName: name, nowMs });
  if (outcome.state === 'more') return { state: 'more', changes, addresses: outcome.addresses };
  const removals: Change[] = [];
  for (const record of endpointsOfNode(view, name)) {
    removals.push({ type: 'delete', record });
    if (removals.length === ENDPOINTS_PER_STEP) break;
  }
  return { state: removals.length > 0 ? 'more' : 'done', changes: removals, addresses: [] };
}
