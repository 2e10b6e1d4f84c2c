import type { Address } from '@podwire/shared/net/address';
import type { Prefix } from '@podwire/shared/net/prefix';

import type { BlockStats } from './block-stats.js';
import type { Affinity, Block, BlockOwner, Handle } from './block.js';
import type { IpamConfig, Reservation } from './config.js';
import type { AnyEndpoint, Endpoint, EndpointKey, ForeignEndpoint } from './endpoint.js';
import type { HistoryEntry } from './history.js';
import type { Node } from './node.js';
import type { Pool } from './pool.js';
import type { RequestPolicies } from './request-policy.js';
import type { RevokedCertificate } from './revoked-certificate.js';
import type { NodeSession, StoreEpoch } from './session.js';

/**
 * The state that a decision reads: one consistent moment of the datastore, with the changes of earlier decisions of the
 * same transaction. Reading has no effect and cannot fail.
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
  /** The blocks within a prefix, in the order of their addresses. */
  blocksIn(prefix: Prefix): Iterable<Block>;
  /** Sums over the blocks within a prefix. Nearly constant time, however many there are. */
  blockStatsIn(prefix: Prefix): BlockStats;
  /**
   * The blocks within a prefix that have free or cooling addresses ({@link hasFreeOrCooling}), in the same order. The
   * other blocks cost no time.
   */
  blocksWithRoomIn(prefix: Prefix): Iterable<Block>;
  /**
   * The blocks within a prefix that hosts own without an allocated address ({@link isIdle}), in the same order. The
   * other blocks cost no time.
   */
  idleBlocksIn(prefix: Prefix): Iterable<Block>;
  /**
   * The blocks within a prefix that lack an affinity ({@link isWithoutAffinity}), in the same order. The other blocks
   * cost no time.
   */
  blocksWithoutAffinityIn(prefix: Prefix): Iterable<Block>;
  /**
   * The number of blocks of this size that follow each other without a gap, from this one on; 0 when it does not exist.
   * Nearly constant time, however many there are.
   */
  consecutiveBlocks(first: Prefix): number;
  /** The affinities of one owner, in the order of their blocks. */
  affinitiesOf(owner: BlockOwner): readonly Affinity[];
  /**
   * The affinities of one owner that are not exhausted ({@link isExhausted}), in the order of their blocks. The owner's
   * full blocks cost no time.
   */
  usableAffinitiesOf(owner: BlockOwner): readonly Affinity[];
  affinity(owner: BlockOwner, block: Prefix): Affinity | undefined;
  handle(id: string): Handle | undefined;
  /** The endpoint stored under a workload endpoint's namespace and name. */
  endpoint(key: EndpointKey): Endpoint | undefined;
  /** The stored configuration; undefined while none is stored and the defaults hold. */
  config(): IpamConfig | undefined;
  /** Whether Calico's tools have locked the datastore, for example for a migration. */
  isLocked(): boolean;
  /** All reservations, in the order of their names. */
  reservations(): readonly Reservation[];
  reservation(name: string): Reservation | undefined;
  /** All request policies, in the order of their names; none while none are stored. */
  requestPolicies(): RequestPolicies;
  /** All revoked certificates, in the order of their serial numbers. */
  revokedCertificates(): readonly RevokedCertificate[];
  /** All nodes, in the order of their names. */
  nodes(): readonly Node[];
  node(name: string): Node | undefined;
  /** The session of a node. */
  session(nodeName: string): NodeSession | undefined;
  /**
   * How long this process has seen the node's session unchanged, in milliseconds. Replicas' clocks may differ, so that no
   * decision depends on a time that another one wrote.
   */
  sessionAgeMs(nodeName: string): number;
  /** How long this process has seen the boot among the displaced machines of the node's session, in milliseconds. */
  displacedAgeMs(nodeName: string, bootId: string): number;
  /** How long this process has seen no report of the node's inventory, in milliseconds. */
  reportAgeMs(nodeName: string): number;
  /** The sessions of all nodes, in no order. */
  sessions(): Iterable<NodeSession>;
  /**
   * Name of the node that is registered with the address, has it as its tunnel's, or whose session lists it as an unbound lease or
   * as one that a pod of the node has although another holder has it. No other holder gets the address. Constant time.
   * @param exceptNode - a node that does not count
   */
  lessee(address: Address, exceptNode?: string): string | undefined;
  /** The current store epoch; undefined before the first. */
  epoch(): StoreEpoch | undefined;
  /** How long this process has seen the current store epoch, in milliseconds. */
  epochAgeMs(): number;
  /** All handles, in no order. For scans of everything, such as an audit. */
  handles(): Iterable<Handle>;
  /** All affinities, in no order. */
  affinities(): Iterable<Affinity>;
  /** All endpoints, in no order. */
  endpoints(): Iterable<StoredEndpoint>;
  /**
   * The endpoints after a key, in the order of their keys as texts `<namespace>/<name>`.
   * @param after - a key as such a text, existing or not; empty for all
   */
  endpointsAfter(after: string): Iterable<StoredEndpoint>;
  /** Same as {@link endpointsAfter}, including endpoints of other writers. */
  allEndpointsAfter(after: string): Iterable<EndpointRecord>;
  /** The endpoints of other writers, in no order. */
  foreignEndpoints(): Iterable<StoredForeignEndpoint>;
  /** Another writer's endpoint under a key. */
  foreignEndpoint(key: EndpointKey): ForeignEndpoint | undefined;
  /** The endpoints of a container by any writer, and endpoints that replaced one, in no order. */
  endpointsOfContainer(containerId: string): Iterable<EndpointRecord>;
  /** The records that cannot be read, in no order. No other method returns them. */
  unreadable(): Iterable<UnreadableRecord>;
  /** The record of this name if it cannot be read. It can be neither written nor compared. */
  unreadableRecord(name: RecordName): UnreadableRecord | undefined;
  /**
   * The first unreadable block that shares addresses with a prefix: one within it or, if there is none, one around it
   * of a possible size. No block may be created there, and its holders are unknown.
   */
  unreadableBlock(prefix: Prefix): UnreadableBlock | undefined;
}

