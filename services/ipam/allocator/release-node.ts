import { formatPrefix, type Prefix } from '@podwire/shared/net/prefix';

import { sameOwner } from '../blocks/demand.js';
import { addressOf, type HeldAddress } from '../blocks/holding.js';
import { allBlocks } from '../blocks/lookup.js';
import { giveBack, heldIn, nextBatch, OPERATIONS_PER_STEP } from '../blocks/release-changes.js';
import { isVirtualMachine } from '../records/attributes.js';
import type { Change, Decision, View } from '../records/view.js';
import { abandonBlock, OPERATIONS_TO_ABANDON } from './abandon-block.js';
import { firstWritable } from './block-bytes.js';
import type { BlockOwner } from './records.js';

/** What one step of a release of several transactions came to. */
export interface ReleaseStep {
  /** Whether nothing was left to do, so that this step changes nothing. Otherwise ask again. */
  readonly state: 'more' | 'done';
  /** What the step gave back, of full length. */
  readonly addresses: readonly Prefix[];
}

export interface NodeRelease {
  readonly nodeName: string;
  readonly nowMs: number;
}

const BLOCKS_PER_STEP = Math.floor(OPERATIONS_PER_STEP / OPERATIONS_TO_ABANDON);

/**
 * Gives back all that a node holds, as much in each step as a transaction takes: first every address whose attributes name the
 * node, in whosever block, unless a container on another node uses it, or it is that of a virtual machine, which may run on another next;
 * then its blocks, of which those with others' addresses stay without an owner.
 *
 * Idempotent. It comes to an end once nobody gives the node anything any more, as while its record is being deleted.
 */
export function continueNodeRelease(view: View, { nodeName, nowMs }: NodeRelease): Decision<ReleaseStep> {
  const batch = nextBatch(view, heldByNode(view, nodeName));
  if (batch.length > 0) return releaseStep(batch, giveBack(view, batch, nowMs));
  const owner: BlockOwner = { kind: 'host', name: nodeName };
  const claims = firstWritable(claimsOf(view, owner).slice(0, BLOCKS_PER_STEP), (prefix) => view.block(prefix));
  const changes = claims.flatMap((prefix) => [
    ...abandonBlock(view, { owner, prefix, mustBeEmpty: false, nowMs }).changes,
  ]);
  return releaseStep([], changes);
}

export function releaseStep(held: readonly HeldAddress[], changes: readonly Change[]): Decision<ReleaseStep> {
  const state = changes.length > 0 ? 'more' : 'done';
  return { changes, outcome: { state, addresses: held.map(addressOf) } };
}

/** Borrowed addresses are in others' blocks, so all are looked at: once for each distinct attributes, not for each address. */
function* heldByNode(view: View, nodeName: string): Generator<HeldAddress, void, void> {
  const elsewhere = usedElsewhere(view, nodeName);
  for (const block of allBlocks(view))
    for (const held of heldIn(block, (each) => each.owner.node === nodeName && !isVirtualMachine(each)))
      if (!elsewhere.has(formatPrefix(addressOf(held)))) yield held;
}

/**
 * Addresses that other writers' endpoints name on other nodes. Calico's plugin takes the name for the attributes and that for the
 * endpoint from different places, so the attributes of an address in use may name a node that is gone, or never was.
 */
function usedElsewhere(view: View, nodeName: string): ReadonlySet<string> {
  const used = new Set<string>();
  for (const { value } of view.foreignEndpoints())
    if (value.nodeName !== nodeName) for (const address of value.addresses) used.add(formatPrefix(address));
  return used;
}

/** The blocks that name the owner, and those that its affinities name. */
function claimsOf(view: View, owner: BlockOwner): Prefix[] {
  const affinities = view.affinitiesOf(owner).map(({ block }) => block);
  const known = new Set(affinities.map(formatPrefix));
  const blocks = [...allBlocks(view)].filter((block) => sameOwner(block.owner, owner)).map(({ prefix }) => prefix);
  return [...affinities, ...blocks.filter((prefix) => !known.has(formatPrefix(prefix)))];
}
