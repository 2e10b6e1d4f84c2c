import { Failure } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';
import { formatPrefix, prefixContains, prefixOf, type Prefix } from '@podwire/shared/net/prefix';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Demand, Obstacle } from '../../blocks/demand.js';
import { holdersText, leasesIn, leasesText, sumLeases, type NodeLeases } from '../../blocks/leased-addresses.js';
import { isAlive } from '../../blocks/running-nodes.js';
import {
  beginSearch,
  blockCap,
  blockCount,
  collectBlock,
  isClaimable,
  ownedCount,
  type Search,
} from '../../blocks/search.js';
import { evaluatePools, servingPools, type PoolEvaluation } from '../../pools/selection.js';
import { requireReadable } from '../../records/absence.js';
import {
  addStats,
  countBlocks,
  countUnused,
  EMPTY_STATS,
  blockState,
  subtractStats,
  blockStats,
  type BlockStats,
  type BlockState,
} from '../../records/block-stats.js';
import { isInGracePeriod, sameOwner, usedCount, type Block, type BlockOwner } from '../../records/block.js';
import type { Pool } from '../../records/pool.js';
import { isUnreadableBlock, type UnreadableBlock, type View } from '../../records/view.js';
import { hasRoom, reservedFreeCount } from '../../reservations/reservations.js';
import { takeFirst } from './block-choice.js';

/** A block that was considered. */
interface BlockExplanation {
  readonly prefix: Prefix;
  readonly verdict: BlockVerdict;
  /** Reason in words, with the block's usage. */
  readonly reason: string;
  readonly leases: readonly NodeLeases[];
}

/** A pool that was considered. */
export interface PoolExplanation {
  readonly pool: Pool;
  /** Why the pool was skipped; undefined when its blocks were considered. */
  readonly skipReason: string | undefined;
  /** Its blocks in address order, up to the requested count. */
  readonly blocks: readonly BlockExplanation[];
  /** Number of blocks that are not named, by verdict. A cooling address counts as in use. */
  readonly more: ReadonlyMap<BlockVerdict, number>;
  /** Why no further block can be claimed in it; undefined when one can be. */
  readonly noClaim: string | undefined;
  /** How to make the pool serve, or a block claimable; undefined when neither applies. */
  readonly remedy: string | undefined;
  /** The unbound leases that would serve once their nodes return them. */
  readonly recallable: readonly NodeLeases[];
  readonly usage: Usage;
}

/** Usage of a pool's blocks. */
interface Usage {
  readonly blocks: number;
  /** Includes cooling and leased addresses. */
  readonly used: number;
  /** Used addresses that cool down. */
  readonly cooling: number;
  /** Used addresses that are unbound leases. */
  readonly leased: number;
  readonly size: number;
}

interface ExplainOptions {
  /** Maximum number of blocks named over all pools; the rest is only counted. */
  readonly maxBlocksCount: number;
  /** Maximum number of blocks named per pool. Default: all. */
  readonly maxPoolBlocksCount?: number;
  /** Maximum number of pools reported. Default: all. */
  readonly maxPoolsCount?: number;
}

/**
 * The pools of a demand, with the blocks of serving pools and the reason for each. Examines only the named
 * blocks, blocks cut by reservations and the owner's own. The remaining blocks are counted from sums in the view.
 */
export function explainDemand(view: View, demand: Demand, options: ExplainOptions): PoolExplanation[] {
  const { maxBlocksCount, maxPoolBlocksCount = maxBlocksCount, maxPoolsCount } = options;
  const search = beginSearch(view, demand, servingPools(view, demand));
  let left = maxBlocksCount;
  return evaluatePools(view, demand)
    .slice(0, maxPoolsCount)
    .map((evaluation) => {
      const explanation = explainPool(search, evaluation, Math.min(left, maxPoolBlocksCount));
      left -= explanation.blocks.length;
      return explanation;
    });
}

