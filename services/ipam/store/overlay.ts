import { comparePrefixes, prefixContains, prefixSize, type Prefix } from '@podwire/shared/net/prefix';

import { addTallies, subtractTallies, tallyOf, type BlockTally } from '../allocator/block-tally.js';
import { formatEndpointKey } from '../allocator/endpoint.js';
import type {
  Affinity,
  Block,
  BlockOwner,
  Endpoint,
  Handle,
  IpamConfig,
  Node,
  Pool,
  Reservation,
} from '../allocator/records.js';
import type {
  EndpointKey,
  RecordValue,
  StoredEndpoint,
  StoredForeignEndpoint,
  RecordName,
  UnreadableBlock,
  UnreadableRecord,
  View,
} from '../allocator/view.js';
import type { RequestPolicies } from '../allocator/request-policy/policy.js';
import { isIdle, isLoose, isSpent, mayGive } from '../allocator/spent.js';
import { sortAffinities, sortByName } from './image.js';
import type { Mirror } from './mirror.js';
import type { RecordKeys } from './record/keys.js';

/** A record that the folded decisions name: what they have made of it, and whether they write it. */
export interface Touched {
  /** Undefined when there is to be no record. */
  readonly record: RecordValue | undefined;
  readonly written: boolean;
  /** Key of the record from whose stored form a new one takes over what is not known here. */
  readonly likeKey?: string;
}

type Kind = RecordValue['kind'];

/** The mirror with some records in place of its own. */
export class Overlay implements View {
  protected readonly mirror: Mirror;
  protected readonly keys: RecordKeys;
  readonly #touched = new Map<string, Touched>();
  /** The keys of each kind. */
  readonly #keysOf = new Map<Kind, Set<string>>();
  /** The blocks that name an owner, or did before, by the owner and their keys. */
  readonly #blocksOf = new Map<string, Map<string, Prefix>>();
  /** Blocks of the mirror that are named here, so that they are listed from here. */
  readonly #hiddenBlocks = new Set<Block>();

  constructor(mirror: Mirror, keys: RecordKeys) {
    this.mirror = mirror;
    this.keys = keys;
  }

