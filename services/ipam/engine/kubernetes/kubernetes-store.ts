import { untilAborted } from '@podwire/shared/failure/signal';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';

import { isLater } from '../../api-server/object-feed.js';
import type { Block } from '../../records/block.js';
import type { RecordKeys } from '../../records/json/keys.js';
import { decodeIfReadable } from '../../records/json/registry.js';
import type { Pool } from '../../records/pool.js';
import type { RecordName, RecordValue } from '../../records/view.js';
import { ChangeLog } from '../change-log.js';
import {
  RevisionCompacted,
  type CommitResult,
  type LostComparison,
  type Page,
  type RecordChange,
  type RevisionChanges,
  type ScanRequest,
  type Snapshot,
  type Store,
  type StoredRecord,
  type Transaction,
  type WatchRequest,
} from '../store.js';
import { closedFailure, evaluateComparisons, throwIfAborted } from '../transaction.js';
import { DerivedRecords, type BlockChange } from './derived-records.js';
import type { OpenedHistory } from './history/history-segments.js';
import { StoreHistory } from './history/store-history.js';
import { detailsFor, detailsIn } from './holder-details.js';
import type { ApiObject, HolderDetails, ObjectApi, ObjectObserver } from './object-api.js';
import { FIRST_REVISION, RecordIndex } from './record-index.js';
import { RecordLocks } from './record-locks.js';
import type { HistoryRecord } from './history/segment-form.js';
import { TransactionHistory } from './history/transaction-history.js';
import { planWrites, type ObjectChange } from './write-plan.js';

export interface KubernetesStoreOptions {
  readonly api: ObjectApi;
  readonly keys: RecordKeys;
  /** How many revisions a watch can go back at least. Default: 10,000. */
  readonly watchHistoryCount?: number;
  /** Called when another writer deletes an object of Calico's while the datastore is locked. Default: nothing. */
  readonly deletedUnderLock?: () => void;
  /** Called when the API server has an earlier state than before. Default: nothing. */
  readonly restored?: () => void;
}

const DEFAULT_WATCH_HISTORY_COUNT = 10_000;

/** Deletions that are remembered: more than happen while a request is answered or a report is on its way. */
const MAX_DELETIONS_COUNT = 10_000;

/** How long the objects of writes with an unknown outcome may be read when the store is closed, in milliseconds. */
const CLOSING_MS = 2_000;

/** A write that may or may not have been carried out. */
type UncertainWrite = Pick<WriteContext, 'base' | 'history'>;

/** An object as it is now; undefined if there is none. */
interface ObjectUpdate {
  readonly id: string;
  readonly object: ApiObject | undefined;
  /** The last version of a deleted object, if that is not the known one. */
  readonly version?: string;
}

interface WriteContext {
  readonly base: ApiObject | undefined;
  readonly history: TransactionHistory;
  readonly details: ReadonlyMap<string, HolderDetails>;
  readonly signal: AbortSignal;
}

/**
 * The store in Calico's custom resources, by the API server of Kubernetes.
 *
 * The API server changes one object at a time, and a transaction changes several. So it is a sequence of writes
 * ({@link planWrites}), each of which is refused if another writer has changed the object. If this process dies between two writes,
 * the decision can be repeated. Difficulties:
 *
 * - Comparisons are exact among the transactions of this process, the only podwire-ipam that writes: transactions that share
 *   records wait for each other. Against other writers, such as Calico's plugin on other nodes, only the objects that are
 *   written are compared.
 * - Records are published when the whole transaction is written, with one revision: watchers see all of it or nothing. If a
 *   write in the middle is refused, the objects written until then are published, and the transaction counts as lost.
 * - Revisions are this process's. Changes of other writers get the next one when the watch reports them; reports of own writes,
 *   which may come before their answer, get none.
 * - Handles and endpoints are no objects. They follow from the blocks ({@link DerivedRecords}). If a transaction writes another
 *   value of such a record, the next revision restores the derived value.
 * - Records of the history are published with their transaction, and written within a minute ({@link HistorySegments}). They never
 *   change.
 */
