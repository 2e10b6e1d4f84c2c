import { comparePrefixes, prefixContains, type Prefix } from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';

import type { Observed, ObservedList, ObservedRecord } from '../engine/mirror/mirror.js';
import { RecentChanges } from '../engine/streams/recent-changes.js';
import type { StreamedObjects, StreamQuery } from '../engine/streams/stream.js';
import type { Block } from '../records/block.js';
import type { RecordKeys } from '../records/json/keys.js';
import { poolOf, type Pool } from '../records/pool.js';
import {
  blockRoute,
  isRouteUnchanged,
  isSameBlockRoute,
  nameOfRecord,
  type BlockRoute,
  type EncodableChange,
  type WatchedItem,
  type WatchedKind,
  type WatchedObject,
} from './watched-objects.js';

/** Blocks of the first list that are applied at once: about 10 ms. */
const CHUNK_COUNT = 1_000;

/** In the order of a snapshot. */
const KINDS: readonly WatchedKind[] = ['pool', 'node', 'route'];
const ALL: StreamQuery = new Set(KINDS);

export interface CatalogOptions {
  readonly keys: RecordKeys;
  /** Encodes a change. The bytes are shared among streams and never changed. */
  readonly encode: (change: EncodableChange) => Uint8Array;
  /** Minimum number of kept changes, for watchers that resume or read slowly. Default: 64,000. */
  readonly recentCapacity?: number | undefined;
}

/**
 * All watchable objects at one revision. It receives durable changes in revision order; the mirror's view is ahead of
 * that, and so of what a token may contain.
 *
 * A route is made of a block and its pool. Few changes of a block change its route.
 */
