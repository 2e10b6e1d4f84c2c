import { ChangeLog } from '../change-log.js';
import {
  RevisionCompacted,
  type CommitResult,
  type Comparison,
  type LostComparison,
  type Page,
  type RevisionChanges,
  type ScanRequest,
  type Snapshot,
  type Store,
  type StoredRecord,
  type Transaction,
  type WatchRequest,
} from '../store.js';
import { closedFailure, effectiveChanges, evaluateComparisons, throwIfAborted } from '../transaction.js';

/** The possible faults of the next operation of a kind. */
type Fault =
  /** Fails before it has any effect. */
  | { readonly type: 'fails'; readonly failure: Error }
  /** Commits, and then fails, as when the answer is lost. */
  | { readonly type: 'failsAfterCommit'; readonly failure: Error }
  /** Answers that a comparison was lost without naming it, like etcd where its store's own condition was lost. */
  | { readonly type: 'losesRace' };

export type Operation = 'list' | 'read' | 'scan' | 'revision' | 'commit' | 'watch';

export interface MemoryStoreOptions {
  /** How many revisions a watch can go back at least. Default: 1000. */
  readonly watchHistoryCount?: number;
  /** Awaited before each operation has its effect, so that a test can order concurrent ones. Default: no waiting. */
  readonly before?: (operation: Operation) => Promise<void>;
}

const DEFAULT_WATCH_HISTORY_COUNT = 1000;

/** The fake: a store in memory with the real rules, and planned failures. Prints itself as `etcdctl get --prefix ''` does. */
export class MemoryStore implements Store {
  readonly #records = new Map<string, StoredRecord>();
  readonly #log: ChangeLog;
  readonly #before: (operation: Operation) => Promise<void>;
  readonly #faults: { readonly operation: Operation; readonly fault: Fault }[] = [];
  #revision = 1;
  #closed = false;

  constructor(options: MemoryStoreOptions = {}) {
    this.#log = new ChangeLog(this.#revision, options.watchHistoryCount ?? DEFAULT_WATCH_HISTORY_COUNT);
    this.#before = options.before ?? (() => Promise.resolve());
  }

  /** The next operation of the kind that has no fault yet gets this one. */
  injectFault(operation: Operation, fault: Fault): void {
    this.#faults.push({ operation, fault });
  }

  /** Kinds of operations whose faults have not happened yet. */
  unusedFaults(): readonly Operation[] {
    return this.#faults.map(({ operation }) => operation);
  }

  /** Makes every watch behind the newest revision list again. */
  compact(): void {
    this.#log.compact();
  }

  async list(prefix: string, signal: AbortSignal): Promise<Snapshot> {
    await this.#enter('list', signal);
    return this.#snapshot([...this.#records.values()].filter(({ key }) => key.startsWith(prefix)));
  }

  async read(keys: readonly string[], signal: AbortSignal): Promise<Snapshot> {
    await this.#enter('read', signal);
    const wanted = new Set(keys);
    return this.#snapshot([...this.#records.values()].filter(({ key }) => wanted.has(key)));
  }

  async scan({ prefix, after, limit, revision }: ScanRequest, signal: AbortSignal): Promise<Page> {
    await this.#enter('scan', signal);
    if (revision !== undefined && revision !== this.#revision) throw new RevisionCompacted(revision);
    const under = sorted([...this.#records.values()].filter(({ key }) => key.startsWith(prefix)));
    const rest = after === undefined ? under : under.filter(({ key }) => compareKeys(key, after) > 0);
    return { ...this.#snapshot(rest.slice(0, limit)), more: rest.length > limit };
  }

  async revision(signal: AbortSignal): Promise<number> {
    await this.#enter('revision', signal);
    return this.#revision;
  }

  async commit(transaction: Transaction, signal: AbortSignal): Promise<CommitResult> {
    const fault = await this.#enter('commit', signal);
    if (fault?.type === 'losesRace') return { committed: false, revision: this.#revision, changed: [], missing: [] };
    const lost = this.#judge(transaction.comparisons);
    if (lost) return lost;
    this.#apply(transaction);
    if (fault?.type === 'failsAfterCommit') throw fault.failure;
    return { committed: true, revision: this.#revision };
  }

  async *watch(watch: WatchRequest, signal: AbortSignal): AsyncGenerator<RevisionChanges, void, void> {
    await this.#enter('watch', signal);
    for await (const item of this.#log.watch(watch, signal)) {
      await this.#before('watch');
      this.#takeFault('watch');
      if (signal.aborted) return;
      yield item;
    }
  }

  close(): Promise<void> {
    this.#closed = true;
    this.#log.close(closedFailure());
    return Promise.resolve();
  }

  /** All records in key order, key and value on a line each: what etcdctl prints. */
  toString(): string {
    return sorted([...this.#records.values()])
      .map(({ key, value }) => `${key}\n${Buffer.from(value).toString()}\n`)
      .join('');
  }

  async #enter(operation: Operation, signal: AbortSignal): Promise<Fault | undefined> {
    this.#check(signal);
    await this.#before(operation);
    this.#check(signal);
    return this.#takeFault(operation);
  }

  #takeFault(operation: Operation): Fault | undefined {
    const index = this.#faults.findIndex((planned) => planned.operation === operation);
    const fault = index < 0 ? undefined : this.#faults.splice(index, 1)[0]?.fault;
    if (fault?.type === 'fails') throw fault.failure;
    return fault;
  }

  #check(signal: AbortSignal): void {
    throwIfAborted(signal);
    if (this.#closed) throw closedFailure();
  }

  #judge(comparisons: readonly Comparison[]): LostComparison | undefined {
    const under = (prefix: string, revision: number): StoredRecord[] =>
      [...this.#records.values()].filter(({ key, modRevision }) => key.startsWith(prefix) && modRevision > revision);
    const get = (key: string): StoredRecord | undefined => this.#records.get(key);
    const modRevision = (key: string): number => get(key)?.modRevision ?? 0;
    return evaluateComparisons(comparisons, { revision: this.#revision, get, modRevision, changedUnder: under });
  }

  #apply(transaction: Transaction): void {
    const changes = effectiveChanges(copyValues(transaction), (key) => this.#records.has(key));
    if (changes.length === 0) return;
    const revision = ++this.#revision;
    for (const change of changes) {
      const { key } = change;
      if (change.type === 'put') this.#records.set(key, { key, value: change.value, modRevision: revision });
      else this.#records.delete(key);
    }
    this.#log.append({ revision, changes });
  }

  #snapshot(records: StoredRecord[]): Snapshot {
    return { records: sorted(records), revision: this.#revision };
  }
}

/** The caller may use its buffers again. */
function copyValues(transaction: Transaction): Transaction {
  return { ...transaction, puts: transaction.puts.map(({ key, value }) => ({ key, value: Uint8Array.from(value) })) };
}

/** In the order of the keys' bytes, as etcd and lmdb have it. */
function sorted(records: StoredRecord[]): StoredRecord[] {
  return records.sort((a, b) => compareKeys(a.key, b.key));
}

function compareKeys(a: string, b: string): number {
  return Buffer.compare(Buffer.from(a), Buffer.from(b));
}
