import { comparePrefixes, formatPrefix, prefixContains, prefixSize, type Prefix } from '@podwire/shared/net/prefix';
import { compareNames, compareTexts } from '@podwire/shared/words/order';

import { recordNameText } from '../absence.js';
import {
  addStats,
  isIdle,
  isWithoutAffinity,
  isExhausted,
  hasFreeOrCooling,
  EMPTY_STATS,
  blockStats,
  type BlockStats,
} from '../block-stats.js';
import type { Affinity, Block, BlockOwner, Handle } from '../block.js';
import type { IpamConfig, Reservation } from '../config.js';
import type { AnyEndpoint, Endpoint, EndpointKey, ForeignEndpoint } from '../endpoint.js';
import type { HistoryEntry } from '../history.js';
import type { Node } from '../node.js';
import type { Pool } from '../pool.js';
import type { RequestPolicies } from '../request-policy.js';
import type {
  Change,
  Decision,
  EndpointRecord,
  RecordName,
  RecordValue,
  StoredEndpoint,
  StoredForeignEndpoint,
  UnreadableBlock,
  UnreadableRecord,
  View,
} from '../view.js';

/** A view for tests of pure decisions: a map that each method scans completely. */
export class MapView implements View {
  readonly records = new Map<string, RecordValue>();
  /** Records that cannot be read. */
  readonly setAside: UnreadableRecord[] = [];
  /** The history that decisions wrote, in order. */
  readonly history: HistoryEntry[] = [];
  /** Whether the view may lack changes of other replicas. */
  isBehind = false;

  constructor(records: readonly RecordValue[] = []) {
    for (const record of records) this.put(record);
  }

  put(record: RecordValue): void {
    this.records.set(keyOf(record), record);
  }

  /** Commits a decision. @returns its outcome */
  apply<Outcome>({ changes, outcome }: Decision<Outcome>): Outcome {
    for (const change of changes) this.#applyChange(change);
    return outcome;
  }

  showsAllBefore(): boolean {
    return !this.isBehind;
  }

  all<Kind extends RecordValue['kind']>(kind: Kind): Extract<RecordValue, { kind: Kind }>[] {
    return [...this.records.values()].filter((record): record is Extract<RecordValue, { kind: Kind }> => {
      return record.kind === kind;
    });
  }

  /** All records, in an order independent of their writes. */
  snapshot(): readonly (readonly [string, RecordValue])[] {
    return [...this.records].sort(([a], [b]) => compareTexts(a, b));
  }

  pools(): readonly Pool[] {
    return sortByName(this.all('pool').map(({ value }) => value));
  }

  pool(name: string): Pool | undefined {
    return this.pools().find((pool) => pool.name === name);
  }

  blocks(): Block[] {
    return this.all('block')
      .map(({ value }) => value)
      .sort((a, b) => comparePrefixes(a.prefix, b.prefix));
  }

  block(prefix: Prefix): Block | undefined {
    return this.blocks().find((block) => comparePrefixes(block.prefix, prefix) === 0);
  }

  blocksIn(prefix: Prefix): Iterable<Block> {
    return this.blocks().filter((block) => prefixContains(prefix, block.prefix));
  }

  blockStatsIn(prefix: Prefix): BlockStats {
    return [...this.blocksIn(prefix)].map(blockStats).reduce(addStats, EMPTY_STATS);
  }

  blocksWithRoomIn(prefix: Prefix): Iterable<Block> {
    return [...this.blocksIn(prefix)].filter(hasFreeOrCooling);
  }

  idleBlocksIn(prefix: Prefix): Iterable<Block> {
    return [...this.blocksIn(prefix)].filter(isIdle);
  }

  blocksWithoutAffinityIn(prefix: Prefix): Iterable<Block> {
    const affinityOf = ({ owner, prefix: of }: Block) => owner && this.affinity(owner, of);
    return [...this.blocksIn(prefix)].filter((block) => isWithoutAffinity(block, affinityOf(block)));
  }

  consecutiveBlocks(first: Prefix): number {
    const values = new Set(
      this.blocks().flatMap((block) =>
        block.prefix.family === first.family && block.prefix.length === first.length ? [block.prefix.value] : [],
      ),
    );
    const isThere = (index: number) => values.has(first.value + BigInt(index) * prefixSize(first));
    let count = 0;
    while (isThere(count)) count++;
    return count;
  }

  affinitiesOf(owner: BlockOwner): readonly Affinity[] {
    return this.all('affinity')
      .map(({ value }) => value)
      .filter((affinity) => affinity.owner.kind === owner.kind && affinity.owner.name === owner.name)
      .sort((a, b) => comparePrefixes(a.block, b.block));
  }

  usableAffinitiesOf(owner: BlockOwner): readonly Affinity[] {
    return this.affinitiesOf(owner).filter((affinity) => !isExhausted(affinity, this.block(affinity.block)));
  }

  affinity(owner: BlockOwner, block: Prefix): Affinity | undefined {
    return this.affinitiesOf(owner).find((affinity) => comparePrefixes(affinity.block, block) === 0);
  }

