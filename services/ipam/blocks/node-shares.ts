import type { Address } from '@podwire/shared/net/address';
import {
  formatPrefix,
  hostPrefix,
  ordinalOf,
  prefixContains,
  prefixOf,
  prefixSize,
  type Prefix,
} from '@podwire/shared/net/prefix';
import { formatCount } from '@podwire/shared/words/format-count';

import { attributesAt, blockSize, collectCooled, isInGracePeriod, usedCount, type Block } from '../records/block.js';
import type { IpamConfig } from '../records/config.js';
import type { Pool } from '../records/pool.js';
import type { View } from '../records/view.js';
import { reservedFreeCount, type ReservedAddresses } from '../reservations/reservations.js';
import type { Labels } from '../selectors/parser.js';
import { matches, selectsAll } from '../selectors/selector.js';
import type { Demand, Obstacle } from './demand.js';
import type { NodeLeases } from './leased-addresses.js';
import { overlappingBlock } from './lookup.js';
import { blockUse, type BlockUse } from './utilization.js';

/**
 * The share of each registered node in a pool: no node takes a whole pool, by whatever requests. The last free addresses
 * of a pool are kept for the nodes that hold less than their share. With strict affinity a node cannot use the blocks of
 * another one, so the last free blocks are kept.
 *
 * The datastore alone decides: registered nodes, and allocations that name a node, cooling and leased ones included.
 * The comparisons of a transaction do not include the counts, so replicas that allocate at the same time may exceed a share
 * by as many addresses as they allocate at once.
 */

/** Upper limit of a share: more than the 110 pods that the kubelet runs by default. */
const MAX_SHARE = 128;

/** The shares of all nodes are at most a quarter of the pool's addresses, so that most of a scarce pool serves any node. */
const SHARED_PART = 4n;

/** Each node with a share needs a whole block with strict affinity. At most half of the blocks are kept. */
const KEPT_PART_OF_BLOCKS = 2n;

/** Room of a pool for one node, in addresses or, with strict affinity, in blocks. */
interface PoolShare {
  /** Addresses that each node is sure of. */
  readonly size: number;
  readonly unit: 'address' | 'block';
  /** Addresses of a unit. */
  readonly unitSize: number;
  /** Not allocated, reserved or listed by the node. */
  readonly free: number;
  /** Kept for other nodes. */
  readonly kept: number;
  /** Number of other nodes with less than their share. */
  readonly poorerCount: number;
  /** How many the node may take. */
  readonly left: number;
  /** Addresses by the names of their nodes. */
  readonly held: ReadonlyMap<string, number>;
}

/** Input of the shares; a search has it. */
interface ShareInput {
  readonly view: View;
  readonly demand: Demand;
  readonly config: IpamConfig;
  readonly cooldownSeconds: number;
  readonly reserved: ReservedAddresses;
}

/** A block that is offered, before the allocation. */
interface OfferedBlock {
  readonly block: Block;
  readonly pool: Pool;
  readonly origin: string;
}

/** The shares that limit a demand. Of a pool with many free addresses nothing is counted. */
export class NodeShares {
  readonly #input: ShareInput;
  readonly #known = new Map<Pool, PoolShare | undefined>();

  constructor(input: ShareInput) {
    this.#input = input;
  }

  /** Whether the node may take addresses of the pool; with strict affinity, whether it may claim a block. */
  admits(pool: Pool): boolean {
    const share = this.#of(pool);
    return !share || share.left > 0;
  }

  /** Whether the node may take an address of the block. */
  admitsOffer(offer: OfferedBlock): boolean {
    return !this.#isCounted(offer) || this.admits(offer.pool);
  }

  /** Unit of the shares: the free addresses or, with strict affinity, blocks. */
  get unit(): PoolShare['unit'] {
    return this.#input.config.strictAffinity ? 'block' : 'address';
  }

  /** Why the node does not get a requested address of an offered block. */
  refusal(offer: OfferedBlock, address: Address): Obstacle | undefined {
    return !this.counts(offer, address) || this.admits(offer.pool) ? undefined : this.obstacle(offer.pool);
  }

  /** Whether an address of the block counts: reserved ones are not kept, and only the first one takes a block. */
  counts(offer: OfferedBlock, address: Address): boolean {
    return this.#isCounted(offer) && (this.unit === 'block' || !this.#input.reserved.contains(address));
  }

  /** Why the node gets no address of a pool that has some; with strict affinity, no further block. */
  obstacle(pool: Pool): Obstacle | undefined {
    const share = this.#of(pool);
    if (!share || share.left > 0 || share.free === 0) return undefined;
    const { unit, free, poorerCount, size } = share;
    const last = free === 1 ? `its last free ${unit} is` : `its last ${free} free ${PLURALS[unit]} are`;
    const reason = `${last} kept for ${formatCount(poorerCount, 'node')} with fewer than ${formatCount(size, 'address', 'addresses')}`;
    return { reason, remedy: 'create a pool' };
  }

