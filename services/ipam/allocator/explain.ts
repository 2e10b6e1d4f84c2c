import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import type { Family } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';

import { usedCount } from './block.js';
import { blockCount } from './claim.js';
import { judgePools, type JudgedPool } from './pools.js';
import type { Block, Pool } from './records.js';
import type { View } from './view.js';

/**
 * Why no pool could serve, as a text: every pool and why, every block and why. A gRPC status travels in a header of a few
 * kilobytes, so only so many are named, and the others counted by their reason.
 */
const NAMED_POOLS = 8;
const NAMED_BLOCKS = 4;

export interface RefusedWish {
  readonly family: Family;
  readonly nodeName: string;
  readonly attachment: Attachment;
}

export function explainRefusal(view: View, { family, nodeName, attachment }: RefusedWish): string {
  const pools = judgePools(view, family);
  const subject = `no IPv${family} address for ${formatAttachment(attachment)} on node ${nodeName}`;
  if (pools.length === 0) return `${subject}: there is no IPv${family} pool; create one`;
  const stories = pools.slice(0, NAMED_POOLS).map((judged) => poolStory(view, judged, nodeName));
  const more = pools.length > NAMED_POOLS ? [`and ${pools.length - NAMED_POOLS} more pools`] : [];
  return `${subject}: ${[...stories, ...more].join('; ')}. Create or enable a pool, or release addresses`;
}

function poolStory(view: View, { pool, passedOver }: JudgedPool, nodeName: string): string {
  const reason = passedOver ?? blocksStory([...view.blocksIn(pool.prefix)], pool, nodeName);
  return `pool "${pool.name}" ${formatPrefix(pool.prefix)}: ${reason}`;
}

function blocksStory(blocks: readonly Block[], pool: Pool, nodeName: string): string {
  const used = blocks.reduce((sum, block) => sum + usedCount(block), 0);
  const size = blocks.reduce((sum, block) => sum + block.allocations.length, 0);
  if (blocks.length === 0) return 'a block of another size, which a former pool left, lies around it';
  if (used === size && BigInt(blocks.length) === blockCount(pool))
    return `all ${blocks.length} blocks are full (${used} of ${size} addresses in use)`;
  const judged = blocks.map((block) => ({ block, reason: blockReason(block, nodeName) }));
  const named = judged
    .slice(0, NAMED_BLOCKS)
    .map(({ block, reason }) => `block ${formatPrefix(block.prefix)} ${reason}`);
  const rest = countByKind(judged.slice(NAMED_BLOCKS).map(({ block }) => blockKind(block, nodeName)));
  return [...named, ...rest].join(', ');
}

function blockReason(block: Block, nodeName: string): string {
  const { owner, allocations } = block;
  const usage = `${usedCount(block)} of ${allocations.length} addresses in use`;
  if (!owner) return `has no owner (${usage})`;
  if (owner.kind === 'virtual') return `belongs to ${owner.name} (${usage})`;
  return owner.name === nodeName ? `is full (${usage})` : `belongs to node ${owner.name} (${usage})`;
}

type BlockKind = 'full' | 'of other owners' | 'without an owner';

function blockKind({ owner }: Block, nodeName: string): BlockKind {
  if (!owner) return 'without an owner';
  return owner.kind === 'host' && owner.name === nodeName ? 'full' : 'of other owners';
}

function countByKind(kinds: readonly BlockKind[]): string[] {
  const counts = new Map<BlockKind, number>();
  for (const kind of kinds) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  return [...counts].map(([kind, count]) => `and ${count} more blocks ${kind}`);
}
