import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';
import { messageOf } from '@podwire/shared/failure/thrown';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import { formatCaller, type Caller } from '@podwire/shared/tls/caller';

import type { KubernetesApi } from './api.js';
import { readNodePod, readPodCidrs, type NodePod, type ObjectName } from './objects.js';

/** How long a call waits for the API server, in milliseconds. */
const WAIT_MS = 1000;

/** Time after a failure of the API server in which one call waits for it, in milliseconds. */
const OUTAGE_PAUSE_MS = 10_000;

interface PodNodesOptions {
  readonly api: KubernetesApi;
  readonly clock: Clock;
  readonly log: Logger;
}

/**
 * Refuses the pods of other nodes. The kubelet knows a pod before its sandbox exists, so the API server's latest state has
 * it. A pod that it does not have is allowed: it was deleted meanwhile, or is static and has no mirror pod yet. Pods must
 * start while the API server is down, so no pod is refused then.
 */
export class PodNodes {
  readonly #options: PodNodesOptions;
  /** End of the pause by the monotonic clock; undefined while the API server answers. */
  #pausedUntilMs: number | undefined;

  constructor(options: PodNodesOptions) {
    this.#options = options;
  }

  /** @throws Failure ACCESS_DENIED when the caller is a node, and the pod is scheduled to another; the signal's */
  async require(caller: Caller, pod: ObjectName | undefined, signal: AbortSignal): Promise<void> {
    if (caller.kind === 'local' || caller.role !== 'node' || !pod) return;
    const found = await this.#read(pod, signal);
    if (!found || found.nodeName === caller.name) return;
    const place = found.nodeName === '' ? 'no node' : `node ${JSON.stringify(found.nodeName)}`;
    throw new Failure(
      'ACCESS_DENIED',
      `${formatCaller(caller)}: pod ${pod.namespace}/${pod.name} is scheduled to ${place}; a node acts for its own pods only`,
    );
  }

  /** @returns undefined for a pod that does not exist, or while the API server does not answer */
  async #read({ namespace, name }: ObjectName, signal: AbortSignal): Promise<NodePod | undefined> {
    const { api, clock, log } = this.#options;
    if (this.#pausedUntilMs !== undefined) {
      if (clock.monotonicMs() < this.#pausedUntilMs) return undefined;
      // This call tries again; the rest do not wait for it.
      this.#pause();
    }
    const timeout = new AbortController();
    const endTimer = clock.after(WAIT_MS, () => timeout.abort());
    try {
      const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods/${encodeURIComponent(name)}`;
      const request = { method: 'GET', path, signal: AbortSignal.any([signal, timeout.signal]) } as const;
      const { status, body } = await api.send(request);
      const pod = status === 404 ? undefined : readNodePod(body);
      if (!pod && status !== 404) throw new Failure('UNREACHABLE', `${api.subject}: GET ${path}: sent no Pod`);
      this.#pausedUntilMs = undefined;
      return pod;
    } catch (error) {
      if (signal.aborted) throw failureOfSignal(signal);
      if (this.#pausedUntilMs === undefined) {
        const reason = timeout.signal.aborted ? `${api.subject}: no answer within ${WAIT_MS} ms` : messageOf(error);
        log.warn(`pods of nodes: recorded without asking the API server: ${reason}`);
      }
      this.#pause();
      return undefined;
    } finally {
      endTimer();
    }
  }

  #pause(): void {
    this.#pausedUntilMs = this.#options.clock.monotonicMs() + OUTAGE_PAUSE_MS;
  }
}

/**
 * The networks that Kubernetes has assigned to a node for its pods.
 * @returns none if there is no Node of that name
 * @throws Failure as {@link KubernetesApi.send}
 */
export async function podCidrsOf(
  api: KubernetesApi,
  nodeName: string,
  signal: AbortSignal,
): Promise<readonly string[]> {
  const path = `/api/v1/nodes/${encodeURIComponent(nodeName)}`;
  const { status, body } = await api.send({ method: 'GET', path, signal });
  if (status === 404) return [];
  const cidrs = readPodCidrs(body);
  if (!cidrs) throw new Failure('UNREACHABLE', `${api.subject}: GET ${path}: sent no Node`);
  return cidrs;
}
