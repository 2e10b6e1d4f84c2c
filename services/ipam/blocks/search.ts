import { familyBits } from '@podwire/shared/net/address';
import type { Prefix } from '@podwire/shared/net/prefix';

import type { Block, BlockOwner, IpamConfig, Pool } from '../allocator/records.js';
import { reservedIn, type ReservedAddresses } from '../allocator/reserved.js';
import { cannotRead, expectNoAffinity } from '../records/absence.js';
import { collectCold, makeBlock, wholeSeconds } from '../records/block.js';
import type { Change, View } from '../records/view.js';
import { DEFAULT_CONFIG, type Demand } from './demand.js';

/** A demand with all that the search for an address goes by. */
export interface Search {
  readonly view: View;
  readonly demand: Demand;
  /** The pools that may serve, in the order in which they are tried. */
  readonly pools: readonly Pool[];
  /** The defaults, where the stored one cannot be read: what rests on it is not committed then. */
  readonly config: IpamConfig;
  /** Infinite where the configuration cannot be read: then nobody knows that a cool-down is over. */
  readonly cooldownSeconds: number;
  readonly reserved: ReservedAddresses;
}

export function beginSearch(view: View, demand: Demand, pools: readonly Pool[]): Search {
  const config = view.config() ?? DEFAULT_CONFIG;
  const cooldownSeconds = cannotRead(view, { kind: 'config' }) ? Number.POSITIVE_INFINITY : config.cooldownSeconds;
  return { view, demand, pools, config, cooldownSeconds, reserved: reservedIn(view) };
}

/** How many blocks the owner may have in the pools of a search: the smaller of what is configured and what is asked. */
export function blockCap({ config, demand }: Pick<Search, 'config' | 'demand'>): number {
  return Math.min(capOf(config.maxBlocksPerHostCount), capOf(demand.maxBlocksCount));
}

function capOf(count: number): number {
  return count > 0 ? count : Number.POSITIVE_INFINITY;
}

/** How a block came to be one to take from. */
export type Origin =
  /** It was the owner's. */
  | 'own'
  /** Nobody had it. */
  | 'claimed'
  /** It was another node's, and empty for a while. */
  | 'reclaimed'
  /** It stays another's. */
  | 'borrowed';

/** A block with an address to give. */
export interface Offer {
  /** As it is without the addresses that are about to be taken, and with those that have cooled down. */
  readonly block: Block;
  readonly pool: Pool;
  readonly origin: Origin;
  /** What has to change besides the block. */
  readonly changes: readonly Change[];
}

/** The block with the addresses free whose cool-down is over. */
export function collect({ demand, cooldownSeconds }: Search, block: Block): Block {
  return collectCold(block, demand.nowMs, cooldownSeconds);
}

export function confirm(owner: BlockOwner, block: Prefix): Change {
  return { type: 'put', record: { kind: 'affinity', value: { owner, block, state: 'confirmed' } } };
}

/** Whether the owner can have a block: not where its affinity is one that cannot be read, and so cannot be written. */
export function canConfirm({ view, demand: { owner } }: Search, block: Prefix): boolean {
  return !cannotRead(view, { kind: 'affinity', owner, block });
}

/** What every address rests on: from the moment that a pool is disabled or being deleted it gives none any more. */
export function expectPool(value: Pool): Change {
  return { type: 'expect', record: { kind: 'pool', value } };
}

/**
 * What making a block, or using another's, rests on: the pool and the configuration must be, when that is committed, as they are
 * now. So a pool that somebody disables gets no block any more, and nobody borrows once affinity is strict.
 */
export function expectRules({ config }: Search, pool: Pool): Change[] {
  return [
    expectPool(pool),
    // Where none is stored this expects that none is stored by then.
    { type: 'expect', record: { kind: 'config', value: config } },
  ];
}

interface Claim {
  readonly pool: Pool;
  readonly prefix: Prefix;
}

/** A block that is made with the allocation. */
export function claimOffer(search: Search, { pool, prefix }: Claim): Offer {
  const { owner, nowMs } = search.demand;
  return {
    block: makeBlock({ prefix, owner, nowMs }),
    pool,
    origin: 'claimed',
    changes: [...expectRules(search, pool), confirm(owner, prefix)],
  };
}

export interface Existing {
  readonly block: Block;
  readonly pool: Pool;
}

/** A block that changes hands with the allocation: it names its new owner, and the affinity of the one it had goes. */
export function takeoverOffer(search: Search, { block, pool }: Existing): Offer {
  const { view, demand } = search;
  const { owner: before, prefix, sequenceNumber } = block;
  const affinity = before && view.affinity(before, prefix);
  const dropped: Change[] = affinity
    ? [{ type: 'delete', record: { kind: 'affinity', value: affinity } }]
    : before
      ? expectNoAffinity(view, before, prefix)
      : [];
  return {
    block: {
      ...block,
      owner: demand.owner,
      claimTimeMs: wholeSeconds(demand.nowMs),
      sequenceNumber: sequenceNumber + 1n,
    },
    pool,
    origin: before ? 'reclaimed' : 'claimed',
    changes: [...expectRules(search, pool), ...dropped, confirm(demand.owner, prefix)],
  };
}

/** Owners keep to places of their own; where a block is a single address there is nothing to keep, and every taker has its own. */
export function seedOf({ demand }: Search, { blockSizeBits }: Pool): string {
  return blockSizeBits === familyBits(demand.family) ? demand.seed : demand.owner.name;
}
