import type { AllocationAttributes, Block } from './records.js';

/**
 * How much of blocks one transaction may write, in bytes: a block is written whole, and etcd takes 1.5 MiB in one request. The rest
 * is for what comes with blocks: handles, endpoints, entries of the history. One block alone may be larger, and is tried.
 */
export const BLOCK_BYTES_PER_STEP = 2 ** 20;

/** What one request may take that writes no more blocks than it must; the rest is for what comes with them. */
export const BLOCK_BYTES_PER_REQUEST = 1.5 * 2 ** 20 - 2 ** 16;

/** A block of so many addresses is far from the limit, and so are two of them, whoever holds its addresses. */
const SMALL_BLOCK_SIZE = 256;

/** What an address takes beside its attributes: its places in two lists, with as many digits as the largest block's have. */
const TAKEN_BYTES = 33;
const FREE_BYTES = 10;
/** What a block takes beside its lists, with an owner's name of 253 characters. */
const REST_BYTES = 600;
/** What JSON adds to attributes, to those of a second owner, to the time of a release, and to each pair. */
const ATTRIBUTES_BYTES = 32;
const ALTERNATE_BYTES = 26;
const RELEASED_BYTES = 48;
const PAIR_BYTES = 2;

/** Attributes do not change, and the next block has all but one of them. */
const known = new WeakMap<AllocationAttributes, number>();

/** About how many bytes a block takes in the datastore, rather too many than too few. */
export function blockBytes({ allocations, unallocated, attributes }: Block): number {
  const takenCount = allocations.length - unallocated.length;
  const lists = REST_BYTES + takenCount * TAKEN_BYTES + unallocated.length * FREE_BYTES;
  return attributes.reduce((bytes, entry) => bytes + attributesBytes(entry), lists);
}

/** Whether one request can write all of these blocks. Small ones are not counted, so that the answer costs nothing where all are. */
export function fitOneRequest(blocks: readonly Block[]): boolean {
  if (blocks.every(({ allocations }) => allocations.length <= SMALL_BLOCK_SIZE)) return true;
  return bytesOf(blocks) <= BLOCK_BYTES_PER_REQUEST;
}

export function bytesOf(blocks: readonly Block[]): number {
  return blocks.reduce((bytes, block) => bytes + blockBytes(block), 0);
}

function attributesBytes(attributes: AllocationAttributes): number {
  const remembered = known.get(attributes);
  if (remembered !== undefined) return remembered;
  const { handleId = '', owner, alternateOwner, releasedAtMs } = attributes;
  const fixed =
    ATTRIBUTES_BYTES + (alternateOwner ? ALTERNATE_BYTES : 0) + (releasedAtMs === undefined ? 0 : RELEASED_BYTES);
  const pairs = [...Object.entries(owner), ...Object.entries(alternateOwner ?? {})];
  const bytes = pairs.reduce(
    (sum, [name, value]) => sum + PAIR_BYTES + textBytes(name) + textBytes(value),
    fixed + textBytes(handleId),
  );
  known.set(attributes, bytes);
  return bytes;
}

/** In JSON, quotes, backslashes and what cannot be printed take more. */
function textBytes(text: string): number {
  return Buffer.byteLength(JSON.stringify(text));
}

/** The first of the blocks that one transaction can write, at least one of them. */
export function firstWritable<Item>(items: readonly Item[], blockOf: (item: Item) => Block | undefined): Item[] {
  let bytes = 0;
  const behind = items.findIndex((item, index) => {
    const block = blockOf(item);
    bytes += block ? blockBytes(block) : 0;
    return index > 0 && bytes > BLOCK_BYTES_PER_STEP;
  });
  return behind < 0 ? [...items] : items.slice(0, behind);
}