function explainPool(
  search: Search,
  { pool, skipReason, remedy }: PoolEvaluation,
  maxBlocksCount: number,
): PoolExplanation {
  const skipped = { pool, blocks: [], more: new Map<BlockVerdict, number>(), noClaim: undefined };
  if (skipReason !== undefined) return { ...skipped, skipReason, remedy, recallable: [], usage: usageOf(EMPTY_STATS) };
  const usage = usageOf(search.view.blockStatsIn(pool.prefix));
  const recallable = usage.leased > 0 ? recallableLeases(search, pool) : [];
  const kept = search.config.strictAffinity ? undefined : search.shares.obstacle(pool);
  if (kept) return { ...skipped, skipReason: kept.reason, remedy: kept.remedy, recallable, usage };
  const unreadable = unreadableIn(search.view, pool);
  const explanations = unreadable.slice(0, maxBlocksCount).map(({ key, name, reason }): BlockExplanation => {
    return {
      prefix: name.prefix,
      verdict: 'unreadable',
      reason: `cannot be read (record ${key}: ${reason})`,
      leases: [],
    };
  });
  const named = takeFirst(search.view.blocksIn(pool.prefix), maxBlocksCount - explanations.length);
  for (const stored of named) {
    const block = collectBlock(search, stored);
    const [verdict, reason] = [verdictOf(search, block), blockReason(search, block)];
    explanations.push({ prefix: block.prefix, verdict, reason, leases: leasesIn(block) });
  }
  const more = countUnnamed(search, pool, named);
  const hiddenCount = unreadable.length - Math.min(unreadable.length, maxBlocksCount);
  if (hiddenCount > 0) more.set('unreadable', hiddenCount);
  const claim = noClaim(search, pool, usage);
  const { reason, remedy: claimRemedy } = claim ?? {};
  return { pool, skipReason, blocks: explanations, more, noClaim: reason, remedy: claimRemedy, recallable, usage };
}

/** The unbound leases of a pool that the demand could use once their nodes return them. */
function recallableLeases(search: Search, pool: Pool): readonly NodeLeases[] {
  const { view, reserved } = search;
  const usable = [...view.blocksIn(pool.prefix)].filter((block) => isUsable(search, block));
  const lists = usable.map((block) => leasesIn(block, reserved));
  return search.shares.usableLeases(
    pool,
    sumLeases(lists).filter(({ nodeName }) => isRecallable(view, nodeName)),
  );
}

/** Whether a node returns its leases when they are recalled: it is registered, and not being deleted. */
export function isRecallable(view: View, nodeName: string): boolean {
  const node = view.node(nodeName);
  return node !== undefined && node.deletionTimeMs === undefined;
}

/** Whether the demand's owner may use a block's free addresses: its own, or one that it may borrow from. */
export function isUsable(search: Search, { owner }: Block): boolean {
  return sameOwner(owner, search.demand.owner) || otherOwnerVerdict(search, owner?.kind) === 'open';
}

function usageOf(stats: BlockStats): Usage {
  const { used, cooling, leased, size } = stats;
  return { blocks: countBlocks(stats), used, cooling, leased, size };
}

/** Unreadable blocks come first in the report because an operator has to repair them. */
function unreadableIn(view: View, { prefix }: Pool): UnreadableBlock[] {
  const first = view.unreadableBlock(prefix);
  if (!first || !prefixContains(prefix, first.name.prefix)) return first ? [first] : [];
  return [...view.unreadable()].filter(isUnreadableBlock).filter(({ name }) => prefixContains(prefix, name.prefix));
}

function blockReason(search: Search, block: Block): string {
  const { owner } = block;
  const usage = blockUsage(search, block);
  if (sameOwner(owner, search.demand.owner))
    return hasRoom(block, search) ? `has room (${usage})` : `is full (${usage})`;
  if (!owner) return `has no owner (${usage})`;
  if (owner.kind === 'virtual') return `belongs to ${owner.name} (${usage})`;
  const spared = usedCount(block) === 0 && isInGracePeriod(block, search.demand.nowMs);
  return `belongs to node ${owner.name} (${usage}${spared ? ', claimed just now' : ''})`;
}

