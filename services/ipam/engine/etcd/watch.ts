import { Failure } from '@podwire/shared/failure/failure';
import { isAborted } from '@podwire/shared/failure/signal';
import type { IEvent, IWatchResponse } from 'etcd3';

import { RevisionCompacted, type RecordChange, type RevisionChanges, type WatchRequest } from '../store.js';
import { closedFailure } from '../transaction.js';
import type { ActiveEndpoint, EtcdCluster } from './cluster.js';
import { RevisionGone } from './failure.js';
import { prefixRange } from './request.js';

interface WatchContext {
  readonly cluster: EtcdCluster;
  /** Ends the watch. */
  readonly signal: AbortSignal;
  /** Fails the watch: the store is being closed. */
  readonly stop: AbortSignal;
}

/** Maximum consecutive streams that end without a change before the watch fails. */
const MAX_EMPTY_STREAMS_COUNT = 3;

/**
 * See `Store.watch`. Not etcd3's own Watcher: that takes a watch up again after the revision in the header of its last response,
 * which may be later than the last change it delivered, and knows no parts of a split response. What makes it hard:
 *
 * - A stream may end at any moment. The next one begins after the last revision whose changes were all delivered.
 * - The changes of one revision may come in several responses ({@link RevisionSorter}).
 * - An isolated server sends nothing: streams require a leader, and end when their endpoint is abandoned.
 * - A server may be behind this process. Each stream begins with a linearizable read, after which it is not.
 * - etcd before 3.4.36 and 3.5.18 forgets deletions at the very revision it is compacted to, and yet lets a watch begin there
 *   (etcd issue 19179). So that read is of the revision before: it fails where a change may be missing.
 */
export async function* watchEtcd(
  { prefix, afterRevision }: WatchRequest,
  { cluster, signal, stop }: WatchContext,
): AsyncGenerator<RevisionChanges, void, void> {
  let position = afterRevision;
  for (let emptyStreamsCount = 0; !signal.aborted; emptyStreamsCount++) {
    try {
      for await (const item of watchStream({ prefix, afterRevision: position }, { cluster, signal, stop })) {
        position = item.revision;
        emptyStreamsCount = 0;
        cluster.observeRevision(item.revision);
        yield item;
      }
    } catch (error) {
      if (isAborted(signal)) return;
      if (stop.aborted) throw closedFailure();
      const isTransient = error instanceof Failure && error.code === 'STORE_UNAVAILABLE';
      if (!isTransient || emptyStreamsCount >= MAX_EMPTY_STREAMS_COUNT) throw error;
    }
  }
}

/** The changes of one stream. Ends when its endpoint is abandoned. */
async function* watchStream(
  { prefix, afterRevision }: WatchRequest,
  { cluster, signal, stop }: WatchContext,
): AsyncGenerator<RevisionChanges, void, void> {
  const active = await cluster.connect(signal);
  await requireKeptChanges({ prefix, afterRevision }, { cluster, active, signal });
  const ends = AbortSignal.any([signal, stop, active.lost]);
  const responses = await active.endpoint.openWatch(ends);
  const sorter = new RevisionSorter(afterRevision);
  try {
    responses.create({
      ...prefixRange(prefix),
      start_revision: afterRevision + 1,
      progress_notify: true,
      fragment: true,
    });
    for await (const response of responses) {
      requireNotCancelled(response, { afterRevision: sorter.position, active });
      yield* sorter.take(response);
    }
  } catch (error) {
    if (error instanceof RevisionCompacted) throw error;
    const failure = active.endpoint.failure(error);
    if (failure instanceof Failure && failure.code === 'STORE_UNAVAILABLE') cluster.markLost(active, failure);
    throw failure;
  } finally {
    responses.close();
  }
}

interface KeptCheck {
  readonly cluster: EtcdCluster;
  readonly active: ActiveEndpoint;
  readonly signal: AbortSignal;
}

/** @throws RevisionCompacted when changes after the revision may be missing */
async function requireKeptChanges(
  { prefix, afterRevision }: WatchRequest,
  { cluster, active, signal }: KeptCheck,
): Promise<void> {
  const request = { key: prefixRange(prefix).key, count_only: true, revision: afterRevision };
  try {
    await cluster.send(active, ({ kv }, options) => kv.range(request, options), signal);
  } catch (error) {
    if (error instanceof RevisionGone) throw new RevisionCompacted(afterRevision);
    throw error;
  }
}

function requireNotCancelled(
  { canceled, cancel_reason: reason, compact_revision: compacted }: IWatchResponse,
  { afterRevision, active }: { readonly afterRevision: number; readonly active: ActiveEndpoint },
): void {
  if (!canceled) return;
  if (Number(compacted) > 0) throw new RevisionCompacted(afterRevision, Number(compacted));
  throw active.endpoint.failure(new Error(reason === '' ? 'the watch was cancelled' : reason));
}

/** Groups the events of responses by revision. */
export class RevisionSorter {
  #position: number;
  /** Changes of a possibly incomplete revision. */
  #pending: { readonly revision: number; readonly changes: RecordChange[] } | undefined;

  /** @param position - the revision after which the watch begins */
  constructor(position: number) {
    this.#position = position;
  }

  /** Everything up to this revision has been delivered. */
  get position(): number {
    return this.#position;
  }

  /** @returns the revisions that are complete with this response */
  *take({ events, fragment, created, header }: IWatchResponse): Generator<RevisionChanges, void, void> {
    for (const event of events) {
      const revision = Number(event.kv.mod_revision);
      if (revision <= this.#position) continue;
      if (this.#pending && this.#pending.revision !== revision) yield* this.#finish();
      this.#pending ??= { revision, changes: [] };
      this.#pending.changes.push(changeOf(event));
    }
    // The rest of a revision never comes in a separate response, except as a fragment.
    if (fragment) return;
    yield* this.#finish();
    // The first response of a new watch is not ordered with the changes.
    if (created || events.length > 0) return;
    const revision = Number(header.revision);
    if (revision <= this.#position) return;
    this.#position = revision;
    yield { revision, changes: [] };
  }

  *#finish(): Generator<RevisionChanges, void, void> {
    const finished = this.#pending;
    if (!finished) return;
    this.#pending = undefined;
    this.#position = finished.revision;
    yield finished;
  }
}

function changeOf({ type, kv }: IEvent): RecordChange {
  const key = kv.key.toString();
  return type === 'Delete' ? { type: 'delete', key } : { type: 'put', key, value: kv.value };
}
