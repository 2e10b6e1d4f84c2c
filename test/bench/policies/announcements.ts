import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';

import { median } from '../figure.js';
import type { IpamProcess } from '../ipam/processes.js';
import { namespaceName, SHARED_NAMESPACES, uidOf, type ClusterPod } from './cluster.js';
import { NodeLeases } from './node-leases.js';
import type { PolicyNodes } from './policy-nodes.js';
import type { Scene } from './scene.js';

/** Time from a pod's scheduling to its announcement, and from there to the binding of its address. */
const KUBELET_MS = 100;
const BINDING_MS = 250;

/** Every announced address has arrived after such a time without an arrival. */
const QUIET_MS = 300;

export interface Arrivals {
  readonly podsPerSecond: number;
  readonly seconds: number;
  /** Whether all nodes need the addresses, or the nodes of the pod's namespace. */
  readonly audience: 'namespace' | 'all nodes';
}

/** Times are in milliseconds, one of each pod. */
export interface AnnouncementTimes {
  /** Until AnnouncePod was answered. */
  readonly answered: readonly number[];
  /** Until the last node had the address. */
  readonly known: readonly number[];
  /** Nodes that podwire-ipam waited for, and nodes that got the address; medians. */
  readonly awaitedNodes: number;
  readonly reachedNodes: number;
  /** Processor time of podwire-ipam for a pod, with the events of the pod and its binding, in milliseconds. */
  readonly processorMsPerPod: number;
  /** Share of a processor that podwire-ipam took meanwhile. */
  readonly processorShare: number;
}

interface Announcement {
  readonly startMs: number;
  lastMs: number;
  reachedNodes: number;
}

/** New pods: scheduled by the API server, announced by their nodes with a leased address, and bound. */
export class Announcements {
  readonly #scene: Scene;
  readonly #nodes: PolicyNodes;
  readonly #ipam: IpamProcess;
  readonly #leases = new Map<number, NodeLeases>();
  /** Announcements by their address. */
  readonly #announced = new Map<number, Announcement>();
  #podsCount = 0;

  constructor(scene: Scene, nodes: PolicyNodes, ipam: IpamProcess) {
    this.#scene = scene;
    this.#nodes = nodes;
    this.#ipam = ipam;
  }

  /** Leases the addresses. @returns a function that lets the pods arrive, and returns their times */
  async prepare({ podsPerSecond, seconds, audience }: Arrivals): Promise<() => Promise<AnnouncementTimes>> {
    const pods = Array.from({ length: podsPerSecond * seconds }, () => this.#newPod(audience));
    await this.#lease(pods);
    return () => this.#measure(pods, podsPerSecond);
  }

  async #measure(pods: readonly ClusterPod[], podsPerSecond: number): Promise<AnnouncementTimes> {
    this.#nodes.events.added = (address) => this.#addedTo(address);
    const [startMs, processorMs] = [performance.now(), this.#ipam.process.processorMs()];
    const results = await Promise.all(
      pods.map(async (pod, index) => {
        await sleep((index * 1000) / podsPerSecond);
        return this.#run(pod);
      }),
    );
    const [tookMs, spentMs] = [performance.now() - startMs, this.#ipam.process.processorMs() - processorMs];
    await this.#untilQuiet();
    this.#announced.clear();
    this.#nodes.events.added = () => undefined;
    return {
      answered: results.map(({ answeredMs }) => answeredMs),
      known: results.map(({ announcement: { startMs: sinceMs, lastMs } }) => lastMs - sinceMs),
      awaitedNodes: median(results.map(({ awaitedNodes }) => awaitedNodes)),
      reachedNodes: median(results.map(({ announcement }) => announcement.reachedNodes)),
      processorMsPerPod: spentMs / pods.length,
      processorShare: spentMs / tookMs,
    };
  }

  async #untilQuiet(): Promise<void> {
    const count = () => [...this.#announced.values()].reduce((sum, { reachedNodes }) => sum + reachedNodes, 0);
    for (let before = -1; before !== count();) {
      before = count();
      await sleep(QUIET_MS);
    }
  }

  #newPod(audience: Arrivals['audience']): ClusterPod {
    const { nodes, namespaces, podsPerNode } = this.#scene.size;
    const number = this.#podsCount++;
    const ownNamespaces = namespaces - SHARED_NAMESPACES;
    const index =
      audience === 'all nodes' ? number % SHARED_NAMESPACES : SHARED_NAMESPACES + ((number * 7) % ownNamespaces);
    const uid = uidOf(nodes * podsPerNode + number);
    const rest = { node: (number * 37) % nodes, address: '', isFrontend: true };
    return { namespace: namespaceName(index), name: `new-${number}`, uid, ...rest };
  }

  async #lease(pods: readonly ClusterPod[]): Promise<void> {
    for (const node of new Set(pods.map((pod) => pod.node)))
      await this.#leasesOf(node).hold(pods.filter((pod) => pod.node === node).length);
  }

  #leasesOf(node: number): NodeLeases {
    const { name, client } = this.#node(node);
    const leases = this.#leases.get(node) ?? new NodeLeases(name, client);
    this.#leases.set(node, leases);
    return leases;
  }

  #node(number: number) {
    const node = this.#nodes.nodes[number];
    if (!node) throw new Error(`there is no node ${number}`);
    return node;
  }

  async #run(pod: ClusterPod) {
    const leases = this.#leasesOf(pod.node);
    const lease = leases.take();
    this.#scene.reportPod(pod, 'pending');
    this.#scene.reportPod(pod, 'scheduled');
    await sleep(KUBELET_MS / 2);
    this.#scene.reportPod(pod, 'creating');
    await sleep(KUBELET_MS / 2);
    const attachTime = new Date(Date.now());
    const startMs = performance.now();
    const announcement: Announcement = { startMs, lastMs: Infinity, reachedNodes: 0 };
    this.#announced.set(numberOf(lease.address), announcement);
    // A call that fails has taken its timeout.
    const awaitedNodes = await this.#node(pod.node)
      .announce(pod, lease)
      .catch(() => 0);
    const answeredMs = performance.now() - startMs;
    await sleep(BINDING_MS);
    await leases.bind(pod, lease, attachTime);
    this.#scene.reportPod({ ...pod, address: lease.address }, 'running');
    return { answeredMs, awaitedNodes, announcement };
  }

  #addedTo(address: number): void {
    const announcement = this.#announced.get(address);
    if (!announcement) return;
    announcement.lastMs = performance.now();
    announcement.reachedNodes++;
  }
}

/** An IPv4 address as a number. */
function numberOf(address: string): number {
  return address.split('.').reduce((value, part) => value * 256 + Number(part), 0);
}
