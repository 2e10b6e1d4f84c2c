import { Failure } from '@podwire/shared/failure/failure';
import { familyBits } from '@podwire/shared/net/address';
import {
  comparePrefixes,
  formatPrefix,
  prefixContains,
  prefixesOverlap,
  type Prefix,
} from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';

import { authorizeNode } from '../blocks/demand.js';
import { allBlocks, overlappingBlock } from '../blocks/lookup.js';
import { OPERATIONS_PER_STEP, removeBlocks } from '../blocks/release-changes.js';
import { confirmAffinity, expectPool } from '../blocks/search.js';
import { cannotRead, expectBlock, requirePool } from '../records/absence.js';
import { countUnused, firstWritable } from '../records/block-stats.js';
import {
  collectCooled,
  isUnneeded,
  makeBlock,
  sameOwner,
  touchBlock,
  usedCount,
  type Affinity,
  type Block,
  type BlockOwner,
} from '../records/block.js';
import { DEFAULT_CONFIG } from '../records/config.js';
import type { UnknownNodes } from '../records/node.js';
import { smallestItems, type Page } from '../records/page.js';
import { unavailableReason, poolOf, type Pool } from '../records/pool.js';
import type { Change, Decision, View } from '../records/view.js';

export interface AffinityClaim {
  /** Range at least as large as a block, and within one pool. */
  readonly cidr: Prefix;
  readonly nodeName: string;
  readonly unknownNodes: UnknownNodes;
  readonly nowMs: number;
  /** The last block of the previous step; undefined in the first step. */
  readonly after: Prefix | undefined;
}

/** A block that was not claimed. */
export interface RefusedClaim {
  readonly block: Prefix;
  /** Its owner, or another obstacle, in words. */
  readonly reason: string;
}

interface AffinityClaimStep {
  /** The blocks that the node owns now, new or not. */
  readonly claimed: readonly Prefix[];
  /** New affinities. */
  readonly gained: readonly Prefix[];
  readonly refused: readonly RefusedClaim[];
  /** The last block of this step; undefined when the claim is done. */
  readonly next: Prefix | undefined;
}

/** Each block takes two operations: its own and its affinity's. */
const BLOCKS_PER_STEP = 50;
/** Maximum addresses of the blocks created in one step: each takes about ten bytes, and etcd accepts 1.5 MiB. */
const ADDRESSES_PER_STEP = 65_536;

/** Maximum number of blocks claimed at once: a /20 cut into single addresses. */
const MAX_BLOCKS = 4096n;

/**
 * Claims every block of a range for the node, as many per step as fit in a transaction. Blocks of other owners, and
 * blocks with addresses but no owner, are refused and named; a block that the node owns already counts as claimed.
 * Selectors and the block cap are ignored, as the request is explicit. Idempotent.
 * @throws Failure CLAIM_REFUSED when no enabled pool contains the range, or it is smaller than a block or too large;
 * NODE_NOT_FOUND, NODE_BEING_DELETED
 */
