import { formatPrefix, prefixContains, prefixOf, type Prefix } from '@podwire/shared/net/prefix';

import { sameOwner } from '../blocks/demand.js';
import { collect, type Search } from '../blocks/search.js';
import {
  addTallies,
  countBlocks,
  NO_BLOCKS,
  standingOf,
  subtractTallies,
  tallyOf,
  type BlockTally,
  type Standing,
} from '../records/block-stats.js';
import type { Block, BlockOwner, Pool } from './records.js';
import { hasRoom } from './reserved.js';

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

/** @param block - without the addresses that have cooled down */
export function verdictOf({ reserved, config, demand }: Search, block: Block): BlockVerdict {
  if (reserved.coversAll(block.prefix)) return 'reserved';
  if (!hasRoom(block, reserved)) return 'full';
  if (sameOwner(block.owner, demand.owner)) return 'open';
  return ofOthers({ config, demand }, block.owner?.kind);
}

/** Of a block with free addresses that is not the demand's owner's. */
function ofOthers(
  { config, demand }: Pick<Search, 'config' | 'demand'>,
  owner: BlockOwner['kind'] | undefined,
): BlockVerdict {
  const closed = config.strictAffinity || (owner === 'virtual' && demand.use !== 'LoadBalancer');
  if (!closed) return 'open';
  return owner ? 'of other owners' : 'without an owner';
}

/**
 * How many blocks of a pool, but for some, come to each verdict. The record of a block tells most of it, and that is summed up; the
 * blocks that a reservation cuts and those of the owner that may have something are looked at.
 * @param named - those that do not count
 */
export function countOthers(search: Search, pool: Pool, named: readonly Block[]): Map<BlockVerdict, number> {
  const { view, reserved } = search;
  const counts = new Map<BlockVerdict, number>();
  const count = (verdict: BlockVerdict, by: number): unknown =>
    by > 0 && counts.set(verdict, (counts.get(verdict) ?? 0) + by);
  const isNamed = new Set(named.map(({ prefix }) => formatPrefix(prefix)));
  let left = without(view.tallyBlocks(pool.prefix), named);
  for (const part of reserved.partsIn(pool.prefix)) {
    const covered = without(
      view.tallyBlocks(part),
      named.filter(({ prefix }) => prefixContains(part, prefix)),
    );
    count('reserved', countBlocks(covered));
    left = subtractTallies(left, covered);
  }
  for (const block of judgedAlone(search, pool)) {
    if (isNamed.has(formatPrefix(block.prefix)) || reserved.coversAll(block.prefix)) continue;
    count(verdictOf(search, collect(search, block)), 1);
    left = subtractTallies(left, tallyOf(block));
  }
  for (const standing of STANDINGS) count(verdictOfStanding(search, standing), left.standings[standing]);
  return counts;
}

const STANDINGS: readonly Standing[] = ['full', 'cooling', 'host', 'virtual', 'unowned'];

function verdictOfStanding(search: Search, standing: Standing): BlockVerdict {
  if (standing === 'full' || standing === 'cooling') return 'full';
  return ofOthers(search, standing === 'unowned' ? undefined : standing);
}

function without(tally: BlockTally, blocks: readonly Block[]): BlockTally {
  return subtractTallies(tally, blocks.map(tallyOf).reduce(addTallies, NO_BLOCKS));
}

/** The blocks whose records do not tell alone what may be had of them, each once. */
function judgedAlone({ view, reserved, demand }: Search, { prefix: range, blockSizeBits }: Pool): Block[] {
  const found = new Map<string, Block>();
  const add = (prefix: Prefix): void => {
    const block = view.block(prefix);
    if (block) found.set(formatPrefix(prefix), block);
  };
  for (const part of reserved.partsIn(range))
    if (part.length > blockSizeBits) add(prefixOf({ family: part.family, value: part.value }, blockSizeBits));
  for (const { block } of view.unspentAffinitiesOf(demand.owner)) if (prefixContains(range, block)) add(block);
  return [...found.values()].filter((block) => standingOf(block) !== 'full');
}
