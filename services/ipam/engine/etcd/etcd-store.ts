import { trace } from '@opentelemetry/api';
import { untilAborted } from '@podwire/shared/failure/signal';
import { systemClock, type Clock } from '@podwire/shared/runtime/clock';
import type { IRangeRequest, IRangeResponse, ITxnRequest, ITxnResponse } from 'etcd3';

import {
  RevisionCompacted,
  type CommitResult,
  type Page,
  type RevisionChanges,
  type ScanRequest,
  type Snapshot,
  type Store,
  type StoredRecord,
  type Transaction,
  type WatchRequest,
} from '../store.js';
import { closedFailure, throwIfAborted } from '../transaction.js';
import { EtcdCluster, type ActiveEndpoint, type ClusterEvent, type ClusterOptions } from './cluster.js';
import { compactedFailure, NotExecuted, RevisionGone } from './failure.js';
import { Fence } from './fence.js';
import {
  decodeLostComparison,
  decodeRecord,
  encodeRead,
  encodeTransaction,
  keyAfter,
  prefixRange,
  type EtcdLimits,
} from './request.js';
import { watchEtcd } from './watch.js';

export interface EtcdStoreOptions extends EtcdLimits, Omit<ClusterOptions, 'clock' | 'probeKey' | 'report'> {
  /** Prefix of the datastore's keys, without a trailing slash; for the store's own keys. */
  readonly keyPrefix: string;
  /** Unique ID of this store in its own keys. */
  readonly uid: string;
  /** Reports events for the operator. Must not throw. Default: no reports. */
  readonly report?: (event: ClusterEvent) => void;
  /** For timeouts only. Default: the system clock. */
  readonly clock?: Clock;
}

/** Approximate page size of a list, so that no side holds the whole list in one message. */
const PAGE_BYTES = 4 * 2 ** 20;
const FIRST_PAGE_COUNT = 1000;
const MAX_PAGE_COUNT = 20_000;

/** Maximum attempts at a list whose first page's revision is compacted before the last page. */
const MAX_LIST_ATTEMPTS = 3;

/** Port of an endpoint that names none. */
const DEFAULT_PORT = 2379;

/**
 * The store of a cluster: etcd, version 3.4 or newer. What makes it hard:
 *
 * - An answer can be lost; then the transaction may have been executed, or not, or be executed much later ({@link
 *   Fence}). Only reads are sent twice, or a request that etcd refused for its token only.
 * - A server may run although it is cut off from the cluster; it answers some requests with old data ({@link
 *   EtcdCluster}). All reads here are linearizable.
 * - A datastore restored from a backup continues with old revisions: the records known here are invalid there.
 */
export class EtcdStore implements Store {
  readonly #options: EtcdStoreOptions;
  readonly #cluster: EtcdCluster;
  readonly #fence: Fence;
  /** A key that every user of the datastore may read. */
  readonly #ownKey: string;
  readonly #committing = new Set<Promise<CommitResult>>();
  readonly #stop = new AbortController();
  #closing: Promise<void> | undefined;

  private constructor(options: EtcdStoreOptions) {
    this.#options = options;
    this.#ownKey = `/podwire${options.keyPrefix}/fences/${options.uid}/`;
    const { clock = systemClock, report = () => undefined } = options;
    this.#cluster = new EtcdCluster({ ...options, clock, report, probeKey: this.#ownKey });
    this.#fence = new Fence({ cluster: this.#cluster, keyPrefix: this.#ownKey });
  }

  /**
   * Connects to the first endpoint that answers.
   * @throws Failure STORE_UNAVAILABLE when none does, STORE_DENIED, or INVALID_SETTINGS when a file cannot be read
   */
  static async open(options: EtcdStoreOptions): Promise<EtcdStore> {
    const store = new EtcdStore(options);
    try {
      await store.#cluster.connect(store.#stop.signal);
      return store;
    } catch (error) {
      await store.close();
      throw error;
    }
  }

  /** Maximum operations of a transaction: one less than etcd's limit, for the fence's comparison. */
  get maxOperationsCount(): number {
    return this.#options.maxOperationsCount - 1;
  }

  async list(prefix: string, signal: AbortSignal): Promise<Snapshot> {
    return await restartWhenCompacted(async () => {
      const records: StoredRecord[] = [];
      const { key, range_end: end } = prefixRange(prefix);
      let limit = FIRST_PAGE_COUNT;
      let page = await this.#range({ key, range_end: end, limit }, signal);
      const revision = Number(page.header.revision);
      for (;;) {
        let bytes = 0;
        for (const kv of page.kvs) {
          bytes += kv.key.length + kv.value.length;
          records.push(decodeRecord(kv));
        }
        const last = records.at(-1);
        if (!page.more || !last) return { records, revision };
        limit = pageCount(page.kvs.length, bytes);
        page = await this.#range({ key: keyAfter(last.key), range_end: end, limit, revision }, signal);
      }
    });
  }

  async read(keys: readonly string[], signal: AbortSignal): Promise<Snapshot> {
    const distinct = [...new Set(keys)].sort();
    if (distinct.length === 0) return { records: [], revision: await this.revision(signal) };
    const size = this.#options.maxOperationsCount;
    return await restartWhenCompacted(async () => {
      const records: StoredRecord[] = [];
      let revision: number | undefined;
      for (let start = 0; start < distinct.length; start += size) {
        const request = encodeRead(distinct.slice(start, start + size), revision);
        const { header, responses } = await this.#readTransaction(request, signal);
        revision ??= Number(header.revision);
        for (const { response_range: range } of responses) records.push(...range.kvs.map(decodeRecord));
      }
      return { records, revision: revision ?? 0 };
    });
  }

