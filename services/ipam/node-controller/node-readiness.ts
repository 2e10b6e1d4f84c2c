import { backoffMs, type BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { KubernetesApi } from '../api-server/api.js';
import type { ClusterNode } from '../api-server/objects.js';
import type { ClusterState } from './cluster-state.js';
import type { ControllerEvents } from './controller-events.js';
import { patchesOf, type NodePatch } from './readiness.js';

export interface NodeReadinessOptions {
  readonly api: Pick<KubernetesApi, 'send'>;
  readonly cluster: () => Pick<ClusterState, 'nodes' | 'isCurrent' | 'servingNodes'>;
  readonly events: ControllerEvents;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** A node cannot run pods. Called at least once while this is so, and again after each change. */
  readonly notServing: (name: string) => void;
}

const BACKOFF: BackoffBounds = { baseMs: 1000, maxMs: 60_000 };

/** Changes arrive in groups, at the start in thousands. */
const GATHERING_MS = 200;

/** HTTP statuses after which the copy of the Node changes: it was deleted, or changed by another writer. */
const OUTDATED = [404, 409];

/**
 * Shows in each Node that its network works, once it does: sets the condition NetworkUnavailable to False and removes the
 * startup taint. Never the other way round: the kubelet reports a network that fails later.
 */
export class NodeReadiness {
  readonly #options: NodeReadinessOptions;
  readonly #stop = new AbortController();
  readonly #done: Promise<void>;
  /** Patches that were sent for a copy of a Node: its next copy is another object. */
  readonly #sent = new WeakMap<ClusterNode, Set<string>>();
  #isChanged = false;
  #wake: () => void = () => undefined;

  constructor(options: NodeReadinessOptions) {
    this.#options = options;
    this.#done = this.#run(this.#stop.signal);
  }

  /** A Node or a pod of podwire-node changed. */
  changed(): void {
    this.#isChanged = true;
    this.#wake();
  }

  /** Idempotent. */
  async stop(): Promise<void> {
    this.#stop.abort();
    this.#wake();
    await this.#done;
  }

  async #run(signal: AbortSignal): Promise<void> {
    const { clock, random } = this.#options;
    for (let attempt = 0; ;) {
      await this.#untilChanged(signal);
      await clock.sleep(GATHERING_MS, signal);
      if (signal.aborted) return;
      this.#isChanged = false;
      if (await this.#apply(signal)) {
        attempt = 0;
        continue;
      }
      await clock.sleep(backoffMs(attempt++, BACKOFF, random()), signal);
      this.#isChanged = true;
    }
  }

  async #untilChanged(signal: AbortSignal): Promise<void> {
    while (!this.#isChanged && !signal.aborted) await new Promise<void>((resolve) => (this.#wake = resolve));
  }

  /** @returns whether every node is as it should be */
  async #apply(signal: AbortSignal): Promise<boolean> {
    const { clock, events, notServing } = this.#options;
    const cluster = this.#options.cluster();
    const serving = cluster.servingNodes();
    const outcomes: Outcome[] = [];
    for (const [name, node] of [...cluster.nodes]) {
      if (!serving.has(name)) notServing(name);
      else if (cluster.isCurrent)
        for (const patch of patchesOf(node, clock.nowMs())) outcomes.push(await this.#send(node, patch, signal));
    }
    if (signal.aborted) return false;
    // A refusal of some nodes among many is one failure, not an end and a begin with each node.
    const failed = outcomes.find(({ type }) => type === 'failed');
    if (failed) events.apiFailed(PURPOSE, failed.error);
    else events.apiAnswered(PURPOSE);
    return !failed;
  }

  async #send(node: ClusterNode, patch: NodePatch, signal: AbortSignal): Promise<Outcome> {
    const { api, events } = this.#options;
    const { path, contentType, body, effect } = patch;
    const sent = this.#sent.get(node) ?? new Set();
    if (sent.has(path)) return { type: 'answered' };
    try {
      const { status } = await api.send({ method: 'PATCH', path, contentType, body, signal });
      this.#sent.set(node, sent.add(path));
      if (!OUTDATED.includes(status)) events.nodePatched(node.name, effect);
      return { type: 'answered' };
    } catch (error) {
      return { type: 'failed', error };
    }
  }
}

const PURPOSE = 'change Nodes';

interface Outcome {
  readonly type: 'answered' | 'failed';
  readonly error?: unknown;
}
