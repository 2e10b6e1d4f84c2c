import { comparePrefixes, prefixContains, prefixSize, type Prefix } from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';

import {
  addStats,
  isIdle,
  isWithoutAffinity,
  isExhausted,
  hasFreeOrCooling,
  subtractStats,
  blockStats,
  type BlockStats,
} from '../../records/block-stats.js';
import type { Affinity, Block, BlockOwner, Handle } from '../../records/block.js';
import type { IpamConfig, Reservation } from '../../records/config.js';
import { formatEndpointKey, type Endpoint, type EndpointKey, type ForeignEndpoint } from '../../records/endpoint.js';
import type { RecordKeys } from '../../records/json/keys.js';
import type { Node } from '../../records/node.js';
import type { Pool } from '../../records/pool.js';
import type { RequestPolicies } from '../../records/request-policy.js';
import type {
  EndpointRecord,
  RecordName,
  RecordValue,
  StoredEndpoint,
  StoredForeignEndpoint,
  UnreadableBlock,
  UnreadableRecord,
  View,
} from '../../records/view.js';
import { containerIdsOf } from './endpoint-index.js';
import type { Mirror } from './mirror.js';
import { sortAffinities, sortByName } from './record-lists.js';
import { SortedPrefixes } from './sorted-runs.js';

/** A record that the folded decisions name: its pending state, and whether they write it. */
interface TouchedRecord {
  /** Undefined when the record is deleted. */
  readonly record: RecordValue | undefined;
  readonly written: boolean;
  /** Key of the record whose stored form provides unknown fields of a new record. */
  readonly likeKey: string | undefined;
}

type Kind = RecordValue['kind'];

