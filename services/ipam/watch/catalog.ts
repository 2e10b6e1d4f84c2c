import { comparePrefixes, prefixContains, type Prefix } from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';

import type { Observed, ObservedList, ObservedRecord } from '../engine/mirror/mirror.js';
import type { Block } from '../records/block.js';
import type { RecordKeys } from '../records/json/keys.js';
import { poolOf, type Pool } from '../records/pool.js';
import type { RecordValue } from '../records/view.js';
import { RecentChanges } from './recent-changes.js';
import {
  blockRoute,
  isRouteUnchanged,
  isSameBlockRoute,
  nameOfRecord,
  type BlockRoute,
  type Item,
  type WatchedKind,
  type WatchedObject,
  type WatchQuery,
} from './watched-objects.js';

/** Blocks of the first list that are applied at once: about 10 ms. */
const CHUNK_COUNT = 1_000;

/** In the order of a snapshot. */
const KINDS: readonly WatchedKind[] = ['pool', 'node', 'route'];

/**
 * All watchable objects at one revision, with the recent changes. It receives durable changes in revision order; the
 * mirror's view is ahead of that, and so of what a token may contain.
 *
 * A route is made of a block and its pool. Few changes of a block change its route.
 */
export class Catalog {
  readonly #keys: RecordKeys;
  readonly #recentCapacity: number;
  /** By the keys of their records; a route by that of its block. */
  readonly #items: Readonly<Record<WatchedKind, Map<string, Item>>> = {
    pool: new Map(),
    node: new Map(),
    route: new Map(),
  };
  /** The blocks that the routes are made of. */
  readonly #blocks = new Map<string, Block>();
  #pools: readonly Pool[] = [];
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
   * The objects that a query wants. They may change during the iteration: objects removed before their turn are left out,
   * new objects come last.
   */
  *wanted(query: WatchQuery): Generator<Item, void, void> {
    for (const kind of KINDS) if (query.has(kind)) yield* this.#items[kind].values();
  }

  /**
   * Applies the first list of the datastore in chunks, between which other work runs. Watching may begin
   * only after it ends.
   */
  async applyInitialList({ revision, records }: ObservedList, pause: () => Promise<void>): Promise<void> {
    const at = { revision, recent: undefined };
    // Pools come first, so that each route is made once.
    const isBlock = ({ record }: ObservedRecord): boolean => record?.kind === 'block';
    const blocks = records.filter(isBlock);
    this.#applyChanges(
      records.filter((one) => !isBlock(one)),
      at,
    );
    for (let next = 0; next < blocks.length; next += CHUNK_COUNT) {
      await pause();
      this.#applyChanges(blocks.slice(next, next + CHUNK_COUNT), at);
    }
    this.#revision = revision;
    this.#recent = new RecentChanges(revision, this.#recentCapacity);
  }

  apply(observed: Observed): void {
    const changes = observed.type === 'changed' ? observed.changes : this.#differences(observed.records);
    this.#applyChanges(changes, { revision: observed.revision, recent: this.#recent });
    this.#revision = Math.max(this.#revision, observed.revision);
  }

  /** The records of a list, with deletions of the records that it lacks. */
  #differences(records: readonly ObservedRecord[]): readonly ObservedRecord[] {
    const listed = new Set(records.map(({ key }) => key));
    const lock = this.#isLocked ? [this.#keys.clusterInformation] : [];
    const known = [...KINDS.flatMap((kind) => [...this.#items[kind].keys()]), ...lock];
    const gone = known.filter((key) => !listed.has(key)).map((key) => ({ key, record: undefined }));
    return [...records, ...gone];
  }

  #applyChanges(changes: readonly ObservedRecord[], at: ChangeContext): void {
    const blocks = new Map<string, Block | undefined>();
    const ranges: Prefix[] = [];
    for (const { key, record } of changes) {
      if (key === this.#keys.clusterInformation) this.#setLock(record, at);
      else if (record?.kind === 'block' || (!record && this.#blocks.has(key))) blocks.set(key, record?.value);
      else if (record?.kind === 'pool' || record?.kind === 'node') this.#set(key, record, { ranges, ...at });
      else if (!record) for (const kind of ['pool', 'node'] as const) this.#remove(kind, key, { ranges, ...at });
    }
    if (ranges.length > 0) this.#poolsChanged(ranges, blocks);
    for (const [key, block] of blocks) this.#setBlock(key, block, { keepsPool: ranges.length === 0, ...at });
  }

  #setLock(record: RecordValue | undefined, { revision, recent }: ChangeContext): void {
    const isLocked = record?.kind === 'clusterInformation' && record.value.isLocked;
    if (isLocked === this.#isLocked) return;
    this.#isLocked = isLocked;
    recent?.lockChanged(revision);
  }

  /** @param blocks - get the blocks in the ranges of pools that are new, moved or gone */
  #poolsChanged(ranges: readonly Prefix[], blocks: Map<string, Block | undefined>): void {
    this.#pools = [...this.#items.pool.values()]
      .flatMap(({ object }) => (object.kind === 'pool' ? [object.value] : []))
      .sort((a, b) => compareTexts(a.name, b.name));
    for (const [key, block] of this.#blocks)
      if (!blocks.has(key) && ranges.some((range) => prefixContains(range, block.prefix))) blocks.set(key, block);
  }

  #setBlock(key: string, block: Block | undefined, at: ChangeContext & { readonly keepsPool: boolean }): void {
    const before = this.#blocks.get(key);
    if (!block) {
      this.#blocks.delete(key);
      this.#remove('route', key, { ranges: [], ...at });
      return;
    }
    this.#blocks.set(key, block);
    const isSameOwner = before && before.owner === block.owner;
    if (at.keepsPool && isSameOwner && this.#keepsRoute(key, before, block)) return;
    this.#setRoute(key, blockRoute(block, poolOf(this.#pools, block.prefix)?.name), at);
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
    else this.#set(key, object, { ranges: [], ...at });
  }

  #set(key: string, object: WatchedObject, { revision, recent, ranges }: RecordContext): void {
    const items = this.#items[object.kind];
    const item = items.get(key);
    // A repeated list contains unchanged objects.
    if (item?.object === object) return;
    addMovedRanges(ranges, item?.object, object);
    if (item) {
      this.#onReplaced(item);
      item.object = object;
      item.encoded = undefined;
      recent?.changed(item, revision);
      return;
    }
    const made = { key, object, createdRevision: revision, encoded: undefined, changeNumber: -1 };
    items.set(key, made);
    recent?.changed(made, revision);
  }

  #remove(kind: WatchedKind, key: string, { revision, recent, ranges }: RecordContext): void {
    const item = this.#items[kind].get(key);
    if (!item) return;
    this.#onReplaced(item);
    this.#items[kind].delete(key);
    addMovedRanges(ranges, item.object, undefined);
    recent?.removed(item, revision);
  }
}

interface ChangeContext {
  readonly revision: number;
  /** Undefined for the first list, whose content is not a change. */
  readonly recent: RecentChanges | undefined;
}

interface RecordContext extends ChangeContext {
  /** Gets the ranges of pools that are new, moved or gone. */
  readonly ranges: Prefix[];
}

function addMovedRanges(ranges: Prefix[], before: WatchedObject | undefined, after: WatchedObject | undefined): void {
  const [from, to] = [before, after].map((object) => (object?.kind === 'pool' ? object.value.prefix : undefined));
  if (from && to && comparePrefixes(from, to) === 0) return;
  for (const range of [from, to]) if (range) ranges.push(range);
}
