import { WatchKind, WatchPhase, type WatchedChange, type WatchResponse } from '@podwire/proto/podwire/ipam/v1/watch';
import { Failure } from '@podwire/shared/failure/failure';

import type { ClusterBlock, ClusterChange, ClusterNode, IpamCluster, IpamPool } from '../cluster/cluster.js';
import { readBlock, readNode, readPool } from './messages.js';

/** The object kinds that the dataplane watches in IPAM. */
export const WATCHED_KINDS: readonly WatchKind[] = [
  WatchKind.WATCH_KIND_ROUTES,
  WatchKind.WATCH_KIND_POOLS,
  WatchKind.WATCH_KIND_NODES,
];

interface WatchedState extends IpamCluster {
  readonly nodes: BucketMap<ClusterNode>;
  readonly pools: BucketMap<IpamPool>;
  readonly blocks: BucketMap<ClusterBlock>;
  /** Invalid objects by kind and name, with their faults. */
  readonly skipped: BucketMap<string>;
}

/** A power of two: with 10,000 entries a change copies some 40 of them. */
const BUCKET_COUNT = 256;

type Bucket<Value> = ReadonlyMap<string, Value>;

const NO_ENTRIES: Bucket<never> = new Map<string, never>();

/** An immutable map: a change creates another one that shares all untouched buckets. Unordered. */
export class BucketMap<Value> implements ReadonlyMap<string, Value> {
  readonly size: number;
  readonly #buckets: readonly Bucket<Value>[];

  private constructor(buckets: readonly Bucket<Value>[], size: number) {
    this.#buckets = buckets;
    this.size = size;
  }

  static empty<Value>(): BucketMap<Value> {
    return new BucketMap<Value>(
      Array.from({ length: BUCKET_COUNT }, () => NO_ENTRIES),
      0,
    );
  }