  async scan({ prefix, after, limit, revision }: ScanRequest, signal: AbortSignal): Promise<Page> {
    const { key, range_end: end } = prefixRange(prefix);
    const moment = revision === undefined ? {} : { revision };
    const range = { key: after === undefined ? key : keyAfter(after), range_end: end, limit, ...moment };
    try {
      const { header, kvs, more } = await this.#range(range, signal);
      return { records: kvs.map(decodeRecord), revision: revision ?? Number(header.revision), more };
    } catch (error) {
      if (revision !== undefined && error instanceof RevisionGone) throw new RevisionCompacted(revision);
      throw error;
    }
  }

  async revision(signal: AbortSignal): Promise<number> {
    const { header } = await this.#range({ key: Buffer.from(this.#ownKey), count_only: true }, signal);
    return Number(header.revision);
  }

  commit(transaction: Transaction, signal: AbortSignal): Promise<CommitResult> {
    const committed = this.#commit(transaction, signal);
    this.#committing.add(committed);
    const forget = (): boolean => this.#committing.delete(committed);
    committed.then(forget, forget);
    return committed;
  }

  async *watch(watch: WatchRequest, signal: AbortSignal): AsyncGenerator<RevisionChanges, void, void> {
    await this.#ready(signal);
    yield* watchEtcd(watch, { cluster: this.#cluster, signal, stop: this.#stop.signal });
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    await Promise.allSettled(this.#committing);
    this.#stop.abort(closedFailure());
    this.#cluster.close();
  }

  /** @throws Failure when the store is closed, the signal has fired, or the fence cannot be repaired */
  async #ready(signal: AbortSignal): Promise<void> {
    throwIfAborted(signal);
    if (this.#closing) throw closedFailure();
    if (this.#fence.isBroken) await untilAborted(this.#fence.repair(), signal);
  }

  async #commit(transaction: Transaction, signal: AbortSignal): Promise<CommitResult> {
    await this.#ready(signal);
    const active = await this.#cluster.connect(signal);
    const { hostname, port } = new URL(active.endpoint.url);
    const server = { 'server.address': hostname, 'server.port': Number(port || DEFAULT_PORT) };
    trace.getActiveSpan()?.setAttributes({ 'db.system.name': 'etcd', ...server });
    // Read when the request is sent: the fence may have been repaired during the endpoint lookup.
    const { guard } = this.#fence;
    const request = encodeTransaction(transaction, { guard, limits: this.#options });
    const answer = await this.#send(request, active, signal);
    if (answer.succeeded) return { committed: true, revision: Number(answer.header.revision) };
    const lost = decodeLostComparison(transaction, answer);
    if (lost.changed.length + lost.missing.length === 0) await this.#checkHistory(transaction, active, signal);
    return lost;
  }

  async #send(request: ITxnRequest, active: ActiveEndpoint, signal: AbortSignal): Promise<ITxnResponse> {
    try {
      return await this.#cluster.send(active, ({ kv }, options) => kv.txn(request, options), signal);
    } catch (error) {
      if (!(error instanceof NotExecuted)) this.#fence.markBroken();
      throw error;
    }
  }

  /**
   * Checks a transaction that lost to nothing newer: to the fence, or to a record that is older than when it was read.
   * An older record exists only in a datastore that went back in time. The revision alone does not show that once other
   * replicas have written.
   * @throws Failure STORE_CORRUPT where there is such a record, and then for every request
   */
  async #checkHistory({ comparisons }: Transaction, { endpoint }: ActiveEndpoint, signal: AbortSignal): Promise<void> {
    const known = new Map<string, number>();
    for (const comparison of comparisons)
      if (comparison.type === 'record') known.set(comparison.key, comparison.modRevision);
    const { records } = await this.read([...known.keys()], signal);
    for (const { key, modRevision } of records) {
      const before = known.get(key) ?? 0;
      if (modRevision < before)
        throw this.#cluster.refuseAll(endpoint, `${key} of revision ${modRevision} after ${before}`);
    }
  }

  async #range(request: IRangeRequest, signal: AbortSignal): Promise<IRangeResponse> {
    await this.#ready(signal);
    return await this.#cluster.read(({ kv }, options) => kv.range(request, options), signal);
  }

  async #readTransaction(request: ITxnRequest, signal: AbortSignal) {
    await this.#ready(signal);
    return await this.#cluster.read(({ kv }, options) => kv.txn(request, options), signal);
  }
}

/** Record count of the next page, estimated from the last one. */
function pageCount(records: number, bytes: number): number {
  const fitting = Math.floor((PAGE_BYTES * records) / Math.max(1, bytes));
  return Math.min(MAX_PAGE_COUNT, Math.max(1, fitting));
}

/** @throws what `read` throws; Failure STORE_UNAVAILABLE when the revision was compacted at each attempt */
async function restartWhenCompacted<Result>(read: () => Promise<Result>): Promise<Result> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await read();
    } catch (error) {
      if (!(error instanceof RevisionGone)) throw error;
      if (attempt >= MAX_LIST_ATTEMPTS) throw compactedFailure(error);
    }
  }
}
