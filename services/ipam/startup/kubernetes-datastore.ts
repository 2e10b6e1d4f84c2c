import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { z } from 'zod';

import type { KubernetesApi } from '../api-server/api.js';
import { listPages } from '../api-server/lists.js';
import { ApiObjects, discoverGroup } from '../engine/kubernetes/api-objects.js';
import { HistorySegments, type HistoryReports, type OpenedHistory } from '../engine/kubernetes/history-segments.js';
import { KubernetesStore } from '../engine/kubernetes/kubernetes-store.js';
import { ObjectForms } from '../engine/kubernetes/object-forms.js';
import type {
  CommitResult,
  Page,
  RevisionChanges,
  ScanRequest,
  Snapshot,
  Store,
  Transaction,
  WatchRequest,
} from '../engine/store.js';
import type { SegmentedHistory } from '../history/history-log.js';
import { Leadership } from '../leadership/leadership.js';
import type { RecordKeys } from '../records/json/keys.js';

export interface KubernetesDatastoreOptions {
  readonly api: KubernetesApi;
  readonly keys: RecordKeys;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** Name among all processes that want to lead; undefined for a command, which works beside the leader. */
  readonly identity: string | undefined;
  /** The pod that is labelled while it serves; empty for none. */
  readonly podName: string;
  /** Receives failures of watches and of the lease, which are retried. Must not throw. */
  readonly report: (failure: unknown) => void;
  readonly history: HistoryReports;
  /** Called when another process leads. Must not throw. */
  readonly lost: (failure: Failure) => void;
}

const LEADER = 'podwire.dev/leader';

const podSchema = z.object({ metadata: z.object({ name: z.string() }) });

/** How long the write of the last records of the history may delay the end of the process, in milliseconds. */
const HISTORY_CLOSE_MS = 5_000;

interface Opened {
  readonly store: KubernetesStore;
  /** The writer of the history; undefined if none is kept. */
  readonly history: OpenedHistory['segments'] | undefined;
  readonly leadership: Leadership | undefined;
}

/**
 * Calico's custom resources as the datastore. Its first call waits until this process leads; the server runs meanwhile, and
 * reports that it does not serve.
 */
export class KubernetesDatastore implements Store, SegmentedHistory {
  readonly #options: KubernetesDatastoreOptions;
  readonly #stop = new AbortController();
  #opening: Promise<Opened> | undefined;
  isKept = true;

  constructor(options: KubernetesDatastoreOptions) {
    this.#options = options;
  }

  async removeOld(retentionMs: number, signal: AbortSignal): Promise<number> {
    return (await this.#open()).removeOldHistory(retentionMs, signal);
  }

  async list(prefix: string, signal: AbortSignal): Promise<Snapshot> {
    return (await this.#open()).list(prefix, signal);
  }

  async read(keys: readonly string[], signal: AbortSignal): Promise<Snapshot> {
    return (await this.#open()).read(keys, signal);
  }

  async scan(request: ScanRequest, signal: AbortSignal): Promise<Page> {
    return (await this.#open()).scan(request, signal);
  }

  async revision(signal: AbortSignal): Promise<number> {
    return (await this.#open()).revision(signal);
  }

  async commit(transaction: Transaction, signal: AbortSignal): Promise<CommitResult> {
    return (await this.#open()).commit(transaction, signal);
  }

  async *watch(request: WatchRequest, signal: AbortSignal): AsyncGenerator<RevisionChanges, void, void> {
    yield* (await this.#open()).watch(request, signal);
  }

  async close(): Promise<void> {
    this.#stop.abort(new Failure('STORE_UNAVAILABLE', 'the service is shutting down; repeat the request'));
    const opened = await this.#opening?.catch(() => undefined);
    if (opened)
      await this.#label(this.#options.podName, null).catch((failure: unknown) => this.#options.report(failure));
    await opened?.store.close();
    await opened?.history
      ?.close(AbortSignal.timeout(HISTORY_CLOSE_MS))
      .catch((error: unknown) => this.#options.history.writeFailed(error));
    await opened?.leadership?.release();
    this.#options.api.close();
  }

  /** A failure is not kept: the next call tries again. */
  async #open(): Promise<KubernetesStore> {
    this.#opening ??= this.#lead().catch((error: unknown) => {
      this.#opening = undefined;
      throw error;
    });
    return (await this.#opening).store;
  }

  async #lead(): Promise<Opened> {
    const { api, keys, clock, random, identity, report, history: reports, lost } = this.#options;
    const { signal } = this.#stop;
    // A container that starts again has the label of the one before.
    await this.#label(this.#options.podName, null);
    const leadership =
      identity === undefined ? undefined : await Leadership.acquire({ api, identity, clock, report }, signal);
    try {
      const group = await discoverGroup(api, signal);
      if (!group) throw missingDefinitions(api);
      const forms = new ObjectForms({ keys, group, namespace: api.namespace });
      const reportWatch = (_resource: string, failure: unknown): void => {
        if (failure !== undefined) report(failure);
      };
      const objects = new ApiObjects({ api, forms, clock, random, report: reportWatch });
      const history = await HistorySegments.open({ api, keys, clock, random, reports }, signal);
      this.isKept = history !== undefined;
      const store = await KubernetesStore.open({ api: objects, keys });
      if (history) store.startHistory(history);
      leadership?.lost.addEventListener('abort', () => {
        void store.close();
        const reason: unknown = leadership.lost.reason;
        if (reason instanceof Failure) lost(reason);
      });
      await this.#takeLabel(signal);
      return { store, history: history?.segments, leadership };
    } catch (error) {
      await leadership?.release();
      throw error;
    }
  }

  /** Takes the label from a pod whose node is lost, which still counts as ready for a while. */
  async #takeLabel(signal: AbortSignal): Promise<void> {
    const { api, podName } = this.#options;
    if (podName === '') return;
    const path = `/api/v1/namespaces/${api.namespace}/pods`;
    for await (const { items } of listPages(api, { path, labelSelector: `${LEADER}=true`, signal }))
      for (const pod of items) await this.#label(podSchema.parse(pod).metadata.name, null);
    await this.#label(podName, 'true');
  }

  /** Sets or removes the label by which the Service finds the pod that serves. */
  async #label(podName: string, value: 'true' | null): Promise<void> {
    const { api } = this.#options;
    if (podName === '') return;
    const path = `/api/v1/namespaces/${api.namespace}/pods/${podName}`;
    const body = { metadata: { labels: { [LEADER]: value } } };
    await api.send({ method: 'PATCH', path, body, contentType: 'application/merge-patch+json' });
  }
}

function missingDefinitions(api: KubernetesApi): Failure {
  return new Failure(
    'STORE_UNAVAILABLE',
    `${api.subject}: has no definition of ipamblocks; run: helm install podwire-crds deploy/kubernetes/podwire-crds`,
  );
}