  /**
   * The map after changes. Copies each affected bucket once.
   * @param changes - the new value of a key; undefined removes it
   */
  with(changes: ReadonlyMap<string, Value | undefined>): BucketMap<Value> {
    if (changes.size === 0) return this;
    const buckets = [...this.#buckets];
    const copied = new Map<number, Map<string, Value>>();
    let { size } = this;
    for (const [key, value] of changes) {
      const index = bucketIndex(key);
      const bucket = copied.get(index) ?? new Map(this.#buckets[index]);
      copied.set(index, bucket);
      buckets[index] = bucket;
      size -= bucket.size;
      if (value === undefined) bucket.delete(key);
      else bucket.set(key, value);
      size += bucket.size;
    }
    return new BucketMap(buckets, size);
  }

  get(key: string): Value | undefined {
    return this.#buckets[bucketIndex(key)]?.get(key);
  }

  has(key: string): boolean {
    return this.#buckets[bucketIndex(key)]?.has(key) === true;
  }

  *entries(): Generator<[string, Value], undefined> {
    for (const bucket of this.#buckets) yield* bucket;
    return undefined;
  }

  *keys(): Generator<string, undefined> {
    for (const bucket of this.#buckets) yield* bucket.keys();
    return undefined;
  }

  *values(): Generator<Value, undefined> {
    for (const bucket of this.#buckets) yield* bucket.values();
    return undefined;
  }

  [Symbol.iterator](): Generator<[string, Value], undefined> {
    return this.entries();
  }

  forEach(callback: (value: Value, key: string, map: ReadonlyMap<string, Value>) => void): void {
    for (const [key, value] of this) callback(value, key, this);
  }
}

const EMPTY: WatchedState = {
  nodes: BucketMap.empty(),
  pools: BucketMap.empty(),
  blocks: BucketMap.empty(),
  skipped: BucketMap.empty(),
};

const NO_CHANGE: ClusterChange = { blocks: new Set(), hasOtherChanges: false };

/** Called once for each fault of an invalid object. */
type SkippedObject = (object: string, failure: Failure) => void;

/**
 * The state received from a watch of IPAM, and where to resume. Difficulty: a stream may break anywhere. A snapshot is
 * therefore built separately, and replaces the known state once it is complete. Until then state and token stay unchanged.
 *
 * An invalid object is skipped, and its previous value stays.
 */
export class WatchedCluster {
  readonly #onSkipped: SkippedObject;
  #current: WatchedState | undefined;
  #snapshot: WatchedState | undefined;
  #resumeToken = '';
  #isDatastoreLocked = false;

  constructor(onSkipped: SkippedObject) {
    this.#onSkipped = onSkipped;
  }

  /** Cluster; undefined until the first complete snapshot. */
  get cluster(): IpamCluster | undefined {
    return this.#current;
  }

  /** Lock as of the last message since the first complete snapshot. */
  get isDatastoreLocked(): boolean {
    return this.#isDatastoreLocked;
  }

  /** Resume token of the next stream; empty for a snapshot. */
  get resumeToken(): string {
    return this.#resumeToken;
  }

  /** Number of invalid objects. */
  get skippedCount(): number {
    return this.#current?.skipped.size ?? 0;
  }

  /** Call before each stream: discards an incomplete snapshot. */
  beginStream(): void {
    this.#snapshot = undefined;
  }

  /**
   * Applies one message.
   * @returns the changes; undefined when there are none, as within a snapshot, where only the lock can change
   * @throws Failure INTERNAL when the message cannot follow the previous one; the next stream begins with a snapshot
   */
  apply(response: WatchResponse): ClusterChange | undefined {
    const change = this.#applyObjects(response);
    const { datastoreLocked } = response;
    if (!this.#current || datastoreLocked === this.#isDatastoreLocked) return change;
    this.#isDatastoreLocked = datastoreLocked;
    return { ...(change ?? NO_CHANGE), hasLockChanged: true };
  }

  #applyObjects({ phase, reset, changes, resumeToken }: WatchResponse): ClusterChange | undefined {
    if (reset) this.#snapshot = EMPTY;
    switch (phase) {
      case WatchPhase.WATCH_PHASE_SNAPSHOT:
      case WatchPhase.WATCH_PHASE_SNAPSHOT_COMPLETE: {
        const snapshot = this.#applyChanges(this.#snapshot ?? this.#unexpectedPhase(phase), changes).state;
        if (phase === WatchPhase.WATCH_PHASE_SNAPSHOT) {
          this.#snapshot = snapshot;
          return undefined;
        }
        this.#complete(snapshot, resumeToken);
        return { blocks: 'all', hasOtherChanges: true };
      }
      case WatchPhase.WATCH_PHASE_CHANGES: {
        if (!this.#current || this.#snapshot) return this.#unexpectedPhase(phase);
        const { state, change } = this.#applyChanges(this.#current, changes);
        this.#current = state;
        this.#resumeToken = resumeToken;
        return change;
      }
      case WatchPhase.WATCH_PHASE_BOOKMARK:
        if (!this.#current || this.#snapshot) return this.#unexpectedPhase(phase);
        this.#resumeToken = resumeToken;
        return undefined;
      case WatchPhase.WATCH_PHASE_UNSPECIFIED:
      case WatchPhase.UNRECOGNIZED:
        return this.#unexpectedPhase(phase);
    }
  }

  #complete(snapshot: WatchedState, resumeToken: string): void {
    this.#current = snapshot;
    this.#snapshot = undefined;
    this.#resumeToken = resumeToken;
  }

  #applyChanges(before: WatchedState, changes: readonly WatchedChange[]): ApplyResult {
    const content: MessageContent = { nodes: new Map(), pools: new Map(), blocks: new Map(), skipped: new Map() };
    for (const change of changes) {
      const { kind, name } = change;
      const known = this.#current;
      if (kind === WatchKind.WATCH_KIND_NODES)
        this.#readObject(change, { content, values: content.nodes, previous: known?.nodes.get(name), read: asNode });
      if (kind === WatchKind.WATCH_KIND_POOLS)
        this.#readObject(change, { content, values: content.pools, previous: known?.pools.get(name), read: asPool });
      if (kind === WatchKind.WATCH_KIND_ROUTES)
        this.#readObject(change, { content, values: content.blocks, previous: known?.blocks.get(name), read: asBlock });
    }
    const { nodes, pools, blocks, skipped } = content;
    const state = {
      nodes: before.nodes.with(nodes),
      pools: before.pools.with(pools),
      blocks: before.blocks.with(blocks),
      skipped: before.skipped.with(skipped),
    };
    const hasOtherChanges = nodes.size > 0 || pools.size > 0;
    const change = hasOtherChanges || blocks.size > 0 ? { blocks: new Set(blocks.keys()), hasOtherChanges } : undefined;
    return { state, change };
  }

  #readObject<Value>(change: WatchedChange, { content, values, previous, read }: ObjectReader<Value>): void {
    const { name, object } = change;
    const id = `${KIND_LABELS[change.kind] ?? change.kind} ${name}`;
    try {
      values.set(name, object && read(change, object));
      content.skipped.set(id, undefined);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      if (previous !== undefined) values.set(name, previous);
      const reported = content.skipped.get(id) ?? this.#current?.skipped.get(id);
      content.skipped.set(id, error.message);
      if (reported !== error.message) this.#onSkipped(id, error);
    }
  }

  #unexpectedPhase(phase: WatchPhase): never {
    this.#resumeToken = '';
    this.#snapshot = undefined;
    throw new Failure(
      'INTERNAL',
      `IPAM sent a message of phase ${phase} out of order; the watch starts again with a snapshot`,
    );
  }
}

type WatchedObject = NonNullable<WatchedChange['object']>;

/** Content of one message: the new value of each name, or its removal. */
interface MessageContent {
  readonly nodes: Map<string, ClusterNode | undefined>;
  readonly pools: Map<string, IpamPool | undefined>;
  readonly blocks: Map<string, ClusterBlock | undefined>;
  readonly skipped: Map<string, string | undefined>;
}

interface ObjectReader<Value> {
  readonly content: MessageContent;
  readonly values: Map<string, Value | undefined>;
  /** The known value of the object. */
  readonly previous: Value | undefined;
  readonly read: (change: WatchedChange, object: WatchedObject) => Value;
}

interface ApplyResult {
  readonly state: WatchedState;
  readonly change: ClusterChange | undefined;
}

const KIND_LABELS: Partial<Record<WatchKind, string>> = {
  [WatchKind.WATCH_KIND_NODES]: 'node',
  [WatchKind.WATCH_KIND_POOLS]: 'pool',
  [WatchKind.WATCH_KIND_ROUTES]: 'block',
};

function asNode(change: WatchedChange, object: WatchedObject): ClusterNode {
  return object.$case === 'node' && object.value.name === change.name ? readNode(object.value) : mismatch(change);
}

function asPool(change: WatchedChange, object: WatchedObject): IpamPool {
  return object.$case === 'pool' && object.value.name === change.name ? readPool(object.value) : mismatch(change);
}

function asBlock(change: WatchedChange, object: WatchedObject): ClusterBlock {
  return object.$case === 'route' && object.value.cidr === change.name ? readBlock(object.value) : mismatch(change);
}

function mismatch({ kind, name }: WatchedChange): never {
  throw new Failure('INVALID_REQUEST', `${KIND_LABELS[kind] ?? kind} ${name}: the message contains another object`);
}

/** FNV-1a of the UTF-16 units. */
function bucketIndex(key: string): number {
  let hash = 0x811c9dc5;
  for (let index = 0; index < key.length; index++) hash = Math.imul(hash ^ key.charCodeAt(index), 0x01000193);
  // The low bits alone vary too little for keys that differ in their last characters.
  return (hash ^ (hash >>> 16)) & (BUCKET_COUNT - 1);
}