/** An endpoint with its key. */
export interface StoredEndpoint {
  readonly key: EndpointKey;
  readonly value: Endpoint;
}

export interface StoredForeignEndpoint {
  readonly key: EndpointKey;
  readonly value: ForeignEndpoint;
}

/** An endpoint of any writer, with its key. */
export type EndpointRecord = AnyEndpoint & { readonly key: EndpointKey };

/** A record that cannot be read. */
export interface UnreadableRecord {
  /** The key in the datastore. */
  readonly key: string;
  readonly name: RecordName;
  readonly reason: string;
}

/** A block that cannot be read. */
export interface UnreadableBlock extends UnreadableRecord {
  readonly name: Extract<RecordName, { kind: 'block' }>;
}

export function isUnreadableBlock(record: UnreadableRecord): record is UnreadableBlock {
  return record.name.kind === 'block';
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
  | { readonly kind: 'node'; readonly name: string }
  | { readonly kind: 'nodeSession'; readonly name: string }
  | { readonly kind: 'storeEpoch' }
  | { readonly kind: 'revokedCertificates' };

/**
 * One record to write or to remove. The commit compares every record named here with the view, so a decision that
 * depends on a record changed meanwhile is repeated. `expect` compares without changing: for a record that the decision
 * depends on but leaves as it is.
 */
export type Change =
  /** `like`: a new record takes over that record's unknown stored fields, such as labels. */
  | { readonly type: 'put'; readonly record: RecordValue; readonly like?: RecordValue }
  | { readonly type: 'delete'; readonly record: RecordValue }
  | { readonly type: 'expect'; readonly record: RecordValue }
  /** No pool was created or changed since the view: for decisions that require that there is no other pool. */
  | { readonly type: 'expectPools' }
  /** Written to the history, which no view shows because no decision reads it. */
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
  | { readonly kind: 'node'; readonly value: Node }
  | { readonly kind: 'nodeSession'; readonly value: NodeSession }
  | { readonly kind: 'storeEpoch'; readonly value: StoreEpoch }
  | { readonly kind: 'revokedCertificates'; readonly value: readonly RevokedCertificate[] };

/** The result of a decision: the records to change, all or none, and the answer after the commit. */
export interface Decision<Outcome> {
  readonly changes: readonly Change[];
  readonly outcome: Outcome;
}

/** Calico's record of the whole datastore. Read only. */
export interface ClusterInformation {
  /** Whether Calico's tools have locked it, for example for a migration. */
  readonly isLocked: boolean;
}
