import { comparePrefixes, prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import { formatEndpointKey } from '../allocator/endpoint.js';
import type {
  Affinity,
  Block,
  BlockOwner,
  Endpoint,
  Handle,
  HistoryEntry,
  IpamConfig,
  Node,
  Pool,
  Reservation,
} from '../allocator/records.js';
import type {
  Change,
  EndpointKey,
  RecordChange,
  RecordValue,
  StoredEndpoint,
  StoredForeignEndpoint,
  UnreadableRecord,
  View,
} from '../allocator/view.js';
import { sortAffinities, sortByName } from './image.js';
import type { Mirror, OwnWrite, Questioned } from './mirror.js';
import type { RecordKeys } from './record/keys.js';
import { encodeHistoryEntry } from './record/history.js';
import { serialize, writeRecord } from './record/record.js';
import type { Comparison, Transaction } from './store.js';

/** A record that the folded decisions name: what they have made of it, and whether they write it. */
interface Touched {
  /** Undefined when there is to be no record. */
  readonly record: RecordValue | undefined;
  readonly written: boolean;
  /** How many changes named it. */
  readonly changesCount: number;
}

/** A change with the key of its record. */
interface Keyed {
  readonly change: RecordChange;
  readonly key: string;
}

/** Estimates of the bytes of what one decision adds: a new record's, and an allocation's in its block. */
const NEW_RECORD_BYTES = 1500;
const ALLOCATION_BYTES = 500;

/** A transaction with what the mirror has to know of it afterwards. */
export interface DraftedTransaction {
  readonly transaction: Transaction;
  readonly writes: readonly OwnWrite[];
  readonly questioned: Questioned;
}

export interface DraftOptions {
  /**
   * Whether releases are marked, and allocations compared with the marks: where a transaction may be executed after its
   * sender was told of a failure.
   */
  readonly marksReleases: boolean;
}

/**
 * The mirror with the changes of the decisions folded so far: what the next decision of the same transaction sees. Lives
 * within one turn of the event loop, in which the mirror stands still.
 */
export class Draft implements View {
  readonly #mirror: Mirror;
  readonly #keys: RecordKeys;
  readonly #touched = new Map<string, Touched>();
  /** Blocks of the mirror that are named here, so that they are listed from here. */
  readonly #hiddenBlocks = new Set<Block>();
  readonly #history: HistoryEntry[] = [];
  /** By the key of the mark: when it was released, in epoch milliseconds. */
  readonly #released = new Map<string, number>();
  /** Keys of the marks. */
  readonly #unreleased = new Set<string>();
  readonly #marksReleases: boolean;
  #poolsCompared = false;
  #writtenCount = 0;
  #lastKeyed: { readonly changes: readonly Change[]; readonly keyed: readonly Keyed[] } = { changes: [], keyed: [] };

  constructor(mirror: Mirror, keys: RecordKeys, { marksReleases }: DraftOptions) {
    this.#mirror = mirror;
    this.#keys = keys;
    this.#marksReleases = marksReleases;
  }

  /** Whether there is something to commit. */
  get isEmpty(): boolean {
    return this.#touched.size === 0 && !this.#poolsCompared && this.#history.length === 0 && this.#released.size === 0;
  }

  /** Whether the transaction compares what the change rests on. */
  isCompared(change: Change): boolean {
    return namesRecord(change) || (change.type === 'release' && this.#marksReleases);
  }

  /**
   * How many operations the transaction has after these changes: comparisons or writes, whichever are more, as etcd counts
   * them against its limit.
   */
  operationsWith(changes: readonly Change[]): number {
    const keyed = this.#keyed(changes);
    const count = (type: Change['type']): number => changes.filter((change) => change.type === type).length;
    const fresh = keyed.filter(({ key }) => !this.#touched.has(key));
    const written = keyed.filter(({ change, key }) => change.type !== 'expect' && !this.#touched.get(key)?.written);
    const pools = this.#poolsCompared || count('expectPools') > 0 ? 1 : 0;
    // Each release is compared with its handle as well.
    const [compared, marked] = this.#marksReleases
      ? [this.#unreleased.size + count('expectUnreleased') + count('release'), this.#released.size + count('release')]
      : [0, 0];
    const comparisons = this.#touched.size + distinct(fresh) + pools + compared;
    return Math.max(comparisons, this.#writtenCount + distinct(written) + this.#history.length + count('log') + marked);
  }

  /** About how many bytes the transaction has after these changes. */
  bytesWith(changes: readonly Change[]): number {
    let bytes = NEW_RECORD_BYTES * (this.#history.length + this.#released.size + changes.length);
    for (const { change, key } of this.#keyed(changes))
      if (change.type === 'put' && !this.#touched.has(key)) bytes += this.#mirror.storedBytes(key);
    for (const [key, { record, written, changesCount }] of this.#touched)
      if (record && written)
        bytes += this.#mirror.storedBytes(key) + NEW_RECORD_BYTES + ALLOCATION_BYTES * changesCount;
    return bytes;
  }

  /**
   * Takes over a decision's changes, all or none.
   * @returns the keys of the records they name
   * @throws Failure STORE_CORRUPT when one would replace a record that cannot be read
   */
  fold(changes: readonly Change[]): readonly string[] {
    const keyed = this.#keyed(changes);
    for (const { key } of keyed) this.#mirror.stored(key);
    for (const change of changes) {
      if (change.type === 'expectPools') this.#poolsCompared = true;
      else if (change.type === 'log') this.#history.push(change.entry);
      else if (!namesRecord(change)) this.#mark(change);
    }
    return keyed.map((each) => {
      this.#touch(each);
      return each.key;
    });
  }

  /** What to commit: every record that was named is compared with the revision the decisions saw. */
  build(): DraftedTransaction {
    const comparisons: Comparison[] = [];
    const puts: Transaction['puts'][number][] = [];
    const deletes: string[] = [];
    const writes: OwnWrite[] = [];
    for (const [key, { record, written }] of this.#touched) {
      const modRevision = this.#mirror.modRevision(key);
      comparisons.push({ type: 'record', key, modRevision });
      if (!written) continue;
      const made = record && writeRecord(record, this.#mirror.stored(key));
      const value = made && Buffer.from(made.text);
      if (value) puts.push({ key, value });
      else if (modRevision !== 0) deletes.push(key);
      writes.push({ key, decoded: made?.decoded, bytes: value?.length ?? 0 });
    }
    for (const entry of this.#history)
      puts.push({ key: this.#keys.historyEntry(entry), value: serialize(encodeHistoryEntry(entry)) });
    for (const [key, atMs] of this.#released)
      puts.push({ key, value: serialize({ releasedAt: new Date(atMs).toISOString() }) });
    for (const key of this.#unreleased)
      comparisons.push({ type: 'record', key, modRevision: this.#mirror.modRevision(key) });
    if (this.#poolsCompared) {
      const notAfterRevision = this.#mirror.poolsRevision;
      comparisons.push({ type: 'prefix', prefix: this.#keys.pools, notAfterRevision });
    }
    return {
      transaction: { comparisons, puts, deletes },
      writes,
      questioned: { keys: [...this.#touched.keys(), ...this.#unreleased], pools: this.#poolsCompared },
    };
  }

  pools(): readonly Pool[] {
    return this.#listed({
      stored: this.#mirror.view.pools(),
      changed: this.#touchedOf('pool'),
      keyOf: (name) => this.#keys.pool(name),
    });
  }

  pool(name: string): Pool | undefined {
    const touched = this.#touched.get(this.#keys.pool(name));
    if (!touched) return this.#mirror.view.pool(name);
    return touched.record?.kind === 'pool' ? touched.record.value : undefined;
  }

  /** Of a pool that is written here nothing is known before the commit. */
  showsAllBefore(record: RecordValue): boolean {
    return !this.#touched.get(this.#keys.of(record))?.written && this.#mirror.view.showsAllBefore(record);
  }

  block(prefix: Prefix): Block | undefined {
    const touched = this.#touched.get(this.#keys.block(prefix));
    if (!touched) return this.#mirror.view.block(prefix);
    return touched.record?.kind === 'block' ? touched.record.value : undefined;
  }

  *blocksIn(prefix: Prefix): Generator<Block, void, void> {
    const changed = [...this.#touchedOf('block')]
      .map(({ value }) => value)
      .filter((block) => prefixContains(prefix, block.prefix))
      .sort((a, b) => comparePrefixes(a.prefix, b.prefix));
    for (const block of this.#mirror.view.blocksIn(prefix)) {
      if (this.#hiddenBlocks.has(block)) continue;
      for (let [next] = changed; next && comparePrefixes(next.prefix, block.prefix) < 0; [next] = changed) {
        changed.shift();
        yield next;
      }
      yield block;
    }
    yield* changed;
  }

  affinitiesOf(owner: BlockOwner): readonly Affinity[] {
    const stored = this.#mirror.view.affinitiesOf(owner);
    const kept = stored.filter(({ block }) => !this.#touched.has(this.#keys.affinity(owner, block)));
    const changed = [...this.#touchedOf('affinity')]
      .map(({ value }) => value)
      .filter((affinity) => affinity.owner.kind === owner.kind && affinity.owner.name === owner.name);
    return sortAffinities([...kept, ...changed]);
  }

  affinity(owner: BlockOwner, block: Prefix): Affinity | undefined {
    const touched = this.#touched.get(this.#keys.affinity(owner, block));
    if (!touched) return this.#mirror.view.affinity(owner, block);
    return touched.record?.kind === 'affinity' ? touched.record.value : undefined;
  }

  handle(id: string): Handle | undefined {
    const touched = this.#touched.get(this.#keys.handle(id));
    if (!touched) return this.#mirror.view.handle(id);
    return touched.record?.kind === 'handle' ? touched.record.value : undefined;
  }

  endpoint(key: EndpointKey): Endpoint | undefined {
    const touched = this.#touched.get(this.#keys.endpoint(key));
    if (!touched) return this.#mirror.view.endpoint(key);
    return touched.record?.kind === 'endpoint' ? touched.record.value : undefined;
  }

  config(): IpamConfig | undefined {
    const touched = this.#touched.get(this.#keys.config);
    if (!touched) return this.#mirror.view.config();
    return touched.record?.kind === 'config' ? touched.record.value : undefined;
  }

  reservations(): readonly Reservation[] {
    return this.#listed({
      stored: this.#mirror.view.reservations(),
      changed: this.#touchedOf('reservation'),
      keyOf: (name) => this.#keys.reservation(name),
    });
  }

  reservation(name: string): Reservation | undefined {
    const touched = this.#touched.get(this.#keys.reservation(name));
    if (!touched) return this.#mirror.view.reservation(name);
    return touched.record?.kind === 'reservation' ? touched.record.value : undefined;
  }

  nodes(): readonly Node[] {
    return this.#listed({
      stored: this.#mirror.view.nodes(),
      changed: this.#touchedOf('node'),
      keyOf: (name) => this.#keys.node(name),
    });
  }

  node(name: string): Node | undefined {
    const touched = this.#touched.get(this.#keys.node(name));
    if (!touched) return this.#mirror.view.node(name);
    return touched.record?.kind === 'node' ? touched.record.value : undefined;
  }

  *handles(): Generator<Handle, void, void> {
    for (const handle of this.#mirror.view.handles())
      if (!this.#touched.has(this.#keys.handle(handle.id))) yield handle;
    for (const { value } of this.#touchedOf('handle')) yield value;
  }

  *affinities(): Generator<Affinity, void, void> {
    for (const affinity of this.#mirror.view.affinities())
      if (!this.#touched.has(this.#keys.affinity(affinity.owner, affinity.block))) yield affinity;
    for (const { value } of this.#touchedOf('affinity')) yield value;
  }

  *endpoints(): Generator<StoredEndpoint, void, void> {
    for (const endpoint of this.#mirror.view.endpoints())
      if (!this.#touched.has(this.#keys.endpoint(endpoint.key))) yield endpoint;
    yield* this.#touchedOf('endpoint');
  }

  *endpointsBehind(after: string): Generator<StoredEndpoint, void, void> {
    const changed = [...this.#touchedOf('endpoint')]
      .filter(({ key }) => formatEndpointKey(key) > after)
      .sort((a, b) => (formatEndpointKey(a.key) < formatEndpointKey(b.key) ? -1 : 1));
    for (const endpoint of this.#mirror.view.endpointsBehind(after)) {
      if (this.#touched.has(this.#keys.endpoint(endpoint.key))) continue;
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
    for (const endpoint of this.#mirror.view.foreignEndpoints())
      if (!this.#touched.get(this.#keys.endpoint(endpoint.key))?.written) yield endpoint;
  }

  unreadable(): Iterable<UnreadableRecord> {
    return this.#mirror.view.unreadable();
  }

  /** The records of one kind in the order of their names, those of the draft in place of the stored ones. */
  #listed<Named extends { readonly name: string }>({ stored, changed, keyOf }: Listing<Named>): readonly Named[] {
    if (![...this.#touched.keys()].some((key) => key.startsWith(keyOf('')))) return stored;
    const kept = stored.filter(({ name }) => !this.#touched.has(keyOf(name)));
    return sortByName([...kept, ...[...changed].map(({ value }) => value)]);
  }

  /** Computed once for the questions about the same changes. */
  #keyed(changes: readonly Change[]): readonly Keyed[] {
    if (this.#lastKeyed.changes !== changes) {
      const keyed = changes.filter(namesRecord).map((change) => ({ change, key: this.#keys.of(change.record) }));
      this.#lastKeyed = { changes, keyed };
    }
    return this.#lastKeyed.keyed;
  }

  #mark(change: Extract<Change, { handleId: string }>): void {
    if (!this.#marksReleases) return;
    const mark = this.#keys.release(change.handleId);
    if (change.type === 'expectUnreleased') {
      this.#unreleased.add(mark);
      return;
    }
    this.#released.set(mark, change.nowMs);
    // Who finds nothing to release has found no handle, and that must be so.
    const handle = this.#keys.handle(change.handleId);
    if (!this.#touched.has(handle))
      this.#touched.set(handle, { record: this.#mirror.stored(handle)?.record, written: false, changesCount: 1 });
  }

  #touch({ change: { type, record }, key }: Keyed): void {
    const before = this.#touched.get(key);
    const stored = before ? undefined : this.#mirror.stored(key)?.record;
    if (stored?.kind === 'block') this.#hiddenBlocks.add(stored.value);
    if (type !== 'expect' && !before?.written) this.#writtenCount++;
    const changesCount = (before?.changesCount ?? 0) + 1;
    if (type !== 'expect')
      this.#touched.set(key, { record: type === 'put' ? record : undefined, written: true, changesCount });
    else if (!before) this.#touched.set(key, { record: stored, written: false, changesCount });
  }

  *#touchedOf<Kind extends RecordValue['kind']>(kind: Kind): Generator<Extract<RecordValue, { kind: Kind }>> {
    for (const { record } of this.#touched.values()) if (record && isKind(record, kind)) yield record;
  }
}

interface Listing<Named> {
  readonly stored: readonly Named[];
  readonly changed: Iterable<{ readonly value: Named }>;
  readonly keyOf: (name: string) => string;
}

function namesRecord(change: Change): change is RecordChange {
  return 'record' in change;
}

function distinct(keyed: readonly Keyed[]): number {
  return keyed.length < 2 ? keyed.length : new Set(keyed.map(({ key }) => key)).size;
}

function isKind<Kind extends RecordValue['kind']>(
  record: RecordValue,
  kind: Kind,
): record is Extract<RecordValue, { kind: Kind }> {
  return record.kind === kind;
}
