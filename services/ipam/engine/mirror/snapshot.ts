import type { Address } from '@podwire/shared/net/address';
import { comparePrefixes, prefixContains, type Prefix } from '@podwire/shared/net/prefix';
import { compareNames, lastIndex } from '@podwire/shared/words/order';

import { hasFreeOrCooling, isExhausted, type BlockStats } from '../../records/block-stats.js';
import {
  rangesAround,
  sameOwner,
  type Affinity,
  type Block,
  type BlockOwner,
  type Handle,
} from '../../records/block.js';
import type { IpamConfig, Reservation } from '../../records/config.js';
import type { Endpoint, EndpointKey, ForeignEndpoint } from '../../records/endpoint.js';
import type { RecordKeys } from '../../records/json/keys.js';
import type { Node } from '../../records/node.js';
import type { Pool } from '../../records/pool.js';
import type { RequestPolicies } from '../../records/request-policy.js';
import type { RevokedCertificate } from '../../records/revoked-certificate.js';
import type { NodeSession, StoreEpoch } from '../../records/session.js';
import {
  isUnreadableBlock,
  type EndpointRecord,
  type RecordName,
  type RecordValue,
  type StoredEndpoint,
  type StoredForeignEndpoint,
  type UnreadableBlock,
  type UnreadableRecord,
  type View,
} from '../../records/view.js';
import { BlockList } from './block-list.js';
import { LayeredMap } from './layered-map.js';
import { SortedList, TEXT_ORDER, WITHOUT_SUM, type ListOrder } from '../sorted-list.js';

/** The record of a kind. */
export type RecordOf<Kind extends RecordValue['kind']> = Extract<RecordValue, { readonly kind: Kind }>;

const UNREADABLE_BLOCKS: ListOrder<UnreadableBlock, Prefix, undefined> = {
  ...WITHOUT_SUM,
  keyOf: ({ name }) => name.prefix,
  compare: comparePrefixes,
};

/** A session, and when parts of it were first seen, by the monotonic clock. */
interface SeenSession {
  readonly session: NodeSession;
  /** Its revision. */
  readonly sinceMs: number;
  /** The displaced machines, by their boots. */
  readonly displacedSinceMs: ReadonlyMap<string, number>;
  /** The time of its node's last report. */
  readonly reportedSinceMs: number;
}

/**
 * Decoded records with the indexes that decisions need. Knows nothing of revisions or stored forms. A clone shares
 * everything that it does not change: see {@link Snapshot.clone}.
 */
export class Snapshot implements View {
  protected readonly keys: RecordKeys;
  readonly #showsAllBefore: (key: string) => boolean;
  readonly #monotonicMs: () => number;
  readonly #checkPools: CheckPools;
  /** The checked pools, until a record changes that they may depend on. */
  #checkedPools: readonly Pool[] | undefined;
  #records = new LayeredMap<string, RecordValue>();
  #pools: readonly Pool[] = [];
  #reservations: readonly Reservation[] = [];
  #nodes: readonly Node[] = [];
  #blocks = new BlockList();
  /** Affinities by the owner's key prefix, in the order of their blocks. */
  #affinities = new LayeredMap<string, readonly Affinity[]>();
  /** Affinities of blocks that may have a free address. */
  #usableAffinities = new LayeredMap<string, readonly Affinity[]>();
  /** Keys of all endpoints. */
  #endpoints = new SortedList(TEXT_ORDER);
  /** Keys of other writers' endpoints. */
  #foreignEndpoints = new SortedList(TEXT_ORDER);
  /** Keys of endpoints by a hash of the container's ID, which takes a fraction of the memory of the ID. */
  #ofContainers = new LayeredMap<number, readonly string[]>();
  /** Sessions by the name of the node. */
  #sessions = new LayeredMap<string, SeenSession>();
  /** Names of the nodes that have an address, once for their record and once for their session, by {@link addressKey}. */
  #lessees = new LayeredMap<bigint, readonly string[]>();
  #unreadable = new LayeredMap<string, UnreadableRecord>();
  #unreadableBlocks = new SortedList(UNREADABLE_BLOCKS);
  /** When the epoch was first seen. */
  #epochSinceMs = 0;

