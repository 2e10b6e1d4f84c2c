import { comparePrefixes, prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import type { BlockListing } from '../blocks/blocks.js';
import { withPoolNames } from '../blocks/holding.js';
import type { Observed, ObservedList, ObservedRecord } from '../engine/mirror/mirror.js';
import { Snapshot } from '../engine/mirror/snapshot.js';
import type { Block } from '../records/block.js';
import type { RecordKeys } from '../records/json/keys.js';
import { poolOf } from '../records/pool.js';
import type { RecordValue } from '../records/view.js';
import { RecentChanges } from './recent-changes.js';
import {
  blockRoute,
  matchesQuery,
  isRouteUnchanged,
  nodeNameOf,
  nameOfRecord,
  isSameBlockRoute,
  isSameScope,
  scopeOf,
  type BlockRoute,
  type Item,
  type WatchedKind,
  type WatchedObject,
  type WatchQuery,
} from './watched-objects.js';

type EndpointRecord = Extract<RecordValue, { readonly kind: 'endpoint' }>;

/** Blocks and endpoints of the first list that are applied at once: about 10 ms. */
const CHUNK_COUNT = 1_000;

/** Routes are made from blocks; all other kinds are records. */
const RECORD_KINDS = ['pool', 'reservation', 'node', 'block', 'endpoint'] as const;
const KINDS: readonly WatchedKind[] = ['pool', 'reservation', 'node', 'route', 'block', 'endpoint'];

/** Kinds of which a node has many. */
type NodeKind = 'route' | 'block' | 'endpoint';

/**
 * All watchable objects at one revision, with the recent changes. It receives durable changes in revision order; the
 * mirror's view is ahead of that, and so of what a token may contain.
 *
 * A block's message includes its pool and its affinity's state, and an endpoint's its pools. So a change of these
 * changes the block or the endpoint. The route to a block is a separate object, as few changes of a block change its
 * route.
 */
export class Catalog {
  readonly #keys: RecordKeys;
  readonly #recentCapacity: number;
  /** By the keys of their records; a route by that of its block. */
  readonly #items: Readonly<Record<WatchedKind, Map<string, Item>>> = {
    pool: new Map(),
    reservation: new Map(),
    node: new Map(),
    route: new Map(),
    block: new Map(),
    endpoint: new Map(),
  };
  readonly #ofNode: Readonly<Record<NodeKind, ItemsByNode>> = {
    route: new ItemsByNode(this.#items.route),
    block: new ItemsByNode(this.#items.block),
    endpoint: new ItemsByNode(this.#items.endpoint),
  };
  /** Pools and affinities, on which the messages of blocks and endpoints depend. */
  readonly #snapshot: Snapshot;
  /** The stored form of endpoints whose reported pool names differ from the stored ones. */
  readonly #storedEndpoints = new WeakMap<WatchedObject, EndpointRecord>();
  /** Names of the pools that blocks lie in; empty where there is none. */
  #poolNames = new WeakMap<Prefix, string>();
  #isLocked = false;
  #recent: RecentChanges | undefined;
  #revision = 0;
  /** Called with each item that is no longer current. */
  readonly #onReplaced: (item: Item) => void;

  constructor(options: {
    readonly keys: RecordKeys;
    readonly recentCapacity: number;
    readonly onReplaced: (item: Item) => void;
  }) {
    this.#keys = options.keys;
    this.#snapshot = new Snapshot(options.keys, () => true);
    this.#recentCapacity = options.recentCapacity;
    this.#onReplaced = options.onReplaced;
  }

  /** All changes up to this revision are applied. */
  get revision(): number {
    return this.#revision;
  }

  /** Whether Calico's tools have locked the datastore, as of the revision. */
  get isLocked(): boolean {
    return this.#isLocked;
  }

  /** Undefined until the datastore was listed. */
  get recent(): RecentChanges | undefined {
    return this.#recent;
  }

  /** Name of the object of a key; undefined for a key of an unwatched kind. */
  nameOfKey(key: string): string | undefined {
    const name = this.#keys.parse(key);
    return name && nameOfRecord(name);
  }

  *all(): Generator<Item, void, void> {
    for (const kind of KINDS) yield* this.#items[kind].values();
  }

  /**
   * The objects that match a query. They may change during the iteration: objects removed before their turn are left out,
   * new objects come last.
   */
  *wanted(query: WatchQuery): Generator<Item, void, void> {
    for (const kind of KINDS) {
      if (!query.kinds.has(kind)) continue;
      for (const item of this.#itemsToCheck(kind, query).values())
        if (matchesQuery(query, kind, scopeOf(item.object))) yield item;
    }
  }

  /**
   * Applies the first list of the datastore in chunks, between which other work runs. Watching may begin
   * only after it ends.
   */
  async applyInitialList({ revision, records }: ObservedList, pause: () => Promise<void>): Promise<void> {
    // Pools and affinities, which blocks and endpoints include, come first, so that each object is made once.
    const isDependent = ({ record }: ObservedRecord): boolean =>
      record?.kind === 'block' || record?.kind === 'endpoint';
    const dependent = records.filter(isDependent);
    this.#applyChanges(
      records.filter((one) => !isDependent(one)),
      { revision, recent: undefined },
    );
    for (let next = 0; next < dependent.length; next += CHUNK_COUNT) {
      await pause();
      this.#applyChanges(dependent.slice(next, next + CHUNK_COUNT), { revision, recent: undefined });
    }
    this.#revision = revision;
    this.#recent = new RecentChanges(revision, this.#recentCapacity);
  }

  apply(observed: Observed): void {
    const changes = observed.type === 'changed' ? observed.changes : this.#differences(observed.records);
    this.#applyChanges(changes, { revision: observed.revision, recent: this.#recent });
    this.#revision = Math.max(this.#revision, observed.revision);
  }

  #itemsToCheck(kind: WatchedKind, { nodeName }: WatchQuery): ReadonlyMap<string, Item> {
    if (nodeName === '' || !isNodeKind(kind)) return this.#items[kind];
    return this.#ofNode[kind].of(nodeName);
  }

  /** The records of a list, with deletions of the records that it lacks. */
  #differences(records: readonly ObservedRecord[]): readonly ObservedRecord[] {
    const listed = new Set(records.map(({ key }) => key));
    const affinities = [...this.#snapshot.affinities()].map(({ owner, block }) => this.#keys.affinity(owner, block));
    const lock = this.#isLocked ? [this.#keys.clusterInformation] : [];
    const known = [...RECORD_KINDS.flatMap((kind) => [...this.#items[kind].keys()]), ...affinities, ...lock];
    const gone = known.filter((key) => !listed.has(key)).map((key) => ({ key, record: undefined }));
    return [...records, ...gone];
  }

  #applyChanges(changes: readonly ObservedRecord[], at: ChangeContext): void {
    const blocks = new Map<string, Block | undefined>();
    const endpoints = new Map<string, EndpointRecord>();
    const ranges: Prefix[] = [];
    const atRanges = { ranges, ...at };
    let keepsBlockDetails = true;
    for (const { key, record: stored } of changes) {
      // Handles are half of all records and are not watched.
      if (stored?.kind === 'handle') continue;
      // Other writers' endpoints are not watched: one that replaces a Podwire endpoint counts as its deletion.
      const record = stored?.kind === 'foreignEndpoint' ? undefined : stored;
      if (record?.kind === 'block' || (!record && this.#items.block.has(key))) blocks.set(key, record?.value);
      else if (record?.kind === 'endpoint') endpoints.set(key, record);
      else if (key === this.#keys.clusterInformation) this.#setLock(record, at);
      else if (record?.kind === 'affinity' || (!record && this.#snapshot.get(key)?.kind === 'affinity')) {
        keepsBlockDetails = false;
        this.#setAffinity(key, record, blocks);
      } else this.#setRecord(key, record, atRanges);
    }
    if (ranges.length > 0) {
      this.#touchBlocksIn(ranges, blocks);
      this.#touchEndpointsIn(ranges, endpoints);
    }
    const blocksAt = { keepsBlockDetails: keepsBlockDetails && ranges.length === 0, ...at };
    for (const [key, block] of blocks) this.#setBlock(key, block, blocksAt);
    for (const [key, record] of endpoints) this.#setEndpoint(key, record, at);
  }

  #setLock(record: RecordValue | undefined, { revision, recent }: ChangeContext): void {
    const isLocked = record?.kind === 'clusterInformation' && record.value.isLocked;
    if (isLocked === this.#isLocked) return;
    this.#isLocked = isLocked;
    recent?.lockChanged(revision);
  }

  #setAffinity(key: string, record: RecordValue | undefined, blocks: Map<string, Block | undefined>): void {
    if (record) this.#snapshot.set(key, record);
    else this.#snapshot.delete(key);
    const name = this.#keys.parse(key);
    if (name?.kind !== 'affinity') return;
    const blockKey = this.#keys.block(name.block);
    const item = this.#items.block.get(blockKey);
    if (item?.object.kind === 'block' && !blocks.has(blockKey)) blocks.set(blockKey, item.object.value.block);
  }

  #setRecord(key: string, record: RecordValue | undefined, at: ChangeContext & { readonly ranges: Prefix[] }): void {
    if (record?.kind === 'pool' || (!record && this.#items.pool.has(key))) this.#setPool(key, record, at.ranges);
    if (record && isWatched(record)) this.#set(key, record, at);
    const kind = record ? undefined : RECORD_KINDS.find((one) => this.#items[one].has(key));
    if (kind) this.#remove(kind, key, at);
  }

  /** @param ranges - get the ranges of pools that are new, moved or gone */
  #setPool(key: string, record: RecordValue | undefined, ranges: Prefix[]): void {
    const before = this.#snapshot.get(key);
    if (record) this.#snapshot.set(key, record);
    else this.#snapshot.delete(key);
    this.#poolNames = new WeakMap();
    const [from, to] = [before, record].map((pool) => (pool?.kind === 'pool' ? pool.value.prefix : undefined));
    if (from && to && comparePrefixes(from, to) === 0) return;
    for (const range of [from, to]) if (range) ranges.push(range);
  }

  #touchBlocksIn(ranges: readonly Prefix[], blocks: Map<string, Block | undefined>): void {
    for (const [key, { object }] of this.#items.block) {
      if (object.kind !== 'block' || blocks.has(key)) continue;
      const { block } = object.value;
      if (ranges.some((range) => prefixContains(range, block.prefix))) blocks.set(key, block);
    }
  }

  #touchEndpointsIn(ranges: readonly Prefix[], endpoints: Map<string, EndpointRecord>): void {
    for (const [key, { object }] of this.#items.endpoint) {
      if (object.kind !== 'endpoint' || endpoints.has(key)) continue;
      const isIn = object.value.addresses.some(({ block }) => ranges.some((range) => prefixContains(range, block)));
      if (isIn) endpoints.set(key, this.#storedEndpoints.get(object) ?? object);
    }
  }

  #setEndpoint(key: string, stored: EndpointRecord, at: ChangeContext): void {
    if (stored.value.addresses.every(({ block, poolName }) => this.#poolNameOf(block) === poolName)) {
      this.#set(key, stored, at);
      return;
    }
    const value = withPoolNames(this.#snapshot.pools(), stored.value);
    const before = this.#items.endpoint.get(key)?.object;
    const object = { ...stored, value };
    const same =
      before?.kind === 'endpoint' &&
      this.#storedEndpoints.get(before) === stored &&
      isSameScope(scopeOf(before), scopeOf(object));
    if (same) return;
    this.#storedEndpoints.set(object, stored);
    this.#set(key, object, at);
  }

  /** Blocks and endpoints share prefix objects, so each lookup is cached. */
  #poolNameOf(block: Prefix): string {
    const known = this.#poolNames.get(block);
    if (known !== undefined) return known;
    const name = poolOf(this.#snapshot.pools(), block)?.name ?? '';
    this.#poolNames.set(block, name);
    return name;
  }

  #setBlock(key: string, block: Block | undefined, at: ChangeContext & { readonly keepsBlockDetails: boolean }): void {
    if (!block) {
      this.#remove('block', key, at);
      this.#remove('route', key, at);
      return;
    }
    const before = this.#blockListing(key);
    const { owner, prefix } = block;
    if (before && at.keepsBlockDetails && before.block.owner === owner) {
      // Its pool and affinity state are unchanged.
      const { poolName, affinityState } = before;
      if (!this.#keepsRoute(key, before.block, block)) this.#setRoute(key, blockRoute(block, poolName), at);
      if (before.block !== block) this.#set(key, { kind: 'block', value: { block, poolName, affinityState } }, at);
      return;
    }
    const poolName = poolOf(this.#snapshot.pools(), prefix)?.name;
    const affinityState = owner && this.#snapshot.affinity(owner, prefix)?.state;
    this.#setRoute(key, blockRoute(block, poolName), at);
    const same = before?.block === block && before.poolName === poolName && before.affinityState === affinityState;
    if (!same) this.#set(key, { kind: 'block', value: { block, poolName, affinityState } }, at);
  }

  #blockListing(key: string): BlockListing | undefined {
    const object = this.#items.block.get(key)?.object;
    return object?.kind === 'block' ? object.value : undefined;
  }

  #keepsRoute(key: string, before: Block, after: Block): boolean {
    const object = this.#items.route.get(key)?.object;
    return object?.kind === 'route' && isRouteUnchanged(object.value, before, after);
  }

  #setRoute(key: string, value: BlockRoute, at: ChangeContext): void {
    const item = this.#items.route.get(key);
    const before = item?.object.kind === 'route' ? item.object : undefined;
    const object = { kind: 'route', value } as const;
    // The item always has the current block's route, even when watchers need no notification.
    if (item && before && isSameBlockRoute(before.value, value)) item.object = object;
    else this.#set(key, object, at);
  }

  #set(key: string, object: WatchedObject, { revision, recent }: ChangeContext): void {
    const { kind } = object;
    const item = this.#items[kind].get(key);
    if (!item) {
      const made = { key, object, createdRevision: revision, encoded: undefined, changeNumber: -1 };
      this.#items[kind].set(key, made);
      if (isNodeKind(kind)) this.#ofNode[kind].made(made);
      recent?.changed(made, undefined, revision);
      return;
    }
    const before = item.object;
    // A repeated list contains unchanged objects.
    if (before === object) return;
    this.#onReplaced(item);
    item.object = object;
    item.encoded = undefined;
    if (isNodeKind(kind)) this.#ofNode[kind].changed(item, before);
    recent?.changed(item, before, revision);
  }

  #remove(kind: WatchedKind, key: string, { revision, recent }: ChangeContext): void {
    const item = this.#items[kind].get(key);
    if (!item) return;
    this.#onReplaced(item);
    this.#items[kind].delete(key);
    if (isNodeKind(kind)) this.#ofNode[kind].removed(key, item.object);
    recent?.removed(item, revision);
  }
}

function isNodeKind(kind: WatchedKind): kind is NodeKind {
  return kind === 'endpoint' || kind === 'block' || kind === 'route';
}

function isWatched(
  record: RecordValue,
): record is Extract<RecordValue, { readonly kind: 'pool' | 'reservation' | 'node' }> {
  const { kind } = record;
  return kind === 'pool' || kind === 'reservation' || kind === 'node';
}

interface ChangeContext {
  readonly revision: number;
  /** Undefined for the first list, whose content is not a change. */
  readonly recent: RecentChanges | undefined;
}

const NO_ITEMS: ReadonlyMap<string, Item> = new Map();

/** Items of one kind by their node. Built on the first query for a node: most watchers want all nodes. */
export class ItemsByNode {
  readonly #all: ReadonlyMap<string, Item>;
  #byNode: Map<string, Map<string, Item>> | undefined;

  /** @param all - the items by their keys; each change is made there before it is reported here */
  constructor(all: ReadonlyMap<string, Item>) {
    this.#all = all;
  }

  /** By their keys. */
  of(nodeName: string): ReadonlyMap<string, Item> {
    this.#byNode ??= this.#sort();
    return this.#byNode.get(nodeName) ?? NO_ITEMS;
  }

  made(item: Item): void {
    if (this.#byNode) add(this.#byNode, item);
  }

  /** An object that stays on its node keeps its place in the order. */
  changed(item: Item, before: Item['object']): void {
    if (!this.#byNode || nodeNameOf(item.object) === nodeNameOf(before)) return;
    this.removed(item.key, before);
    add(this.#byNode, item);
  }

  removed(key: string, object: Item['object']): void {
    if (!this.#byNode) return;
    const nodeName = nodeNameOf(object);
    const ofNode = this.#byNode.get(nodeName);
    ofNode?.delete(key);
    if (ofNode?.size === 0) this.#byNode.delete(nodeName);
  }

  #sort(): Map<string, Map<string, Item>> {
    const byNode = new Map<string, Map<string, Item>>();
    for (const item of this.#all.values()) add(byNode, item);
    return byNode;
  }
}

function add(byNode: Map<string, Map<string, Item>>, item: Item): void {
  const nodeName = nodeNameOf(item.object);
  const ofNode = byNode.get(nodeName);
  if (ofNode) ofNode.set(item.key, item);
  else byNode.set(nodeName, new Map([[item.key, item]]));
}
