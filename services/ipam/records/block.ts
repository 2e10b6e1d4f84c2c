import { familyBits } from '@podwire/shared/net/address';
import { addressAt, formatPrefix, hostPrefix, prefixOf, prefixSize, type Prefix } from '@podwire/shared/net/prefix';

import { sameAttributes, type AllocationAttributes } from './attributes.js';

/**
 * Operations on a block. Each function that changes it increments its sequence number by one, however much it changes.
 */

interface NewBlock {
  readonly prefix: Prefix;
  readonly owner: BlockOwner;
  readonly nowMs: number;
}

/** Number of addresses in a block. Blocks have at most 4096. */
export function blockSize(prefix: Prefix): number {
  return Number(prefixSize(prefix));
}

/**
 * An empty block. Its sequence number starts at the clock, in nanoseconds, so a block that was deleted and recreated
 * does not repeat its earlier numbers.
 */
export function makeBlock({ prefix, owner, nowMs }: NewBlock): Block {
  const ordinals = Array.from({ length: blockSize(prefix) }, (_, ordinal) => ordinal);
  return {
    prefix,
    owner,
    claimTimeMs: wholeSeconds(nowMs),
    allocations: ordinals.map(() => null),
    unallocated: ordinals,
    attributes: [],
    sequenceNumber: BigInt(nowMs) * 1_000_000n,
    sequenceNumbers: ordinals.map(() => null),
  };
}

/** The precision in which the datastore keeps times. */
export function wholeSeconds(timeMs: number): number {
  return Math.floor(timeMs / 1000) * 1000;
}

/** Number of addresses that are not free: in use, or cooling down after their release. */
export function usedCount(block: Block): number {
  return block.allocations.length - block.unallocated.length;
}

/**
 * Grace period before an unused claimed block may be reclaimed, in milliseconds: its first address may be in flight.
 */
const CLAIM_GRACE_MS = 60_000;

/** A claim time in the future comes from another replica's clock and is ignored. Old blocks have no claim time. */
export function isInGracePeriod({ claimTimeMs }: Pick<Block, 'claimTimeMs'>, nowMs: number): boolean {
  return claimTimeMs !== undefined && Math.abs(nowMs - claimTimeMs) < CLAIM_GRACE_MS;
}

/**
 * Allocates addresses to one holder. The remaining free ones keep their order.
 * @param ordinals - free ones, without duplicates
 */
export function takeOrdinals(block: Block, ordinals: readonly Ordinal[], attributes: AllocationAttributes): Block {
  const known = block.attributes.findIndex((other) => sameAttributes(other, attributes));
  const index = known < 0 ? block.attributes.length : known;
  const allocations = block.allocations.slice();
  const sequenceNumbers = block.sequenceNumbers.slice();
  for (const ordinal of ordinals) {
    allocations[ordinal] = index;
    sequenceNumbers[ordinal] = block.sequenceNumber;
  }
  const { prefix, owner, claimTimeMs } = block;
  return {
    prefix,
    owner,
    claimTimeMs,
    allocations,
    unallocated: removeOrdinals(block.unallocated, ordinals),
    attributes: known < 0 ? [...block.attributes, attributes] : block.attributes,
    sequenceNumber: block.sequenceNumber + 1n,
    sequenceNumbers,
  };
}

/** Fast path: nearly always the first entry is removed. */
function removeOrdinals(queue: readonly Ordinal[], taken: readonly Ordinal[]): Ordinal[] {
  if (taken.length === 1 && queue[0] === taken[0]) return queue.slice(1);
  const gone = new Set(taken);
  return queue.filter((ordinal) => !gone.has(ordinal));
}

/**
 * Frees addresses: appends them to the queue in the given order, and removes attributes without an address.
 * @param ordinals - allocated ones, without duplicates
 */
export function releaseAddresses(block: Block, ordinals: readonly Ordinal[]): Block {
  return freeAddresses(block, ordinals, [...block.unallocated, ...ordinals]);
}

/**
 * Frees unused addresses: they go back to the front of the queue, in the given order, so that an address
 * is used again only after every other address of its block.
 * @param ordinals - allocated ones, without duplicates
 */
export function returnUnused(block: Block, ordinals: readonly Ordinal[]): Block {
  return freeAddresses(block, ordinals, [...ordinals, ...block.unallocated]);
}

