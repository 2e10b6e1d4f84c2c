import { Failure } from '@podwire/shared/failure/failure';
import { familyBits } from '@podwire/shared/net/address';
import { formatPrefix, prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import { judgeNode } from '../allocator/judge-node.js';
import type { BlockOwner, Pool, UnknownNodes } from '../allocator/records.js';
import { sameOwner } from '../blocks/demand.js';
import { confirm } from '../blocks/search.js';
import { outOfUse, overlappingBlock } from '../pools/pools.js';
import { cannotRead } from '../records/absence.js';
import { makeBlock } from '../records/block.js';
import type { Change, Decision, View } from '../records/view.js';

export interface AffinityClaim {
  /** As large as a block, or larger, and within one pool. */
  readonly cidr: Prefix;
  readonly nodeName: string;
  readonly unknownNodes: UnknownNodes;
  readonly nowMs: number;
  /** The block behind which to go on; undefined to begin. */
  readonly after: Prefix | undefined;
}

/** A block that was not claimed. */
export interface RefusedClaim {
  readonly block: Prefix;
  /** Whose it is, in words. */
  readonly reason: string;
}

interface AffinityClaimStep {
  /** The blocks that are the node's, whether or not they were before. */
  readonly claimed: readonly Prefix[];
  /** Those of them that were not before. */
  readonly gained: readonly Prefix[];
  readonly refused: readonly RefusedClaim[];
  /** The block behind which to go on; undefined when it is done. */
  readonly next: Prefix | undefined;
}

/** Each takes two operations: the block and its affinity. */
const BLOCKS_PER_STEP = 50;
/** Addresses of the blocks that are made in one step: each takes about ten bytes, and etcd takes 1.5 MiB. */
const ADDRESSES_PER_STEP = 65_536;

/** So many blocks may be claimed at once: as many as a /20 has of single addresses. */
const MAX_BLOCKS = 4096n;

/**
 * Makes every block of a range the node's, as many in each step as a transaction takes. Blocks of others, and such as have addresses but
 * no owner, are refused and named; a block that is the node's already is claimed. Selectors, and how many blocks a node may have,
 * do not count: who asks knows. Idempotent.
 * @throws Failure CLAIM_REFUSED when no pool that is in use has the range, or it is smaller than a block or too large; NODE_NOT_FOUND,
 * NODE_BEING_DELETED
 */
export function continueAffinityClaim(view: View, claim: AffinityClaim): Decision<AffinityClaimStep> {
  const { cidr, nodeName, unknownNodes, nowMs, after } = claim;
  const pool = requirePoolFor(view, cidr);
  const node = judgeNode(view, { nodeName, unknownNodes, nowMs });
  const owner: BlockOwner = { kind: 'host', name: nodeName };
  const blocks = blocksBehind({ cidr, after, blockSizeBits: pool.blockSizeBits });
  const judged = blocks.step.map((block) => claimBlock(view, { block, owner, nowMs }));
  const changes = judged.flatMap((result) => result.changes);
  return {
    changes: changes.length > 0 ? [...node.changes, expectPool(pool), ...changes] : [],
    outcome: {
      claimed: judged.flatMap(({ block, reason }) => (reason === undefined ? [block] : [])),
      gained: judged.flatMap(({ block, changes: made }) => (made.length > 0 ? [block] : [])),
      refused: judged.flatMap(({ block, reason }) => (reason === undefined ? [] : [{ block, reason }])),
      next: blocks.isLast ? undefined : blocks.step.at(-1),
    },
  };
}

function requirePoolFor(view: View, cidr: Prefix): Pool {
  const text = formatPrefix(cidr);
  const refuse = (reason: string): never => {
    throw new Failure('CLAIM_REFUSED', `${text} cannot be claimed: ${reason}`, { details: { cidr: text } });
  };
  const pool = view.pools().find(({ prefix }) => prefixContains(prefix, cidr));
  if (!pool) return refuse('it does not lie in one pool; list the pools');
  const reason = outOfUse(pool);
  if (reason !== undefined) return refuse(`pool "${pool.name}" is ${reason}`);
  if (cidr.length > pool.blockSizeBits)
    return refuse(`the blocks of pool "${pool.name}" are of /${pool.blockSizeBits}; claim at least one`);
  const count = 1n << BigInt(pool.blockSizeBits - cidr.length);
  return count > MAX_BLOCKS ? refuse(`it has ${count} blocks, and ${MAX_BLOCKS} may be claimed at once`) : pool;
}

interface BlockRun {
  readonly cidr: Prefix;
  readonly after: Prefix | undefined;
  readonly blockSizeBits: number;
}

function blocksBehind({ cidr, after, blockSizeBits }: BlockRun): { step: Prefix[]; isLast: boolean } {
  const bits = familyBits(cidr.family);
  const size = 1n << BigInt(bits - blockSizeBits);
  const end = cidr.value + (1n << BigInt(bits - cidr.length));
  const count = Math.min(BLOCKS_PER_STEP, ADDRESSES_PER_STEP / Number(size));
  const step: Prefix[] = [];
  let value = after ? after.value + size : cidr.value;
  for (; value < end && step.length < count; value += size)
    step.push({ family: cidr.family, value, length: blockSizeBits });
  return { step, isLast: value >= end };
}

interface ClaimedBlock {
  readonly block: Prefix;
  readonly owner: BlockOwner;
  readonly nowMs: number;
}

interface JudgedClaim {
  readonly block: Prefix;
  readonly changes: readonly Change[];
  /** Why it is not claimed; undefined when it is. */
  readonly reason: string | undefined;
}

function claimBlock(view: View, { block, owner, nowMs }: ClaimedBlock): JudgedClaim {
  const existing = overlappingBlock(view, block);
  const unreadable = existing ? undefined : view.unreadableBlock(block);
  if (unreadable) return { block, changes: [], reason: `record ${unreadable.key} cannot be read` };
  if (cannotRead(view, { kind: 'affinity', owner, block }))
    return { block, changes: [], reason: 'the record of its affinity cannot be read' };
  if (!existing) {
    const made: Change = { type: 'put', record: { kind: 'block', value: makeBlock({ prefix: block, owner, nowMs }) } };
    return { block, changes: [made, confirm(owner, block)], reason: undefined };
  }
  if (existing.prefix.length !== block.length) {
    const reason = `block ${formatPrefix(existing.prefix)} of another size lies across it`;
    return { block, changes: [], reason };
  }
  if (!sameOwner(existing.owner, owner)) return { block, changes: [], reason: ownerText(existing.owner) };
  if (view.affinity(owner, block)?.state === 'confirmed') return { block, changes: [], reason: undefined };
  // The block names the node for as long as it is as it was seen.
  const expected: Change = { type: 'expect', record: { kind: 'block', value: existing } };
  return { block, changes: [expected, confirm(owner, block)], reason: undefined };
}

function ownerText(owner: BlockOwner | undefined): string {
  if (!owner) return 'it has no owner, and goes with the release of its last address';
  return owner.kind === 'host' ? `it belongs to node ${owner.name}` : `it belongs to ${owner.name}`;
}

function expectPool(value: Pool): Change {
  return { type: 'expect', record: { kind: 'pool', value } };
}
