import { compareAddresses, FAMILIES, familyBits, type Address } from '@podwire/shared/net/address';
import { defaultRoute, hostPrefix, prefixOf, type Prefix } from '@podwire/shared/net/prefix';

import { corruptFailure } from '../records/absence.js';
import { LARGEST_BLOCK_BITS, rangesAround, type Block } from '../records/block.js';
import type { UnreadableRecord, View } from '../records/view.js';

/** Every block, IPv4 before IPv6, in the order of their addresses. */
export function* allBlocks(view: View): Generator<Block, void, void> {
  for (const family of FAMILIES) yield* view.blocksIn(defaultRoute(family));
}

/**
 * The block of an address, even outside all pools. Takes one look-up per possible block size.
 * @throws Failure STORE_CORRUPT when that block cannot be read: the holder of the address is unknown then
 */
export function blockOf(view: View, address: Address): Block | undefined {
  const block = readableBlockOf(view, address);
  const unreadable = block ? undefined : view.unreadableBlock(hostPrefix(address));
  if (unreadable) throw corruptFailure(unreadable);
  return block;
}

/** The record of an address's block if it cannot be read. */
export function unreadableBlockOf(view: View, address: Address): UnreadableRecord | undefined {
  return readableBlockOf(view, address) ? undefined : view.unreadableBlock(hostPrefix(address));
}

function readableBlockOf(view: View, address: Address): Block | undefined {
  const bits = familyBits(address.family);
  for (let length = bits; length >= bits - LARGEST_BLOCK_BITS; length--) {
    const block = view.block(prefixOf(hostPrefix(address), length));
    if (block) return block;
  }
  return undefined;
}

/** Whether the node is registered with the address, or has it as its tunnel's. */
export function isNodeAddress(view: View, nodeName: string, address: Address): boolean {
  const node = view.node(nodeName);
  const own = [node?.ipv4, node?.ipv6, ...(node?.tunnels.values() ?? [])];
  return own.some((each) => each !== undefined && compareAddresses(each.address, address) === 0);
}

/** The first readable block that shares addresses with the prefix: within it, equal to it, or around it. */
export function overlappingBlock(view: View, prefix: Prefix): Block | undefined {
  for (const block of view.blocksIn(prefix)) return block;
  for (const range of rangesAround(prefix)) {
    const block = view.block(range);
    if (block) return block;
  }
  return undefined;
}

/** The range of the first block that shares addresses with the prefix, whether or not it can be read. */
export function overlappingRange(view: View, prefix: Prefix): Prefix | undefined {
  return overlappingBlock(view, prefix)?.prefix ?? view.unreadableBlock(prefix)?.name.prefix;
}