export class Catalog implements StreamedObjects {
  readonly recent: RecentChanges;
  readonly #keys: RecordKeys;
  readonly #encode: (change: EncodableChange) => Uint8Array;
  /** Items by the key of their record; a route by the key of its block. */
  readonly #items: Readonly<Record<WatchedKind, Map<string, WatchedItem>>> = {
    pool: new Map(),
    node: new Map(),
    route: new Map(),
  };
  /** The blocks that the routes are made of. */
  readonly #blocks = new Map<string, Block>();
  #pools: readonly Pool[] = [];

  constructor({ keys, encode, recentCapacity }: CatalogOptions) {
    this.#keys = keys;
    this.#encode = encode;
    this.recent = new RecentChanges(recentCapacity);
  }

  encode(key: string): Uint8Array | undefined {
    for (const kind of KINDS) {
      const object = this.#items[kind].get(key)?.object;
      if (object) return this.#encode({ type: 'put', object });
    }
    const name = this.#keys.parse(key);
    const gone = name && nameOfRecord(name);
    return gone && this.#encode({ type: 'delete', ...gone });
  }

  *items(query: StreamQuery = ALL): Generator<WatchedItem, void, void> {
    for (const kind of KINDS) if (query.has(kind)) yield* this.#items[kind].values();
  }

  /**
   * Receives all changes that the mirror applies. Returns a promise for the first list, which takes seconds where it is
   * large.
   */
  readonly observe = (observed: Observed): Promise<void> | undefined => {
    const { revision } = observed;
    if (observed.type === 'listed' && this.recent.revision < 0) return this.#applyInitialList(observed);
    this.#applyChanges(observed.type === 'changed' ? observed.changes : this.#differences(observed.records), revision);
    this.recent.reached(revision);
    return undefined;
  };

  /**
   * Applies the first list of the datastore in chunks, between which other work runs. Watching may begin only after it
   * ends.
   */
  async #applyInitialList({ revision, records }: ObservedList): Promise<void> {
    // Pools come first, so that each route is made once.
    const isBlock = ({ record }: ObservedRecord): boolean => record?.kind === 'block';
    const blocks = records.filter(isBlock);
    this.#applyChanges(
      records.filter((one) => !isBlock(one)),
      revision,
    );
    for (let next = 0; next < blocks.length; next += CHUNK_COUNT) {
      await nextTurn();
      this.#applyChanges(blocks.slice(next, next + CHUNK_COUNT), revision);
    }
    this.recent.listed(revision);
  }

  /** The records of a list, with deletions of the records that it lacks. */
  #differences(records: readonly ObservedRecord[]): readonly ObservedRecord[] {
    const listed = new Set(records.map(({ key }) => key));
    const lock = this.recent.isLocked ? [this.#keys.clusterInformation] : [];
    const known = [...KINDS.flatMap((kind) => [...this.#items[kind].keys()]), ...lock];
    const gone = known.filter((key) => !listed.has(key)).map((key) => ({ key, record: undefined }));
    return [...records, ...gone];
  }

  #applyChanges(changes: readonly ObservedRecord[], revision: number): void {
    const blocks = new Map<string, Block | undefined>();
    /** Ranges of pools that are new, moved or gone. */
    const ranges: Prefix[] = [];
    for (const { key, record } of changes) {
      if (key === this.#keys.clusterInformation)
        this.recent.setLock(record?.kind === 'clusterInformation' && record.value.isLocked, revision);
      else if (record?.kind === 'block' || (!record && this.#blocks.has(key))) blocks.set(key, record?.value);
      else if (record?.kind === 'pool' || record?.kind === 'node') {
        addMovedRanges(ranges, this.#items[record.kind].get(key)?.object, record);
        this.#set(key, record, revision);
      } else if (!record) {
        addMovedRanges(ranges, this.#items.pool.get(key)?.object, undefined);
        for (const kind of ['pool', 'node'] as const) this.#remove(kind, key, revision);
      }
    }
    if (ranges.length > 0) this.#poolsChanged(ranges, blocks);
    for (const [key, block] of blocks) this.#setBlock(key, block, { keepsPool: ranges.length === 0, revision });
  }

  /** @param blocks - get the blocks in the ranges of pools that are new, moved or gone */
  #poolsChanged(ranges: readonly Prefix[], blocks: Map<string, Block | undefined>): void {
    this.#pools = [...this.#items.pool.values()]
      .flatMap(({ object }) => (object.kind === 'pool' ? [object.value] : []))
      .sort((a, b) => compareTexts(a.name, b.name));
    for (const [key, block] of this.#blocks)
      if (!blocks.has(key) && ranges.some((range) => prefixContains(range, block.prefix))) blocks.set(key, block);
  }

  #setBlock(
    key: string,
    block: Block | undefined,
    { keepsPool, revision }: { readonly keepsPool: boolean; readonly revision: number },
  ): void {
    const before = this.#blocks.get(key);
    if (!block) {
      this.#blocks.delete(key);
      this.#remove('route', key, revision);
      return;
    }
    this.#blocks.set(key, block);
    if (keepsPool && before && before.owner === block.owner && this.#keepsRoute(key, before, block)) return;
    this.#setRoute(key, blockRoute(block, poolOf(this.#pools, block.prefix)?.name), revision);
  }

  #keepsRoute(key: string, before: Block, after: Block): boolean {
    const object = this.#items.route.get(key)?.object;
    return object?.kind === 'route' && isRouteUnchanged(object.value, before, after);
  }

  #setRoute(key: string, value: BlockRoute, revision: number): void {
    const item = this.#items.route.get(key);
    const before = item?.object.kind === 'route' ? item.object : undefined;
    const object = { kind: 'route', value } as const;
    // The item always has the current block's route, even when watchers need no notification.
    if (item && before && isSameBlockRoute(before.value, value)) item.object = object;
    else this.#set(key, object, revision);
  }

  #set(key: string, object: WatchedObject, revision: number): void {
    const items = this.#items[object.kind];
    const known = items.get(key);
    // A repeated list contains unchanged objects.
    if (known?.object === object) return;
    const item = known ?? { key, object, createdRevision: revision, encoded: undefined, changeNumber: -1 };
    item.object = object;
    items.set(key, item);
    this.recent.changed(item, revision);
  }

  #remove(kind: WatchedKind, key: string, revision: number): void {
    const item = this.#items[kind].get(key);
    if (!item) return;
    this.#items[kind].delete(key);
    this.recent.removed(item, revision);
  }
}

function nextTurn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

function addMovedRanges(ranges: Prefix[], before: WatchedObject | undefined, after: WatchedObject | undefined): void {
  const [from, to] = [before, after].map((object) => (object?.kind === 'pool' ? object.value.prefix : undefined));
  if (from && to && comparePrefixes(from, to) === 0) return;
  for (const range of [from, to]) if (range) ranges.push(range);
}