  handle(id: string): Handle | undefined {
    return this.all('handle').find(({ value }) => value.id === id)?.value;
  }

  endpoint({ namespace, name }: EndpointKey): Endpoint | undefined {
    return this.all('endpoint').find(({ key }) => key.namespace === namespace && key.name === name)?.value;
  }

  config(): IpamConfig | undefined {
    return this.all('config')[0]?.value;
  }

  isLocked(): boolean {
    return this.all('clusterInformation').some(({ value }) => value.isLocked);
  }

  reservations(): readonly Reservation[] {
    return sortByName(this.all('reservation').map(({ value }) => value));
  }

  reservation(name: string): Reservation | undefined {
    return this.reservations().find((reservation) => reservation.name === name);
  }

  requestPolicies(): RequestPolicies {
    return this.all('requestPolicies')[0]?.value ?? [];
  }

  nodes(): readonly Node[] {
    return sortByName(this.all('node').map(({ value }) => value));
  }

  node(name: string): Node | undefined {
    return this.nodes().find((node) => node.name === name);
  }

  handles(): Handle[] {
    return this.all('handle').map(({ value }) => value);
  }

  affinities(): Affinity[] {
    return this.all('affinity').map(({ value }) => value);
  }

  endpoints(): StoredEndpoint[] {
    return this.all('endpoint').map(({ key, value }) => ({ key, value }));
  }

  endpointsAfter(after: string): Iterable<StoredEndpoint> {
    return [...this.allEndpointsAfter(after)].flatMap((record) => (record.kind === 'endpoint' ? [record] : []));
  }

  allEndpointsAfter(after: string): Iterable<EndpointRecord> {
    const text = ({ key }: EndpointRecord) => `${key.namespace}/${key.name}`;
    return [...this.all('endpoint'), ...this.all('foreignEndpoint')]
      .filter((endpoint) => text(endpoint) > after)
      .sort((a, b) => compareTexts(text(a), text(b)));
  }

  foreignEndpoints(): StoredForeignEndpoint[] {
    return this.all('foreignEndpoint').map(({ key, value }) => ({ key, value }));
  }

  foreignEndpoint({ namespace, name }: EndpointKey): ForeignEndpoint | undefined {
    return this.all('foreignEndpoint').find(({ key }) => key.namespace === namespace && key.name === name)?.value;
  }

  endpointsOfContainer(containerId: string): EndpointRecord[] {
    const containerOf = (one: AnyEndpoint) =>
      one.kind === 'endpoint' ? one.value.attachment.containerId : one.value.containerId;
    const replacedBy = (one: AnyEndpoint) => (one.kind === 'endpoint' ? (one.value.replaced ?? []) : []);
    return [...this.allEndpointsAfter('')].filter((one) =>
      [one, ...replacedBy(one)].some((each) => containerOf(each) === containerId),
    );
  }

  unreadable(): Iterable<UnreadableRecord> {
    return this.setAside;
  }

  unreadableRecord(name: RecordName): UnreadableRecord | undefined {
    return this.setAside.find((record) => recordNameText(record.name) === recordNameText(name));
  }

  unreadableBlock(prefix: Prefix): UnreadableBlock | undefined {
    const isBlock = (record: UnreadableRecord): record is UnreadableBlock => record.name.kind === 'block';
    const blocks = this.setAside.filter(isBlock).sort((a, b) => comparePrefixes(a.name.prefix, b.name.prefix));
    const within = blocks.find(({ name }) => prefixContains(prefix, name.prefix));
    const mayBeBlock = ({ name }: UnreadableBlock): boolean => prefixSize(name.prefix) <= 4096n;
    return within ?? blocks.find((block) => prefixContains(block.name.prefix, prefix) && mayBeBlock(block));
  }

  #applyChange(change: Change): void {
    if (change.type === 'log') this.history.push(change.entry);
    if (change.type === 'put') this.put(change.record);
    if (change.type === 'delete') this.records.delete(keyOf(change.record));
  }
}

function sortByName<Named extends { readonly name: string }>(values: Named[]): Named[] {
  return values.sort(compareNames);
}

/** A unique key of a record. */
export function keyOf(record: RecordValue): string {
  switch (record.kind) {
    case 'pool':
      return `pool ${record.value.name}`;
    case 'block':
      return `block ${formatPrefix(record.value.prefix)}`;
    case 'affinity':
      return `affinity ${record.value.owner.kind}:${record.value.owner.name} ${formatPrefix(record.value.block)}`;
    case 'handle':
      return `handle ${record.value.id}`;
    case 'endpoint':
    case 'foreignEndpoint':
      return `endpoint ${record.key.namespace}/${record.key.name}`;
    case 'config':
    case 'clusterInformation':
      return record.kind;
    case 'requestPolicies':
      return 'requestPolicies';
    case 'reservation':
      return `reservation ${record.value.name}`;
    case 'node':
      return `node ${record.value.name}`;
  }
}
