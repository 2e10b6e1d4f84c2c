import type { Address } from '@podwire/shared/net/address';
import { addressAt, formatPrefix, type Prefix } from '@podwire/shared/net/prefix';

import type { BlockListing } from '../blocks/blocks.js';
import type { AllocationAttributes } from '../records/attributes.js';
import type { Block } from '../records/block.js';
import { fnv1a64 } from '../records/versions.js';
import type { RecordName, RecordValue } from '../records/view.js';

/** An object that can be watched. */
export type WatchedObject =
  | { readonly kind: 'block'; readonly value: BlockListing }
  | { readonly kind: 'route'; readonly value: BlockRoute }
  | Extract<RecordValue, { readonly kind: 'pool' | 'node' | 'endpoint' | 'reservation' }>;

export type WatchedKind = WatchedObject['kind'];

/** The query of a watcher. */
export interface WatchQuery {
  /** At least one. */
  readonly kinds: ReadonlySet<WatchedKind>;
  /** Only this node's blocks and the routes to them, its endpoints, and the node itself; empty for all. */
  readonly nodeName: string;
  /** Only this pool, its blocks and the routes to them, and endpoints with an address of it; empty for all. */
  readonly poolName: string;
}

/** The query of a stream, with its key. */
export interface Stream {
  readonly query: WatchQuery;
  /** Equal for equal queries: {@link queryKey}. */
  readonly key: string;
}

/** The properties of an object that filters compare. */
export interface Scope {
  /** Empty when the object belongs to no node. */
  readonly nodeName: string;
  readonly poolNames: readonly string[];
}

export function nameOf(object: WatchedObject): string {
  switch (object.kind) {
    case 'block':
      return formatPrefix(object.value.block.prefix);
    case 'route':
      return formatPrefix(object.value.prefix);
    case 'endpoint':
      return `${object.key.namespace}/${object.key.name}`;
    case 'pool':
    case 'node':
    case 'reservation':
      return object.value.name;
  }
}

/** The {@link nameOf} of a removed record; undefined for an unwatched kind. */
export function nameOfRecord(name: RecordName): string | undefined {
  switch (name.kind) {
    case 'block':
      return formatPrefix(name.prefix);
    case 'endpoint':
      return `${name.key.namespace}/${name.key.name}`;
    case 'pool':
    case 'node':
    case 'reservation':
      return name.name;
    case 'affinity':
    case 'handle':
    case 'config':
    case 'clusterInformation':
    case 'requestPolicies':
    case 'nodeSession':
    case 'storeEpoch':
    case 'revokedCertificates':
      return undefined;
  }
}

export function scopeOf(object: WatchedObject): Scope {
  switch (object.kind) {
    case 'block':
    case 'route': {
      const { poolName } = object.value;
      return { nodeName: nodeNameOf(object), poolNames: poolName === undefined ? [] : [poolName] };
    }
    case 'endpoint':
      return { nodeName: nodeNameOf(object), poolNames: object.value.addresses.map(({ poolName }) => poolName) };
    case 'node':
      return { nodeName: object.value.name, poolNames: [] };
    case 'pool':
      return { nodeName: '', poolNames: [object.value.name] };
    case 'reservation':
      return { nodeName: '', poolNames: [] };
  }
}

export function nodeNameOf(object: WatchedObject): string {
  switch (object.kind) {
    case 'block': {
      const { owner } = object.value.block;
      return owner?.kind === 'host' ? owner.name : '';
    }
    case 'route':
      return object.value.nodeName ?? '';
    case 'endpoint':
      return object.value.nodeName;
    case 'node':
      return object.value.name;
    case 'pool':
    case 'reservation':
      return '';
  }
}

/** Whether two states of one object are in the same scope. */
export function isInSameScope(a: WatchedObject, b: WatchedObject): boolean {
  // Most changes are allocations in blocks, which do not change the scope.
  if (a.kind === 'block' && b.kind === 'block')
    return a.value.poolName === b.value.poolName && nodeNameOf(a) === nodeNameOf(b);
  return isSameScope(scopeOf(a), scopeOf(b));
}

export function isSameScope(a: Scope, b: Scope): boolean {
  return (
    a.nodeName === b.nodeName &&
    a.poolNames.length === b.poolNames.length &&
    a.poolNames.every((name, index) => name === b.poolNames[index])
  );
}

/** Kinds that belong to no node, or to no pool: such filters do not apply to them. */
export const KINDS_WITHOUT_NODE: ReadonlySet<WatchedKind> = new Set(['pool', 'reservation']);
const KINDS_WITHOUT_POOL: ReadonlySet<WatchedKind> = new Set(['node', 'reservation']);

export function matchesQuery(query: WatchQuery, kind: WatchedKind, scope: Scope): boolean {
  const { kinds, nodeName, poolName } = query;
  return (
    kinds.has(kind) &&
    (nodeName === '' || KINDS_WITHOUT_NODE.has(kind) || scope.nodeName === nodeName) &&
    (poolName === '' || KINDS_WITHOUT_POOL.has(kind) || scope.poolNames.includes(poolName))
  );
}

/** Equal for queries with the same content in any order, and different for all other queries. */
export function queryKey({ kinds, nodeName, poolName }: WatchQuery): string {
  return fnv1a64(JSON.stringify([[...kinds].sort(), nodeName, poolName]));
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