function freeAddresses(block: Block, ordinals: readonly Ordinal[], unallocated: readonly Ordinal[]): Block {
  const freed = new Set(ordinals);
  const allocations = block.allocations.map((index, ordinal) => (freed.has(ordinal) ? null : index));
  const renumbered = renumberAttributes(allocations, block.attributes);
  const { prefix, owner, claimTimeMs } = block;
  return {
    prefix,
    owner,
    claimTimeMs,
    allocations: renumbered.allocations,
    unallocated,
    attributes: renumbered.attributes,
    sequenceNumber: block.sequenceNumber + 1n,
    sequenceNumbers: block.sequenceNumbers.map((number, ordinal) => (freed.has(ordinal) ? null : number)),
  };
}

/**
 * Releases addresses into their cool-down: they have no holder, and become free when {@link collectCooled} finds the
 * cool-down over. They keep their sequence numbers until then, as with Calico, and name the node that used them, so that
 * its share of the pool counts them.
 * @param ordinals - allocated ones, without duplicates
 */
export function coolAddresses(block: Block, ordinals: readonly Ordinal[], nowMs: number): Block {
  const attributes = [...block.attributes];
  const allocations = block.allocations.slice();
  const cooling = new Map<string | undefined, number>();
  for (const ordinal of ordinals) {
    const node = attributesAt(block, ordinal)?.owner.node;
    const index = cooling.get(node) ?? attributes.length;
    if (index === attributes.length) {
      const owner = node === undefined ? {} : { node };
      attributes.push({ handleId: undefined, owner, releasedAtMs: wholeSeconds(nowMs) });
      cooling.set(node, index);
    }
    allocations[ordinal] = index;
  }
  return {
    ...block,
    ...renumberAttributes(allocations, attributes),
    sequenceNumber: block.sequenceNumber + 1n,
  };
}

/**
 * Frees the addresses whose cool-down is over, at the end of the queue in the order of their releases. The sequence
 * number stays: the caller changes the block in another way as well, or uses {@link touchBlock}.
 *
 * The stamps come from other replicas' clocks. One that lies ahead by the cool-down or more is unreliable and counts as
 * long ago, so a wrong clock delays reuse by at most twice the cool-down.
 * @param cooldownSeconds - not above 0: all cooling addresses become free
 * @returns the same block when no cool-down is over
 */
export function collectCooled(block: Block, nowMs: number, cooldownSeconds: number): Block {
  const due = new Map<number, number>();
  block.attributes.forEach(({ releasedAtMs }, index) => {
    const cools = releasedAtMs !== undefined && Math.abs(nowMs - releasedAtMs) < cooldownSeconds * 1000;
    if (releasedAtMs !== undefined && !cools) due.set(index, releasedAtMs);
  });
  if (due.size === 0) return block;
  const releaseOf = (ordinal: Ordinal): number => due.get(block.allocations[ordinal] ?? -1) ?? 0;
  const ordinals = block.allocations
    .flatMap((index, ordinal) => (index !== null && due.has(index) ? [ordinal] : []))
    .sort((a, b) => releaseOf(a) - releaseOf(b));
  return { ...releaseAddresses(block, ordinals), sequenceNumber: block.sequenceNumber };
}

/** Replaces the attributes of an allocated address. It stays the same allocation. */
export function replaceAttributes(block: Block, ordinal: Ordinal, attributes: AllocationAttributes): Block {
  const known = block.attributes.findIndex((other) => sameAttributes(other, attributes));
  const all = known < 0 ? [...block.attributes, attributes] : block.attributes;
  const allocations = block.allocations.with(ordinal, known < 0 ? block.attributes.length : known);
  return { ...block, ...renumberAttributes(allocations, all), sequenceNumber: block.sequenceNumber + 1n };
}

/** Ends the allocation of an address and begins another one of it. */
export function allocateAnew(block: Block, ordinal: Ordinal, attributes: AllocationAttributes): Block {
  return takeOrdinals(releaseAddresses(block, [ordinal]), [ordinal], attributes);
}

/** Changes the block without changing its addresses, so that a decision on an older copy loses its comparison. */
export function touchBlock(block: Block): Block {
  return { ...block, sequenceNumber: block.sequenceNumber + 1n };
}