export class KubernetesStore implements Store {
  readonly #api: ObjectApi;
  readonly #keys: RecordKeys;
  readonly #deletedUnderLock: () => void;
  readonly #restored: () => void;
  readonly #derived: DerivedRecords;
  readonly #log: ChangeLog;
  readonly #locks = new RecordLocks();
  readonly #objects = new Map<string, ApiObject>();
  /** Last versions of the objects that were deleted last: a report or an answer that is older must not bring an object back. */
  readonly #deletedVersions = new Map<string, string>();
  readonly #index: RecordIndex;
  readonly #pools = new Map<string, Pool>();
  /** Objects that a transaction is writing, with the watch's reports that arrive meanwhile. */
  readonly #writing = new Map<string, ObjectUpdate[]>();
  /** Objects that must be read again: another process wrote them (undefined), or their last write has an unknown outcome. */
  readonly #uncertain = new Map<string, UncertainWrite | undefined>();
  /** Objects whose deletion was reported while the datastore is locked. */
  readonly #heldBack = new Set<string>();
  /** The history; undefined until it is read, and if none is kept. */
  #history: StoreHistory | undefined;
  readonly #stop = new AbortController();
  #revision = FIRST_REVISION;
  #isLoaded = false;
  #isClosed = false;
  #commitsCount = 0;
  #whenIdle: (() => void) | undefined;

  private constructor(options: KubernetesStoreOptions) {
    const { api, keys, watchHistoryCount = DEFAULT_WATCH_HISTORY_COUNT } = options;
    this.#deletedUnderLock = options.deletedUnderLock ?? (() => undefined);
    this.#restored = options.restored ?? (() => undefined);
    this.#api = api;
    this.#keys = keys;
    this.#derived = new DerivedRecords({ keys, pools: () => [...this.#pools.values()] });
    this.#index = new RecordIndex(this.#derived);
    this.#log = new ChangeLog(FIRST_REVISION, watchHistoryCount);
  }