  #note(key: string, { owner, prefix }: Block): void {
    if (!owner) return;
    const text = ownerText(owner);
    const blocks = this.#blocksOf.get(text) ?? new Map<string, Prefix>();
    this.#blocksOf.set(text, blocks.set(key, prefix));
  }

  protected get touched(): ReadonlyMap<string, Touched> {
    return this.#touched;
  }

  /** Shows the record in place of what the mirror has under the key. */
  protected touch(key: string, kind: Kind, touched: Touched): void {
    const stored = this.#touched.has(key) ? undefined : this.mirror.stored(key)?.record;
    if (stored?.kind === 'block') {
      this.#hiddenBlocks.add(stored.value);
      this.#note(key, stored.value);
    }
    if (touched.record?.kind === 'block') this.#note(key, touched.record.value);
    this.#touched.set(key, touched);
    const keys = this.#keysOf.get(kind) ?? new Set();
    this.#keysOf.set(kind, keys.add(key));
  }

  pools(): readonly Pool[] {
    return this.#listed({
      kind: 'pool',
      stored: this.mirror.view.pools(),
      changed: this.#touchedOf('pool'),
      keyOf: (name) => this.keys.pool(name),
    });
  }

  pool(name: string): Pool | undefined {
    const touched = this.touched.get(this.keys.pool(name));
    if (!touched) return this.mirror.view.pool(name);
    return touched.record?.kind === 'pool' ? touched.record.value : undefined;
  }

  /** Of a pool that is written here nothing is known before the commit. */
  showsAllBefore(record: RecordValue): boolean {
    return !this.touched.get(this.keys.of(record))?.written && this.mirror.view.showsAllBefore(record);
  }

  block(prefix: Prefix): Block | undefined {
    const touched = this.touched.get(this.keys.block(prefix));
    if (!touched) return this.mirror.view.block(prefix);
    return touched.record?.kind === 'block' ? touched.record.value : undefined;
  }

  *blocksIn(prefix: Prefix): Generator<Block, void, void> {
    yield* this.#merged(this.mirror.view.blocksIn(prefix), this.#changedIn(prefix));
  }

  tallyBlocks(prefix: Prefix): BlockTally {
    let tally = this.mirror.view.tallyBlocks(prefix);
    for (const block of this.#hiddenBlocks)
      if (prefixContains(prefix, block.prefix)) tally = subtractTallies(tally, tallyOf(block));
    return this.#changedIn(prefix).map(tallyOf).reduce(addTallies, tally);
  }

  roomyBlocksIn(prefix: Prefix): Iterable<Block> {
    return this.#merged(this.mirror.view.roomyBlocksIn(prefix), this.#changedIn(prefix).filter(mayGive));
  }

  idleBlocksIn(prefix: Prefix): Iterable<Block> {
    return this.#merged(this.mirror.view.idleBlocksIn(prefix), this.#changedIn(prefix).filter(isIdle));
  }

  looseBlocksIn(prefix: Prefix): Iterable<Block> {
    const judged = new Set(this.#changedIn(prefix));
    for (const key of this.#keysOf.get('affinity') ?? []) {
      const name = this.keys.parse(key);
      const block =
        name?.kind === 'affinity' && prefixContains(prefix, name.block) ? this.block(name.block) : undefined;
      if (block) judged.add(block);
    }
    const isLooseHere = (block: Block): boolean =>
      isLoose(block, block.owner && this.affinity(block.owner, block.prefix));
    const kept = without(this.mirror.view.looseBlocksIn(prefix), judged);
    return this.#merged(kept, [...judged].filter(isLooseHere).sort(byPrefix));
  }

  consecutiveBlocks(first: Prefix): number {
    const { view } = this.mirror;
    if (!this.#keysOf.has('block')) return view.consecutiveBlocks(first);
    const size = prefixSize(first);
    const deleted = [...this.#hiddenBlocks]
      .filter(({ prefix }) => prefix.family === first.family && prefix.length === first.length && !this.block(prefix))
      .map(({ prefix }) => prefix.value);
    for (let count = 0; ;) {
      const next = { ...first, value: first.value + BigInt(count) * size };
      if (!this.block(next)) return count;
      const end = next.value + BigInt(Math.max(1, view.consecutiveBlocks(next))) * size;
      const until = deleted.reduce((least, value) => (next.value < value && value < least ? value : least), end);
      count += Number((until - next.value) / size);
    }
  }

  /** The blocks that are named here, in order. */
  #changedIn(prefix: Prefix): Block[] {
    return [...this.#touchedOf('block')]
      .map(({ value }) => value)
      .filter((block) => prefixContains(prefix, block.prefix))
      .sort(byPrefix);
  }

  /** Both in order. */
  *#merged(stored: Iterable<Block>, changed: Block[]): Generator<Block, void, void> {
    for (const block of stored) {
      if (this.#hiddenBlocks.has(block)) continue;
      for (let [next] = changed; next && byPrefix(next, block) < 0; [next] = changed) {
        changed.shift();
        yield next;
      }
      yield block;
    }
    yield* changed;
  }

  affinitiesOf(owner: BlockOwner): readonly Affinity[] {
    const stored = this.mirror.view.affinitiesOf(owner);
    const kept = stored.filter(({ block }) => !this.touched.has(this.keys.affinity(owner, block)));
    const changed = [...this.#touchedOf('affinity')]
      .map(({ value }) => value)
      .filter((affinity) => affinity.owner.kind === owner.kind && affinity.owner.name === owner.name);
    return sortAffinities([...kept, ...changed]);
  }

  unspentAffinitiesOf(owner: BlockOwner): readonly Affinity[] {
    const stored = this.mirror.view.unspentAffinitiesOf(owner);
    const affinities = this.#keysOf.get('affinity');
    const blocks = this.#blocksOf.get(ownerText(owner));
    if (!affinities && !blocks) return stored;
    const kept = stored.filter(({ block }) => {
      const isChanged = affinities?.has(this.keys.affinity(owner, block)) ?? false;
      return !isChanged && !blocks?.has(this.keys.block(block));
    });
    const changed = new Map<string, Affinity>();
    for (const { value } of this.#touchedOf('affinity'))
      if (value.owner.kind === owner.kind && value.owner.name === owner.name)
        changed.set(this.keys.affinity(owner, value.block), value);
    for (const prefix of blocks?.values() ?? []) {
      const affinity = this.affinity(owner, prefix);
      if (affinity) changed.set(this.keys.affinity(owner, prefix), affinity);
    }
    const unspent = [...changed.values()].filter((affinity) => !isSpent(affinity, this.block(affinity.block)));
    return unspent.length === 0 ? kept : sortAffinities([...kept, ...unspent]);
  }

  affinity(owner: BlockOwner, block: Prefix): Affinity | undefined {
    const touched = this.touched.get(this.keys.affinity(owner, block));
    if (!touched) return this.mirror.view.affinity(owner, block);
    return touched.record?.kind === 'affinity' ? touched.record.value : undefined;
  }

  handle(id: string): Handle | undefined {
    const touched = this.touched.get(this.keys.handle(id));
    if (!touched) return this.mirror.view.handle(id);
    return touched.record?.kind === 'handle' ? touched.record.value : undefined;
  }

  endpoint(key: EndpointKey): Endpoint | undefined {
    const touched = this.touched.get(this.keys.endpoint(key));
    if (!touched) return this.mirror.view.endpoint(key);
    return touched.record?.kind === 'endpoint' ? touched.record.value : undefined;
  }

  config(): IpamConfig | undefined {
    const touched = this.touched.get(this.keys.config);
    if (!touched) return this.mirror.view.config();
    return touched.record?.kind === 'config' ? touched.record.value : undefined;
  }

  reservations(): readonly Reservation[] {
    return this.#listed({
      kind: 'reservation',
      stored: this.mirror.view.reservations(),
      changed: this.#touchedOf('reservation'),
      keyOf: (name) => this.keys.reservation(name),
    });
  }

  reservation(name: string): Reservation | undefined {
    const touched = this.touched.get(this.keys.reservation(name));
    if (!touched) return this.mirror.view.reservation(name);
    return touched.record?.kind === 'reservation' ? touched.record.value : undefined;
  }

  requestPolicies(): RequestPolicies {
    const touched = this.touched.get(this.keys.requestPolicies);
    if (!touched) return this.mirror.view.requestPolicies();
    return touched.record?.kind === 'requestPolicies' ? touched.record.value : [];
  }

  nodes(): readonly Node[] {
    return this.#listed({
      kind: 'node',
      stored: this.mirror.view.nodes(),
      changed: this.#touchedOf('node'),
      keyOf: (name) => this.keys.node(name),
    });
  }

  node(name: string): Node | undefined {
    const touched = this.touched.get(this.keys.node(name));
    if (!touched) return this.mirror.view.node(name);
    return touched.record?.kind === 'node' ? touched.record.value : undefined;
  }

  *handles(): Generator<Handle, void, void> {
    for (const handle of this.mirror.view.handles()) if (!this.touched.has(this.keys.handle(handle.id))) yield handle;
    for (const { value } of this.#touchedOf('handle')) yield value;
  }

  *affinities(): Generator<Affinity, void, void> {
    for (const affinity of this.mirror.view.affinities())
      if (!this.touched.has(this.keys.affinity(affinity.owner, affinity.block))) yield affinity;
    for (const { value } of this.#touchedOf('affinity')) yield value;
  }

  *endpoints(): Generator<StoredEndpoint, void, void> {
    for (const endpoint of this.mirror.view.endpoints())
      if (!this.touched.has(this.keys.endpoint(endpoint.key))) yield endpoint;
    yield* this.#touchedOf('endpoint');
  }

  *endpointsBehind(after: string): Generator<StoredEndpoint, void, void> {
    const changed = [...this.#touchedOf('endpoint')]
      .filter(({ key }) => formatEndpointKey(key) > after)
      .sort((a, b) => (formatEndpointKey(a.key) < formatEndpointKey(b.key) ? -1 : 1));
    for (const endpoint of this.mirror.view.endpointsBehind(after)) {
      if (this.touched.has(this.keys.endpoint(endpoint.key))) continue;
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
      if (!this.touched.get(this.keys.endpoint(endpoint.key))?.written) yield endpoint;
  }

  unreadable(): Iterable<UnreadableRecord> {
    return this.mirror.view.unreadable();
  }

  // What cannot be read cannot be written either, so nothing here is in its place.
  unreadableRecord(name: RecordName): UnreadableRecord | undefined {
    return this.mirror.view.unreadableRecord(name);
  }

  unreadableBlock(prefix: Prefix): UnreadableBlock | undefined {
    return this.mirror.view.unreadableBlock(prefix);
  }

  /** The records of one kind in the order of their names, those of the draft in place of the stored ones. */
  #listed<Named extends { readonly name: string }>({ kind, stored, changed, keyOf }: Listing<Named>): readonly Named[] {
    if (!this.#keysOf.has(kind)) return stored;
    const kept = stored.filter(({ name }) => !this.#touched.has(keyOf(name)));
    return sortByName([...kept, ...[...changed].map(({ value }) => value)]);
  }

  *#touchedOf<Wanted extends Kind>(kind: Wanted): Generator<Extract<RecordValue, { kind: Wanted }>> {
    for (const key of this.#keysOf.get(kind) ?? []) {
      const record = this.#touched.get(key)?.record;
      if (record && isKind(record, kind)) yield record;
    }
  }
}

function ownerText({ kind, name }: BlockOwner): string {
  return `${kind}:${name}`;
}

function byPrefix(a: Block, b: Block): number {
  return comparePrefixes(a.prefix, b.prefix);
}

function* without(blocks: Iterable<Block>, left: ReadonlySet<Block>): Generator<Block, void, void> {
  for (const block of blocks) if (!left.has(block)) yield block;
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
