import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { observeMetrics } from '@podwire/shared/telemetry/instruments';
import { z } from 'zod';

import { MERGE_PATCH, type KubernetesApi } from '../api-server/api.js';
import { listPages } from '../api-server/lists.js';
import { ApiObjects, discoverGroup } from '../engine/kubernetes/api-objects.js';
import {
  HistorySegments,
  type HistoryReports,
  type ImportedHistory,
  type OpenedHistory,
} from '../engine/kubernetes/history/history-segments.js';
import { KubernetesStore } from '../engine/kubernetes/kubernetes-store.js';
import { ObjectForms, type CalicoGroup } from '../engine/kubernetes/object-forms.js';
import { finalizersOf, POOL_FINALIZER } from '../engine/kubernetes/pool-form.js';
import { PoolStatusWriter, type PublishedStatus } from '../engine/kubernetes/pool-status.js';
import type { Store } from '../engine/store.js';
import type { SegmentedHistory } from '../history/history-log.js';
import { Leadership } from '../leadership/leadership.js';
import { asObject, objectIn } from '../records/json/json.js';
import type { RecordKeys } from '../records/json/keys.js';
import type { HistoryDestination } from '../transfer/history-import.js';

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
  /** Receives the identity of each leader that this process waits for, and its own once it leads. Must not throw. */
  readonly leaderObserved: (identity: string) => void;
  readonly history: HistoryReports;
  /** Called when this process must start again: another one leads, or Calico's objects have moved. Must not throw. */
  readonly lost: (failure: Failure) => void;
  /** Starts what writes further objects, while this process leads. */
  readonly startWriters: (opened: OpenedStore) => readonly ObjectWriter[];
}

export interface OpenedStore {
  readonly store: Store;
  readonly group: CalicoGroup;
  /** Throws a Failure once another process may lead. */
  readonly authorizeWrite: () => void;
}

export interface ObjectWriter {
  /** Idempotent. */
  stop(): Promise<void>;
}

const NOT_FOUND = 404;

/** Interval between two looks for the end of a migration, in milliseconds. */
const MIGRATION_CHECK_MS = 5_000;

const LEADER = 'podwire.dev/leader';

const podSchema = z.object({ metadata: z.object({ name: z.string() }) });

/** How long the last records of the history may take when the server ends, or a command, in milliseconds. */
const CLOSING_MS = { server: 5_000, command: 120_000 };

interface DatastoreParts {
  readonly store: KubernetesStore;
  readonly group: CalicoGroup;
  readonly options: KubernetesDatastoreOptions;
  readonly poolStatus: PoolStatusWriter;
  readonly leadership: Leadership | undefined;
  readonly objects: ApiObjects;
}

/**
 * Calico's custom resources as the datastore of one of several podwire-ipam. All of them follow all objects; the one that leads
 * writes and serves.
 */
export class KubernetesDatastore implements SegmentedHistory, HistoryDestination {
  readonly store: KubernetesStore;
  readonly #group: CalicoGroup;
  readonly #options: KubernetesDatastoreOptions;
  readonly #leadership: Leadership | undefined;
  readonly #stopMetrics: () => void;
  /** The history's writer; undefined until it is read, and if none is kept. */
  #history: OpenedHistory['segments'] | undefined;
  /** The writers of further objects; undefined until this process leads for the first time. */
  #writers: readonly ObjectWriter[] | undefined;
  readonly #poolStatus: PoolStatusWriter;
  readonly #closed = new AbortController();

