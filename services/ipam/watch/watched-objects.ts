import type { Address } from '@podwire/shared/net/address';
import { addressAt, formatPrefix, type Prefix } from '@podwire/shared/net/prefix';

import type { AllocationAttributes } from '../records/attributes.js';
import type { Block } from '../records/block.js';
import type { RecordName, RecordValue } from '../records/view.js';

/** An object that can be watched. */
export type WatchedObject =
  { readonly kind: 'route'; readonly value: BlockRoute } | Extract<RecordValue, { readonly kind: 'pool' | 'node' }>;

export type WatchedKind = WatchedObject['kind'];

/** The query of a watcher: the kinds that it wants, at least one. */
export type WatchQuery = ReadonlySet<WatchedKind>;

/** The query of a stream, with its key. */
export interface Stream {
  readonly query: WatchQuery;
  /** Equal for equal queries: {@link queryKey}. */
  readonly key: string;
}

/** Equal for queries with the same kinds in any order. */
export function queryKey(query: WatchQuery): string {
  return [...query].sort().join('+');
}

export function nameOf({ kind, value }: WatchedObject): string {
  return kind === 'route' ? formatPrefix(value.prefix) : value.name;
}

/** The {@link nameOf} of the object of a removed record; undefined for a record that is not watched. */
export function nameOfRecord(name: RecordName): string | undefined {
  if (name.kind === 'block') return formatPrefix(name.prefix);
  return name.kind === 'pool' || name.kind === 'node' ? name.name : undefined;
}

/** The route to the addresses of a block. Allocations of its owner do not change it. */
export interface BlockRoute {
  readonly prefix: Prefix;
  /** Undefined when the pool was deleted. */
  readonly poolName: string | undefined;
  /** Undefined when no node owns the block. */
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

/** The phase of a stream, as in the contract. */
export type WatchPhase = 'snapshot' | 'snapshotComplete' | 'changes' | 'bookmark';

/** Encodes messages of the contract. The bytes are shared among streams and never changed. */
export interface WatchCodec {
  /** The encoded change of one object; a message concatenates its changes. */
  change(change: EncodableChange): Uint8Array;
  /** A whole message. `resumeToken` is empty for none. */
  message(message: WatchMessage): Uint8Array;
}

export type EncodableChange =
  | { readonly type: 'put'; readonly object: WatchedObject }
  | { readonly type: 'delete'; readonly kind: WatchedKind; readonly name: string };

export interface WatchMessage {
  readonly phase: WatchPhase;
  readonly reset: boolean;
  readonly changes: readonly Uint8Array[];
  readonly resumeToken: string;
  /** Whether Calico's tools have locked the datastore. */
  readonly isLocked: boolean;
}

/**
 * An object at the catalog's revision: the same item while one exists under its key, through all its changes. Only the
 * catalog changes it.
 */
export interface Item {
  readonly key: string;
  object: WatchedObject;
  /** Revision of its creation; items are ordered by it. */
  readonly createdRevision: number;
  /** Its encoded change, if it was needed and the cache had room. */
  encoded: Uint8Array | undefined;
  /** Number of its last recent change, which may be dropped already; -1 before the first. */
  changeNumber: number;
}
