import type { Clock } from '@podwire/shared/runtime/clock';

import type { Addresses } from '../addresses/addresses-operations.js';
import type { EndpointPage, EndpointQuery } from '../endpoints/endpoints.js';
import type { KubernetesApi } from '../api-server/api.js';
import type { Nodes } from '../nodes/nodes-operations.js';
import { ClusterState } from './cluster-state.js';
import type { ControllerEvents } from './controller-events.js';
import { NodeCleanup } from './node-cleanup.js';
import { NodeReadiness } from './node-readiness.js';
import { PodCleanup } from './pod-cleanup.js';

export interface NodeControllerOptions {
  readonly api: KubernetesApi;
  readonly nodes: Pick<Nodes, 'registered' | 'recordCluster' | 'isRunning' | 'delete'>;
  readonly addresses: Pick<Addresses, 'releaseEach'>;
  readonly listEndpoints: (query: EndpointQuery, signal: AbortSignal) => Promise<EndpointPage>;
  readonly events: ControllerEvents;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** How long a Node or a pod must be missing before its addresses are released. */
  readonly graceMs: number;
  /** Longest time between two rounds of {@link NodeController.releaseDeletedNodes}, in milliseconds. */
  readonly longestRoundMs: number;
}

/**
 * Follows the Kubernetes cluster that podwire-ipam runs in: releases what deleted Nodes and pods held, and shows in each
 * Node that its network works. Several replicas may run it at once.
 */
export class NodeController {
  readonly #cluster: ClusterState;
  readonly #nodes: NodeCleanup;
  readonly #pods: PodCleanup;
  readonly #readiness: NodeReadiness;

  /** The creator stops it before it closes the API server. */
  constructor(options: NodeControllerOptions) {
    const { api, events, clock, random } = options;
    const cluster = (): ClusterState => this.#cluster;
    this.#nodes = new NodeCleanup({ ...options, cluster });
    this.#pods = new PodCleanup({ ...options, cluster });
    const notServing = (name: string): void => this.#pods.nodeInterrupted(name);
    this.#readiness = new NodeReadiness({ api, cluster, events, clock, random, notServing });
    this.#cluster = new ClusterState({
      ...{ api, events, clock, random },
      nodeChanged: (change) => {
        this.#nodes.changed(change);
        this.#readiness.changed();
      },
      podChanged: () => this.#readiness.changed(),
      interrupted: () => {
        this.#nodes.interrupted();
        this.#pods.interrupted();
      },
      resumed: () => this.#readiness.changed(),
    });
  }

  /** One round. Repeat it. @throws Failure of the datastore */
  releaseDeletedNodes(signal: AbortSignal): Promise<void> {
    return this.#nodes.run(signal);
  }

  /** One round, which often has nothing to do. @throws Failure of the datastore */
  releaseDeletedPods(signal: AbortSignal): Promise<void> {
    return this.#pods.run(signal);
  }

  /** Idempotent. */
  async stop(): Promise<void> {
    await Promise.all([this.#cluster.stop(), this.#readiness.stop()]);
  }
}
