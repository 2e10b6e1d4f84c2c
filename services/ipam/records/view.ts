import type { Prefix } from '@podwire/shared/net/prefix';

import type { BlockStats } from './block-stats.js';
import type { Affinity, Block, BlockOwner, Handle } from './block.js';
import type { IpamConfig, Reservation } from './config.js';
import type { AnyEndpoint, Endpoint, EndpointKey, ForeignEndpoint } from './endpoint.js';
import type { HistoryEntry } from './history.js';
import type { Node } from './node.js';
import type { Pool } from './pool.js';
import type { RequestPolicies } from './request-policy.js';

/**
 * The state that a decision looks at: one consistent moment of the datastore, with what earlier decisions of the same
 * transaction have changed. Reading has no effect and cannot fail.
 */
export interface View {
  /** All pools, in the order of their names. */
  pools(): readonly Pool[];
  pool(name: string): Pool | undefined;
  /**
   * Whether the view shows everything that any replica committed before the record was last written. Records missing in
   * the view may not have arrived yet. For a pool without new blocks this shows that no block is missing; for a node
   * without new addresses, that no address is.
   */
  showsAllBefore(record: RecordValue): boolean;
  block(prefix: Prefix): Block | undefined;
  /** The blocks that lie in a prefix, in the order of their addresses. */
  blocksIn(prefix: Prefix): Iterable<Block>;
  /** Sums over the blocks that lie in a prefix: however many they are, they cost next to nothing. */
  blockStatsIn(prefix: Prefix): BlockStats;
  /** Those of them that may have room ({@link mayGive}), in the same order; the remaining ones cost nothing. */
  blocksWithRoomIn(prefix: Prefix): Iterable<Block>;
  /**
   * Those of them that hosts own without an allocated address ({@link isIdle}), in the same order; the remaining ones
   * cost nothing.
   */
  idleBlocksIn(prefix: Prefix): Iterable<Block>;
  /** Those of them that no affinity leads to ({@link isLoose}), in the same order; the remaining ones cost nothing. */
  blocksWithoutAffinityIn(prefix: Prefix): Iterable<Block>;
  /**
   * How many blocks of this one's size follow each other without a gap from this one on, itself included; 0 when there is no such
   * block. However many they are, they cost next to nothing.
   */
  consecutiveBlocks(first: Prefix): number;
  /** The affinities of one owner, in the order of their blocks. */
  affinitiesOf(owner: BlockOwner): readonly Affinity[];
  /**
   * Those of them that are not spent ({@link isSpent}), in the order of their blocks: however many full blocks an owner has, they
   * cost nothing.
   */
  usableAffinitiesOf(owner: BlockOwner): readonly Affinity[];
  affinity(owner: BlockOwner, block: Prefix): Affinity | undefined;
  handle(id: string): Handle | undefined;
  /** The endpoint stored under a workload endpoint's namespace and name. */
  endpoint(key: EndpointKey): Endpoint | undefined;
  /** The stored configuration; undefined while none is stored and the defaults hold. */
  config(): IpamConfig | undefined;
  /** Whether Calico's tools have locked the datastore, as for a migration. */
  isLocked(): boolean;
  /** All reservations, in the order of their names. */
  reservations(): readonly Reservation[];
  reservation(name: string): Reservation | undefined;
  /** All request policies, in the order of their names; none while none are stored. */
  requestPolicies(): RequestPolicies;
  /** All nodes, in the order of their names. */
  nodes(): readonly Node[];
  node(name: string): Node | undefined;
  /** All handles, in no order. For what looks at everything, as an audit does. */
  handles(): Iterable<Handle>;
  /** All affinities, in no order. */
  affinities(): Iterable<Affinity>;
  /** All endpoints, in no order. */
  endpoints(): Iterable<StoredEndpoint>;
  /**
   * The endpoints behind a key, in the order of their keys as texts `<namespace>/<name>`.
   * @param after - such a text, of an endpoint or not; empty for all
   */
  endpointsAfter(after: string): Iterable<StoredEndpoint>;
  /** As {@link endpointsAfter}, with those of other writers. */
  allEndpointsAfter(after: string): Iterable<EndpointRecord>;
  /** The endpoints that other writers keep, in no order. */
  foreignEndpoints(): Iterable<StoredForeignEndpoint>;
  /** The endpoint that another writer keeps under a key. */
  foreignEndpoint(key: EndpointKey): ForeignEndpoint | undefined;
  /** The endpoints of whichever writer that are of a container, or took the key of one that is, in no order. */
  endpointsOfContainer(containerId: string): Iterable<EndpointRecord>;
  /** The records that cannot be read, in no order. No other question here is answered from them. */
  unreadable(): Iterable<UnreadableRecord>;
  /** The record of this name where there is one that cannot be read. It can be neither written nor compared with. */
  unreadableRecord(name: RecordName): UnreadableRecord | undefined;
  /**
   * The first block that cannot be read and shares addresses with a prefix: one within it or, where there is none, one around it that
   * is no larger than blocks may be. No block may be made there, and what it holds is not known.
   */
  unreadableBlock(prefix: Prefix): UnreadableBlock | undefined;
}