/** The mirror with some of its records replaced. */
export class PendingView implements View {
  protected readonly mirror: Mirror;
  protected readonly keys: RecordKeys;
  readonly #touched = new Map<string, TouchedRecord>();
  /** The keys of written records, by kind. A compared record is read from the mirror. */
  readonly #written = new Map<Kind, Set<string>>();
  /** Written blocks by their current and former owners. */
  readonly #blocksOf = new Map<string, Map<string, Prefix>>();
  readonly #writtenBlocks = new WrittenBlocks({
    blockAt: (prefix) => this.block(prefix),
    isLoose: (block) => isWithoutAffinity(block, block.owner && this.affinity(block.owner, block.prefix)),
  });

  constructor(mirror: Mirror, keys: RecordKeys) {
    this.mirror = mirror;
    this.keys = keys;
  }

  #indexOwner(key: string, { owner, prefix }: Block): void {
    if (!owner) return;
    const text = ownerKey(owner);
    const blocks = this.#blocksOf.get(text) ?? new Map<string, Prefix>();
    this.#blocksOf.set(text, blocks.set(key, prefix));
  }

  protected get touched(): ReadonlyMap<string, TouchedRecord> {
    return this.#touched;
  }

  /** Adds a comparison of an unchanged record. */
  protected addComparison(key: string): void {
    this.#touched.set(key, { record: this.mirror.stored(key)?.record, written: false, likeKey: undefined });
  }

  /**
   * Replaces the mirror's record of the key.
   * @param named - the record, or the one that is deleted
   */
  protected write(key: string, named: RecordValue, touched: TouchedRecord): void {
    const isFirst = !this.#isWritten(key);
    this.#touched.set(key, touched);
    const keys = this.#written.get(named.kind);
    if (keys) keys.add(key);
    else this.#written.set(named.kind, new Set([key]));
    if (named.kind === 'affinity') {
      const { block } = named.value;
      this.#writtenBlocks.addAffinity(this.keys.block(block), block);
    }
    if (named.kind !== 'block') return;
    const stored = isFirst ? this.mirror.stored(key)?.record : undefined;
    for (const record of [stored, touched.record]) if (record?.kind === 'block') this.#indexOwner(key, record.value);
    this.#writtenBlocks.addBlock(key, named.value.prefix, stored?.kind === 'block' ? stored.value : undefined);
  }

  pools(): readonly Pool[] {
    return this.#listed({
      kind: 'pool',
      stored: this.mirror.view.pools(),
      changed: this.#writtenOf('pool'),
      keyOf: (name) => this.keys.pool(name),
    });
  }

  pool(name: string): Pool | undefined {
    const record = this.#at(this.keys.pool(name));
    return record?.kind === 'pool' ? record.value : undefined;
  }

  /** Always false for a record that is written here. */
  showsAllBefore(record: RecordValue): boolean {
    return !this.#isWritten(this.keys.of(record)) && this.mirror.view.showsAllBefore(record);
  }

  block(prefix: Prefix): Block | undefined {
    const record = this.#at(this.keys.block(prefix));
    return record?.kind === 'block' ? record.value : undefined;
  }

  *blocksIn(prefix: Prefix): Generator<Block, void, void> {
    yield* this.#merged(this.mirror.view.blocksIn(prefix), this.#writtenBlocks.within(prefix));
  }

  blockStatsIn(prefix: Prefix): BlockStats {
    let tally = this.mirror.view.blockStatsIn(prefix);
    for (const block of this.#writtenBlocks.replaced)
      if (prefixContains(prefix, block.prefix)) tally = subtractStats(tally, blockStats(block));
    return this.#writtenBlocks.within(prefix).map(blockStats).reduce(addStats, tally);
  }

  blocksWithRoomIn(prefix: Prefix): Iterable<Block> {
    return this.#merged(
      this.mirror.view.blocksWithRoomIn(prefix),
      this.#writtenBlocks.within(prefix).filter(hasFreeOrCooling),
    );
  }

  idleBlocksIn(prefix: Prefix): Iterable<Block> {
    return this.#merged(this.mirror.view.idleBlocksIn(prefix), this.#writtenBlocks.within(prefix).filter(isIdle));
  }

  blocksWithoutAffinityIn(prefix: Prefix): Iterable<Block> {
    const isDecidedHere = (block: Block): boolean => this.#writtenBlocks.decidesLoose(this.keys.block(block.prefix));
    const kept = exclude(this.mirror.view.blocksWithoutAffinityIn(prefix), isDecidedHere);
    return this.#merged(kept, this.#writtenBlocks.looseWithin(prefix));
  }

  consecutiveBlocks(first: Prefix): number {
    const { view } = this.mirror;
    if (!this.#written.has('block')) return view.consecutiveBlocks(first);
    const size = prefixSize(first);
    for (let count = 0; ;) {
      const next = { ...first, value: first.value + BigInt(count) * size };
      if (!this.block(next)) return count;
      count += this.#writtenBlocks.undeletedFrom(next, Math.max(1, view.consecutiveBlocks(next)));
    }
  }

  /** Merges two ordered lists. */
  *#merged(stored: Iterable<Block>, changed: Block[]): Generator<Block, void, void> {
    for (const block of stored) {
      if (this.#writtenBlocks.replaces(block)) continue;
      for (let [next] = changed; next && compareBlocks(next, block) < 0; [next] = changed) {
        changed.shift();
        yield next;
      }
      yield block;
    }
    yield* changed;
  }

  affinitiesOf(owner: BlockOwner): readonly Affinity[] {
    const stored = this.mirror.view.affinitiesOf(owner);
    if (!this.#written.has('affinity')) return stored;
    const kept = stored.filter(({ block }) => !this.#isWritten(this.keys.affinity(owner, block)));
    const changed = [...this.#writtenOf('affinity')]
      .map(({ value }) => value)
      .filter((affinity) => affinity.owner.kind === owner.kind && affinity.owner.name === owner.name);
    return sortAffinities([...kept, ...changed]);
  }

  usableAffinitiesOf(owner: BlockOwner): readonly Affinity[] {
    const stored = this.mirror.view.usableAffinitiesOf(owner);
    const affinities = this.#written.get('affinity');
    const blocks = this.#blocksOf.get(ownerKey(owner));
    if (!affinities && !blocks) return stored;
    const isWritten = (block: Prefix): boolean => affinities?.has(this.keys.affinity(owner, block)) ?? false;
    const unspent = stored.filter(({ block }) => !isWritten(block) && !blocks?.has(this.keys.block(block)));
    const addUnspent = (affinity: Affinity): void => {
      if (!isExhausted(affinity, this.block(affinity.block))) unspent.push(affinity);
    };
    if (affinities)
      for (const { value } of this.#writtenOf('affinity'))
        if (value.owner.kind === owner.kind && value.owner.name === owner.name) addUnspent(value);
    for (const prefix of blocks?.values() ?? []) {
      const affinity = isWritten(prefix) ? undefined : this.mirror.view.affinity(owner, prefix);
      if (affinity) addUnspent(affinity);
    }
    return sortAffinities(unspent);
  }

  affinity(owner: BlockOwner, block: Prefix): Affinity | undefined {
    const record = this.#at(this.keys.affinity(owner, block));
    return record?.kind === 'affinity' ? record.value : undefined;
  }

  handle(id: string): Handle | undefined {
    const record = this.#at(this.keys.handle(id));
    return record?.kind === 'handle' ? record.value : undefined;
  }

  endpoint(key: EndpointKey): Endpoint | undefined {
    const record = this.#at(this.keys.endpoint(key));
    return record?.kind === 'endpoint' ? record.value : undefined;
  }

  config(): IpamConfig | undefined {
    const record = this.#at(this.keys.config);
    return record?.kind === 'config' ? record.value : undefined;
  }

  isLocked(): boolean {
    return this.mirror.view.isLocked();
  }

  reservations(): readonly Reservation[] {
    return this.#listed({
      kind: 'reservation',
      stored: this.mirror.view.reservations(),
      changed: this.#writtenOf('reservation'),
      keyOf: (name) => this.keys.reservation(name),
    });
  }

  reservation(name: string): Reservation | undefined {
    const record = this.#at(this.keys.reservation(name));
    return record?.kind === 'reservation' ? record.value : undefined;
  }

  requestPolicies(): RequestPolicies {
    const record = this.#at(this.keys.requestPolicies);
    return record?.kind === 'requestPolicies' ? record.value : [];
  }

  nodes(): readonly Node[] {
    return this.#listed({
      kind: 'node',
      stored: this.mirror.view.nodes(),
      changed: this.#writtenOf('node'),
      keyOf: (name) => this.keys.node(name),
    });
  }

  node(name: string): Node | undefined {
    const record = this.#at(this.keys.node(name));
    return record?.kind === 'node' ? record.value : undefined;
  }

  *handles(): Generator<Handle, void, void> {
    for (const handle of this.mirror.view.handles()) if (!this.#isWritten(this.keys.handle(handle.id))) yield handle;
    for (const { value } of this.#writtenOf('handle')) yield value;
  }

  *affinities(): Generator<Affinity, void, void> {
    for (const affinity of this.mirror.view.affinities())
      if (!this.#isWritten(this.keys.affinity(affinity.owner, affinity.block))) yield affinity;
    for (const { value } of this.#writtenOf('affinity')) yield value;
  }

  *endpoints(): Generator<StoredEndpoint, void, void> {
    for (const endpoint of this.mirror.view.endpoints())
      if (!this.#isWritten(this.keys.endpoint(endpoint.key))) yield endpoint;
    yield* this.#writtenOf('endpoint');
  }

  *endpointsAfter(after: string): Generator<StoredEndpoint, void, void> {
    for (const record of this.allEndpointsAfter(after)) if (record.kind === 'endpoint') yield record;
  }

  *allEndpointsAfter(after: string): Generator<EndpointRecord, void, void> {
    const changed = this.#writtenEndpoints()
      .filter(({ key }) => formatEndpointKey(key) > after)
      .sort((a, b) => compareTexts(formatEndpointKey(a.key), formatEndpointKey(b.key)));
    for (const endpoint of this.mirror.view.allEndpointsAfter(after)) {
      if (this.#isWritten(this.keys.endpoint(endpoint.key))) continue;
      const text = formatEndpointKey(endpoint.key);
      for (let [next] = changed; next && formatEndpointKey(next.key) < text; [next] = changed) {
        changed.shift();
        yield next;
      }
      yield endpoint;
    }
    yield* changed;
  }

  *foreignEndpoints(): Generator<StoredForeignEndpoint, void, void> {
    for (const endpoint of this.mirror.view.foreignEndpoints())
      if (!this.#isWritten(this.keys.endpoint(endpoint.key))) yield endpoint;
    yield* this.#writtenOf('foreignEndpoint');
  }

  foreignEndpoint(key: EndpointKey): ForeignEndpoint | undefined {
    const record = this.#at(this.keys.endpoint(key));
    return record?.kind === 'foreignEndpoint' ? record.value : undefined;
  }

  *endpointsOfContainer(containerId: string): Generator<EndpointRecord, void, void> {
    for (const endpoint of this.mirror.view.endpointsOfContainer(containerId))
      if (!this.#isWritten(this.keys.endpoint(endpoint.key))) yield endpoint;
    for (const endpoint of this.#writtenEndpoints()) if (containerIdsOf(endpoint).includes(containerId)) yield endpoint;
  }

  #writtenEndpoints(): EndpointRecord[] {
    return [...this.#writtenOf('endpoint'), ...this.#writtenOf('foreignEndpoint')];
  }

  unreadable(): Iterable<UnreadableRecord> {
    return this.mirror.view.unreadable();
  }

  // Unreadable records cannot be written, so none is replaced here.
  unreadableRecord(name: RecordName): UnreadableRecord | undefined {
    return this.mirror.view.unreadableRecord(name);
  }

  unreadableBlock(prefix: Prefix): UnreadableBlock | undefined {
    return this.mirror.view.unreadableBlock(prefix);
  }

  /** The record of the key in this view. */
  #at(key: string): RecordValue | undefined {
    const touched = this.#touched.get(key);
    return touched ? touched.record : this.mirror.view.get(key);
  }

  #isWritten(key: string): boolean {
    return this.#touched.get(key)?.written ?? false;
  }

  /** The records of one kind in name order, written ones in place of stored ones. */
  #listed<Named extends { readonly name: string }>({ kind, stored, changed, keyOf }: Listing<Named>): readonly Named[] {
    if (!this.#written.has(kind)) return stored;
    const kept = stored.filter(({ name }) => !this.#isWritten(keyOf(name)));
    return sortByName([...kept, ...[...changed].map(({ value }) => value)]);
  }

  *#writtenOf<Wanted extends Kind>(kind: Wanted): Generator<Extract<RecordValue, { kind: Wanted }>> {
    for (const key of this.#written.get(kind) ?? []) {
      const record = this.#touched.get(key)?.record;
      if (record && isKind(record, kind)) yield record;
    }
  }
}

function ownerKey({ kind, name }: BlockOwner): string {
  return `${kind}:${name}`;
}

function compareBlocks(a: Block, b: Block): number {
  return comparePrefixes(a.prefix, b.prefix);
}

function* exclude(blocks: Iterable<Block>, isExcluded: (block: Block) => boolean): Generator<Block, void, void> {
  for (const block of blocks) if (!isExcluded(block)) yield block;
}

interface Listing<Named> {
  readonly kind: Kind;
  readonly stored: readonly Named[];
  readonly changed: Iterable<{ readonly value: Named }>;
  readonly keyOf: (name: string) => string;
}

function isKind<Wanted extends Kind>(
  record: RecordValue,
  kind: Wanted,
): record is Extract<RecordValue, { kind: Wanted }> {
  return record.kind === kind;
}

interface WrittenBlocksOptions {
  /** The block as it is once the decisions are committed. */
  readonly blockAt: (prefix: Prefix) => Block | undefined;
  /** Whether a block that exists is loose, see {@link View.blocksWithoutAffinityIn}. */
  readonly isLoose: (block: Block) => boolean;
}

/**
 * The blocks that the decisions of a draft write, in address order. Most decisions read only their own block, so the
 * order is established on the first read.
 */
class WrittenBlocks {
  readonly #options: WrittenBlocksOptions;
  /** Blocks added since the last sort, by key. */
  readonly #unsorted = new Map<string, Prefix>();
  readonly #existing = new SortedPrefixes();
  /** The stored blocks that are replaced. */
  readonly #replaced = new Set<Block>();
  /** Deleted blocks by key. */
  readonly #deleted = new Map<string, Prefix>();
  /** By the key of the block: whether it is loose must be evaluated again. */
  readonly #unevaluated = new Map<string, Prefix>();
  /** Keys of the blocks whose looseness is evaluated here. */
  readonly #evaluated = new Set<string>();
  readonly #loose = new SortedPrefixes();

  constructor(options: WrittenBlocksOptions) {
    this.#options = options;
  }

  /** A block is written or deleted. @param stored - the replaced block */
  addBlock(key: string, prefix: Prefix, stored: Block | undefined): void {
    if (stored) this.#replaced.add(stored);
    this.#unsorted.set(key, prefix);
    this.#unevaluated.set(key, prefix);
  }

  /** An affinity for a block is written, or deleted. */
  addAffinity(key: string, prefix: Prefix): void {
    this.#unevaluated.set(key, prefix);
  }

  /** Whether a stored block is written here, so that it is listed from here. */
  replaces(stored: Block): boolean {
    return this.#replaced.has(stored);
  }

  /** The stored blocks that are written here. */
  get replaced(): Iterable<Block> {
    return this.#replaced;
  }

  /** Those that lie in a range, in order. */
  within(range: Prefix): Block[] {
    this.#sort();
    return this.#blocksOf(this.#existing.within(range));
  }

  /**
   * How many of consecutive stored blocks still exist, counted from the first one, which exists.
   * @param count - at least 1
   */
  undeletedFrom(first: Prefix, count: number): number {
    this.#sort();
    const size = prefixSize(first);
    for (const { family, length, value } of this.#deleted.values()) {
      if (family !== first.family || length !== first.length || value <= first.value) continue;
      count = Math.min(count, Number((value - first.value) / size));
    }
    return count;
  }

  /** Whether {@link looseWithin}, not the stored state, decides if the block of the key is loose. */
  decidesLoose(key: string): boolean {
    return this.#unevaluated.has(key) || this.#evaluated.has(key);
  }

  /** The loose blocks in a range, in order. */
  looseWithin(range: Prefix): Block[] {
    this.#evaluate();
    return this.#blocksOf(this.#loose.within(range));
  }

  #sort(): void {
    for (const [key, prefix] of this.#unsorted) {
      if (this.#options.blockAt(prefix)) {
        this.#existing.add(prefix);
        this.#deleted.delete(key);
      } else {
        this.#existing.delete(prefix);
        this.#deleted.set(key, prefix);
      }
    }
    this.#unsorted.clear();
  }

  #evaluate(): void {
    for (const [key, prefix] of this.#unevaluated) {
      const block = this.#options.blockAt(prefix);
      this.#evaluated.add(key);
      if (block && this.#options.isLoose(block)) this.#loose.add(prefix);
      else this.#loose.delete(prefix);
    }
    this.#unevaluated.clear();
  }

  #blocksOf(prefixes: Iterable<Prefix>): Block[] {
    const blocks: Block[] = [];
    for (const prefix of prefixes) {
      const block = this.#options.blockAt(prefix);
      if (block) blocks.push(block);
    }
    return blocks;
  }
}
