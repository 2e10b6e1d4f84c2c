import { Failure } from '@podwire/shared/failure/failure';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { observeMetrics } from '@podwire/shared/telemetry/instruments';

import { MERGE_PATCH, type KubernetesApi } from '../../../api-server/api.js';
import { listPages, METADATA_ONLY } from '../../../api-server/lists.js';
import { asObject, objectIn, type JsonObject } from '../../../records/json/json.js';
import type { RecordKeys } from '../../../records/json/keys.js';
import { decodeRecord } from '../../../records/json/registry.js';
import type { RecordChange, Store } from '../../store.js';
import { RecordFollower, type FollowerDeps } from './record-follower.js';

interface PodAnnotationsOptions extends FollowerDeps {
  readonly api: KubernetesApi;
  readonly store: Pick<Store, 'revision' | 'scan' | 'watch'>;
  readonly keys: RecordKeys;
}

/** At most fifty writes per second. */
const PAUSE_MS = 20;

/** The interface that Kubernetes knows the pod's addresses of. */
const INTERFACE = 'eth0';

const POD_IP = 'cni.projectcalico.org/podIP';
const POD_IPS = 'cni.projectcalico.org/podIPs';
const CONTAINER_ID = 'cni.projectcalico.org/containerID';

const [NOT_FOUND, CONFLICT] = [404, 409];

/** The annotations of a pod. */
interface PodState {
  readonly namespace: string;
  readonly podName: string;
  /** Empty if unknown. */
  readonly uid: string;
  readonly containerId: string;
  /** With prefix lengths; none if the pod has ended. */
  readonly addresses: readonly string[];
}

/**
 * Shows the addresses of pods in the annotations that Calico's plugin writes, before the kubelet reports them: Calico's policy
 * engine reads them. No ADD waits for it, and a pod that is gone needs nothing.
 */
export class PodAnnotations {
  readonly #options: PodAnnotationsOptions;
  readonly #follower: RecordFollower;
  /** Pods by the key of their endpoint. */
  readonly #pods = new Map<string, PodState>();
  /** The annotations as they were at the start, by pod. */
  #found = new Map<string, string>();
  readonly #endMetrics: () => void;

  /** The creator stops it before it closes the store. */
  constructor(options: PodAnnotationsOptions) {
    this.#options = options;
    this.#follower = new RecordFollower({
      ...options,
      prefix: options.keys.endpoints,
      pauseMs: PAUSE_MS,
      begin: (signal) => this.#readPods(signal),
      changed: (change) => this.#changed(change),
      whenRead: () => this.#found.clear(),
      write: (key, signal) => this.#write(key, signal),
    });
    this.#endMetrics = observeMetrics(['podwire.ipam.kubernetes.annotations'], (observe) =>
      observe('podwire.ipam.kubernetes.annotations', this.#follower.waitingCount),
    );
  }

  async stop(): Promise<void> {
    this.#endMetrics();
    await this.#follower.stop();
  }

  async #readPods(signal: AbortSignal): Promise<void> {
    const { api } = this.#options;
    this.#found.clear();
    for await (const { items } of listPages(api, { path: '/api/v1/pods', accept: METADATA_ONLY, signal }))
      for (const item of items) {
        const { namespace, name, uid, annotations } = objectIn(asObject(item) ?? {}, 'metadata');
        if (annotations === undefined) continue;
        const { [CONTAINER_ID]: containerId, [POD_IPS]: podIps } = objectIn({ annotations }, 'annotations');
        if (containerId !== undefined)
          this.#found.set([namespace, name].map(String).join('/'), [uid, containerId, podIps].map(String).join());
      }
  }

  #changed(change: RecordChange): void {
    const { key } = change;
    const known = this.#pods.get(key);
    const state = change.type === 'put' ? this.#stateOf(key, change.value) : known && { ...known, addresses: [] };
    if (!state || (known && textOf(known) === textOf(state))) return;
    this.#pods.set(key, state);
    if (this.#found.get(`${state.namespace}/${state.podName}`) !== textOf(state)) this.#follower.request(key);
  }

  /** @returns undefined for an endpoint without a pod, and for a further interface */
  #stateOf(key: string, value: Uint8Array): PodState | undefined {
    const name = this.#options.keys.parse(key);
    const record = name && decodeRecord(key, name, value).record;
    if (record?.kind !== 'endpoint') return undefined;
    const { pod, attachment, addresses } = record.value;
    if (!pod || attachment.interfaceName !== INTERFACE) return undefined;
    return {
      namespace: pod.namespace,
      podName: pod.name,
      uid: pod.uid,
      containerId: attachment.containerId,
      addresses: addresses.map(({ address }) => formatPrefix(address)),
    };
  }

  async #write(key: string, signal: AbortSignal): Promise<void> {
    const state = this.#pods.get(key);
    if (!state) return;
    const { uid, containerId, addresses } = state;
    const [first = ''] = addresses;
    const addressesOf = { [POD_IP]: first, [POD_IPS]: addresses.join() };
    if (addresses.length > 0) {
      const metadata = uid === '' ? {} : { uid };
      await this.#patch(state, { ...metadata, annotations: { ...addressesOf, [CONTAINER_ID]: containerId } }, signal);
      return;
    }
    const version = await this.#versionOf(state, signal);
    if (version) await this.#patch(state, { ...version, annotations: addressesOf }, signal);
    if (this.#pods.get(key) === state) this.#pods.delete(key);
  }

  /** UID and version of a pod that still has the annotations of the container; undefined if there is none. */
  async #versionOf(state: PodState, signal: AbortSignal): Promise<JsonObject | undefined> {
    const { status, body } = await this.#options.api.send({ method: 'GET', path: pathOf(state), signal });
    const metadata = objectIn(asObject(body) ?? {}, 'metadata');
    const { uid = null, resourceVersion = null } = metadata;
    const annotations = objectIn(metadata, 'annotations');
    const isOther = (state.uid !== '' && uid !== state.uid) || annotations[CONTAINER_ID] !== state.containerId;
    return status === NOT_FOUND || isOther ? undefined : { uid, resourceVersion };
  }

  /** @throws Failure UNREACHABLE if the pod was changed at the same time */
  async #patch(state: PodState, metadata: JsonObject, signal: AbortSignal): Promise<void> {
    const { api } = this.#options;
    const path = pathOf(state);
    const request = { method: 'PATCH', path: `${path}/status`, body: { metadata }, contentType: MERGE_PATCH } as const;
    try {
      const { status } = await api.send({ ...request, signal });
      if (status !== CONFLICT) return;
    } catch (error) {
      // The API server refuses another UID as a change of the field.
      if (error instanceof Failure && error.code === 'INVALID_REQUEST') return;
      throw error;
    }
    const { body } = await api.send({ method: 'GET', path, signal });
    const { uid } = objectIn(asObject(body) ?? {}, 'metadata');
    if (uid === metadata.uid || metadata.uid === undefined)
      throw new Failure('UNREACHABLE', `${api.subject}: PATCH ${path}: the pod was changed at the same time`);
  }
}

function pathOf({ namespace, podName }: PodState): string {
  return `/api/v1/namespaces/${namespace}/pods/${podName}`;
}

function textOf({ uid, containerId, addresses }: PodState): string {
  return [uid, containerId, ...addresses].join();
}