/** An endpoint with where it is stored. */
export interface StoredEndpoint {
  readonly key: EndpointKey;
  readonly value: Endpoint;
}

export interface StoredForeignEndpoint {
  readonly key: EndpointKey;
  readonly value: ForeignEndpoint;
}

/** An endpoint of whichever writer, with where it is stored. */
export type EndpointRecord = AnyEndpoint & { readonly key: EndpointKey };

/** A record that is set aside, as it cannot be read. */
export interface UnreadableRecord {
  /** In the datastore. */
  readonly key: string;
  readonly name: RecordName;
  readonly reason: string;
}

/** A block that is set aside, as it cannot be read. */
export interface UnreadableBlock extends UnreadableRecord {
  readonly name: Extract<RecordName, { kind: 'block' }>;
}

/** Identifies a record in the datastore. */
export type RecordName =
  | { readonly kind: 'pool'; readonly name: string }
  | { readonly kind: 'block'; readonly prefix: Prefix }
  | { readonly kind: 'affinity'; readonly owner: BlockOwner; readonly block: Prefix }
  | { readonly kind: 'handle'; readonly id: string }
  | { readonly kind: 'endpoint'; readonly key: EndpointKey }
  | { readonly kind: 'config' }
  | { readonly kind: 'clusterInformation' }
  | { readonly kind: 'reservation'; readonly name: string }
  | { readonly kind: 'requestPolicies' }
  | { readonly kind: 'node'; readonly name: string };

/**
 * One record to write or to remove. The commit compares every record named here with the state in the view, so a change
 * that depends on a record changed meanwhile is decided again. `expect` compares without changing: for a record that
 * the decision depends on but leaves as it is.
 */
export type Change =
  /** `like`: a new record takes over that record's unknown stored fields, such as labels. */
  | { readonly type: 'put'; readonly record: RecordValue; readonly like?: RecordValue }
  | { readonly type: 'delete'; readonly record: RecordValue }
  | { readonly type: 'expect'; readonly record: RecordValue }
  /** No pool was made or changed since the view: for decisions that rest on there being no other pool. */
  | { readonly type: 'expectPools' }
  /** Kept beside the records for the history's retention time; not part of any view, as no decision reads it. */
  | { readonly type: 'log'; readonly entry: HistoryEntry }
  /** A transaction that allocates for the handle and was sent before this commit loses its comparison. */
  | { readonly type: 'release'; readonly handleId: string; readonly nowMs: number }
  /** No release of the handle was committed since this was first decided. */
  | { readonly type: 'expectUnreleased'; readonly handleId: string };

/** A change that names a record. */
export type RecordChange = Extract<Change, { record: RecordValue }>;

export type RecordValue =
  | { readonly kind: 'pool'; readonly value: Pool }
  | { readonly kind: 'block'; readonly value: Block }
  | { readonly kind: 'affinity'; readonly value: Affinity }
  | { readonly kind: 'handle'; readonly value: Handle }
  | { readonly kind: 'endpoint'; readonly key: EndpointKey; readonly value: Endpoint }
  | { readonly kind: 'foreignEndpoint'; readonly key: EndpointKey; readonly value: ForeignEndpoint }
  | { readonly kind: 'config'; readonly value: IpamConfig }
  | { readonly kind: 'clusterInformation'; readonly value: ClusterInformation }
  | { readonly kind: 'reservation'; readonly value: Reservation }
  | { readonly kind: 'requestPolicies'; readonly value: RequestPolicies }
  | { readonly kind: 'node'; readonly value: Node };

/** What a decision comes to: the records to change, all of them or none, and the answer once they are committed. */
export interface Decision<Outcome> {
  readonly changes: readonly Change[];
  readonly outcome: Outcome;
}

/** What Calico's tools say of the datastore as a whole. Never written. */
export interface ClusterInformation {
  /** Whether they have locked it, as for a migration. */
  readonly isLocked: boolean;
}