  private constructor({ store, group, options, leadership, objects, poolStatus }: DatastoreParts) {
    this.store = store;
    this.#group = group;
    this.#options = options;
    this.#leadership = leadership;
    this.#stopMetrics = observeMetrics(['podwire.ipam.leader', 'podwire.ipam.kubernetes.watch.age'], (observe) => {
      observe('podwire.ipam.leader', leadership?.isHeld ? 1 : 0);
      observe('podwire.ipam.kubernetes.watch.age', objects.watchAgeMs / 1000);
    });
    this.#poolStatus = poolStatus;
  }

  /**
   * Reads all objects and follows them, without leading.
   * @throws Failure STORE_UNAVAILABLE without Calico's definitions, or of the API server
   */
  static async open(options: KubernetesDatastoreOptions, signal: AbortSignal): Promise<KubernetesDatastore> {
    const { api, keys, clock, random, identity, podName, report, leaderObserved } = options;
    // A container that starts again has the label of the one before.
    await label(api, podName, null);
    const group = await discoverGroup(api, signal);
    if (!group) throw missingDefinitions(api);
    const ownConditions = identity === undefined ? 'hidden' : 'marked';
    const forms = new ObjectForms({ keys, group, namespace: api.namespace, ownConditions });
    const leadership =
      identity === undefined ? undefined : new Leadership({ api, identity, clock, report, leaderObserved });
    let checking: Promise<void> | undefined;
    const checkGroup = (): Promise<void> =>
      (checking ??= endIfMoved(group, options).finally(() => (checking = undefined)));
    const objects = new ApiObjects({
      ...{ api, forms, clock, random },
      authorizeWrite: () => leadership?.requireHeld(),
      report: (_resource, failure) => {
        if (failure === undefined) return;
        report(failure);
        void checkGroup();
      },
    });
    const restored = (): void => {
      const text =
        'has an earlier state than before, as after a restore of its etcd; podwire-ipam starts again with it';
      options.lost(new Failure('STORE_UNAVAILABLE', `${api.subject}: ${text}`));
    };
    const store = await KubernetesStore.open(
      { api: objects, keys, deletedUnderLock: () => void checkGroup(), restored },
      signal,
    );
    leadership?.lost.addEventListener('abort', () => {
      void store.close();
      const reason: unknown = leadership.lost.reason;
      if (reason instanceof Failure) options.lost(reason);
    });
    const poolStatus = new PoolStatusWriter({ api, resource: forms.placeOf('ippools/').resource, clock });
    const datastore = new KubernetesDatastore({ store, group, options, leadership, objects, poolStatus });
    if (group === 'crd.projectcalico.org/v1' && leadership) void datastore.#followMigration(checkGroup);
    return datastore;
  }

  /** The end of a migration changes no object that this process follows. */
  async #followMigration(checkGroup: () => Promise<void>): Promise<void> {
    const { clock } = this.#options;
    while ((await clock.sleep(MIGRATION_CHECK_MS, this.#closed.signal)) === 'elapsed') await checkGroup();
  }

  get isKept(): boolean {
    return this.#history !== undefined;
  }

  /**
   * Waits until this process leads, and the store shows all that the former leader wrote. A command does not lead: it reads
   * beside the leader, all of one moment. Can be repeated after a failure.
   * @throws Failure of the API server or of the signal
   */
  async lead(signal: AbortSignal): Promise<void> {
    const { api, keys, clock, random, podName, history: reports, startWriters } = this.#options;
    await this.#leadership?.acquire(signal);
    if (this.#leadership) await this.store.refresh(signal);
    if (!this.#history) {
      const opened = await HistorySegments.open({ api, keys, clock, random, reports }, signal);
      this.#history = opened?.segments;
      if (opened) this.store.keepHistory(opened);
    }
    if (!this.#leadership) {
      this.store.hold();
      return;
    }
    const leadership = this.#leadership;
    await takeLabel({ api, podName, leadership }, signal);
    await this.#releaseFormerPools(signal);
    this.#writers ??= startWriters({
      ...{ store: this.store, group: this.#group },
      authorizeWrite: () => leadership.requireHeld(),
    });
  }

  /**
   * After a migration, Kubernetes deletes the former definition of pools once the pools have no finalizer. v3 is in use only if the
   * definition in v1 does not exist, is being deleted, or has been migrated.
   */
  async #releaseFormerPools(signal: AbortSignal): Promise<void> {
    const { api } = this.#options;
    const path = '/apis/crd.projectcalico.org/v1/ippools';
    if (this.#group === 'crd.projectcalico.org/v1') return;
    if ((await api.send({ method: 'GET', path: `${path}?limit=1`, signal })).status === NOT_FOUND) return;
    for await (const { items } of listPages(api, { path, signal }))
      for (const item of items) {
        const pool = asObject(item) ?? {};
        const { name, uid = null, resourceVersion = null } = objectIn(pool, 'metadata');
        const finalizers = finalizersOf(pool).filter((each) => each !== POOL_FINALIZER);
        if (typeof name !== 'string' || finalizers.length === finalizersOf(pool).length) continue;
        const body = { metadata: { uid, resourceVersion, finalizers } };
        await api.send({ method: 'PATCH', path: `${path}/${name}`, body, contentType: MERGE_PATCH, signal });
      }
  }

  /** Writes conditions of pools. @throws Failure of the API server, or STORE_UNAVAILABLE if another process leads */
  async publishPools(statuses: readonly PublishedStatus[], signal: AbortSignal): Promise<void> {
    this.#leadership?.requireHeld();
    await this.#poolStatus.publish(statuses, signal);
  }

  async removeOld(retentionMs: number, signal: AbortSignal): Promise<number> {
    return (await this.store.history?.removeOld(retentionMs, signal)) ?? 0;
  }

  async import(history: ImportedHistory, signal: AbortSignal): ReturnType<HistoryDestination['import']> {
    const nothing = { writtenCount: 0, leftOutCount: history.records.length };
    return (await this.store.history?.import(history, signal)) ?? nothing;
  }

  /** Gives the lease up once the last transaction has ended, and the history is written. Idempotent. */
  async close(): Promise<void> {
    const { api, podName, report } = this.#options;
    this.#stopMetrics();
    this.#closed.abort();
    if (this.#leadership?.isHeld) await label(api, podName, null).catch(report);
    await Promise.all((this.#writers ?? []).map((writer) => writer.stop()));
    await this.store.close();
    try {
      await this.#closeHistory();
    } finally {
      await this.#leadership?.release();
      api.close();
    }
  }

  /** @throws the failure of a command, whose records are a part of its result */
  async #closeHistory(): Promise<void> {
    const { identity, history: reports } = this.#options;
    const isCommand = identity === undefined;
    const signal = AbortSignal.timeout(isCommand ? CLOSING_MS.command : CLOSING_MS.server);
    try {
      await this.#history?.close(signal);
    } catch (error) {
      if (isCommand) throw error;
      reports.writeFailed(error);
    }
  }
}

/** Ends this process if Calico's objects are in the other group: a migration has copied them there. */
async function endIfMoved(group: CalicoGroup, { api, lost }: KubernetesDatastoreOptions): Promise<void> {
  const served = await discoverGroup(api).catch(() => undefined);
  if (served === undefined || served === group) return;
  const text = `Calico's objects have moved from ${group} to ${served}; podwire-ipam starts again and uses these`;
  lost(new Failure('STORE_UNAVAILABLE', `${api.subject}: ${text}`));
}

interface LabelOwner extends Pick<KubernetesDatastoreOptions, 'api' | 'podName'> {
  readonly leadership: Leadership;
}

/**
 * Takes the label from a pod whose node is lost, which still counts as ready for a while.
 * @throws Failure STORE_UNAVAILABLE if another process leads, which keeps its label
 */
async function takeLabel({ api, podName, leadership }: LabelOwner, signal: AbortSignal): Promise<void> {
  if (podName === '') return;
  const path = `/api/v1/namespaces/${api.namespace}/pods`;
  const set = async (name: string, value: 'true' | null): Promise<void> => {
    leadership.requireHeld();
    await label(api, name, value);
  };
  for await (const { items } of listPages(api, { path, labelSelector: `${LEADER}=true`, signal }))
    for (const pod of items) await set(podSchema.parse(pod).metadata.name, null);
  await set(podName, 'true');
}

/** Sets or removes the label by which the Service finds the pod that serves. */
async function label(api: KubernetesApi, podName: string, value: 'true' | null): Promise<void> {
  if (podName === '') return;
  const path = `/api/v1/namespaces/${api.namespace}/pods/${podName}`;
  const body = { metadata: { labels: { [LEADER]: value } } };
  await api.send({ method: 'PATCH', path, body, contentType: MERGE_PATCH });
}

function missingDefinitions(api: KubernetesApi): Failure {
  return new Failure(
    'STORE_UNAVAILABLE',
    `${api.subject}: has no definition of ipamblocks; run: helm install podwire-crds deploy/kubernetes/podwire-crds`,
  );
}
