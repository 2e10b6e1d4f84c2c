import { Failure } from '@podwire/shared/failure/failure';
import { formatPrefix, type Prefix } from '@podwire/shared/net/prefix';

import { releaseClaim, OPERATIONS_PER_CLAIM } from '../affinities/affinities.js';
import { addressOf } from '../records/block.js';
import { allBlocks } from '../blocks/lookup.js';
import {
  releaseHeld,
  nextBatch,
  OPERATIONS_PER_STEP,
  releaseStep,
  type ReleaseStep,
} from '../blocks/release-changes.js';
import { RunningNodes, type SilentNodes } from '../blocks/running-nodes.js';
import { endpointsOfNode } from '../endpoints/endpoints.js';
import { attachmentOf, isVirtualMachine } from '../records/attributes.js';
import { firstWritable } from '../records/block-stats.js';
import { heldAddressesIn, sameOwner, wholeSeconds, type BlockOwner, type HeldAddress } from '../records/block.js';
import { lockedFailure } from '../records/datastore-lock.js';
import { makeNode, type Node } from '../records/node.js';
import type { NodeSession } from '../records/session.js';
import type { Change, Decision, View } from '../records/view.js';
import { requireNode, requireNodeVersion } from './nodes.js';

/**
 * Deleting a node, in steps of one transaction each. The first step marks the record. Allocations and claims compare
 * the node's record, so the node gets nothing new from then on. The following steps release what it holds, and the last
 * removes the record. After an interruption any replica can continue. A node that runs may give a leased address to a pod
 * meanwhile: then the mark is removed again.
 */

interface NodeDeletion {
  readonly name: string;
  /** Delete only if the node still is of this version; empty for any. Ignored once the deletion has begun. */
  readonly resourceVersion: string;
  /** UID of the marked record of an unregistered node. */
  readonly uid: string;
  readonly nowMs: number;
}

/** Endpoints without an address that one step removes. */
const ENDPOINTS_PER_STEP = 50;

/**
 * The first step: checks, and marks the node. A node without a record that holds addresses, left by Calico, gets a marked record.
 * @returns the node as marked
 * @throws Failure NODE_NOT_FOUND when there is no record and nothing that the node holds; STALE_VERSION; STORE_LOCKED
 */
export function beginNodeDeletion(view: View, { name, resourceVersion, uid, nowMs }: NodeDeletion): Decision<Node> {
  const stored = view.node(name) ?? unregisteredNode(view, { name, uid, nowMs });
  if (stored.deletionTimeMs !== undefined && view.node(name)) return { changes: [], outcome: stored };
  requireNodeVersion(stored, resourceVersion);
  // The following steps release what the node holds.
  if (view.isLocked()) throw lockedFailure();
  const node = { ...stored, deletionTimeMs: wholeSeconds(nowMs) };
  return { changes: [{ type: 'put', record: { kind: 'node', value: node } }], outcome: node };
}

function unregisteredNode(view: View, { name, uid, nowMs }: Omit<NodeDeletion, 'resourceVersion'>): Node {
  const holdsNothing = !view.session(name) && releaseNodeStep(view, { name, nowMs }).state === 'done';
  return holdsNothing ? requireNode(view, name) : makeNode({ name, uid, nowMs });
}

/** The result of one further step. */
export interface NodeDeletionStep {
  /**
   * `more`: take another step. `behind`: some commits from before the mark have not arrived here yet; try again soon.
   * `done`: the node is gone. `inUse`: the node runs, and pods have addresses; its deletion is cancelled.
   */
  readonly state: 'more' | 'behind' | 'done' | 'inUse';
  /** Released addresses, of full length. */
  readonly addresses: readonly Prefix[];
  /** Number of released blocks. */
  readonly blocks: number;
  /** Whether this step removed the node's record, and not another replica's. */
  readonly isRemoved: boolean;
}

interface NodeDeletionProgress {
  readonly nowMs: number;
  /** Default: none. */
  readonly silent?: SilentNodes | undefined;
  /** Result of {@link beginNodeDeletion}. */
  readonly node: Node;
}

const NO_RELEASES = { addresses: [], blocks: 0, isRemoved: false };

/**
 * A step after the first. Idempotent; several replicas may take steps concurrently.
 * @throws Failure CONFLICT when the mark was removed
 */