  /**
   * @param showsAllBefore - whether all commits before the last write of the key's record are applied
   * @param monotonicMs - the monotonic clock, in milliseconds. Default: it stands still
   * @param checkPools - Default: pools are as stored
   */
  constructor(
    keys: RecordKeys,
    showsAllBefore: (key: string) => boolean,
    monotonicMs = (): number => 0,
    checkPools: CheckPools = (_, pools) => pools,
  ) {
    this.keys = keys;
    this.#showsAllBefore = showsAllBefore;
    this.#monotonicMs = monotonicMs;
    this.#checkPools = checkPools;
  }

  /**
   * A snapshot that shows these records and its own changes. This one must not change while the clone is in use.
   * @param showsAllBefore - as for the constructor
   */
  clone(showsAllBefore: (key: string) => boolean): Snapshot {
    const clone = new Snapshot(this.keys, showsAllBefore, this.#monotonicMs, this.#checkPools);
    clone.#records = new LayeredMap(this.#records);
    clone.#pools = this.#pools;
    clone.#reservations = this.#reservations;
    clone.#nodes = this.#nodes;
    clone.#blocks = this.#blocks;
    clone.#affinities = new LayeredMap(this.#affinities);
    clone.#usableAffinities = new LayeredMap(this.#usableAffinities);
    clone.#endpoints = this.#endpoints;
    clone.#foreignEndpoints = this.#foreignEndpoints;
    clone.#ofContainers = new LayeredMap(this.#ofContainers);
    clone.#sessions = new LayeredMap(this.#sessions);
    clone.#epochSinceMs = this.#epochSinceMs;
    clone.#lessees = new LayeredMap(this.#lessees);
    clone.#unreadable = new LayeredMap(this.#unreadable);
    clone.#unreadableBlocks = this.#unreadableBlocks;
    return clone;
  }

  /** The record of a key. */
  get(key: string): RecordValue | undefined {
    return this.#records.get(key);
  }

  set(key: string, record: RecordValue): void {
    const before = this.#records.get(key);
    if (before && before.kind !== record.kind) this.delete(key);
    if (!before) this.#clearUnreadable(key);
    this.#records.set(key, record);
    this.#checkedPools = undefined;
    switch (record.kind) {
      case 'pool':
        this.#pools = withItem(this.#pools, record.value, compareNames);
        break;
      case 'reservation':
        this.#reservations = withItem(this.#reservations, record.value, compareNames);
        break;
      case 'node':
        if (before?.kind === 'node') this.#unclaim(before.value.name, ownKeys(before.value));
        this.#claim(record.value.name, ownKeys(record.value));
        this.#nodes = withItem(this.#nodes, record.value, compareNames);
        break;
      case 'block':
        this.#listBlock(record.value, before?.kind === 'block' ? before.value : undefined);
        break;
      case 'affinity':
        this.#listAffinity(record.value);
        break;
      case 'endpoint':
      case 'foreignEndpoint':
        if (before?.kind === 'endpoint' || before?.kind === 'foreignEndpoint') this.#unlistContainers(key, before);
        this.#listEndpoint(key, record);
        break;
      case 'nodeSession':
        if (before?.kind === 'nodeSession') this.#unclaim(before.value.name, claimedKeys(before.value));
        this.#listSession(record.value);
        break;
      case 'storeEpoch':
        if (before?.kind !== 'storeEpoch' || before.value.id !== record.value.id)
          this.#epochSinceMs = this.#monotonicMs();
        break;
      case 'handle':
      case 'config':
      case 'clusterInformation':
      case 'requestPolicies':
      case 'revokedCertificates':
    }
  }

  /** Replaces a record by an unreadable one. */
  setUnreadable(record: UnreadableRecord): void {
    this.delete(record.key);
    this.#unreadable.set(record.key, record);
    if (isUnreadableBlock(record)) this.#unreadableBlocks = this.#unreadableBlocks.with(record);
  }

  /** Removes a record, readable or not. */
  delete(key: string): void {
    this.#clearUnreadable(key);
    this.#checkedPools = undefined;
    const record = this.#records.get(key);
    if (!record) return;
    this.#records.delete(key);
    switch (record.kind) {
      case 'pool':
        this.#pools = withoutItem(this.#pools, record.value, compareNames);
        break;
      case 'reservation':
        this.#reservations = withoutItem(this.#reservations, record.value, compareNames);
        break;
      case 'node':
        this.#unclaim(record.value.name, ownKeys(record.value));
        this.#nodes = withoutItem(this.#nodes, record.value, compareNames);
        break;
      case 'block':
        this.#blocks = this.#blocks.without(record.value);
        this.#updateUsable(record.value.owner, record.value.prefix);
        break;
      case 'affinity':
        this.#unlistAffinity(record.value);
        break;
      case 'endpoint':
      case 'foreignEndpoint':
        this.#endpoints = this.#endpoints.without(key);
        this.#foreignEndpoints = this.#foreignEndpoints.without(key);
        this.#unlistContainers(key, record);
        break;
      case 'nodeSession':
        this.#sessions.delete(record.value.name);
        this.#unclaim(record.value.name, claimedKeys(record.value));
        break;
      case 'handle':
      case 'config':
      case 'clusterInformation':
      case 'requestPolicies':
      case 'revokedCertificates':
      case 'storeEpoch':
    }
  }

  #clearUnreadable(key: string): void {
    const record = this.#unreadable.get(key);
    if (!record) return;
    this.#unreadable.delete(key);
    if (isUnreadableBlock(record)) this.#unreadableBlocks = this.#unreadableBlocks.without(record.name.prefix);
  }