  /** Reads all objects, and follows them. @throws Failure of {@link ObjectApi.follow}, or of the signal */
  static async open(options: KubernetesStoreOptions, signal: AbortSignal): Promise<KubernetesStore> {
    const store = new KubernetesStore(options);
    try {
      await untilAborted(store.#api.follow(store.#observer(), store.#stop.signal), signal);
      store.#isLoaded = true;
      return store;
    } catch (error) {
      await store.close();
      throw error;
    }
  }

  /**
   * Waits until the records show every write that was answered before the call, such as the former leader's. A watch does not report
   * that it has reached this moment: of a resource without changes it gets one bookmark a minute. So the names and versions of all
   * objects are listed, a tenth of their bytes, and each object that differs is read. The watches bring later writes, for example
   * by a request of the former leader that was in flight; until then a write of that object is refused.
   */
  async refresh(signal: AbortSignal): Promise<void> {
    this.#check(signal);
    const current = await this.#api.versions(signal);
    for (const id of new Set([...current.keys(), ...this.#objects.keys()]))
      if (this.#objects.get(id)?.version !== current.get(id)) this.#uncertain.set(id, undefined);
    await this.#readUncertain(signal);
  }

  /** Follows no more changes, so that all pages of an export are of one revision. */
  hold(): void {
    this.#stop.abort(closedFailure());
  }

  get history(): StoreHistory | undefined {
    return this.#history;
  }

  /** Shows a history, and adds the releases of later transactions to it. Called before the first transaction. */
  keepHistory(opened: OpenedHistory): void {
    const stored = (key: string): StoredRecord | undefined => this.#index.get(key);
    this.#history = new StoreHistory({ ...opened, stored, publish: (changes) => void this.#append(changes) });
    this.#index.apply(StoreHistory.recordsOf(opened), FIRST_REVISION);
  }

  list(prefix: string, signal: AbortSignal): Promise<Snapshot> {
    return this.#answer(signal, () => ({ records: [...this.#index.under(prefix)], revision: this.#revision }));
  }

  async read(keys: readonly string[], signal: AbortSignal): Promise<Snapshot> {
    this.#check(signal);
    await this.#readUncertain(signal);
    return this.#answer(signal, () => ({
      records: [...new Set(keys)].sort(compareTexts).flatMap((key) => this.#index.get(key) ?? []),
      revision: this.#revision,
    }));
  }

  scan({ prefix, after, limit, revision }: ScanRequest, signal: AbortSignal): Promise<Page> {
    return this.#answer(signal, () => {
      if (revision !== undefined && revision !== this.#revision) throw new RevisionCompacted(revision);
      const records: StoredRecord[] = [];
      for (const record of this.#index.under(prefix, after)) {
        if (records.length === limit) return { records, revision: this.#revision, more: true };
        records.push(record);
      }
      return { records, revision: this.#revision, more: false };
    });
  }

  revision(signal: AbortSignal): Promise<number> {
    return this.#answer(signal, () => this.#revision);
  }

  async commit(transaction: Transaction, signal: AbortSignal): Promise<CommitResult> {
    this.#check(signal);
    this.#commitsCount++;
    try {
      return await this.#commitInTurn(transaction, signal);
    } finally {
      if (--this.#commitsCount === 0) this.#whenIdle?.();
    }
  }

  async #commitInTurn(transaction: Transaction, signal: AbortSignal): Promise<CommitResult> {
    const end = await this.#locks.acquire(transaction, signal);
    try {
      await this.#readUncertain(signal);
      const lost = evaluateComparisons(transaction.comparisons, {
        revision: this.#revision,
        get: (key) => this.#index.get(key),
        modRevision: (key) => this.#index.modRevision(key),
        changedUnder: (prefix, after) => this.#index.changedUnder(prefix, after),
      });
      return lost ?? (await this.#carryOut(transaction, signal));
    } finally {
      end();
    }
  }

  watch(watch: WatchRequest, signal: AbortSignal): AsyncGenerator<RevisionChanges, void, void> {
    return this.#log.watch(watch, signal);
  }

  /** Idempotent. */
  async close(): Promise<void> {
    this.#isClosed = true;
    if (this.#commitsCount > 0) await new Promise<void>((resolve) => (this.#whenIdle = resolve));
    // The history has the releases of a write with an unknown outcome once its object is read.
    if ([...this.#uncertain.values()].some((write) => write?.history.records.length))
      await this.#readUncertain(AbortSignal.timeout(CLOSING_MS)).catch(() => undefined);
    this.#stop.abort(closedFailure());
    this.#log.close(closedFailure());
    this.#api.close();
  }

  #check(signal: AbortSignal): void {
    throwIfAborted(signal);
    if (this.#isClosed) throw closedFailure();
  }

  #answer<Result>(signal: AbortSignal, read: () => Result): Promise<Result> {
    return new Promise((resolve) => {
      this.#check(signal);
      resolve(read());
    });
  }

  async #carryOut(transaction: Transaction, signal: AbortSignal): Promise<CommitResult> {
    const objectOf = (key: string): string | undefined => this.#api.objectOf(key);
    const stored = (key: string): Uint8Array | undefined => this.#index.get(key)?.value;
    const plan = planWrites(transaction, { keys: this.#keys, objectOf, stored });
    const details = detailsIn(transaction, this.#keys);
    const history = new TransactionHistory(transaction, { keys: this.#keys, objectOf });
    const written = new Map<string, ObjectUpdate>();
    for (const { object: id } of plan) this.#writing.set(id, []);
    try {
      for (const change of plan) {
        const id = change.object;
        const base = written.get(id)?.object ?? this.#objects.get(id);
        const outcome = await this.#writeObject(change, { base, details, history, signal });
        if (outcome.type === 'conflict') return this.#lose(written, { id, object: outcome.found }, history);
        const { object, version } = outcome;
        written.set(id, { id, object, ...(version === undefined ? {} : { version }) });
      }
      return { committed: true, revision: this.#publish([...written.values()], history.records, transaction) };
    } catch (error) {
      this.#publish(
        [...written.values()],
        history.of((id) => written.has(id)),
      );
      throw error;
    } finally {
      this.#endWriting(plan);
    }
  }

  async #writeObject(
    { object: id, puts, deletes }: ObjectChange,
    { base, details, history, signal }: WriteContext,
  ): ReturnType<ObjectApi['write']> {
    const records = new Map([...(base?.records ?? []), ...puts]);
    for (const key of deletes) records.delete(key);
    try {
      if (records.size > 0) {
        const content = { id, records, details: detailsFor({ records, base, details }, this.#keys) };
        return await this.#api.write(content, base, signal);
      }
      return base ? await this.#api.remove(base, signal) : { type: 'written', object: undefined };
    } catch (error) {
      this.#uncertain.set(id, { base, history });
      throw error;
    }
  }

  /** The result of a transaction that found another writer after some of its objects were written. */
  #lose(written: ReadonlyMap<string, ObjectUpdate>, found: ObjectUpdate, history: TransactionHistory): LostComparison {
    const updates = [...written.values(), found];
    const keys = new Set(
      updates.flatMap(({ id, object }) => [
        ...(this.#objects.get(id)?.records.keys() ?? []),
        ...(object?.records.keys() ?? []),
      ]),
    );
    const entries = history.of((id) => written.has(id));
    this.#publish(updates, entries);
    const records = [...keys].map((key) => ({ key, record: this.#index.get(key) }));
    return {
      committed: false,
      revision: this.#revision,
      changed: records.flatMap(({ record }) => record ?? []),
      missing: records.flatMap(({ key, record }) => (record ? [] : [key])),
    };
  }

  /** Reads the objects whose latest state is unknown. */
  async #readUncertain(signal: AbortSignal): Promise<void> {
    await Promise.all([...this.#uncertain].map(([id, write]) => this.#readObject(id, write, signal)));
  }

  async #readObject(id: string, write: UncertainWrite | undefined, signal: AbortSignal): Promise<void> {
    const known = this.#objects.get(id);
    const object = await this.#api.read(id, signal);
    if (this.#uncertain.get(id) === write) this.#uncertain.delete(id);
    // A missing object has no version: it may have been made since the answer.
    const isUnchanged = this.#objects.get(id) === known && !this.#writing.has(id);
    if (object || isUnchanged) this.#report({ id, object });
    if (write) this.#publish([], write.history.endedIn(id, write.base, object));
  }

  #endWriting(plan: readonly ObjectChange[]): void {
    const reported = plan.flatMap(({ object: id }) => this.#writing.get(id) ?? []);
    for (const { object: id } of plan) this.#writing.delete(id);
    for (const update of reported)
      if (update.version === undefined) this.#report(update);
      else this.#reportDeleted(update.id, update.version);
  }

  #observer(): ObjectObserver {
    return {
      changed: (object) => this.#report({ id: object.id, object }),
      deleted: (id, version) => this.#reportDeleted(id, version),
      listed: (resource, version, objects) => this.#reportList(resource, version, objects),
      restored: () => this.#restored(),
    };
  }

  /** An object was reported or read; it may be older than the known state. */
  #report(update: ObjectUpdate): void {
    const { id, object } = update;
    const waiting = this.#writing.get(id);
    if (waiting) waiting.push(update);
    else if (!this.#isNews(id, object)) return;
    else if (object || !this.#isMigrating(id)) this.#publish([update]);
    else {
      this.#heldBack.add(id);
      this.#deletedUnderLock();
    }
  }

  /**
   * Whether the deletion of an object may be the end of a migration to the other API group, which locks the datastore and deletes
   * Calico's definitions with all objects. These are in use until this process starts again with the other group.
   */
  #isMigrating(id: string): boolean {
    const key = this.#keys.clusterInformation;
    const stored = this.#index.get(key);
    const record = stored && decodeIfReadable(this.#keys, key, stored.value);
    if (record?.kind !== 'clusterInformation' || !record.value.isLocked) return false;
    return [...(this.#objects.get(id)?.records.keys() ?? [])].some((each) => {
      const name = this.#keys.parse(each);
      return name !== undefined && CALICO_KINDS.has(name.kind);
    });
  }

  /** Publishes deletions that were held back, unless the lock is still set. */
  #releaseHeldBack(): void {
    if (this.#heldBack.size === 0 || [...this.#heldBack].some((id) => this.#isMigrating(id))) return;
    for (const id of this.#heldBack) this.#uncertain.set(id, undefined);
    this.#heldBack.clear();
    // After a failure the next transaction reads them.
    this.#readUncertain(this.#stop.signal).catch(() => undefined);
  }

  #isNews(id: string, object: ApiObject | undefined): boolean {
    const known = this.#objects.get(id);
    if (!object) return known !== undefined;
    const version = known?.version ?? this.#deletedVersions.get(id);
    return version === undefined || isLater(object.version, version);
  }

  #reportDeleted(id: string, version: string): void {
    const waiting = this.#writing.get(id);
    if (waiting) {
      waiting.push({ id, object: undefined, version });
      return;
    }
    const known = this.#objects.get(id);
    if (known && !isLater(version, known.version)) return;
    this.#report({ id, object: undefined });
  }

  #reportList(resource: string, version: string, objects: readonly ApiObject[]): void {
    const listed = new Set(objects.map(({ id }) => id));
    const gone = [...this.#objects.values()].filter(
      (known) => known.id.startsWith(`${resource}/`) && !listed.has(known.id) && !isLater(known.version, version),
    );
    const updates = [
      ...objects.map((object) => ({ id: object.id, object })),
      ...gone.map(({ id }) => ({ id, object: undefined })),
    ];
    if (!this.#isLoaded) {
      this.#load(updates);
      return;
    }
    // A list shows all that was known at its version, unless an older state has got a later version.
    if (objects.some((object) => this.#isOlder(object, version))) this.#restored();
    for (const update of updates) this.#report(update);
  }

  #isOlder({ id, version }: ApiObject, listVersion: string): boolean {
    const known = this.#objects.get(id);
    return known !== undefined && isLater(known.version, version) && !isLater(known.version, listVersion);
  }

  /** The first list of a resource. */
  #load(updates: readonly ObjectUpdate[]): void {
    const changes = new Map<string, Uint8Array | undefined>();
    this.#derived.load(updates.flatMap((update) => this.#replaceObject(update, changes)));
    this.#index.apply(changes, FIRST_REVISION);
    this.#index.addDerived();
  }

  /**
   * Makes objects visible with a new revision.
   * @param history - new records of the history; known ones are left out
   * @param transaction - the own transaction whose objects are all written
   * @returns the revision
   */
  #publish(
    updates: readonly ObjectUpdate[],
    history: readonly HistoryRecord[] = [],
    transaction?: Transaction,
  ): number {
    const changes = new Map<string, Uint8Array | undefined>();
    for (const { key, value } of this.#history?.append(history) ?? []) changes.set(key, value);
    const derived = this.#derived.replace(updates.flatMap((update) => this.#replaceObject(update, changes)));
    for (const [key, value] of derived) changes.set(key, value);
    const corrected = new Map<string, Uint8Array | undefined>();
    for (const { key, value } of transaction?.puts ?? []) {
      const actual = this.#value(key, changes);
      if (actual && Buffer.compare(actual, value) === 0) changes.set(key, value);
      else corrected.set(key, actual);
    }
    for (const key of transaction?.deletes ?? []) {
      const actual = this.#value(key, changes);
      if (actual) corrected.set(key, actual);
    }
    for (const key of corrected.keys()) changes.delete(key);
    const revision = changes.size > 0 || corrected.size > 0 ? this.#append(changes) : this.#revision;
    if (corrected.size > 0) this.#append(corrected);
    this.#releaseHeldBack();
    return revision;
  }

  #append(changed: ReadonlyMap<string, Uint8Array | undefined>): number {
    const revision = ++this.#revision;
    this.#index.apply(changed, revision);
    const changes = [...changed].map(([key, value]): RecordChange =>
      value ? { type: 'put', key, value } : { type: 'delete', key },
    );
    // The committer gets its answer first: a mirror that has applied its own change does not decode it again.
    setImmediate(() => this.#log.append({ revision, changes }));
    return revision;
  }

  #noteDeletion(id: string, version: string): void {
    this.#deletedVersions.delete(id);
    this.#deletedVersions.set(id, version);
    const [oldest] = this.#deletedVersions.keys();
    if (oldest !== undefined && this.#deletedVersions.size > MAX_DELETIONS_COUNT) this.#deletedVersions.delete(oldest);
  }

  /** Replaces an object and collects the changes of its records. @returns the change of its block */
  #replaceObject({ id, object, version }: ObjectUpdate, changes: Map<string, Uint8Array | undefined>): BlockChange[] {
    const before = this.#objects.get(id);
    if (object) this.#objects.set(id, object);
    else this.#objects.delete(id);
    if (before && !object) this.#noteDeletion(id, version ?? before.version);
    const keys = new Set([...(before?.records.keys() ?? []), ...(object?.records.keys() ?? [])]);
    const blocks: BlockChange[] = [];
    for (const key of keys) {
      const value = object?.records.get(key);
      const known = before?.records.get(key);
      const isSame = value && known ? Buffer.compare(value, known) === 0 : value === known;
      if (!isSame) changes.set(key, value);
      const name = this.#keys.parse(key);
      if (name?.kind === 'block') {
        const cidr = formatPrefix(name.prefix);
        blocks.push({ cidr, block: value && this.#decodeBlock(key, value), details: object?.details ?? NO_DETAILS });
      } else if (name?.kind === 'pool') this.#setPool(name.name, value && decodeIfReadable(this.#keys, key, value));
    }
    return blocks;
  }

  #setPool(name: string, record: RecordValue | undefined): void {
    if (record?.kind === 'pool') this.#pools.set(name, record.value);
    else this.#pools.delete(name);
  }

  #value(key: string, changes: ReadonlyMap<string, Uint8Array | undefined>): Uint8Array | undefined {
    return changes.has(key) ? changes.get(key) : this.#index.get(key)?.value;
  }

  #decodeBlock(key: string, value: Uint8Array): Block | undefined {
    const record = decodeIfReadable(this.#keys, key, value);
    return record?.kind === 'block' ? record.value : undefined;
  }
}

/** Kinds of records that are Calico's custom resources. */
const CALICO_KINDS = new Set<RecordName['kind']>([
  'block',
  'affinity',
  'pool',
  'reservation',
  'config',
  'clusterInformation',
]);

const NO_DETAILS: ReadonlyMap<string, HolderDetails> = new Map();