  /**
   * The leases in a pool that would serve the node if they were returned. A lease of a node that holds no more than its
   * share would only be kept for that node.
   */
  usableLeases(pool: Pool, leases: readonly NodeLeases[]): readonly NodeLeases[] {
    const share = this.#of(pool);
    if (!share || share.left > 0) return leases;
    const { name } = this.#input.demand.owner;
    const own = leases.filter(({ nodeName }) => nodeName === name);
    const spared = leases.flatMap(({ nodeName, count }) => {
      const surplus = Math.floor(((share.held.get(nodeName) ?? 0) - share.size) / share.unitSize);
      return nodeName !== name && surplus > 0 ? [{ nodeName, count: Math.min(count, surplus * share.unitSize) }] : [];
    });
    const usable = [...own, ...spared];
    const gain = usable.reduce((sum, { count }) => sum + Math.ceil(count / share.unitSize), 0);
    if (share.free + gain > share.kept) return usable;
    return share.unit === 'block' ? own : [];
  }

  /** Limits several addresses of one transaction. */
  budget(): ShareBudget {
    return new ShareBudget((offer) => (this.#isCounted(offer) ? this.#of(offer.pool) : undefined));
  }

  /** Whether an address of the block counts: with strict affinity only the first one of a block does. */
  #isCounted({ block, origin }: OfferedBlock): boolean {
    if (this.unit === 'address') return true;
    return usedCount(block) === 0 && !(origin === 'own' && isInGracePeriod(block, this.#input.demand.nowMs));
  }

  #of(pool: Pool): PoolShare | undefined {
    if (!this.#input.demand.isLimitedToShare) return undefined;
    const known = this.#known.get(pool);
    if (known || this.#known.has(pool)) return known;
    const share = this.#isPlentiful(pool) ? undefined : this.#count(pool);
    this.#known.set(pool, share);
    return share;
  }

  /** Whether the pool has more free addresses than are ever kept. Nearly constant time. */
  #isPlentiful({ prefix, blockSizeBits }: Pool): boolean {
    const { view, demand, config, reserved } = this.#input;
    const otherCount = BigInt(view.nodes().length - (view.node(demand.owner.name) ? 1 : 0));
    const capacity = prefixSize(prefix);
    const { size, used } = view.blockStatsIn(prefix);
    const listed = BigInt(view.session(demand.owner.name)?.leases.length ?? 0);
    const free = capacity - reserved.countIn(prefix) - BigInt(config.strictAffinity ? size : used);
    if (!config.strictAffinity) {
      return free - listed > least(otherCount * BigInt(MAX_SHARE), capacity / SHARED_PART);
    }
    const blocks = BigInt(blockSize({ ...prefix, length: blockSizeBits }));
    const perNode = BigInt(Math.ceil(MAX_SHARE / Number(blocks)));
    return free / blocks - listed > least(otherCount * perNode, capacity / blocks / KEPT_PART_OF_BLOCKS);
  }

  /** @returns undefined if the node shares the pool with no other node, or the pool is too small for shares */
  #count(pool: Pool): PoolShare | undefined {
    const { view, demand } = this.#input;
    const { name } = demand.owner;
    const selects = selectorOf(pool);
    const otherNodes = view
      .nodes()
      .filter((node) => node.name !== name && node.deletionTimeMs === undefined && selects(node.labels));
    // A node that only requests the pool has no share.
    const isEntitled = selects(demand.nodeLabels);
    const capacity = prefixSize(pool.prefix);
    const nodeCount = BigInt(otherNodes.length + (isEntitled ? 1 : 0));
    const size = Number(least(BigInt(MAX_SHARE), capacity / (SHARED_PART * (nodeCount || 1n))));
    if (otherNodes.length === 0 || size === 0) return undefined;
    const { unit } = this;
    const { free, held } = unit === 'block' ? this.#countBlocks(pool) : this.#countAddresses(pool);
    const unitSize = unit === 'block' ? blockSize({ ...pool.prefix, length: pool.blockSizeBits }) : 1;
    const missing = (nodeName: string): number => Math.ceil(Math.max(0, size - (held.get(nodeName) ?? 0)) / unitSize);
    let wanted = 0;
    let poorerCount = 0;
    for (const other of otherNodes) {
      const count = missing(other.name);
      wanted += count;
      if (count > 0) poorerCount++;
    }
    const most = unit === 'block' ? Number(capacity / BigInt(unitSize) / KEPT_PART_OF_BLOCKS) : wanted;
    const kept = Math.min(wanted, most);
    const left = Math.max(isEntitled ? missing(name) : 0, free - kept);
    return { size, unit, unitSize, free, kept, poorerCount, left, held };
  }

  #countAddresses({ prefix }: Pool): Tally {
    const { demand, reserved } = this.#input;
    const held = new Map<string, number>();
    const hasReserved = reserved.overlaps(prefix);
    let outside = prefixSize(prefix) - reserved.countIn(prefix);
    let size = 0;
    let free = 0;
    for (const { block, use } of this.#blocksIn(prefix)) {
      size += block.allocations.length;
      if (hasReserved) outside += reserved.countIn(block.prefix);
      // Blocks of virtual owners serve load balancers only.
      if (block.owner?.kind !== 'virtual')
        free += block.unallocated.length - (hasReserved ? reservedFreeCount(block, reserved) : 0);
      for (const [nodeName, count] of use.inUse) add(held, nodeName, count);
      for (const [nodeName, count] of use.leased) add(held, nodeName, count);
      for (const [nodeName, count] of use.cooling) add(held, nodeName, count);
    }
    const listedCount = this.#listedIn(prefix).length;
    add(held, demand.owner.name, listedCount);
    return { free: Math.max(0, Number(outside - BigInt(size)) + free - listedCount), held };
  }

  #countBlocks({ prefix, blockSizeBits }: Pool): Tally {
    const { demand, reserved } = this.#input;
    const held = new Map<string, number>();
    let outside = prefixSize(prefix);
    for (const part of reserved.partsIn(prefix)) if (part.length <= blockSizeBits) outside -= prefixSize(part);
    const listed = new Set(this.#listedIn(prefix).map((address) => formatPrefix(prefixOf(address, blockSizeBits))));
    let free = -listed.size;
    for (const { block } of this.#blocksIn(prefix)) {
      const isReserved = reserved.coversAll(block.prefix);
      if (!isReserved) outside -= prefixSize(block.prefix);
      if (!isReclaimable(block, demand.nowMs)) {
        if (block.owner?.kind === 'host') add(held, block.owner.name, block.allocations.length);
        if (listed.delete(formatPrefix(block.prefix))) free++;
      } else if (!isReserved) free++;
    }
    const size = prefixSize({ ...prefix, length: blockSizeBits });
    add(held, demand.owner.name, listed.size * Number(size));
    return { free: Math.max(0, free + Number(outside / size)), held };
  }

  /** The free addresses that the list of the node withholds from other nodes. */
  #listedIn(prefix: Prefix): Address[] {
    const { view, demand } = this.#input;
    const listed = view.session(demand.owner.name)?.leases ?? [];
    const inPool = listed.map(({ address }) => address).filter((address) => prefixContains(prefix, address));
    return inPool.filter((address) => isUnallocated(view, address));
  }

