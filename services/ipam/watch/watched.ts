import { formatPrefix } from '@podwire/shared/net/prefix';

import { fnv1a64 } from '../allocator/hash.js';
import type { BlockListing } from '../allocator/listing.js';
import { PackedEndpoint } from '../records/json/packed-endpoint.js';
import type { RecordName, RecordValue } from '../records/view.js';
import type { BlockRoute } from './block-route.js';

/** What can be watched. */
export type WatchedObject =
  | { readonly kind: 'block'; readonly value: BlockListing }
  | { readonly kind: 'route'; readonly value: BlockRoute }
  | Extract<RecordValue, { readonly kind: 'pool' | 'node' | 'endpoint' | 'reservation' }>;

export type WatchedKind = WatchedObject['kind'];

/** What a watcher asks for. */
export interface WatchQuery {
  /** At least one. */
  readonly kinds: ReadonlySet<WatchedKind>;
  /** Only this node's blocks and the routes to them, its endpoints, and the node itself; empty for all. */
  readonly nodeName: string;
  /** Only this pool, its blocks and the routes to them, and endpoints with an address of it; empty for all. */
  readonly poolName: string;
}

/** What a stream asks for. */
export interface Stream {
  readonly query: WatchQuery;
  /** The same for all streams that ask for the same: {@link queryKey}. */
  readonly key: string;
}

/** What filters look at. */
export interface Scope {
  /** Empty when the object is no node's. */
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

/** As {@link nameOf} has it, of what is there no more; undefined for what cannot be watched. */
export function removedNameOf(name: RecordName): string | undefined {
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
    case 'endpoint': {
      const origins = object instanceof PackedEndpoint ? object.origins : object.value.addresses;
      return { nodeName: nodeNameOf(object), poolNames: origins.map(({ poolName }) => poolName) };
    }
    case 'node':
      return { nodeName: object.value.name, poolNames: [] };
    case 'pool':
      return { nodeName: '', poolNames: [object.value.name] };
    case 'reservation':
      return { nodeName: '', poolNames: [] };
  }
}

/** As {@link scopeOf} has it; most endpoints are unpacked for nobody. */
export function nodeNameOf(object: WatchedObject): string {
  switch (object.kind) {
    case 'block': {
      const { owner } = object.value.block;
      return owner?.kind === 'host' ? owner.name : '';
    }
    case 'route':
      return object.value.nodeName ?? '';
    case 'endpoint':
      return object instanceof PackedEndpoint ? object.nodeName : object.value.nodeName;
    case 'node':
      return object.value.name;
    case 'pool':
    case 'reservation':
      return '';
  }
}

/** Whether two states of one object are in the same scope. */
export function inSameScope(a: WatchedObject, b: WatchedObject): boolean {
  // Nearly all changes are of blocks, by allocations, which their scope is not touched by.
  if (a.kind === 'block' && b.kind === 'block')
    return a.value.poolName === b.value.poolName && nodeNameOf(a) === nodeNameOf(b);
  return sameScope(scopeOf(a), scopeOf(b));
}

export function sameScope(a: Scope, b: Scope): boolean {
  return (
    a.nodeName === b.nodeName &&
    a.poolNames.length === b.poolNames.length &&
    a.poolNames.every((name, index) => name === b.poolNames[index])
  );
}

/** What is no node's, or no pool's: a filter by these does not concern it. */
export const OF_NO_NODE: ReadonlySet<WatchedKind> = new Set(['pool', 'reservation']);
const OF_NO_POOL: ReadonlySet<WatchedKind> = new Set(['node', 'reservation']);

export function isWanted(query: WatchQuery, kind: WatchedKind, scope: Scope): boolean {
  const { kinds, nodeName, poolName } = query;
  return (
    kinds.has(kind) &&
    (nodeName === '' || OF_NO_NODE.has(kind) || scope.nodeName === nodeName) &&
    (poolName === '' || OF_NO_POOL.has(kind) || scope.poolNames.includes(poolName))
  );
}

/** The same for queries that ask for the same, in whatever order, and for no others. */
export function queryKey({ kinds, nodeName, poolName }: WatchQuery): string {
  return fnv1a64(JSON.stringify([[...kinds].sort(), nodeName, poolName]));
}