/** The allocated ordinals whose attributes match, in the order of the addresses. */
export function ordinalsWhere(block: Block, wanted: (attributes: AllocationAttributes) => boolean): Ordinal[] {
  const { attributes, allocations } = block;
  const matches = attributes.map(wanted);
  // Fast path: the result is nearly always empty or one entry, and every allocation runs this.
  const first = matches.indexOf(true);
  if (first < 0) return [];
  const isOne = !matches.includes(true, first + 1);
  const ordinals: Ordinal[] = [];
  for (let ordinal = isOne ? allocations.indexOf(first) : 0; ordinal >= 0 && ordinal < allocations.length; ordinal++) {
    const index = allocations[ordinal] ?? null;
    if (index !== null && matches[index]) ordinals.push(ordinal);
  }
  return ordinals;
}

/** The attributes of an allocated ordinal; undefined when it is free. */
export function attributesAt(block: Block, ordinal: Ordinal): AllocationAttributes | undefined {
  const index = block.allocations[ordinal] ?? undefined;
  return index === undefined ? undefined : block.attributes[index];
}

function renumberAttributes(
  allocations: readonly (number | null)[],
  attributes: readonly AllocationAttributes[],
): Pick<Block, 'allocations' | 'attributes'> {
  const used = new Set(allocations);
  const renumbered = new Map<number | null, number>();
  const kept = attributes.filter((_, index) => {
    if (used.has(index)) renumbered.set(index, renumbered.size);
    return used.has(index);
  });
  return { allocations: allocations.map((index) => renumbered.get(index) ?? null), attributes: kept };
}

/**
 * The faults of a block by the rules of `calicoctl ipam check` (Calico's calicoctl/commands/ipam/check.go) and of
 * sequence numbers. Empty for a valid block.
 * @param nowMs - releases after this time are faults, in epoch milliseconds
 */
export function validateBlock(block: Block, nowMs: number): string[] {
  const name = `block ${formatPrefix(block.prefix)}`;
  return [...allocationFaults(block), ...attributeFaults(block, nowMs), ...sequenceFaults(block)].map(
    (fault) => `${name}: ${fault}`,
  );
}

function allocationFaults({ prefix, allocations, unallocated }: Block): string[] {
  const size = blockSize(prefix);
  const faults: string[] = [];
  if (allocations.length !== size) faults.push(`${allocations.length} allocations for ${size} addresses`);
  const seen = new Set<Ordinal>();
  for (const ordinal of unallocated) {
    if (!Number.isInteger(ordinal) || ordinal < 0 || ordinal >= size)
      faults.push(`free ordinal ${ordinal} is out of range`);
    if (seen.has(ordinal)) faults.push(`ordinal ${ordinal} is free twice`);
    if ((allocations[ordinal] ?? null) !== null) faults.push(`ordinal ${ordinal} is both free and allocated`);
    seen.add(ordinal);
  }
  const allocated = allocations.filter((index) => index !== null).length;
  if (allocated + unallocated.length !== size)
    faults.push(`${allocated} allocated and ${unallocated.length} free do not make ${size}`);
  return faults;
}

function attributeFaults({ allocations, attributes }: Block, nowMs: number): string[] {
  const used = new Set(allocations);
  const dangling = allocations.flatMap((index, ordinal) =>
    index === null || attributes[index] ? [] : [`ordinal ${ordinal} has attributes ${index}, which do not exist`],
  );
  const faults = attributes.flatMap(({ releasedAtMs }, index) => [
    ...(used.has(index) ? [] : [`attributes ${index} belong to no address`]),
    ...(releasedAtMs !== undefined && releasedAtMs > nowMs ? [`attributes ${index} were released in the future`] : []),
  ]);
  return [...dangling, ...faults];
}

function sequenceFaults({ allocations, sequenceNumber, sequenceNumbers }: Block): string[] {
  return sequenceNumbers.flatMap((number, ordinal) => {
    if (number === null) return [];
    const isFree = (allocations[ordinal] ?? null) === null;
    return [
      ...(isFree ? [`ordinal ${ordinal} is free but has a sequence number`] : []),
      ...(number < sequenceNumber ? [] : [`ordinal ${ordinal} has a sequence number that the block has not reached`]),
    ];
  });
}