  #listBlock(block: Block, before: Block | undefined): void {
    const { owner, prefix } = block;
    this.#blocks = this.#blocks.with(block, owner && this.affinity(owner, prefix));
    const isSame = before && sameOwner(before.owner, owner) && hasFreeOrCooling(before) === hasFreeOrCooling(block);
    if (isSame) return;
    this.#updateUsable(before?.owner, prefix);
    this.#updateUsable(owner, prefix);
  }

  #listAffinity(affinity: Affinity): void {
    const owner = this.keys.affinitiesOf(affinity.owner);
    this.#affinities.set(owner, withItem(this.#affinities.get(owner) ?? [], affinity, compareBlocks));
    this.#updateUsable(affinity.owner, affinity.block);
    this.#relistBlock(affinity.block);
  }

  #unlistAffinity(affinity: Affinity): void {
    const owner = this.keys.affinitiesOf(affinity.owner);
    for (const affinities of [this.#affinities, this.#usableAffinities]) {
      const rest = withoutItem(affinities.get(owner) ?? [], affinity, compareBlocks);
      if (rest.length > 0) affinities.set(owner, rest);
      else affinities.delete(owner);
    }
    this.#relistBlock(affinity.block);
  }

  /** Evaluates again whether a block lacks an affinity. */
  #relistBlock(prefix: Prefix): void {
    const block = this.block(prefix);
    if (block) this.#blocks = this.#blocks.with(block, block.owner && this.affinity(block.owner, prefix));
  }

  /** Adds an owner's affinity to the usable ones, or removes it. */
  #updateUsable(owner: BlockOwner | undefined, block: Prefix): void {
    const affinity = owner && this.affinity(owner, block);
    if (!affinity) return;
    const ownerKey = this.keys.affinitiesOf(owner);
    const known = this.#usableAffinities.get(ownerKey) ?? [];
    const change = isExhausted(affinity, this.block(block)) ? withoutItem : withItem;
    this.#usableAffinities.set(ownerKey, change(known, affinity, compareBlocks));
  }

  #listEndpoint(key: string, record: EndpointRecord): void {
    if (this.#endpoints.get(key) === undefined) this.#endpoints = this.#endpoints.with(key);
    if (record.kind === 'foreignEndpoint') this.#foreignEndpoints = this.#foreignEndpoints.with(key);
    for (const hash of containerIdsOf(record).map(hashOf)) {
      const known = this.#ofContainers.get(hash) ?? [];
      if (!known.includes(key)) this.#ofContainers.set(hash, [...known, key]);
    }
  }

  #listSession(session: NodeSession): void {
    const before = this.#sessions.get(session.name);
    const nowMs = this.#monotonicMs();
    const isUnchanged = before?.session.revision === session.revision;
    const isSameReport = before?.session.reportedAtMs === session.reportedAtMs;
    this.#sessions.set(session.name, {
      session,
      sinceMs: before && isUnchanged ? before.sinceMs : nowMs,
      displacedSinceMs: new Map(
        session.displaced.map(({ bootId }) => [bootId, before?.displacedSinceMs.get(bootId) ?? nowMs]),
      ),
      reportedSinceMs: before && isSameReport ? before.reportedSinceMs : nowMs,
    });
    this.#claim(session.name, claimedKeys(session));
  }

  #claim(name: string, keys: Iterable<bigint>): void {
    for (const key of keys) this.#lessees.set(key, [...(this.#lessees.get(key) ?? []), name]);
  }

  /** Reverts one {@link #claim}. */
  #unclaim(name: string, keys: Iterable<bigint>): void {
    for (const key of keys) {
      const names = this.#lessees.get(key) ?? [];
      const rest = names.toSpliced(names.indexOf(name), 1);
      if (rest.length > 0) this.#lessees.set(key, rest);
      else this.#lessees.delete(key);
    }
  }

  #unlistContainers(key: string, record: EndpointRecord): void {
    for (const hash of containerIdsOf(record).map(hashOf)) {
      const rest = (this.#ofContainers.get(hash) ?? []).filter((known) => known !== key);
      if (rest.length > 0) this.#ofContainers.set(hash, rest);
      else this.#ofContainers.delete(hash);
    }
  }

  showsAllBefore(record: RecordValue): boolean {
    return this.#showsAllBefore(this.keys.of(record));
  }

  pools(): readonly Pool[] {
    this.#checkedPools ??= this.#checkPools(this, this.#pools);
    return this.#checkedPools;
  }

  pool(name: string): Pool | undefined {
    const pool = this.#recordOf('pool', this.keys.pool(name))?.value;
    return pool && this.pools().find((checked) => checked.name === name);
  }

  block(prefix: Prefix): Block | undefined {
    return this.#recordOf('block', this.keys.block(prefix))?.value;
  }

  blocksIn(prefix: Prefix): Iterable<Block> {
    return this.#blocks.within(prefix);
  }

  blockStatsIn(prefix: Prefix): BlockStats {
    return this.#blocks.statsWithin(prefix);
  }

  blocksWithRoomIn(prefix: Prefix): Iterable<Block> {
    return this.#blocks.within(prefix, 'withRoom');
  }

  idleBlocksIn(prefix: Prefix): Iterable<Block> {
    return this.#blocks.within(prefix, 'idle');
  }

  blocksWithoutAffinityIn(prefix: Prefix): Iterable<Block> {
    return this.#blocks.within(prefix, 'withoutAffinity');
  }

  consecutiveBlocks(first: Prefix): number {
    return this.#blocks.consecutiveFrom(first);
  }

  affinitiesOf(owner: BlockOwner): readonly Affinity[] {
    return this.#affinities.get(this.keys.affinitiesOf(owner)) ?? [];
  }

  usableAffinitiesOf(owner: BlockOwner): readonly Affinity[] {
    return this.#usableAffinities.get(this.keys.affinitiesOf(owner)) ?? [];
  }

  affinity(owner: BlockOwner, block: Prefix): Affinity | undefined {
    return this.#recordOf('affinity', this.keys.affinity(owner, block))?.value;
  }

  handle(id: string): Handle | undefined {
    return this.#recordOf('handle', this.keys.handle(id))?.value;
  }

  endpoint(key: EndpointKey): Endpoint | undefined {
    return this.#recordOf('endpoint', this.keys.endpoint(key))?.value;
  }

  config(): IpamConfig | undefined {
    return this.#recordOf('config', this.keys.config)?.value;
  }

  isLocked(): boolean {
    return this.#recordOf('clusterInformation', this.keys.clusterInformation)?.value.isLocked ?? false;
  }

  reservations(): readonly Reservation[] {
    return this.#reservations;
  }

  reservation(name: string): Reservation | undefined {
    return this.#recordOf('reservation', this.keys.reservation(name))?.value;
  }

  requestPolicies(): RequestPolicies {
    return this.#recordOf('requestPolicies', this.keys.requestPolicies)?.value ?? [];
  }

  revokedCertificates(): readonly RevokedCertificate[] {
    return this.#recordOf('revokedCertificates', this.keys.revokedCertificates)?.value ?? [];
  }

  nodes(): readonly Node[] {
    return this.#nodes;
  }

  node(name: string): Node | undefined {
    return this.#recordOf('node', this.keys.node(name))?.value;
  }

  session(nodeName: string): NodeSession | undefined {
    return this.#sessions.get(nodeName)?.session;
  }

  *sessions(): Iterable<NodeSession> {
    for (const { session } of this.#sessions.values()) yield session;
  }

  sessionAgeMs(nodeName: string): number {
    return this.#ageMs(this.#sessions.get(nodeName)?.sinceMs);
  }

  displacedAgeMs(nodeName: string, bootId: string): number {
    return this.#ageMs(this.#sessions.get(nodeName)?.displacedSinceMs.get(bootId));
  }

  reportAgeMs(nodeName: string): number {
    return this.#ageMs(this.#sessions.get(nodeName)?.reportedSinceMs);
  }

  lessee(address: Address, exceptNode?: string): string | undefined {
    return this.#lessees.get(addressKey(address))?.find((name) => name !== exceptNode);
  }

  epoch(): StoreEpoch | undefined {
    return this.#recordOf('storeEpoch', this.keys.epoch)?.value;
  }

  epochAgeMs(): number {
    return this.#ageMs(this.#epochSinceMs);
  }

  #ageMs(sinceMs: number | undefined): number {
    return sinceMs === undefined ? 0 : this.#monotonicMs() - sinceMs;
  }

  *handles(): Iterable<Handle> {
    for (const record of this.#records.values()) if (record.kind === 'handle') yield record.value;
  }

  *affinities(): Iterable<Affinity> {
    for (const ofOwner of this.#affinities.values()) yield* ofOwner;
  }

  endpoints(): Iterable<StoredEndpoint> {
    return this.endpointsAfter('');
  }

  *endpointsAfter(after: string): Iterable<StoredEndpoint> {
    for (const record of this.allEndpointsAfter(after)) if (record.kind === 'endpoint') yield record;
  }

  *allEndpointsAfter(after: string): Iterable<EndpointRecord> {
    const first = this.keys.endpoints + after;
    for (const record of this.#endpointsAt(this.#endpoints.from(first)))
      if (this.keys.endpoint(record.key) !== first) yield record;
  }

  *foreignEndpoints(): Iterable<StoredForeignEndpoint> {
    for (const record of this.#endpointsAt(this.#foreignEndpoints.from('')))
      if (record.kind === 'foreignEndpoint') yield record;
  }

  foreignEndpoint(key: EndpointKey): ForeignEndpoint | undefined {
    return this.#recordOf('foreignEndpoint', this.keys.endpoint(key))?.value;
  }

  *endpointsOfContainer(containerId: string): Iterable<EndpointRecord> {
    for (const record of this.#endpointsAt(this.#ofContainers.get(hashOf(containerId)) ?? []))
      if (containerIdsOf(record).includes(containerId)) yield record;
  }

  *#endpointsAt(keys: Iterable<string>): Iterable<EndpointRecord> {
    for (const key of keys) {
      const record = this.get(key);
      if (record?.kind === 'endpoint' || record?.kind === 'foreignEndpoint') yield record;
    }
  }

  unreadable(): Iterable<UnreadableRecord> {
    return this.#unreadable.values();
  }

  unreadableRecord(name: RecordName): UnreadableRecord | undefined {
    return this.#unreadable.get(this.keys.ofName(name));
  }

  unreadableBlock(prefix: Prefix): UnreadableBlock | undefined {
    const [within] = this.#unreadableBlocks.from(prefix);
    if (within && prefixContains(prefix, within.name.prefix)) return within;
    for (const range of rangesAround(prefix)) {
      const around = this.#unreadableBlocks.get(range);
      if (around) return around;
    }
    return undefined;
  }

  #recordOf<Kind extends RecordValue['kind']>(kind: Kind, key: string): RecordOf<Kind> | undefined {
    const record = this.#records.get(key);
    return record && isOfKind(record, kind) ? record : undefined;
  }
}

/**
 * The pools with their findings ({@link Pool.notAllocatable}).
 * @param pools - the view's pools as stored; the view's own methods for pools need the result
 */
export type CheckPools = (view: View, pools: readonly Pool[]) => readonly Pool[];

/** Every IPv6 address has a larger key than every IPv4 address. */
function addressKey({ family, value }: Address): bigint {
  return family === 4 ? value : value + 0x1_0000_0000n;
}

/** The addresses of the node itself. */
function ownKeys({ ipv4, ipv6, tunnels }: Node): bigint[] {
  return [ipv4, ipv6, ...tunnels.values()].flatMap((own) => (own ? [addressKey(own.address)] : []));
}

function claimedKeys({ leases, conflicts }: NodeSession): ReadonlySet<bigint> {
  return new Set([...leases, ...conflicts].map(({ address }) => addressKey(address)));
}

function isOfKind<Kind extends RecordValue['kind']>(record: RecordValue, kind: Kind): record is RecordOf<Kind> {
  return record.kind === kind;
}

function compareBlocks(a: Affinity, b: Affinity): number {
  return comparePrefixes(a.block, b.block);
}

/** A list in order with an item, which replaces an equal one. */
function withItem<Item>(items: readonly Item[], item: Item, compare: (a: Item, b: Item) => number): readonly Item[] {
  const index = lastIndex(items, (known) => compare(known, item) <= 0);
  const known = items[index];
  const isReplaced = known !== undefined && compare(known, item) === 0;
  return isReplaced ? items.with(index, item) : items.toSpliced(index + 1, 0, item);
}

/** A list in order without the item that equals another one. */
function withoutItem<Item>(items: readonly Item[], item: Item, compare: (a: Item, b: Item) => number): readonly Item[] {
  const index = lastIndex(items, (known) => compare(known, item) <= 0);
  const known = items[index];
  return known !== undefined && compare(known, item) === 0 ? items.toSpliced(index, 1) : items;
}

/** The containers of an endpoint, and of those whose key it took over. */
function containerIdsOf(record: EndpointRecord): string[] {
  if (record.kind === 'foreignEndpoint') return [record.value.containerId];
  const { attachment, replaced = [] } = record.value;
  const former = replaced.map((one) =>
    one.kind === 'endpoint' ? one.value.attachment.containerId : one.value.containerId,
  );
  return [...new Set([attachment.containerId, ...former])];
}

/** Not below 0, and small enough for V8 to store without a heap object. */
function hashOf(text: string): number {
  let hash = 0;
  for (let index = 0; index < text.length; index++) hash = (Math.imul(hash, 31) + text.charCodeAt(index)) | 0;
  return hash & 0x3fff_ffff;
}