function blockUsage({ reserved }: Search, block: Block): string {
  const leases = leasesText(leasesIn(block));
  const parts = [
    inUse({ used: usedCount(block), ...countUnused(block), size: block.allocations.length }),
    ...(leases === undefined ? [] : [leases]),
  ];
  const kept = reservedFreeCount(block, reserved);
  if (kept > 0) parts.push(`${kept} free ones reserved`);
  return parts.join(', ');
}

function inUse({ used, cooling, leased, size }: Omit<Usage, 'blocks'>): string {
  return `${used - leased} of ${size} addresses in use${cooling > 0 ? `, ${cooling} of them cooling down` : ''}`;
}

/** Why the owner cannot claim a further block of a pool; undefined when it can, or when every possible block exists. */
function noClaim(search: Search, pool: Pool, { blocks, size }: Usage): Obstacle | undefined {
  const { view, demand, config, reserved } = search;
  if (reserved.coversAll(pool.prefix)) return { reason: 'all of it is reserved', remedy: LESS_RESERVED };
  const kept = search.shares.obstacle(pool);
  if (kept) return { ...kept, reason: `no further block: ${kept.reason}` };
  const isComplete = BigInt(blocks) >= blockCount(pool);
  if (isComplete) return undefined;
  const cap = blockCap(search);
  const owned = ownedCount(search);
  if (owned >= cap) {
    const reason = `no further block: ${ownerName(demand)} has ${formatCount(owned, 'block')} in the serving pools, and its limit is ${cap}`;
    return { reason, remedy: 'raise max_blocks_per_node, or release addresses of the node’s blocks' };
  }
  if (!config.autoAllocateBlocks) {
    const reason = 'no further block: autoAllocateBlocks is off';
    return { reason, remedy: 'switch auto_allocate_blocks on, or claim a block for the node' };
  }
  if (isClaimable(search, pool)) return undefined;
  const [unreadable] = unreadableIn(view, pool);
  if (unreadable) {
    const reason = 'no further block: the remaining ranges are reserved, taken, or covered by unreadable records';
    return { reason, remedy: 'correct or delete the records that cannot be read' };
  }
  if (size === 0) {
    const reason = 'a block of another size from a former pool covers it';
    return { reason, remedy: 'release the addresses of the block of another size' };
  }
  const reason = 'no further block: the remaining ranges are reserved, or covered by blocks of another size';
  return { reason, remedy: `${LESS_RESERVED}, or release addresses` };
}

const LESS_RESERVED = 'remove reservations that are not needed';

function ownerName({ owner }: Demand): string {
  return owner.kind === 'host' ? `node ${owner.name}` : `virtual owner ${owner.name}`;
}

/**
 * A gRPC status travels in a header of a few kilobytes. So a text names a limited number of pools and blocks, and
 * counts the remaining ones by reason.
 */
const NAMED_POOLS = 6;
const NAMED_BLOCKS = 4;

interface RefusalInput {
  /** The requester, for the text. */
  readonly subject: string;
  readonly details: Readonly<Record<string, string>>;
}

/**
 * The failure of demands that no pool could serve: NO_POOL if a family has no pool, NO_POOL_SERVES if all pools of a
 * family are skipped, and POOLS_EXHAUSTED if the serving pools have no available address.
 */
export function refusalOf(view: View, demands: readonly Demand[], { subject, details }: RefusalInput): Failure {
  const evaluations = demands.map((demand) => evaluatePools(view, demand));
  const code = evaluations.some((pools) => pools.length === 0)
    ? 'NO_POOL'
    : evaluations.some((pools) => pools.every(({ skipReason }) => skipReason !== undefined))
      ? 'NO_POOL_SERVES'
      : 'POOLS_EXHAUSTED';
  // It is unknown without the configuration whether cooling addresses are free.
  if (code === 'POOLS_EXHAUSTED') requireReadable(view, { kind: 'config' });
  const text = demands.map((demand) => explainRefusal(view, demand, subject)).join('. ');
  return new Failure(code, text, { details });
}

