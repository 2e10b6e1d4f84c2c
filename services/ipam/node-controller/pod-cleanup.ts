import type { Clock } from '@podwire/shared/runtime/clock';

import type { Addresses } from '../addresses/addresses-operations.js';
import type { EndpointListing, EndpointPage, EndpointQuery } from '../endpoints/endpoints.js';
import { observedMs, overdue, trackMissing, type MissingTimes } from './absences.js';
import type { ClusterState } from './cluster-state.js';
import type { ControllerEvents } from './controller-events.js';
import { attachmentsOf, isApiPod, podKey, type PodAttachment } from './dead-pods.js';

export interface PodCleanupOptions {
  readonly cluster: () => Pick<ClusterState, 'isCurrent' | 'servingNodes' | 'removeExisting'>;
  readonly addresses: Pick<Addresses, 'releaseEach'>;
  readonly listEndpoints: (query: EndpointQuery, signal: AbortSignal) => Promise<EndpointPage>;
  readonly events: ControllerEvents;
  readonly clock: Clock;
  readonly graceMs: number;
}

/** Endpoints of a page; reading one takes some milliseconds. */
const PAGE_SIZE = 2000;

/** Sweeps per grace period: a sweep reads the names of all pods. */
const SWEEPS_PER_GRACE = 2;

/** Where a pod had an address: its node's name. */
type NodesOfPods = Map<string, Set<string>>;

/**
 * Releases addresses of pods that were deleted from Kubernetes without the release of their addresses. A node releases
 * addresses of its dead pods by itself; this finds addresses that it lost. Each release needs all of these:
 *
 * - The pod is missing in consistent lists for the grace period. A pod of the same name counts as the same one.
 * - The API server made the pod: a static pod runs without it.
 * - The node could run pods for the whole time. So its kubelet knew of the deletion, and ended the containers.
 * - The attachment has the same allocations as at the beginning.
 */
export class PodCleanup {
  readonly #options: PodCleanupOptions;
  /** Times by the identity of the attachment. */
  #times: MissingTimes = new Map();
  #lastMs: number | undefined;
  /** Nodes that could not run pods at some moment since the last sweep began. */
  #interrupted = new Set<string>();

  constructor(options: PodCleanupOptions) {
    this.#options = options;
  }

  /** A node cannot run pods. */
  nodeInterrupted(name: string): void {
    this.#interrupted.add(name);
  }

  /** Nothing was observed: all grace periods begin again. */
  interrupted(): void {
    this.#times = new Map();
    this.#lastMs = undefined;
  }

  /** A sweep, if one is due. @throws Failure of the datastore */
  async run(signal: AbortSignal): Promise<void> {
    const { clock, graceMs } = this.#options;
    const cluster = this.#options.cluster();
    if (!cluster.isCurrent) return;
    const nowMs = clock.monotonicMs();
    if (this.#lastMs !== undefined && nowMs - this.#lastMs < graceMs / SWEEPS_PER_GRACE) return;
    const missing = await this.#missing(signal);
    if (!missing) {
      this.interrupted();
      return;
    }
    const elapsedMs = observedMs(nowMs, this.#lastMs, graceMs);
    this.#lastMs = nowMs;
    const identities = missing.map(({ identity }) => identity);
    this.#times = trackMissing(this.#times, { missing: identities, returned: new Set(), elapsedMs });
    const due = new Set(overdue(this.#times, graceMs));
    for (const attachment of missing) if (due.has(attachment.identity)) await this.#release(attachment, signal);
  }

  /** The attachments of missing pods on nodes that could run pods since the last sweep; undefined when unknown. */
  async #missing(signal: AbortSignal): Promise<PodAttachment[] | undefined> {
    const { events } = this.#options;
    const cluster = this.#options.cluster();
    const interrupted = this.#interrupted;
    this.#interrupted = new Set();
    // Endpoints first: a pod exists before its endpoint, so a later list without the pod shows that it was deleted.
    const pods = await this.#podsWithAddress(cluster.servingNodes(), signal);
    if (pods.size === 0) return [];
    const keys = new Set(pods.keys());
    const isTrusted = await cluster.removeExisting(keys, podKey, signal);
    if (isTrusted === undefined) return undefined;
    if (!isTrusted) {
      events.podListRefused();
      return undefined;
    }
    const serving = cluster.servingNodes();
    const isSteady = (name: string): boolean =>
      serving.has(name) && !interrupted.has(name) && !this.#interrupted.has(name);
    const attachments: PodAttachment[] = [];
    for (const key of keys)
      for (const nodeName of pods.get(key) ?? [])
        if (isSteady(nodeName)) attachments.push(...(await this.#attachmentsOfPod(key, nodeName, signal)));
    return attachments;
  }

  async #podsWithAddress(serving: ReadonlySet<string>, signal: AbortSignal): Promise<NodesOfPods> {
    const pods: NodesOfPods = new Map();
    const note = (listing: EndpointListing): void => {
      if (listing.kind !== 'endpoint' || !listing.value.pod || !serving.has(listing.value.nodeName)) return;
      const { value } = listing;
      const replaced = (value.replaced ?? []).flatMap((each) => (each.kind === 'endpoint' ? [each.value] : []));
      if (![value, ...replaced].some(isApiPod)) return;
      const key = podKey(listing.value.pod);
      pods.set(key, (pods.get(key) ?? new Set()).add(value.nodeName));
    };
    await this.#eachEndpoint({ nodeName: '', namespace: '', podName: '' }, note, signal);
    return pods;
  }

  async #attachmentsOfPod(key: string, nodeName: string, signal: AbortSignal): Promise<PodAttachment[]> {
    const [namespace = '', podName = ''] = key.split('/');
    const found: PodAttachment[] = [];
    const note = (listing: EndpointListing): void => {
      if (listing.kind === 'endpoint') found.push(...attachmentsOf(listing.key, listing.value));
    };
    await this.#eachEndpoint({ nodeName, namespace, podName }, note, signal);
    return found;
  }

  async #eachEndpoint(
    filter: Pick<EndpointQuery, 'nodeName' | 'namespace' | 'podName'>,
    note: (listing: EndpointListing) => void,
    signal: AbortSignal,
  ): Promise<void> {
    const { listEndpoints } = this.#options;
    let after = '';
    do {
      const page = await listEndpoints({ ...filter, poolName: '', limit: PAGE_SIZE, after }, signal);
      page.items.forEach(note);
      after = page.next;
    } while (after !== '');
  }

  async #release(attachment: PodAttachment, signal: AbortSignal): Promise<void> {
    const { addresses, events } = this.#options;
    try {
      const results = await addresses.releaseEach(attachment.releases, signal);
      const released = attachment.addresses.filter((_, index) => results[index]?.state === 'released');
      if (released.length > 0) events.podReleased(attachment, released);
    } catch (error) {
      if (signal.aborted) throw error;
      events.podReleaseFailed(attachment, error);
    }
  }
}
