import type { Clock } from '@podwire/shared/runtime/clock';

import type { KubernetesApi } from '../api-server/api.js';
import { listPages, METADATA_ONLY } from '../api-server/lists.js';
import { ObjectCache, type CacheChange } from '../api-server/object-cache.js';
import { readName, readNode, readNodePod, readUid, type ClusterNode, type NodePod } from '../api-server/objects.js';
import type { ControllerEvents } from './controller-events.js';
import { isServing, nodesWithPod } from './readiness.js';

/** Label of the pods of the DaemonSet podwire-node, see deploy/kubernetes/chart. */
const NODE_POD_SELECTOR = 'app.kubernetes.io/name=podwire-node';

const CLUSTER_NAMESPACE = 'kube-system';

export interface ClusterStateOptions {
  readonly api: KubernetesApi;
  readonly events: ControllerEvents;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  readonly nodeChanged: (change: CacheChange) => void;
  readonly podChanged: () => void;
  /** The copy of the cluster is not current any more. */
  readonly interrupted: () => void;
  /** It may be current again. */
  readonly resumed: () => void;
}

/** The cluster as the API server shows it: copies of Nodes and of podwire-node's pods, and consistent lists. */
export class ClusterState {
  readonly #options: ClusterStateOptions;
  readonly #nodes: ObjectCache<ClusterNode>;
  readonly #pods: ObjectCache<NodePod>;

  /** The creator stops it before it closes the API server. */
  constructor(options: ClusterStateOptions) {
    this.#options = options;
    const { api, clock, random, nodeChanged, podChanged } = options;
    const shared = { api, clock, random };
    const report = this.#reporter('watch Nodes');
    this.#nodes = new ObjectCache({ ...shared, path: '/api/v1/nodes', read: readNode, changed: nodeChanged, report });
    this.#pods = new ObjectCache({
      ...shared,
      path: `/api/v1/namespaces/${api.namespace}/pods`,
      labelSelector: NODE_POD_SELECTOR,
      read: readNodePod,
      changed: podChanged,
      report: this.#reporter('watch the pods of podwire-node'),
    });
  }

  /** Nodes by name. */
  get nodes(): ReadonlyMap<string, ClusterNode> {
    return this.#nodes.objects;
  }

  /** Whether both copies follow the API server. */
  get isCurrent(): boolean {
    return this.#nodes.isCurrent && this.#pods.isCurrent;
  }

  /** Names of the nodes that can run pods. */
  servingNodes(): ReadonlySet<string> {
    const withPod = nodesWithPod(this.#pods.objects.values());
    const serving = [...this.nodes.values()].filter((node) => isServing(node, withPod));
    return new Set(serving.map(({ name }) => name));
  }

  /**
   * UID of the cluster: another one means another cluster, or one that was created again.
   * @returns undefined when the API server does not answer; the failure is reported
   */
  clusterUid(signal: AbortSignal): Promise<string | undefined> {
    const { api, events } = this.#options;
    return events.attempt('identify the cluster', signal, async () => {
      const answer = await api.send({ method: 'GET', path: `/api/v1/namespaces/${CLUSTER_NAMESPACE}`, signal });
      return readUid(answer.body);
    });
  }

  /** Names of all Nodes, of one consistent list; undefined when the API server does not answer. */
  nodeNames(signal: AbortSignal): Promise<ReadonlySet<string> | undefined> {
    const { api, events } = this.#options;
    return events.attempt('list Nodes', signal, async () => {
      const names = new Set<string>();
      for await (const { items } of listPages(api, { path: '/api/v1/nodes', accept: METADATA_ONLY, signal }))
        for (const item of items) names.add(readName(item)?.name ?? '');
      return names;
    });
  }

  /**
   * Removes from a set all pods that exist, by one consistent list.
   * @param keys - keys of pods, which remain for pods that do not exist
   * @returns whether the list is complete and has podwire-node's pods; undefined when the API server does not answer
   */
  removeExisting(keys: Set<string>, keyOf: (pod: { namespace: string; name: string }) => string, signal: AbortSignal) {
    const { api, events } = this.#options;
    return events.attempt('list pods', signal, async () => {
      let hasOwnPods = false;
      for await (const { items } of listPages(api, { path: '/api/v1/pods', accept: METADATA_ONLY, signal }))
        for (const pod of items.flatMap((item) => readName(item) ?? [])) {
          hasOwnPods ||= pod.namespace === api.namespace && this.#pods.objects.has(pod.name);
          keys.delete(keyOf(pod));
        }
      return hasOwnPods;
    });
  }

  async stop(): Promise<void> {
    await Promise.all([this.#nodes.stop(), this.#pods.stop()]);
  }

  #reporter(purpose: string): (failure: unknown) => void {
    const { events, interrupted, resumed } = this.#options;
    return (failure) => {
      if (failure === undefined) {
        events.apiAnswered(purpose);
        resumed();
        return;
      }
      interrupted();
      events.apiFailed(purpose, failure);
    };
  }
}