/** Explains why no pool could serve a demand: the reason for every pool and block, and the remedies. */
export function explainRefusal(view: View, demand: Demand, subject: string): string {
  const maxBlocksCount = NAMED_POOLS * NAMED_BLOCKS;
  const limits = { maxBlocksCount, maxPoolBlocksCount: NAMED_BLOCKS, maxPoolsCount: NAMED_POOLS };
  const explanations = explainDemand(view, demand, limits);
  const summary = `no IPv${demand.family} address for ${subject} on ${ownerName(demand)}`;
  if (explanations.length === 0) return `${summary}: ${noPoolText(demand.family)}`;
  const moreCount = evaluatePools(view, demand).length - explanations.length;
  const texts = [
    ...explanations.map(explanationText),
    ...(moreCount > 0 ? [`and ${formatCount(moreCount, 'more pool')}`] : []),
  ];
  const search = beginSearch(view, demand, []);
  const { strictAffinity } = search.config;
  const strict =
    strictAffinity && explanations.some(hasAddressesOfOtherNodes)
      ? ' Affinity is strict, so nodes use only their own blocks.'
      : '';
  const leases = sumLeases(explanations.map(({ recallable }) => recallable));
  const ofPools = new Set(explanations.flatMap((explanation) => remediesOf(search, explanation)));
  const remedies = [...ofPools, ...remediesOfLeases(view, leases)];
  return `${summary}: ${texts.join('; ')}.${strict} ${remedies.length === 1 ? 'Remedy' : 'Remedies'}: ${remedies.join('; ')}`;
}

/** The remedies for a pool. Exhaustion is the reason only if there is no other. */
function remediesOf({ config: { strictAffinity } }: Search, explanation: PoolExplanation): string[] {
  const remedies = explanation.remedy === undefined ? [] : [explanation.remedy];
  if (strictAffinity && hasAddressesOfOtherNodes(explanation))
    remedies.push('switch strict affinity off, or release addresses of the node’s blocks');
  if (remedies.length === 0) remedies.push('create a pool, or release addresses');
  if (explanation.usage.cooling > 0) remedies.push('wait until released addresses have cooled down');
  return remedies;
}

/** The remedies for unbound leases that the demand could use. */
function remediesOfLeases(view: View, leases: readonly NodeLeases[]): string[] {
  const holders = holdersText(view, leases);
  if (holders === undefined) return [];
  const isRecalled = leases.some(({ nodeName }) => isAlive(view, nodeName));
  return isRecalled ? ['retry, as leased addresses are recalled', holders] : [holders];
}

/** Whether a pool has free addresses in blocks of other owners, or without an owner, that this demand may not use. */
function hasAddressesOfOtherNodes({ blocks, more }: PoolExplanation): boolean {
  const verdicts = new Set([...blocks.map(({ verdict }) => verdict), ...more.keys()]);
  return verdicts.has('of other owners') || verdicts.has('without an owner');
}

function noPoolText(family: Family): string {
  return `there is no IPv${family} pool; create one`;
}

/** The explanation of a pool in one line. */
function explanationText(explanation: PoolExplanation): string {
  const { pool, skipReason, blocks, more, noClaim: claim, recallable, usage } = explanation;
  const name = `pool "${pool.name}" ${formatPrefix(pool.prefix)}`;
  if (skipReason !== undefined) return `${name}: ${skipReason}`;
  const recalled = recallable.length > 0 ? ', recalled' : '';
  const leased = usage.leased > 0 ? [`${usage.leased} leased by nodes${recalled}`] : [];
  if (usage.used === usage.size && BigInt(usage.blocks) === blockCount(pool))
    return `${name}: ${usage.blocks === 1 ? 'its one block is' : `all ${usage.blocks} blocks are`} full (${[inUse(usage), ...leased].join(', ')})`;
  const named = blocks.map(({ prefix, reason }) => `block ${formatPrefix(prefix)} ${reason}`);
  const counted = [...more].map(([verdict, count]) => `and ${formatCount(count, 'more block')} ${verdict}`);
  return `${name}: ${[...named, ...counted, ...(claim === undefined ? [] : [claim]), ...leased].join(', ')}`;
}

