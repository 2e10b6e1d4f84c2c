import type { AllocationAttributes, Block } from './records.js';

/**
 * How much of blocks one transaction may write, in bytes: a block is written whole, and etcd takes 1.5 MiB in one request. The rest
 * is for what comes with blocks: handles, endpoints, entries of the history. One block alone may be larger, and is tried.
 */
export const BLOCK_BYTES_PER_STEP = 2 ** 20;

/** What an address takes beside its attributes: its places in three lists, with as many digits as the largest block's have. */
const ADDRESS_BYTES = 40;
/** What a block takes beside its lists. */
const REST_BYTES = 300;
/** What JSON adds to attributes, and to each pair of them. */
const ATTRIBUTES_BYTES = 80;
const PAIR_BYTES = 6;

/** Attributes do not change, and the next block has all but one of them. */
const known = new WeakMap<AllocationAttributes, number>();

/** About how many bytes a block takes in the datastore, rather too many than too few. */
export function blockBytes({ allocations, attributes }: Block): number {
  const lists = REST_BYTES + allocations.length * ADDRESS_BYTES;
  return attributes.reduce((bytes, entry) => bytes + attributesBytes(entry), lists);
}

function attributesBytes(attributes: AllocationAttributes): number {
  const remembered = known.get(attributes);
  if (remembered !== undefined) return remembered;
  const { handleId = '', owner, alternateOwner = {} } = attributes;
  const pairs = [...Object.entries(owner), ...Object.entries(alternateOwner)];
  const bytes = pairs.reduce(
    (sum, [name, value]) => sum + PAIR_BYTES + textBytes(name) + textBytes(value),
    ATTRIBUTES_BYTES + textBytes(handleId),
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
