import type { Address } from '@podwire/shared/net/address';
import { addressAt, formatPrefix, type Prefix } from '@podwire/shared/net/prefix';

import type { Item } from '../engine/streams/recent-changes.js';
import type { AllocationAttributes } from '../records/attributes.js';
import type { Block } from '../records/block.js';
import type { RecordName, RecordValue } from '../records/view.js';

/** An object that can be watched. */
export type WatchedObject =
  { readonly kind: 'route'; readonly value: BlockRoute } | Extract<RecordValue, { readonly kind: 'pool' | 'node' }>;

export type WatchedKind = WatchedObject['kind'];

export function nameOf({ kind, value }: WatchedObject): string {
  return kind === 'route' ? formatPrefix(value.prefix) : value.name;
}

/** The kind and {@link nameOf} of a watched object, from the key of its record; undefined for other records. */
export function nameOfRecord(name: RecordName): Omit<Deletion, 'type'> | undefined {
  if (name.kind === 'block') return { kind: 'route', name: formatPrefix(name.prefix) };
  return name.kind === 'pool' || name.kind === 'node' ? { kind: name.kind, name: name.name } : undefined;
}

/** The route to the addresses of a block. Allocations of its owner do not change it. */
export interface BlockRoute {
  readonly prefix: Prefix;
  /** Name of the pool; undefined after its deletion. */
  readonly poolName: string | undefined;
  /** Owner of the block; undefined when no node owns it. */
  readonly nodeName: string | undefined;
  /** Addresses used by nodes other than the owner, in address order. */
  readonly borrowed: readonly BorrowedAddress[];
}

interface BorrowedAddress {
  readonly address: Address;
  readonly nodeName: string;
}

const NO_BORROWED: readonly BorrowedAddress[] = [];

/** The routes of a block, from its record. Addresses without a node, and cooling ones, count as not on another node. */
export function blockRoute(block: Block, poolName: string | undefined): BlockRoute {
  const nodeName = block.owner?.kind === 'host' ? block.owner.name : undefined;
  return { prefix: block.prefix, poolName, nodeName, borrowed: borrowedAddresses(block, nodeName) };
}

/**
 * Whether a change of a block leaves its route as it is; cheap where only the owner uses the block.
 * @param route - the route of `before`
 * @param after - has the same owner and pool
 */
export function isRouteUnchanged(route: BlockRoute, before: Block, after: Block): boolean {
  const { borrowed, nodeName } = route;
  const isNewBorrower = (one: AllocationAttributes, index: number): boolean =>
    one !== before.attributes[index] && borrowerOf(one, nodeName) !== undefined;
  return borrowed === NO_BORROWED && !after.attributes.some(isNewBorrower);
}

/** Examines single addresses only if one of the shared attributes names another node. */
function borrowedAddresses(
  { prefix, allocations, attributes }: Block,
  owner: string | undefined,
): readonly BorrowedAddress[] {
  if (!attributes.some((one) => borrowerOf(one, owner) !== undefined)) return NO_BORROWED;
  return allocations.flatMap((index, ordinal): BorrowedAddress[] => {
    const used = index === null ? undefined : attributes[index];
    const nodeName = used && borrowerOf(used, owner);
    return nodeName === undefined ? [] : [{ address: addressAt(prefix, ordinal), nodeName }];
  });
}

function borrowerOf({ owner, releasedAtMs }: AllocationAttributes, blockOwner: string | undefined): string | undefined {
  const { node } = owner;
  return releasedAtMs !== undefined || node === undefined || node === '' || node === blockOwner ? undefined : node;
}

/** Whether two routes of one block are equal. */
export function isSameBlockRoute(a: BlockRoute, b: BlockRoute): boolean {
  return (
    a.poolName === b.poolName &&
    a.nodeName === b.nodeName &&
    a.borrowed.length === b.borrowed.length &&
    a.borrowed.every(({ address, nodeName }, index) => {
      const other = b.borrowed[index];
      return address.value === other?.address.value && nodeName === other.nodeName;
    })
  );
}

/** A change of one object, as a stream sends it. */
export type EncodableChange = { readonly type: 'put'; readonly object: WatchedObject } | Deletion;

interface Deletion {
  readonly type: 'delete';
  readonly kind: WatchedKind;
  readonly name: string;
}

/** An object at the catalog's revision. Only the catalog changes it. */
export interface WatchedItem extends Item {
  object: WatchedObject;
}
