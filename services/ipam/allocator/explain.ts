import type { Family } from '@podwire/shared/net/address';
import { addressAt, formatPrefix, prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import { attributesAt, usedCount } from './block.js';
import { blockCount } from './claim.js';
import { sameOwner, type Demand } from './demand.js';
import { judgePools, servingPools, type JudgedPool } from './judge-pools.js';
import { poolOf } from './pools.js';
import { isSpared } from './reclaim.js';
import type { Block, Pool } from './records.js';
import { hasRoom } from './reserved.js';
import { beginSearch, blockCap, collect, type Search } from './search.js';
import type { UnreadableBlock, UnreadableRecord, View } from './view.js';

/** Why a block gave no address. */
export type BlockVerdict =
  /** Every address is in use, cools down, or is reserved. */
  | 'full'
  /** It has addresses to give. */
  | 'open'
  /** It has, and they are another's; affinity is strict, or only load balancers may borrow them. */
  | 'of other owners'
  /** It has, nobody owns it, and affinity is strict. */
  | 'without an owner'
  /** Every address is reserved. */
  | 'reserved'
  /** Its record cannot be read. */
  | 'unreadable';

/** A block that was looked at. */
export interface BlockStory {
  readonly prefix: Prefix;
  readonly verdict: BlockVerdict;
  /** In words, with how full the block is. */
  readonly reason: string;
}

/** A pool that was looked at. */
export interface PoolStory {
  readonly pool: Pool;
  /** Why none of its blocks were looked at; undefined when they were. */
  readonly passedOver: string | undefined;
  /** Its blocks in the order of their addresses, as many as were asked for. */
  readonly blocks: readonly BlockStory[];
  /** The blocks that are not named, by their verdict. */
  readonly more: ReadonlyMap<BlockVerdict, number>;
  /** Why no further block can be claimed in it; undefined when one can. */
  readonly noClaim: string | undefined;
  readonly usage: Usage;
}

/** How much of a pool's blocks is used. */
interface Usage {
  readonly blocks: number;
  readonly used: number;
  /** Of those in use, how many cool down after their release. */
  readonly cooling: number;
  readonly size: number;
}

export interface ExplainOptions {
  /** Blocks that are named, over all pools; the others are counted. */
  readonly maxBlocksCount: number;
  /** Blocks of one pool that are named; all of them unless it is given. */
  readonly maxPoolBlocksCount?: number;
}

/** Every pool of a demand, and every block of those that may serve: what was found there. Looks at all of them. */
export function explainDemand(view: View, demand: Demand, options: ExplainOptions): PoolStory[] {
  const { maxBlocksCount, maxPoolBlocksCount = maxBlocksCount } = options;
  const search = beginSearch(view, demand, servingPools(view, demand));
  let left = maxBlocksCount;
  return judgePools(view, demand).map((judged) => {
    const story = poolStory(search, judged, Math.min(left, maxPoolBlocksCount));
    left -= story.blocks.length;
    return story;
  });
}

function poolStory(search: Search, { pool, passedOver }: JudgedPool, maxBlocksCount: number): PoolStory {
  const blocks: BlockStory[] = [];
  const more = new Map<BlockVerdict, number>();
  const usage = { blocks: 0, used: 0, cooling: 0, size: 0 };
  if (passedOver !== undefined) return { pool, passedOver, blocks, more, noClaim: undefined, usage };
  for (const { key, name, reason } of unreadableIn(search.view, pool)) {
    if (blocks.length < maxBlocksCount)
      blocks.push({ prefix: name.prefix, verdict: 'unreadable', reason: `cannot be read (record ${key}: ${reason})` });
    else more.set('unreadable', (more.get('unreadable') ?? 0) + 1);
  }
  for (const stored of search.view.blocksIn(pool.prefix)) {
    const block = collect(search, stored);
    const verdict = verdictOf(search, block);
    usage.blocks++;
    usage.used += usedCount(block);
    usage.cooling += coolingCount(block);
    usage.size += block.allocations.length;
    if (blocks.length < maxBlocksCount)
      blocks.push({ prefix: block.prefix, verdict, reason: blockReason(search, block) });
    else more.set(verdict, (more.get(verdict) ?? 0) + 1);
  }
  return { pool, passedOver, blocks, more, noClaim: noClaim(search, pool, usage), usage };
}

/** They come first in what is told, as somebody has to do something about them. */
function unreadableIn(view: View, { prefix }: Pool): UnreadableBlock[] {
  const first = view.unreadableBlock(prefix);
  if (!first || !prefixContains(prefix, first.name.prefix)) return first ? [first] : [];
  return [...view.unreadable()].filter(isBlock).filter(({ name }) => prefixContains(prefix, name.prefix));
}

function isBlock(record: UnreadableRecord): record is UnreadableBlock {
  return record.name.kind === 'block';
}

function verdictOf({ reserved, config, demand }: Search, block: Block): BlockVerdict {
  if (reserved.coversAll(block.prefix)) return 'reserved';
  if (!hasRoom(block, reserved)) return 'full';
  if (sameOwner(block.owner, demand.owner)) return 'open';
  const closed = config.strictAffinity || (block.owner?.kind === 'virtual' && demand.use !== 'LoadBalancer');
  if (!closed) return 'open';
  return block.owner ? 'of other owners' : 'without an owner';
}

function blockReason(search: Search, block: Block): string {
  const { owner } = block;
  const usage = blockUsage(search, block);
  if (sameOwner(owner, search.demand.owner))
    return hasRoom(block, search.reserved) ? `has room (${usage})` : `is full (${usage})`;
  if (!owner) return `has no owner (${usage})`;
  if (owner.kind === 'virtual') return `belongs to ${owner.name} (${usage})`;
  const spared = usedCount(block) === 0 && isSpared(block.claimTimeMs, search.demand.nowMs);
  return `belongs to node ${owner.name} (${usage}${spared ? ', claimed just now' : ''})`;
}

function blockUsage({ reserved }: Search, block: Block): string {
  const parts = [inUse({ used: usedCount(block), cooling: coolingCount(block), size: block.allocations.length })];
  const kept = block.unallocated.filter((ordinal) => reserved.has(addressAt(block.prefix, ordinal))).length;
  if (kept > 0) parts.push(`${kept} free ones reserved`);
  return parts.join(', ');
}

function coolingCount(block: Block): number {
  if (block.attributes.every(({ releasedAtMs }) => releasedAtMs === undefined)) return 0;
  return block.allocations.filter((_, ordinal) => attributesAt(block, ordinal)?.releasedAtMs !== undefined).length;
}

function inUse({ used, cooling, size }: Omit<Usage, 'blocks'>): string {
  return `${used} of ${size} addresses in use${cooling > 0 ? `, ${cooling} of them cooling down` : ''}`;
}

/** Why the owner gets no further block of a pool. */
function noClaim(search: Search, pool: Pool, { blocks, size }: Usage): string | undefined {
  const { view, demand, pools, config, reserved } = search;
  if (reserved.coversAll(pool.prefix)) return 'all of it is reserved';
  const whole = BigInt(blocks) >= blockCount(pool);
  if (whole) return undefined;
  const cap = blockCap(search);
  const owned = view.affinitiesOf(demand.owner).filter(({ block }) => poolOf(pools, block)).length;
  if (owned >= cap)
    return `no further block: ${ownerName(demand)} has ${owned} blocks in the pools that serve, and may have ${cap}`;
  if (!config.autoAllocateBlocks) return 'no further block: autoAllocateBlocks is off, so blocks are not claimed';
  const [unreadable] = unreadableIn(view, pool);
  if (unreadable) return 'no further block: what is left is reserved, taken, or under records that cannot be read';
  if (size === 0) return 'a block of another size, which a former pool left, lies around it';
  return 'no further block: what is left is reserved, or under blocks of another size';
}

function ownerName({ owner }: Demand): string {
  return owner.kind === 'host' ? `node ${owner.name}` : `virtual owner ${owner.name}`;
}

/**
 * A gRPC status travels in a header of a few kilobytes, so only so many pools and blocks are named in a text, and the others
 * counted by their reason.
 */
const NAMED_POOLS = 6;
const NAMED_BLOCKS = 4;

/** Why no pool could serve a demand, as a text: every pool and why, every block and why. */
export function explainRefusal(view: View, demand: Demand, subject: string): string {
  const limits = { maxBlocksCount: NAMED_POOLS * NAMED_BLOCKS, maxPoolBlocksCount: NAMED_BLOCKS };
  const stories = explainDemand(view, demand, limits);
  const wish = `no IPv${demand.family} address for ${subject} on ${ownerName(demand)}`;
  if (stories.length === 0) return `${wish}: ${noPoolText(demand.family)}`;
  const more = stories.length > NAMED_POOLS ? [`and ${stories.length - NAMED_POOLS} more pools`] : [];
  const texts = [...stories.slice(0, NAMED_POOLS).map(storyText), ...more];
  const strict = beginSearch(view, demand, []).config.strictAffinity
    ? ' Affinity is strict, so no node takes addresses of blocks that are not its own.'
    : '';
  return `${wish}: ${texts.join('; ')}.${strict} Create or enable a pool, or release addresses`;
}

export function noPoolText(family: Family): string {
  return `there is no IPv${family} pool; create one`;
}

/** A pool's story in one line. */
export function storyText({ pool, passedOver, blocks, more, noClaim: claim, usage }: PoolStory): string {
  const name = `pool "${pool.name}" ${formatPrefix(pool.prefix)}`;
  if (passedOver !== undefined) return `${name}: ${passedOver}`;
  if (usage.used === usage.size && BigInt(usage.blocks) === blockCount(pool))
    return `${name}: all ${usage.blocks} blocks are full (${inUse(usage)})`;
  const named = blocks.map(({ prefix, reason }) => `block ${formatPrefix(prefix)} ${reason}`);
  const counted = [...more].map(([verdict, count]) => `and ${count} more blocks ${verdict}`);
  return `${name}: ${[...named, ...counted, ...(claim === undefined ? [] : [claim])].join(', ')}`;
}
