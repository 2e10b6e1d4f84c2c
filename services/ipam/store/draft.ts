import { comparePrefixes, prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import type { Affinity, Block, BlockOwner, Endpoint, Handle, Pool } from '../allocator/records.js';
import type { Change, EndpointKey, RecordValue, View } from '../allocator/view.js';
import { sortAffinities, sortPools } from './image.js';
import type { Mirror, OwnWrite, Questioned } from './mirror.js';
import type { RecordKeys } from './record/keys.js';
import { encodeRecord, serialize } from './record/record.js';
import type { Comparison, Transaction } from './store.js';

/** A record that the folded decisions name: what they have made of it, and whether they write it. */
interface Touched {
  /** Undefined when there is to be no record. */
  readonly record: RecordValue | undefined;
  readonly written: boolean;
}

/** A transaction with what the mirror has to know of it afterwards. */
export interface DraftedTransaction {
  readonly transaction: Transaction;
  readonly writes: readonly OwnWrite[];
  readonly questioned: Questioned;
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
  #poolsCompared = false;

  constructor(mirror: Mirror, keys: RecordKeys) {
    this.#mirror = mirror;
    this.#keys = keys;
  }

  /** Whether there is something to commit. */
  get isEmpty(): boolean {
    return this.#touched.size === 0 && !this.#poolsCompared;
  }

  /**
   * How many operations the transaction has after these changes: comparisons or writes, whichever are more, as etcd counts
   * them against its limit.
   */
  operationsWith(changes: readonly Change[]): number {
    const comparisons = new Set(this.#touched.keys());
    for (const change of changes) if (change.type !== 'expectPools') comparisons.add(this.#keys.of(change.record));
    const pools = this.#poolsCompared || changes.some(({ type }) => type === 'expectPools');
    return comparisons.size + (pools ? 1 : 0);
  }

  /**
   * Takes over a decision's changes, all or none.
   * @throws Failure STORE_CORRUPT when one would replace a record that cannot be read
   */
  fold(changes: readonly Change[]): void {
    for (const change of changes) if (change.type !== 'expectPools') this.#mirror.stored(this.#keys.of(change.record));
    for (const change of changes) {
      if (change.type === 'expectPools') this.#poolsCompared = true;
      else this.#touch(change);
    }
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
      const raw = record && encodeRecord(record, this.#mirror.stored(key));
      if (raw) puts.push({ key, value: serialize(raw) });
      else if (modRevision !== 0) deletes.push(key);
      writes.push({ key, decoded: raw && { record, raw } });
    }
    if (this.#poolsCompared) {
      const notAfterRevision = this.#mirror.poolsRevision;
      comparisons.push({ type: 'prefix', prefix: this.#keys.pools, notAfterRevision });
    }
    return {
      transaction: { comparisons, puts, deletes },
      writes,
      questioned: { keys: [...this.#touched.keys()], pools: this.#poolsCompared },
    };
  }

  pools(): readonly Pool[] {
    const changed = [...this.#touchedOf('pool')];
    if (changed.length === 0) return this.#mirror.view.pools();
    const kept = this.#mirror.view.pools().filter(({ name }) => !this.#touched.has(this.#keys.pool(name)));
    return sortPools([...kept, ...changed.map(({ value }) => value)]);
  }

  pool(name: string): Pool | undefined {
    const touched = this.#touched.get(this.#keys.pool(name));
    if (!touched) return this.#mirror.view.pool(name);
    return touched.record?.kind === 'pool' ? touched.record.value : undefined;
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

  #touch({ type, record }: Exclude<Change, { type: 'expectPools' }>): void {
    const key = this.#keys.of(record);
    const before = this.#touched.get(key);
    const stored = before ? undefined : this.#mirror.stored(key)?.record;
    if (stored?.kind === 'block') this.#hiddenBlocks.add(stored.value);
    if (type !== 'expect') this.#touched.set(key, { record: type === 'put' ? record : undefined, written: true });
    else if (!before) this.#touched.set(key, { record: stored, written: false });
  }

  *#touchedOf<Kind extends RecordValue['kind']>(kind: Kind): Generator<Extract<RecordValue, { kind: Kind }>> {
    for (const { record } of this.#touched.values()) if (record && isKind(record, kind)) yield record;
  }
}

function isKind<Kind extends RecordValue['kind']>(
  record: RecordValue,
  kind: Kind,
): record is Extract<RecordValue, { kind: Kind }> {
  return record.kind === kind;
}
