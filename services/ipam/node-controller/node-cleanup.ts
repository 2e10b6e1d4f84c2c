import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { EndpointPage, EndpointQuery } from '../endpoints/endpoints.js';
import type { CacheChange } from '../api-server/object-cache.js';
import type { Nodes } from '../nodes/nodes-operations.js';
import type { Node } from '../records/node.js';
import { versionOf } from '../records/versions.js';
import { decideNodeDeletions, observedMs, overdue, trackMissing, type MissingTimes } from './absences.js';
import type { ClusterState } from './cluster-state.js';
import type { ControllerEvents } from './controller-events.js';

export interface NodeCleanupOptions {
  readonly cluster: () => Pick<ClusterState, 'nodes' | 'isCurrent' | 'clusterUid' | 'nodeNames'>;
  readonly nodes: Pick<Nodes, 'registered' | 'recordCluster' | 'isRunning' | 'delete'>;
  readonly listEndpoints: (query: EndpointQuery, signal: AbortSignal) => Promise<EndpointPage>;
  readonly events: ControllerEvents;
  readonly clock: Clock;
  readonly graceMs: number;
  /** Longest time between two rounds, in milliseconds. */
  readonly longestRoundMs: number;
}

/** Endpoints of a page. */
const PAGE_SIZE = 500;

/** Another replica has deleted the node, or the node registered again: the next round decides on the state then. */
const SUPERSEDED: ReadonlySet<string> = new Set(['NODE_NOT_FOUND', 'STALE_VERSION', 'CONFLICT']);

/**
 * Deletes nodes whose Kubernetes Node was deleted. Difficulties:
 *
 * - Hosts without Kubernetes and nodes of other clusters may share the datastore. So only nodes that this cluster was
 *   seen to have are deleted, which their records say.
 * - An API server may lack Nodes that exist: its data was lost, restored from a backup, or it is another one.
 * - A Node may return. So it must be missing for a grace period, in every list, and in a last one before the deletion.
 */
export class NodeCleanup {
  readonly #options: NodeCleanupOptions;
  /** Times by {@link keyOf}. */
  #times: MissingTimes = new Map();
  #lastMs: number | undefined;
  readonly #returned = new Set<string>();
  readonly #deleted = new Set<string>();

  constructor(options: NodeCleanupOptions) {
    this.#options = options;
  }

  /** Follows the copy of Nodes between two rounds. */
  changed(change: CacheChange): void {
    if (change.type === 'deleted') this.#deleted.add(change.name);
    else if (change.type === 'changed') this.#appeared(change.name);
    else for (const name of this.#options.cluster().nodes.keys()) this.#appeared(name);
  }

  /** Changes until the next round are not observed, and do not count. */
  interrupted(): void {
    this.#lastMs = undefined;
  }

  /** @throws Failure of the datastore */
  async run(signal: AbortSignal): Promise<void> {
    const { nodes } = this.#options;
    const cluster = this.#options.cluster();
    if (!cluster.isCurrent) return;
    const clusterUid = await cluster.clusterUid(signal);
    if (clusterUid === undefined) {
      this.interrupted();
      return;
    }
    const registered = (await nodes.registered(signal)).filter(({ deletionTimeMs }) => deletionTimeMs === undefined);
    const own: Node[] = [];
    for (const node of registered) {
      const { name, kubernetesCluster } = node;
      if (kubernetesCluster === clusterUid) own.push(node);
      // Also one that was deleted since the last round.
      else if (cluster.nodes.has(name) || this.#returned.has(name)) {
        await nodes.recordCluster({ name, clusterUid }, signal);
        own.push({ ...node, kubernetesCluster: clusterUid });
      }
    }
    const due = this.#observe(own);
    if (due.length === 0) this.#options.events.nodesRefused([], '');
    else await this.#deleteDue(due, own, clusterUid, signal);
  }

  #appeared(name: string): void {
    this.#returned.add(name);
    this.#deleted.delete(name);
  }

  /** @returns the nodes that have been missing for the grace period */
  #observe(own: readonly Node[]): Node[] {
    const { events, clock, graceMs, longestRoundMs } = this.#options;
    const present = this.#options.cluster().nodes;
    const missing = own.filter(({ name }) => !present.has(name));
    const returned = new Set(own.filter(({ name }) => this.#returned.has(name)).map(keyOf));
    this.#returned.clear();
    const nowMs = clock.monotonicMs();
    const elapsedMs = observedMs(nowMs, this.#lastMs, longestRoundMs);
    this.#lastMs = nowMs;
    const names = new Set(own.map(({ name }) => name));
    for (const name of this.#deleted) if (!names.has(name)) this.#deleted.delete(name);
    const before = this.#times;
    this.#times = trackMissing(before, { missing: missing.map(keyOf), returned, elapsedMs });
    for (const node of missing) if (!before.has(keyOf(node))) events.nodeMissing(node.name, graceMs);
    for (const node of own) if (present.has(node.name) && before.has(keyOf(node))) events.nodeReturned(node.name);
    const due = new Set(overdue(this.#times, graceMs));
    return missing.filter((node) => due.has(keyOf(node)));
  }

  async #deleteDue(due: readonly Node[], own: readonly Node[], uid: string, signal: AbortSignal): Promise<void> {
    const { events } = this.#options;
    const cluster = this.#options.cluster();
    const present = await cluster.nodeNames(signal);
    if (!present || (await cluster.clusterUid(signal)) !== uid) return;
    const { names, refused, reason } = decideNodeDeletions(
      due.map(({ name }) => name),
      { registered: own.map(({ name }) => name), present, deleted: this.#deleted },
    );
    events.nodesRefused(refused, reason);
    for (const node of due.filter(({ name }) => names.includes(name))) await this.#delete(node, signal);
  }

  async #delete(node: Node, signal: AbortSignal): Promise<void> {
    const { nodes, events } = this.#options;
    const { name } = node;
    try {
      // Its machine ends the pods, or is cut off from the API server alone. It is deleted once it is no longer heard of.
      if (await nodes.isRunning(name, signal)) {
        events.nodeRuns(name);
        return;
      }
      if (await this.#isAllocating(node, signal)) {
        this.#times = new Map([...this.#times].filter(([key]) => key !== keyOf(node)));
        events.nodeAllocates(name);
        return;
      }
      await nodes.delete({ name, resourceVersion: versionOf(node) }, signal);
      this.#deleted.delete(name);
      events.nodeReleased(name);
    } catch (error) {
      if (signal.aborted) throw error;
      if (!(error instanceof Failure) || !SUPERSEDED.has(error.code)) events.nodeDeletionFailed(name, error);
    }
  }

  /** Whether a pod got an address on the node since it is missing. */
  async #isAllocating(node: Node, signal: AbortSignal): Promise<boolean> {
    const { listEndpoints, clock } = this.#options;
    const sinceMs = clock.nowMs() - (this.#times.get(keyOf(node)) ?? 0);
    const filter = { nodeName: node.name, namespace: '', podName: '', poolName: '', limit: PAGE_SIZE };
    let after = '';
    do {
      const { items, next } = await listEndpoints({ ...filter, after }, signal);
      if (items.some(({ kind, value }) => kind === 'endpoint' && (value.createTimeMs ?? 0) > sinceMs)) return true;
      after = next;
    } while (after !== '');
    return false;
  }
}

/** A node that registers again after its deletion is another one. */
function keyOf({ name, uid }: Node): string {
  return `${name}/${uid}`;
}