/**
 * The records of the datastore as values: the content of Calico's v3 schema (reference: Calico's
 * libcalico-go/lib/backend/model), without its JSON. All are immutable; a change is a new value. `records/json` maps
 * them to and from the stored form, and keeps unknown fields there.
 */

/** Number of an address within its block, counted from the block's first address. */
export type Ordinal = number;

/** The owner of a block: a node, or a virtual owner such as `load-balancer`. Stored as `host:<name>` or `virtual:<name>`. */
export interface BlockOwner {
  readonly kind: 'host' | 'virtual';
  readonly name: string;
}

/** A range of addresses, and the unit of locking: one key, one compare-and-swap. */
export interface Block {
  readonly prefix: Prefix;
  readonly owner: BlockOwner | undefined;
  /** When the owner claimed the block, in epoch milliseconds; undefined on old blocks. */
  readonly claimTimeMs: number | undefined;
  /** Index of each ordinal's attributes, or null when it is free. */
  readonly allocations: readonly (number | null)[];
  /** The free ordinals in allocation order: allocated from the head, released to the tail. */
  readonly unallocated: readonly Ordinal[];
  readonly attributes: readonly AllocationAttributes[];
  /** Incremented with every change of the block; starts at the clock, in epoch nanoseconds. */
  readonly sequenceNumber: bigint;
  /** Sequence number of the block at each ordinal's allocation, or null when it is free. */
  readonly sequenceNumbers: readonly (bigint | null)[];
}

/** The state of a node's claim of a block. */
export type AffinityState = 'pending' | 'confirmed' | 'pendingDeletion';

/** A node's claim of a block. Only a confirmed one, with a block that names the node, is ownership. */
export interface Affinity {
  readonly owner: BlockOwner;
  readonly block: Prefix;
  readonly state: AffinityState;
}

/** Index from an owner to the blocks that hold its addresses. */
export interface Handle {
  readonly id: string;
  /** Number of the handle's addresses in each block, by CIDR. */
  readonly blocks: ReadonlyMap<string, number>;
}

export function sameOwner(a: BlockOwner | undefined, b: BlockOwner | undefined): boolean {
  return a?.kind === b?.kind && a?.name === b?.name;
}

/**
 * One address that an attachment holds. The blocks decide that. The handle names the blocks to search; it may name too
 * many (Calico's does after a crash), never too few. The endpoint does not decide: the pod's next sandbox takes its key.
 */
export interface HeldAddress {
  readonly block: Block;
  readonly ordinal: Ordinal;
  readonly attributes: AllocationAttributes;
}

/** The address, as a prefix of full length. */
export function addressOf({ block, ordinal }: Pick<HeldAddress, 'block' | 'ordinal'>): Prefix {
  return hostPrefix(addressAt(block.prefix, ordinal));
}

/**
 * Handle of the addresses that Windows reserves in each block, in upper or lower case (Calico's libcalico-go/lib/ipam).
 */
const WINDOWS_RESERVED = 'windows-reserved-ipam-handle';

/** The held addresses of a block whose attributes match, in order. Without cooling addresses. */
export function heldAddressesIn(block: Block, wanted: (attributes: AllocationAttributes) => boolean): HeldAddress[] {
  return ordinalsWhere(block, (attributes) => isHeld(attributes) && wanted(attributes)).flatMap((ordinal) => {
    const attributes = attributesAt(block, ordinal);
    return attributes ? [{ block, ordinal, attributes }] : [];
  });
}

/** Whether attributes belong to a holder, not to an address that cools down after its release. */
export function isHeld({ releasedAtMs }: AllocationAttributes): boolean {
  return releasedAtMs === undefined;
}

/**
 * Whether a block has no held address: all are free, or reserved by Windows. A cooling address keeps its block, since a
 * recreated block would have lost the cool-down.
 */
export function isUnneeded({ attributes }: Block): boolean {
  return attributes.every((entry) => isHeld(entry) && entry.handleId?.toLowerCase() === WINDOWS_RESERVED);
}

/** Calico's largest blocks have 4096 addresses. */
export const LARGEST_BLOCK_BITS = 12;

/** The ranges around a prefix that a block may cover, the largest first. */
export function* rangesAround(prefix: Prefix): Generator<Prefix, void, void> {
  for (let length = familyBits(prefix.family) - LARGEST_BLOCK_BITS; length < prefix.length; length++)
    yield prefixOf(prefix, length);
}