  /** Blocks with their cooled addresses freed. */
  *#blocksIn(prefix: Prefix): Generator<{ block: Block; use: BlockUse }, void, void> {
    const { view, demand, cooldownSeconds } = this.#input;
    for (const stored of view.blocksIn(prefix)) {
      const known = blockUse(stored);
      const block = known.cooling.size > 0 ? collectCooled(stored, demand.nowMs, cooldownSeconds) : stored;
      yield { block, use: block === stored ? known : blockUse(block) };
    }
  }
}

type Tally = Pick<PoolShare, 'free' | 'held'>;

/** Limits the addresses that one transaction takes from several blocks. */
export class ShareBudget {
  readonly #shareOf: (offer: OfferedBlock) => PoolShare | undefined;
  readonly #spent = new Map<PoolShare, number>();

  constructor(shareOf: (offer: OfferedBlock) => PoolShare | undefined) {
    this.#shareOf = shareOf;
  }

  /** How many addresses of the block the transaction may still take. */
  limitOf(offer: OfferedBlock): number {
    const share = this.#shareOf(offer);
    if (!share) return Number.POSITIVE_INFINITY;
    const left = Math.max(0, share.left - (this.#spent.get(share) ?? 0));
    return share.unit === 'block' && left > 0 ? Number.POSITIVE_INFINITY : left;
  }

  spend(offer: OfferedBlock, count: number): void {
    const share = this.#shareOf(offer);
    if (share) this.#spent.set(share, (this.#spent.get(share) ?? 0) + (share.unit === 'block' ? 1 : count));
  }
}

const PLURALS = { address: 'addresses', block: 'blocks' } as const;

/** Whether the pool serves a node with these labels. */
function selectorOf({ nodeSelector }: Pool): (labels: Labels) => boolean {
  return selectsAll(nodeSelector) ? () => true : (labels) => matches(nodeSelector, labels).matches;
}

/** Whether any node may claim the block: it is empty, and not claimed just now. */
function isReclaimable(block: Block, nowMs: number): boolean {
  return usedCount(block) === 0 && block.owner?.kind !== 'virtual' && !(block.owner && isInGracePeriod(block, nowMs));
}

/** Whether neither a holder nor a cool-down has the address. */
function isUnallocated(view: View, address: Address): boolean {
  const block = overlappingBlock(view, hostPrefix(address));
  return !block || !attributesAt(block, ordinalOf(block.prefix, address));
}

function add(counts: Map<string, number>, name: string, count: number): void {
  counts.set(name, (counts.get(name) ?? 0) + count);
}

function least(a: bigint, b: bigint): bigint {
  return a < b ? a : b;
}