export function continueAffinityClaim(view: View, claim: AffinityClaim): Decision<AffinityClaimStep> {
  const { cidr, nodeName, unknownNodes, nowMs, after } = claim;
  const pool = requirePoolFor(view, cidr);
  const node = authorizeNode(view, { nodeName, unknownNodes, nowMs });
  const owner: BlockOwner = { kind: 'host', name: nodeName };
  const blocks = blocksAfter({ cidr, after, blockSizeBits: pool.blockSizeBits });
  const results = blocks.step.map((block) => claimBlock(view, { block, owner, nowMs }));
  const changes = results.flatMap((result) => result.changes);
  return {
    changes: changes.length > 0 ? [...node.changes, expectPool(pool), ...changes] : [],
    outcome: {
      claimed: results.flatMap(({ block, reason }) => (reason === undefined ? [block] : [])),
      gained: results.flatMap(({ block, changes: made }) => (made.length > 0 ? [block] : [])),
      refused: results.flatMap(({ block, reason }) => (reason === undefined ? [] : [{ block, reason }])),
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
  const reason = unavailableReason(pool);
  if (reason !== undefined) return refuse(`pool "${pool.name}" is ${reason}`);
  if (cidr.length > pool.blockSizeBits)
    return refuse(`the blocks of pool "${pool.name}" are of /${pool.blockSizeBits}; claim at least one`);
  const count = 1n << BigInt(pool.blockSizeBits - cidr.length);
  return count > MAX_BLOCKS ? refuse(`it has ${count} blocks; at most ${MAX_BLOCKS} may be claimed at once`) : pool;
}

interface BlockRange {
  readonly cidr: Prefix;
  readonly after: Prefix | undefined;
  readonly blockSizeBits: number;
}

function blocksAfter({ cidr, after, blockSizeBits }: BlockRange): { step: Prefix[]; isLast: boolean } {
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

interface ClaimResult {
  readonly block: Prefix;
  readonly changes: readonly Change[];
  /** Why it is not claimed; undefined when it is. */
  readonly reason: string | undefined;
}

function claimBlock(view: View, { block, owner, nowMs }: ClaimedBlock): ClaimResult {
  const existing = overlappingBlock(view, block);
  const unreadable = existing ? undefined : view.unreadableBlock(block);
  if (unreadable) return { block, changes: [], reason: `record ${unreadable.key} cannot be read` };
  if (cannotRead(view, { kind: 'affinity', owner, block }))
    return { block, changes: [], reason: 'the record of its affinity cannot be read' };
  if (!existing) {
    const made: Change = { type: 'put', record: { kind: 'block', value: makeBlock({ prefix: block, owner, nowMs }) } };
    return { block, changes: [made, confirmAffinity(owner, block)], reason: undefined };
  }
  if (existing.prefix.length !== block.length) {
    const reason = `block ${formatPrefix(existing.prefix)} of another size overlaps it`;
    return { block, changes: [], reason };
  }
  if (!sameOwner(existing.owner, owner)) return { block, changes: [], reason: ownerText(existing.owner) };
  if (view.affinity(owner, block)?.state === 'confirmed') return { block, changes: [], reason: undefined };
  // The unchanged block still names the node.
  return { block, changes: [...expectBlock(view, block), confirmAffinity(owner, block)], reason: undefined };
}

function ownerText(owner: BlockOwner | undefined): string {
  if (!owner) return 'it has no owner, and is removed with the release of its last address';
  return owner.kind === 'host' ? `it belongs to node ${owner.name}` : `it belongs to ${owner.name}`;
}

interface ClaimReleaseInput {
  readonly owner: BlockOwner;
  readonly prefix: Prefix;
  /** Whether a block with used or cooling addresses keeps its owner. Otherwise it stays without an owner. */
  readonly mustBeEmpty: boolean;
  readonly nowMs: number;
}

/** The result of releasing an owner's claim of a block. */
export type AffinityReleaseOutcome =
  /** The block was empty and was removed with the claim. */
  | 'removed'
  /** The block stays without an owner until its last address is released. */
  | 'disowned'
  /** The block has another owner, has none, or does not exist; a contradicting affinity was removed. */
  | 'notOwned'
  /** The block has used addresses but was required to be empty. Nothing was changed. */
  | 'notEmpty';

interface ClaimReleaseResult {
  readonly result: AffinityReleaseOutcome;
  readonly changes: readonly Change[];
}

/** Maximum operations of {@link releaseClaim} for a block without addresses reserved by Windows. */
export const OPERATIONS_PER_CLAIM = 3;

/** Releases an owner's claim of a block. Claims of other owners stay, even of the other kind with the same name. */
export function releaseClaim(view: View, { owner, prefix, mustBeEmpty, nowMs }: ClaimReleaseInput): ClaimReleaseResult {
  const stored = view.block(prefix);
  if (!stored || !sameOwner(stored.owner, owner)) {
    const changes = removeAffinity(view, { owner, prefix });
    // A claim writes block and affinity; the view may have the new state of only one of them.
    return { result: 'notOwned', changes: changes.length > 0 ? [...changes, ...expectBlock(view, prefix)] : [] };
  }
  const config = view.config() ?? DEFAULT_CONFIG;
  const block = collectCooled(stored, nowMs, config.cooldownSeconds);
  const expected: Change[] = block !== stored ? [{ type: 'expect', record: { kind: 'config', value: config } }] : [];
  if (isUnneeded(block)) {
    const removal = removeBlocks(view, { blocks: [block], kept: [], ended: [], nowMs });
    return { result: 'removed', changes: [...removal, ...expected] };
  }
  if (mustBeEmpty) return { result: 'notEmpty', changes: [] };
  const value: Block = { ...touchBlock(block), owner: undefined, claimTimeMs: undefined };
  return {
    result: 'disowned',
    changes: [
      { type: 'put', record: { kind: 'block', value } },
      ...removeAffinity(view, { owner, prefix }),
      ...expected,
    ],
  };
}

interface Claim {
  readonly owner: BlockOwner;
  readonly prefix: Prefix;
}

function removeAffinity(view: View, { owner, prefix }: Claim): Change[] {
  const value = view.affinity(owner, prefix);
  return value ? [{ type: 'delete', record: { kind: 'affinity', value } }] : [];
}

export interface AffinityQuery {
  /** The last affinity of the previous page; undefined for the first page. */
  readonly after: OwnedBlock | undefined;
  readonly limit: number;
  /** Only affinities of this node; empty for all, including virtual owners. */
  readonly nodeName: string;
  /** Only affinities of blocks of this pool; empty for all. */
  readonly poolName: string;
}

/** An affinity with its pool and its block's state. */
export interface AffinityListing {
  readonly affinity: Affinity;
  /** Pool; undefined when the pool was deleted. */
  readonly poolName: string | undefined;
  /** Whether the block exists and names the owner. Otherwise the affinity is not ownership. */
  readonly isBacked: boolean;
  /** Number of the block's addresses that are in use or cool down. */
  readonly usedCount: number;
}

/** A page of the affinities, in the order of their blocks. Empty for an unknown pool. */
export function listAffinities(view: View, query: AffinityQuery): Page<AffinityListing> {
  const found = smallestItems(matchingAffinities(view, query), query.limit + 1, compareClaims);
  const items = found.slice(0, query.limit).map((affinity) => describeAffinity(view, affinity));
  return { items, more: found.length > query.limit };
}

function* matchingAffinities(
  view: View,
  { after, nodeName, poolName }: AffinityQuery,
): Generator<Affinity, void, void> {
  const pool = poolName === '' ? undefined : view.pool(poolName);
  if (poolName !== '' && !pool) return;
  const all = nodeName === '' ? view.affinities() : view.affinitiesOf({ kind: 'host', name: nodeName });
  for (const affinity of all) {
    if (pool && !prefixContains(pool.prefix, affinity.block)) continue;
    if (after && compareClaims(affinity, after) <= 0) continue;
    yield affinity;
  }
}

function describeAffinity(view: View, affinity: Affinity): AffinityListing {
  const block = view.block(affinity.block);
  return {
    affinity,
    poolName: poolOf(view.pools(), affinity.block)?.name,
    isBacked: block !== undefined && sameOwner(block.owner, affinity.owner),
    usedCount: block ? usedCount(block) - countUnused(block).leased : 0,
  };
}

/** The claims to release. */
export type AffinityScope =
  /** One block of any owner. */
  | { readonly kind: 'block'; readonly block: Prefix }
  /** An owner's blocks within a range. */
  | { readonly kind: 'range'; readonly cidr: Prefix; readonly owner: BlockOwner }
  /** All blocks of an owner, in any pool or none. */
  | { readonly kind: 'owner'; readonly owner: BlockOwner }
  /** All blocks of a pool, of any owner. */
  | { readonly kind: 'pool'; readonly poolName: string };

export interface AffinityRelease {
  readonly scope: AffinityScope;
  /** Whether blocks with used or cooling addresses keep their owner. Otherwise they stay without an owner. */
  readonly mustBeEmpty: boolean;
  readonly nowMs: number;
  /** The last claim of the previous step; undefined in the first step. */
  readonly after: OwnedBlock | undefined;
}

/** A block and its claimant. */
export interface OwnedBlock {
  readonly owner: BlockOwner;
  readonly block: Prefix;
}

/** The result for one claim. */
export interface ReleasedAffinity extends OwnedBlock {
  readonly result: AffinityReleaseOutcome;
}

interface AffinityReleaseStep {
  readonly results: readonly ReleasedAffinity[];
  /** The last claim of this step; undefined when the release is done. */
  readonly next: OwnedBlock | undefined;
}

const CLAIMS_PER_STEP = Math.floor(OPERATIONS_PER_STEP / (2 * OPERATIONS_PER_CLAIM));

/**
 * Releases affinities of blocks, as many per step as fit in a transaction, each independently. Empty blocks are
 * removed. Blocks with addresses lose their owner and are removed with the release of their last address, or keep their
 * owner where they must be empty. Idempotent: an owner without affinities, or an unknown one, has none to release.
 * @throws Failure POOL_NOT_FOUND, and BLOCK_IN_USE when the scope is one block that has addresses in use and must be
 * empty
 */
export function continueAffinityRelease(view: View, release: AffinityRelease): Decision<AffinityReleaseStep> {
  const { scope, mustBeEmpty, nowMs, after } = release;
  const remaining = claimsIn(view, scope)
    .sort(compareClaims)
    .filter((claim) => !after || compareClaims(claim, after) > 0);
  const step = firstWritable(remaining.slice(0, CLAIMS_PER_STEP), ({ block }) => view.block(block));
  const ended = step.map(({ owner, block }) => releaseClaim(view, { owner, prefix: block, mustBeEmpty, nowMs }));
  if (scope.kind === 'block' && ended.some(({ result }) => result === 'notEmpty')) throw inUseFailure(scope.block);
  return {
    changes: ended.flatMap(({ changes }) => changes),
    outcome: {
      results: step.flatMap((claim, index) =>
        ended.slice(index, index + 1).map(({ result }) => ({ ...claim, result })),
      ),
      next: remaining.length > step.length ? step.at(-1) : undefined,
    },
  };
}

function inUseFailure(prefix: Prefix): Failure {
  const block = formatPrefix(prefix);
  const text = `block ${block} keeps its owner: addresses of it are in use or cool down; release them first, or unset must_be_empty`;
  return new Failure('BLOCK_IN_USE', text, { details: { block } });
}

/** The blocks that name an owner or that affinities name; each may exist without the other. */
function claimsIn(view: View, scope: AffinityScope): OwnedBlock[] {
  const isInScope = scopeFilter(view, scope);
  const claims = new Map<string, OwnedBlock>();
  const add = (claim: OwnedBlock): void => {
    if (isInScope(claim)) claims.set(`${claim.owner.kind}:${claim.owner.name} ${formatPrefix(claim.block)}`, claim);
  };
  const affinities = 'owner' in scope ? view.affinitiesOf(scope.owner) : view.affinities();
  for (const { owner, block } of affinities) add({ owner, block });
  for (const { owner, prefix } of allBlocks(view)) if (owner) add({ owner, block: prefix });
  return [...claims.values()];
}

function scopeFilter(view: View, scope: AffinityScope): (claim: OwnedBlock) => boolean {
  switch (scope.kind) {
    case 'block':
      return ({ block }) => comparePrefixes(block, scope.block) === 0;
    case 'range':
      return ({ owner, block }) => isOwner(owner, scope.owner) && prefixContains(scope.cidr, block);
    case 'owner':
      return ({ owner }) => isOwner(owner, scope.owner);
    case 'pool': {
      const pool = requirePool(view, scope.poolName);
      return ({ block }) => prefixesOverlap(pool.prefix, block);
    }
  }
}

function isOwner(a: BlockOwner, b: BlockOwner): boolean {
  return a.kind === b.kind && a.name === b.name;
}

/** Order by block, then by owner: hosts before virtual owners. */
function compareClaims(a: OwnedBlock, b: OwnedBlock): number {
  return (
    comparePrefixes(a.block, b.block) ||
    compareTexts(a.owner.kind, b.owner.kind) ||
    compareTexts(a.owner.name, b.owner.name)
  );
}