export function continueNodeDeletion(
  view: View,
  { node: { name, uid }, nowMs, silent }: NodeDeletionProgress,
): Decision<NodeDeletionStep> {
  const running = new RunningNodes(view, silent);
  const node = view.node(name);
  if (node?.uid !== uid) return { changes: [], outcome: { state: 'done', ...NO_RELEASES } };
  if (node.deletionTimeMs === undefined) {
    const text = `node "${name}" lost its deletion mark; delete the node again`;
    throw new Failure('CONFLICT', text, { details: { node: name } });
  }
  const session = view.session(name);
  if (running.has(name) && podsOfNode(view, name).length > 0) {
    const value = { ...node, deletionTimeMs: undefined };
    return { changes: [{ type: 'put', record: { kind: 'node', value } }], outcome: { state: 'inUse', ...NO_RELEASES } };
  }
  const { state, changes, addresses } = releaseNodeStep(view, { name, nowMs });
  const expected: Change[] = session ? [{ type: 'expect', record: { kind: 'nodeSession', value: session } }] : [];
  if (state === 'more') {
    const blocks = changes.filter((change) => change.type === 'delete' && change.record.kind === 'affinity').length;
    return { changes: [...changes, ...expected], outcome: { state, addresses, blocks, isRemoved: false } };
  }
  if (!view.showsAllBefore({ kind: 'node', value: node }))
    return { changes: [], outcome: { state: 'behind', ...NO_RELEASES } };
  // A node that runs registers again. Its session keeps other holders from the addresses that it may give to pods.
  const removal: Change[] = session && !running.has(name) ? [removalOf(session)] : expected;
  return {
    changes: [{ type: 'delete', record: { kind: 'node', value: node } }, ...removal],
    outcome: { state, ...NO_RELEASES, isRemoved: true },
  };
}

function removalOf(value: NodeSession): Change {
  return { type: 'delete', record: { kind: 'nodeSession', value } };
}

/** The addresses of a node's pods that Podwire's nodes gave them. */
export function podsOfNode(view: View, nodeName: string): HeldAddress[] {
  return [...heldByNode(view, nodeName)].filter(({ attributes }) => attachmentOf(attributes) !== undefined);
}

interface NodeReleaseStep {
  readonly state: 'more' | 'done';
  readonly changes: readonly Change[];
  readonly addresses: readonly Prefix[];
}

/** Releases addresses and blocks first, then deletes remaining endpoints, also of other writers. */
function releaseNodeStep(
  view: View,
  { name, nowMs }: { readonly name: string; readonly nowMs: number },
): NodeReleaseStep {
  const { changes, outcome } = continueNodeRelease(view, { nodeName: name, nowMs });
  if (outcome.state === 'more') return { state: 'more', changes, addresses: outcome.addresses };
  const removals: Change[] = [];
  for (const record of endpointsOfNode(view, name)) {
    removals.push({ type: 'delete', record });
    if (removals.length === ENDPOINTS_PER_STEP) break;
  }
  return { state: removals.length > 0 ? 'more' : 'done', changes: removals, addresses: [] };
}

interface NodeRelease {
  readonly nodeName: string;
  readonly nowMs: number;
}

const BLOCKS_PER_STEP = Math.floor(OPERATIONS_PER_STEP / OPERATIONS_PER_CLAIM);

/**
 * Releases everything that a node holds, as many items per step as fit in a transaction. First come the addresses whose
 * attributes name the node, in any block. Exceptions: a container on another node uses the address, or it belongs to a
 * virtual machine, which may run on another node next. Then come the node's blocks; blocks with addresses of other nodes
 * stay without an owner.
 *
 * Idempotent. It ends only if the node gets no new addresses or blocks, as during its deletion.
 */
export function continueNodeRelease(view: View, { nodeName, nowMs }: NodeRelease): Decision<ReleaseStep> {
  const batch = nextBatch(view, heldByNode(view, nodeName));
  if (batch.length > 0) return releaseStep(batch, releaseHeld(view, batch, nowMs));
  const owner: BlockOwner = { kind: 'host', name: nodeName };
  const claims = firstWritable(claimsOf(view, owner).slice(0, BLOCKS_PER_STEP), (prefix) => view.block(prefix));
  const changes = claims.flatMap((prefix) => [
    ...releaseClaim(view, { owner, prefix, mustBeEmpty: false, nowMs }).changes,
  ]);
  return releaseStep([], changes);
}

/**
 * Borrowed addresses are in blocks of other nodes, so all blocks are examined: once for each distinct attributes, not
 * for each address.
 */
function* heldByNode(view: View, nodeName: string): Generator<HeldAddress, void, void> {
  const elsewhere = addressesUsedElsewhere(view, nodeName);
  for (const block of allBlocks(view))
    for (const held of heldAddressesIn(block, (each) => each.owner.node === nodeName && !isVirtualMachine(each)))
      if (!elsewhere.has(formatPrefix(addressOf(held)))) yield held;
}

/**
 * Addresses that other writers' endpoints name on other nodes. Calico's plugin takes the name for the attributes and that for the
 * endpoint from different places, so the attributes of an address in use may name a node that is gone, or never was.
 */
function addressesUsedElsewhere(view: View, nodeName: string): ReadonlySet<string> {
  const used = new Set<string>();
  for (const { value } of view.foreignEndpoints())
    if (value.nodeName !== nodeName && value.network === undefined)
      for (const address of value.addresses) used.add(formatPrefix(address));
  return used;
}

/** The blocks that name the owner or that its affinities name. */
function claimsOf(view: View, owner: BlockOwner): Prefix[] {
  const affinities = view.affinitiesOf(owner).map(({ block }) => block);
  const known = new Set(affinities.map(formatPrefix));
  const blocks = [...allBlocks(view)].filter((block) => sameOwner(block.owner, owner)).map(({ prefix }) => prefix);
  return [...affinities, ...blocks.filter((prefix) => !known.has(formatPrefix(prefix)))];
}
