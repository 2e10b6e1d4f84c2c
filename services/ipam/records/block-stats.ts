import type { AllocationAttributes } from './attributes.js';
import { usedCount, type Affinity, type Block } from './block.js';
import { isLease } from './lease.js';

/**
 * Availability in a block according to its own record, independent of the time, the requester and reservations.
 */
export type BlockState =
  /** Every address is in use. */
  | 'full'
  /** No address is free. Some were released: they cool down, or become free with the block's next use. */
  | 'cooling'
  /** It has free addresses, and a node owns it. */
  | 'host'
  /** It has free addresses, and a virtual owner owns it. */
  | 'virtual'
  /** It has free addresses, and no owner. */
  | 'unowned';

/** Sums over blocks. */
export interface BlockStats {
  /** Number of blocks per state. */
  readonly states: Readonly<Record<BlockState, number>>;
  /** Number of addresses. */
  readonly size: number;
  /** Number of addresses that are not free. */
  readonly used: number;
  /** Number of released ones among them. */
  readonly cooling: number;
  /** Number of unbound leases among them. */
  readonly leased: number;
}

export const EMPTY_STATS: BlockStats = {
  states: { full: 0, cooling: 0, host: 0, virtual: 0, unowned: 0 },
  size: 0,
  used: 0,
  cooling: 0,
  leased: 0,
};

export function blockState(block: Block): BlockState {
  if (block.unallocated.length > 0) return block.owner?.kind ?? 'unowned';
  return hasFreeOrCooling(block) ? 'cooling' : 'full';
}

export function blockStats(block: Block): BlockStats {
  return {
    states: { ...EMPTY_STATS.states, [blockState(block)]: 1 },
    size: block.allocations.length,
    used: usedCount(block),
    ...countUnused(block),
  };
}

export function addStats(a: BlockStats, b: BlockStats): BlockStats {
  return combine(a, b, 1);
}

export function subtractStats(a: BlockStats, b: BlockStats): BlockStats {
  return combine(a, b, -1);
}

export function countBlocks({ states }: BlockStats): number {
  return states.full + states.cooling + states.host + states.virtual + states.unowned;
}

/** The addresses of a block that are not free, and that no holder uses. */
interface UnusedCounts {
  /** Released, and not free yet. */
  readonly cooling: number;
  /** Unbound leases. */
  readonly leased: number;
}

const NONE_UNUSED: UnusedCounts = { cooling: 0, leased: 0 };

/** The addresses are only looked at if some attributes are of such an address: every change of a block counts twice. */
export function countUnused({ attributes, allocations }: Block): UnusedCounts {
  if (!attributes.some(isUnused)) return NONE_UNUSED;
  let [cooling, leased] = [0, 0];
  for (const index of allocations) {
    const entry = index === null ? undefined : attributes[index];
    if (!entry) continue;
    if (entry.releasedAtMs !== undefined) cooling++;
    else if (isLease(entry)) leased++;
  }
  return { cooling, leased };
}

function isUnused(entry: AllocationAttributes): boolean {
  return entry.releasedAtMs !== undefined || isLease(entry);
}

function combine(a: BlockStats, b: BlockStats, sign: 1 | -1): BlockStats {
  return {
    states: {
      full: a.states.full + sign * b.states.full,
      cooling: a.states.cooling + sign * b.states.cooling,
      host: a.states.host + sign * b.states.host,
      virtual: a.states.virtual + sign * b.states.virtual,
      unowned: a.states.unowned + sign * b.states.unowned,
    },
    size: a.size + sign * b.size,
    used: a.used + sign * b.used,
    cooling: a.cooling + sign * b.cooling,
    leased: a.leased + sign * b.leased,
  };
}

/**
 * Bytes of blocks that one transaction of several steps may write. A block is written whole, and etcd accepts 1.5 MiB
 * per request. The rest is for handles, endpoints and entries of the history. A single larger block is tried anyway.
 */
export const BLOCK_BYTES_PER_STEP = 2 ** 20;

/** Bytes of blocks for a request that cannot be split into steps. The rest is for the records written with them. */
export const BLOCK_BYTES_PER_REQUEST = 1.5 * 2 ** 20 - 2 ** 16;

/** Up to this size, two blocks together are far below the limit, whatever their holders are called. */
const SMALL_BLOCK_SIZE = 256;

