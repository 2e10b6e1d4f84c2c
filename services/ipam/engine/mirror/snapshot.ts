import type { Family } from '@podwire/shared/net/address';
import { comparePrefixes, prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import { isIdle, isExhausted, hasFreeOrCooling, type BlockStats } from '../../records/block-stats.js';
import type { Affinity, Block, BlockOwner, Handle } from '../../records/block.js';
import type { IpamConfig, Reservation } from '../../records/config.js';
import type { Endpoint, EndpointKey, ForeignEndpoint } from '../../records/endpoint.js';
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
import { BlockIndex, BlockStatsSums, UnreadableRecords } from './block-index.js';
import { containerIdsOf, EndpointIndex } from './endpoint-index.js';
import { AffinityList, NameList } from './record-lists.js';

/** A view of records that are also found by their keys. */
export interface KeyedView extends View {
  get(key: string): RecordValue | undefined;
}

/** Decoded records with the indexes that decisions need. Knows nothing of revisions or stored forms. */
export class IndexedRecords implements KeyedView {
  readonly #keys: RecordKeys;
  readonly #showsAllBefore: (key: string) => boolean;
  readonly #records = new Map<string, RecordValue>();
  /** Keyed by what begins every affinity of the owner. */
  readonly #affinities = new AffinityList();
  /** Affinities of blocks that may have a free address. */
  readonly #unspent = new AffinityList();
  readonly #blocks: Readonly<Record<Family, Block[]>> = { 4: [], 6: [] };
  readonly #index = new BlockIndex();
  readonly #tallies: Readonly<Record<Family, BlockStatsSums>> = { 4: new BlockStatsSums(), 6: new BlockStatsSums() };
  readonly #pools = new NameList<Pool>();
  readonly #reservations = new NameList<Reservation>();
  readonly #nodes = new NameList<Node>();
  readonly #endpoints = new EndpointIndex();
  readonly #unreadable = new UnreadableRecords();

  /** @param showsAllBefore - whether all commits before the last write of the key's record are applied */
  constructor(keys: RecordKeys, showsAllBefore: (key: string) => boolean) {
    this.#keys = keys;
    this.#showsAllBefore = showsAllBefore;
  }

  get(key: string): RecordValue | undefined {
    return this.#records.get(key);
  }

  set(key: string, record: RecordValue): void {
    const before = this.#records.get(key);
    if (before?.kind === 'block' && record.kind === 'block') {
      this.#replaceBlock({ key, before: before.value, block: record.value });
      return;
    }
    if (before) this.delete(key);
    else this.#clearUnreadable(key);
    this.#records.set(key, record);
    if (record.kind === 'pool') this.#pools.set(key, record.value);
    if (record.kind === 'reservation') this.#reservations.set(key, record.value);
    if (record.kind === 'node') this.#nodes.set(key, record.value);
    if (isEndpoint(record)) this.#endpoints.add(key, record);
    if (record.kind === 'block') this.#insertBlock(record.value);
    if (record.kind === 'affinity') {
      const { owner, block } = record.value;
      this.#affinities.set(this.#keys.affinitiesOf(owner), key, record.value);
      this.#updateUnspent(owner, block);
    }
  }

  /** Replaces a record by an unreadable one. */
  setUnreadable(record: UnreadableRecord): void {
    this.delete(record.key);
    this.#unreadable.set(record);
  }

  delete(key: string): void {
    this.#clearUnreadable(key);
    const record = this.#records.get(key);
    if (!record) return;
    this.#records.delete(key);
    if (record.kind === 'pool') this.#pools.delete(key);
    if (record.kind === 'reservation') this.#reservations.delete(key);
    if (record.kind === 'node') this.#nodes.delete(key);
    if (isEndpoint(record)) this.#endpoints.delete(key, record);
    if (record.kind === 'block') this.#removeBlock(record.value);
    if (record.kind === 'affinity') {
      const owner = this.#keys.affinitiesOf(record.value.owner);
      this.#affinities.delete(owner, key);
      this.#unspent.delete(owner, key);
      this.#reindexBlock(record.value.block);
    }
  }

  /** Removes the unreadable record of a key. */
  #clearUnreadable(key: string): void {
    if (!this.#unreadable.isEmpty) this.#unreadable.delete(key);
  }

  pools(): readonly Pool[] {
    return this.#pools.sorted();
  }

  pool(name: string): Pool | undefined {
    const record = this.get(this.#keys.pool(name));
    return record?.kind === 'pool' ? record.value : undefined;
  }

  showsAllBefore(record: RecordValue): boolean {
    return this.#showsAllBefore(this.#keys.of(record));
  }

  block(prefix: Prefix): Block | undefined {
    const record = this.get(this.#keys.block(prefix));
    return record?.kind === 'block' ? record.value : undefined;
  }

  *blocksIn(prefix: Prefix): Generator<Block, void, void> {
    const blocks = this.#blocks[prefix.family];
    for (let index = lowerBound(blocks, prefix); index < blocks.length; index++) {
      const block = blocks[index];
      if (!block || !prefixContains(prefix, block.prefix)) return;
      yield block;
    }
  }

  blockStatsIn(prefix: Prefix): BlockStats {
    return this.#tallies[prefix.family].within(prefix);
  }

  blocksWithRoomIn(prefix: Prefix): Iterable<Block> {
    return this.#blocksOf(this.#index.roomyIn(prefix));
  }

  idleBlocksIn(prefix: Prefix): Iterable<Block> {
    return this.#blocksOf(this.#index.idleIn(prefix));
  }

  blocksWithoutAffinityIn(prefix: Prefix): Iterable<Block> {
    return this.#blocksOf(this.#index.looseIn(prefix));
  }

  consecutiveBlocks(first: Prefix): number {
    return this.#index.consecutiveFrom(first);
  }

  *#blocksOf(prefixes: Iterable<Prefix>): Generator<Block, void, void> {
    for (const prefix of prefixes) {
      const block = this.block(prefix);
      if (block) yield block;
    }
  }

  affinitiesOf(owner: BlockOwner): readonly Affinity[] {
    return this.#affinities.of(this.#keys.affinitiesOf(owner));
  }

  usableAffinitiesOf(owner: BlockOwner): readonly Affinity[] {
    return this.#unspent.of(this.#keys.affinitiesOf(owner));
  }

  affinity(owner: BlockOwner, block: Prefix): Affinity | undefined {
    const record = this.get(this.#keys.affinity(owner, block));
    return record?.kind === 'affinity' ? record.value : undefined;
  }

  handle(id: string): Handle | undefined {
    const record = this.get(this.#keys.handle(id));
    return record?.kind === 'handle' ? record.value : undefined;
  }

  endpoint(key: EndpointKey): Endpoint | undefined {
    const record = this.get(this.#keys.endpoint(key));
    return record?.kind === 'endpoint' ? record.value : undefined;
  }

  config(): IpamConfig | undefined {
    const record = this.get(this.#keys.config);
    return record?.kind === 'config' ? record.value : undefined;
  }

  isLocked(): boolean {
    const record = this.get(this.#keys.clusterInformation);
    return record?.kind === 'clusterInformation' && record.value.isLocked;
  }

  reservations(): readonly Reservation[] {
    return this.#reservations.sorted();
  }

  reservation(name: string): Reservation | undefined {
    const record = this.get(this.#keys.reservation(name));
    return record?.kind === 'reservation' ? record.value : undefined;
  }

  requestPolicies(): RequestPolicies {
    const record = this.get(this.#keys.requestPolicies);
    return record?.kind === 'requestPolicies' ? record.value : [];
  }

  nodes(): readonly Node[] {
    return this.#nodes.sorted();
  }

  node(name: string): Node | undefined {
    const record = this.get(this.#keys.node(name));
    return record?.kind === 'node' ? record.value : undefined;
  }

  *handles(): Generator<Handle, void, void> {
    for (const record of this.#records.values()) if (record.kind === 'handle') yield record.value;
  }

  *affinities(): Generator<Affinity, void, void> {
    yield* this.#affinities.all();
  }

  *endpoints(): Generator<StoredEndpoint, void, void> {
    yield* this.endpointsAfter('');
  }

  *endpointsAfter(after: string): Generator<StoredEndpoint, void, void> {
    for (const record of this.allEndpointsAfter(after)) if (record.kind === 'endpoint') yield record;
  }

  *allEndpointsAfter(after: string): Generator<EndpointRecord, void, void> {
    yield* this.#endpointsAt(this.#endpoints.behind(this.#keys.endpoints + after));
  }

  *foreignEndpoints(): Generator<StoredForeignEndpoint, void, void> {
    for (const record of this.#endpointsAt(this.#endpoints.foreign()))
      if (record.kind === 'foreignEndpoint') yield record;
  }

  foreignEndpoint(key: EndpointKey): ForeignEndpoint | undefined {
    const record = this.get(this.#keys.endpoint(key));
    return record?.kind === 'foreignEndpoint' ? record.value : undefined;
  }

  *endpointsOfContainer(containerId: string): Generator<EndpointRecord, void, void> {
    for (const record of this.#endpointsAt(this.#endpoints.ofContainer(containerId)))
      if (containerIdsOf(record).includes(containerId)) yield record;
  }

  *#endpointsAt(keys: Iterable<string>): Generator<EndpointRecord, void, void> {
    for (const key of keys) {
      const record = this.get(key);
      if (record && isEndpoint(record)) yield record;
    }
  }

  unreadable(): Iterable<UnreadableRecord> {
    return this.#unreadable.all();
  }

  unreadableRecord(name: RecordName): UnreadableRecord | undefined {
    return this.#unreadable.isEmpty ? undefined : this.#unreadable.get(this.#keys.ofName(name));
  }

  unreadableBlock(prefix: Prefix): UnreadableBlock | undefined {
    return this.#unreadable.blockAcross(prefix);
  }

  #insertBlock(block: Block): void {
    const blocks = this.#blocks[block.prefix.family];
    blocks.splice(lowerBound(blocks, block.prefix), 0, block);
    this.#index.add(block, this.#ownerAffinity(block));
    this.#tallies[block.prefix.family].put(block);
    if (block.owner) this.#updateUnspent(block.owner, block.prefix);
  }

  /** Most changes of a block do not concern the indexes. */
  #replaceBlock({ key, before, block }: { key: string; before: Block; block: Block }): void {
    const blocks = this.#blocks[block.prefix.family];
    this.#records.set(key, { kind: 'block', value: block });
    blocks[lowerBound(blocks, block.prefix)] = block;
    this.#tallies[block.prefix.family].put(block);
    const isSame = sameOwner(before.owner, block.owner) && hasFreeOrCooling(before) === hasFreeOrCooling(block);
    if (!isSame || isIdle(before) !== isIdle(block)) this.#index.update(block, this.#ownerAffinity(block));
    if (isSame) return;
    for (const owner of [before.owner, block.owner]) if (owner) this.#updateUnspent(owner, block.prefix);
  }

  /** Evaluates again whether an affinity leads to a block. */
  #reindexBlock(prefix: Prefix): void {
    const block = this.block(prefix);
    if (block) this.#index.update(block, this.#ownerAffinity(block));
  }

  #ownerAffinity({ owner, prefix }: Block): Affinity | undefined {
    return owner && this.affinity(owner, prefix);
  }

  /** Adds or removes an affinity in the unspent ones. */
  #updateUnspent(owner: BlockOwner, block: Prefix): void {
    const affinity = this.affinity(owner, block);
    if (!affinity) return;
    this.#reindexBlock(block);
    const [ownerKey, key] = [this.#keys.affinitiesOf(owner), this.#keys.affinity(owner, block)];
    if (isExhausted(affinity, this.block(block))) this.#unspent.delete(ownerKey, key);
    else this.#unspent.set(ownerKey, key, affinity);
  }

  #removeBlock(block: Block): void {
    const blocks = this.#blocks[block.prefix.family];
    blocks.splice(lowerBound(blocks, block.prefix), 1);
    this.#index.delete(block);
    this.#tallies[block.prefix.family].delete(block.prefix);
    if (block.owner) this.#updateUnspent(block.owner, block.prefix);
  }
}

function sameOwner(a: BlockOwner | undefined, b: BlockOwner | undefined): boolean {
  return a?.kind === b?.kind && a?.name === b?.name;
}

function isEndpoint(record: RecordValue): record is EndpointRecord & RecordValue {
  return record.kind === 'endpoint' || record.kind === 'foreignEndpoint';
}

/** Index of the first block not before the prefix. */
function lowerBound(blocks: readonly Block[], prefix: Prefix): number {
  let low = 0;
  for (let high = blocks.length; low < high;) {
    const middle = (low + high) >>> 1;
    const block = blocks[middle];
    if (block && comparePrefixes(block.prefix, prefix) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}
