import { Failure } from '@podwire/shared/failure/failure';
import {
  comparePrefixes,
  formatPrefix,
  prefixContains,
  prefixesOverlap,
  type Prefix,
} from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';

import { allBlocks } from '../blocks/lookup.js';
import { OPERATIONS_PER_STEP } from '../blocks/release-changes.js';
import { requirePool } from '../pools/pools.js';
import type { Decision, View } from '../records/view.js';
import { abandonBlock, OPERATIONS_TO_ABANDON, type Abandoned } from './abandon-block.js';
import { firstWritable } from './block-bytes.js';
import type { BlockOwner } from './records.js';

/** The claims that are to end. */
export type AffinityScope =
  /** Of one block, whoever's it is. */
  | { readonly kind: 'block'; readonly block: Prefix }
  /** Of an owner's blocks within a range. */
  | { readonly kind: 'range'; readonly cidr: Prefix; readonly owner: BlockOwner }
  /** Of all blocks of an owner, in whichever pools, or none. */
  | { readonly kind: 'owner'; readonly owner: BlockOwner }
  /** Of all blocks of a pool, whoever's they are. */
  | { readonly kind: 'pool'; readonly poolName: string };

export interface AffinityRelease {
  readonly scope: AffinityScope;
  /** Whether blocks with addresses in use keep their owner; otherwise they stay without one. */
  readonly mustBeEmpty: boolean;
  readonly nowMs: number;
  /** The claim behind which to go on; undefined to begin. */
  readonly after: OwnedBlock | undefined;
}

/** A block, and who claims it. */
export interface OwnedBlock {
  readonly owner: BlockOwner;
  readonly block: Prefix;
}

/** What became of one claim. */
export interface ReleasedAffinity extends OwnedBlock {
  readonly result: Abandoned;
}

export interface AffinityReleaseStep {
  readonly results: readonly ReleasedAffinity[];
  /** The claim behind which to go on; undefined when it is done. */
  readonly next: OwnedBlock | undefined;
}

const CLAIMS_PER_STEP = Math.floor(OPERATIONS_PER_STEP / (2 * OPERATIONS_TO_ABANDON));

/**
 * Ends claims of blocks, as many in each step as a transaction takes, each judged for itself. Empty blocks go with them; the others
 * lose their owner, and go with the release of their last address, or keep it where they must be empty. Idempotent: an owner
 * without claims, or one that nobody knows, has none to end.
 * @throws Failure POOL_NOT_FOUND, and BLOCK_IN_USE when one block is meant, has addresses in use, and must be empty
 */
export function continueAffinityRelease(view: View, release: AffinityRelease): Decision<AffinityReleaseStep> {
  const { scope, mustBeEmpty, nowMs, after } = release;
  const behind = claimsIn(view, scope)
    .sort(compareClaims)
    .filter((claim) => !after || compareClaims(claim, after) > 0);
  const step = firstWritable(behind.slice(0, CLAIMS_PER_STEP), ({ block }) => view.block(block));
  const ended = step.map(({ owner, block }) => abandonBlock(view, { owner, prefix: block, mustBeEmpty, nowMs }));
  if (scope.kind === 'block' && ended.some(({ result }) => result === 'notEmpty')) throw inUseFailure(scope.block);
  return {
    changes: ended.flatMap(({ changes }) => changes),
    outcome: {
      results: step.flatMap((claim, index) =>
        ended.slice(index, index + 1).map(({ result }) => ({ ...claim, result })),
      ),
      next: behind.length > step.length ? step.at(-1) : undefined,
    },
  };
}

function inUseFailure(prefix: Prefix): Failure {
  const block = formatPrefix(prefix);
  const text = `block ${block} keeps its owner: addresses of it are in use, or cool down; release them first, or let it lose its owner all the same`;
  return new Failure('BLOCK_IN_USE', text, { details: { block } });
}

/** The blocks that name an owner, and those that affinities name: either may be without the other. */
function claimsIn(view: View, scope: AffinityScope): OwnedBlock[] {
  const isMeant = scopeFilter(view, scope);
  const claims = new Map<string, OwnedBlock>();
  const add = (claim: OwnedBlock): void => {
    if (isMeant(claim)) claims.set(`${claim.owner.kind}:${claim.owner.name} ${formatPrefix(claim.block)}`, claim);
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

/** By block, then by owner: hosts before virtual owners. */
export function compareClaims(a: OwnedBlock, b: OwnedBlock): number {
  return (
    comparePrefixes(a.block, b.block) ||
    compareTexts(a.owner.kind, b.owner.kind) ||
    compareTexts(a.owner.name, b.owner.name)
  );
}