/** Bytes per address besides its attributes: its entries in two lists, with as many digits as in the largest block. */
const USED_ADDRESS_BYTES = 33;
const FREE_ADDRESS_BYTES = 10;
/** Bytes of a block besides its lists, with an owner's name of 253 characters. */
const BLOCK_OVERHEAD_BYTES = 600;
/** Bytes of JSON syntax around attributes, of a second owner, the time of a release, and each pair. */
const ATTRIBUTES_BYTES = 32;
const ALTERNATE_BYTES = 26;
const RELEASED_BYTES = 48;
const PAIR_BYTES = 2;

/** Cache: attributes are immutable, and a changed block shares all but one of them with its predecessor. */
const attributesSizes = new WeakMap<AllocationAttributes, number>();

/** An upper estimate of a block's size in the datastore, in bytes. */
export function blockBytes({ allocations, unallocated, attributes }: Block): number {
  const takenCount = allocations.length - unallocated.length;
  const lists = BLOCK_OVERHEAD_BYTES + takenCount * USED_ADDRESS_BYTES + unallocated.length * FREE_ADDRESS_BYTES;
  return attributes.reduce((bytes, entry) => bytes + attributesBytes(entry), lists);
}

/** Whether one request can write all of these blocks. The estimate is skipped where all of them are small. */
export function fitOneRequest(blocks: readonly Block[]): boolean {
  if (blocks.every(({ allocations }) => allocations.length <= SMALL_BLOCK_SIZE)) return true;
  return bytesOf(blocks) <= BLOCK_BYTES_PER_REQUEST;
}

export function bytesOf(blocks: readonly Block[]): number {
  return blocks.reduce((bytes, block) => bytes + blockBytes(block), 0);
}

function attributesBytes(attributes: AllocationAttributes): number {
  const cachedBytes = attributesSizes.get(attributes);
  if (cachedBytes !== undefined) return cachedBytes;
  const { handleId = '', owner, alternateOwner, releasedAtMs } = attributes;
  const fixed =
    ATTRIBUTES_BYTES + (alternateOwner ? ALTERNATE_BYTES : 0) + (releasedAtMs === undefined ? 0 : RELEASED_BYTES);
  const pairs = [...Object.entries(owner), ...Object.entries(alternateOwner ?? {})];
  const bytes = pairs.reduce(
    (sum, [name, value]) => sum + PAIR_BYTES + textBytes(name) + textBytes(value),
    fixed + textBytes(handleId),
  );
  attributesSizes.set(attributes, bytes);
  return bytes;
}

/** Length in JSON, where quotes, backslashes and unprintable characters take more. */
function textBytes(text: string): number {
  return Buffer.byteLength(JSON.stringify(text));
}

/** The first items, as many as one transaction can write the blocks of; at least one. */
export function firstWritable<Item>(items: readonly Item[], blockOf: (item: Item) => Block | undefined): Item[] {
  let bytes = 0;
  const end = items.findIndex((item, index) => {
    const block = blockOf(item);
    bytes += block ? blockBytes(block) : 0;
    return index > 0 && bytes > BLOCK_BYTES_PER_STEP;
  });
  return end < 0 ? [...items] : items.slice(0, end);
}

/**
 * Whether an affinity has nothing that its owner could use or needs to change: it is confirmed, the block names the
 * owner, and every address is in use.
 */
export function isExhausted({ owner, state }: Affinity, block: Block | undefined): boolean {
  return (
    state === 'confirmed' &&
    block?.owner?.kind === owner.kind &&
    block.owner.name === owner.name &&
    !hasFreeOrCooling(block)
  );
}

/** Whether any address of the block is free or cools down. */
export function hasFreeOrCooling({ unallocated, attributes }: Block): boolean {
  return unallocated.length > 0 || attributes.some(({ releasedAtMs }) => releasedAtMs !== undefined);
}

/** Whether a host's block has no allocated address: all are free, or cool down. */
export function isIdle({ owner, allocations, attributes }: Block): boolean {
  const isHeld = (index: number | null): boolean => index !== null && attributes[index]?.releasedAtMs === undefined;
  return owner?.kind === 'host' && !allocations.some(isHeld);
}

/**
 * Whether a block with free or cooling addresses lacks its owner's affinity, or has no owner.
 * @param affinity - the block owner's affinity for it
 */
export function isWithoutAffinity(block: Block, affinity: Affinity | undefined): boolean {
  return affinity === undefined && hasFreeOrCooling(block);
}