/** Why no address was allocated from a block. */
export type BlockVerdict =
  /** Every address is in use, cools down, is leased, or is reserved. */
  | 'full'
  /** It has available addresses. */
  | 'open'
  /** Another owner has it, and affinity is strict, or only load balancers may borrow from it. */
  | 'of other owners'
  /** It has free addresses but no owner, and affinity is strict. */
  | 'without an owner'
  /** Every address is reserved. */
  | 'reserved'
  /** Its record cannot be read. */
  | 'unreadable';

/** @param block - with the cooled addresses freed */
export function verdictOf(search: Search, block: Block): BlockVerdict {
  const { reserved, config, demand } = search;
  if (reserved.coversAll(block.prefix)) return 'reserved';
  if (!hasRoom(block, search)) return 'full';
  if (sameOwner(block.owner, demand.owner)) return 'open';
  return otherOwnerVerdict({ config, demand }, block.owner?.kind);
}

/** The verdict on a block with free addresses that the demand's owner does not own. */
function otherOwnerVerdict(
  { config, demand }: Pick<Search, 'config' | 'demand'>,
  owner: BlockOwner['kind'] | undefined,
): BlockVerdict {
  const closed = config.strictAffinity || (owner === 'virtual' && demand.use !== 'LoadBalancer');
  if (!closed) return 'open';
  return owner ? 'of other owners' : 'without an owner';
}

/**
 * Counts the blocks of a pool by verdict, without the named ones. Most counts come from sums over the blocks. Blocks
 * with a partial reservation, and blocks of the owner that may have room, are examined one by one.
 * @param named - blocks to exclude
 */
function countUnnamed(search: Search, pool: Pool, named: readonly Block[]): Map<BlockVerdict, number> {
  const { view, reserved } = search;
  const counts = new Map<BlockVerdict, number>();
  const count = (verdict: BlockVerdict, by: number): unknown =>
    by > 0 && counts.set(verdict, (counts.get(verdict) ?? 0) + by);
  const isNamed = new Set(named.map(({ prefix }) => formatPrefix(prefix)));
  let left = subtractBlocks(view.blockStatsIn(pool.prefix), named);
  for (const part of reserved.partsIn(pool.prefix)) {
    const covered = subtractBlocks(
      view.blockStatsIn(part),
      named.filter(({ prefix }) => prefixContains(part, prefix)),
    );
    count('reserved', countBlocks(covered));
    left = subtractStats(left, covered);
  }
  for (const block of blocksToExamine(search, pool)) {
    if (isNamed.has(formatPrefix(block.prefix)) || reserved.coversAll(block.prefix)) continue;
    count(verdictOf(search, collectBlock(search, block)), 1);
    left = subtractStats(left, blockStats(block));
  }
  for (const state of BLOCK_STATES) count(verdictOfState(search, state), left.states[state]);
  return counts;
}

const BLOCK_STATES: readonly BlockState[] = ['full', 'cooling', 'host', 'virtual', 'unowned'];

function verdictOfState(search: Search, state: BlockState): BlockVerdict {
  if (state === 'full' || state === 'cooling') return 'full';
  return otherOwnerVerdict(search, state === 'unowned' ? undefined : state);
}

function subtractBlocks(stats: BlockStats, blocks: readonly Block[]): BlockStats {
  return subtractStats(stats, blocks.map(blockStats).reduce(addStats, EMPTY_STATS));
}

/** The blocks whose state alone does not decide the verdict, each once. */
function blocksToExamine({ view, reserved, demand }: Search, { prefix: range, blockSizeBits }: Pool): Block[] {
  const found = new Map<string, Block>();
  const add = (prefix: Prefix): void => {
    const block = view.block(prefix);
    if (block) found.set(formatPrefix(prefix), block);
  };
  for (const part of reserved.partsIn(range))
    if (part.length > blockSizeBits) add(prefixOf({ family: part.family, value: part.value }, blockSizeBits));
  for (const { block } of view.usableAffinitiesOf(demand.owner)) if (prefixContains(range, block)) add(block);
  return [...found.values()].filter((block) => blockState(block) !== 'full');
}
