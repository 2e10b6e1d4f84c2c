import { familyBits, type Family } from '@podwire/shared/net/address';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import type { Prefix } from '@podwire/shared/net/prefix';

import { makeBlock } from './block.js';
import { findBlock } from './claim.js';
import { overlappingBlock, poolOf } from './pools.js';
import type { Affinity, Block, BlockOwner, Pool } from './records.js';
import type { Change, View } from './view.js';

/** What a block is wanted for. */
export interface BlockWish {
  readonly family: Family;
  readonly nodeName: string;
  readonly attachment: Attachment;
  readonly nowMs: number;
  /** The pools that may serve, in the order in which they are tried. */
  readonly pools: readonly Pool[];
}

/** A block with a free address that belongs, or with these changes will belong, to the node. */
export interface ChosenBlock {
  readonly block: Block;
  readonly changes: readonly Change[];
  /** Whether the block was not the node's before. */
  readonly claimed: boolean;
}

/**
 * Chooses the block to take an address from: the node's own blocks first, in the order of their addresses, then one that nobody
 * has. Blocks of others, and blocks that nobody owns any more, are left alone.
 *
 * Both phases of Calico's claim are in one transaction here, so that no crash leaves a pending affinity behind. Those that
 * others left are completed when their block can be had, and removed when the block is another's.
 */
export function chooseBlock(view: View, wish: BlockWish): ChosenBlock | undefined {
  const owner: BlockOwner = { kind: 'host', name: wish.nodeName };
  const stale: Change[] = [];
  for (const affinity of view.affinitiesOf(owner)) {
    const pool = poolOf(wish.pools, affinity.block);
    if (!pool) continue;
    const block = view.block(affinity.block);
    if (block && !isOwner(block, owner)) stale.push({ type: 'delete', record: { kind: 'affinity', value: affinity } });
    else if (!block && fits(view, affinity.block, pool))
      return claim(view, { wish, owner, prefix: affinity.block, stale });
    else if (block && block.unallocated.length > 0) return own(affinity, block, stale);
  }
  return findNew(view, { wish, owner, stale });
}

function isOwner(block: Block, owner: BlockOwner): boolean {
  return block.owner?.kind === owner.kind && block.owner.name === owner.name;
}

/** Whether a block that an affinity names may be made: not when the pool's blocks have another size, or another lies across it. */
function fits(view: View, prefix: Prefix, pool: Pool): boolean {
  return prefix.length === pool.blockSizeBits && !overlappingBlock(view, prefix);
}

/** A block of the node's own. An affinity that is pending, or was being given up, is confirmed by its next use. */
function own(affinity: Affinity, block: Block, stale: readonly Change[]): ChosenBlock {
  const confirm: Change[] = affinity.state === 'confirmed' ? [] : [confirmed(affinity.owner, affinity.block)];
  return { block, changes: [...stale, ...confirm], claimed: false };
}

function confirmed(owner: BlockOwner, block: Prefix): Change {
  return { type: 'put', record: { kind: 'affinity', value: { owner, block, state: 'confirmed' } } };
}

interface Claim {
  readonly wish: BlockWish;
  readonly owner: BlockOwner;
  readonly prefix: Prefix;
  readonly stale: readonly Change[];
}

/** A block that is made with the allocation. Its pool must still be there, as it is now, when that is committed. */
function claim(view: View, { wish, owner, prefix, stale }: Claim): ChosenBlock {
  const pool = poolOf(view.pools(), prefix);
  const expectPool: Change[] = pool ? [{ type: 'expect', record: { kind: 'pool', value: pool } }] : [];
  return {
    block: makeBlock({ prefix, owner, nowMs: wish.nowMs }),
    changes: [...stale, ...expectPool, confirmed(owner, prefix)],
    claimed: true,
  };
}

function findNew(view: View, { wish, owner, stale }: Omit<Claim, 'prefix'>): ChosenBlock | undefined {
  for (const pool of wish.pools) {
    const found = findBlock(view, {
      pool,
      seed: seedOf(wish, pool),
      // A block that names the node without an affinity: another writer's claim that did not end.
      usable: (block) => isOwner(block, owner) && block.unallocated.length > 0,
    });
    if (found?.kind === 'unclaimed') return claim(view, { wish, owner, prefix: found.prefix, stale });
    if (found) return { block: found.block, changes: [...stale, confirmed(owner, found.block.prefix)], claimed: true };
  }
  return undefined;
}

/** Nodes keep to places of their own; where a block is a single address there is nothing to keep, and every container has one. */
function seedOf({ family, nodeName, attachment }: BlockWish, { blockSizeBits }: Pool): string {
  return blockSizeBits === familyBits(family) ? `${nodeName}/${formatAttachment(attachment)}` : nodeName;
}
