import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';

import { quantile } from '../figure.js';
import { IpamCaller, newContainerId } from '../ipam/load.js';
import type { IpamProcess } from '../ipam/processes.js';
import { namespaceName, podObject, podPlace, SHARED_NAMESPACES, type PodPlace } from './cluster.js';
import { NodeLeases } from './node-leases.js';
import type { PolicyNodes } from './policy-nodes.js';
import { PODS, type Scene } from './scene.js';

/** Time between the scheduling of a pod and its announcement: the kubelet's. */
const KUBELET_MS = 100;

const BIND_AFTER_MS = 250;

export interface Phase {
  /** Pods per second. */
  readonly rate: number;
  readonly count: number;
  /** Whether all nodes need the addresses. */
  readonly isShared: boolean;
}

export interface PhaseResult {
  readonly answersMs: readonly number[];
  readonly lastMs: readonly number[];
  readonly nodes: number;
  readonly receivers: number;
  readonly processorMs: number;
  readonly seconds: number;
}

interface Announced {
  readonly startMs: number;
  lastMs: number;
  receivers: number;
}

let pods = 0;

export class Announcements {
  readonly #scene: Scene;
  readonly #nodes: PolicyNodes;
  readonly #ipam: IpamProcess;
  readonly #leases = new Map<number, NodeLeases>();
  readonly #pending = new Map<number, Announced>();

  constructor(scene: Scene, nodes: PolicyNodes, ipam: IpamProcess) {
    this.#scene = scene;
    this.#nodes = nodes;
    this.#ipam = ipam;
  }

  added(address: number): void {
    const pending = this.#pending.get(address);
    if (!pending) return;
    pending.lastMs = performance.now();
    pending.receivers++;
  }

  async run({ rate, count, isShared }: Phase): Promise<PhaseResult> {
    const { namespaces, nodes } = this.#scene.size;
    const places = Array.from({ length: count }, (_, index) => {
      const own = SHARED_NAMESPACES + Math.floor(Math.random() * (namespaces - SHARED_NAMESPACES));
      const namespace = namespaceName(isShared ? index % SHARED_NAMESPACES : own);
      const rest = { node: Math.floor(Math.random() * nodes), address: '', isFrontend: true };
      return podPlace(namespace, `new-${pods++}-00000000`, rest);
    });
    const leases = this.#leases;
    for (const node of new Set(places.map((place) => place.node))) {
      const following = this.#nodes.nodes[node];
      if (!following) throw new Error('there is no such node');
      const each = leases.get(node) ?? new NodeLeases(following.name, following.client);
      leases.set(node, each);
      await each.hold(places.filter((place) => place.node === node).length);
    }
    await sleep(3000);
    const [startMs, processorMs] = [performance.now(), this.#ipam.process.processorMs()];
    const results = await Promise.all(
      places.map(async (place, index) => {
        await sleep((index / rate) * 1000);
        return this.#start(place, leases.get(place.node));
      }),
    );
    const seconds = (performance.now() - startMs) / 1000;
    const spentMs = this.#ipam.process.processorMs() - processorMs;
    await sleep(1000);
    this.#pending.clear();
    return {
      answersMs: results.map(({ answerMs }) => answerMs),
      lastMs: results.map(({ announced }) => announced.lastMs - announced.startMs),
      nodes: quantile(
        results.map((each) => each.nodes),
        0.5,
      ),
      receivers: quantile(
        results.map(({ announced }) => announced.receivers),
        0.5,
      ),
      processorMs: spentMs,
      seconds,
    };
  }

  async #start(pod: PodPlace, leases: NodeLeases | undefined) {
    const { api } = this.#scene;
    const node = this.#nodes.nodes[pod.node];
    if (!leases || !node) throw new Error('no node');
    const lease = leases.take();
    const placed = { ...pod, address: lease.address };
    api.notify(PODS, 'ADDED', podObject(placed, 'pending'));
    await sleep(5);
    api.notify(PODS, 'MODIFIED', podObject(placed, 'scheduled'));
    await sleep(KUBELET_MS / 2);
    api.notify(PODS, 'MODIFIED', podObject(placed, 'creating'));
    await sleep(KUBELET_MS / 2);
    const announced: Announced = { startMs: performance.now(), lastMs: 0, receivers: 0 };
    this.#pending.set(
      lease.address.split('.').reduce((sum, part) => sum * 256 + Number(part), 0),
      announced,
    );
    const nodes = await node.announce(pod, lease);
    const answerMs = performance.now() - announced.startMs;
    await sleep(BIND_AFTER_MS);
    await leases.bind(pod, lease);
    api.notify(PODS, 'MODIFIED', podObject(placed, 'running'));
    return { answerMs, nodes, announced };
  }
}

/** Allocations of another caller, at a steady rate. @returns a function that stops them and returns the times */
export function allocateSteadily(caller: IpamCaller, perSecond: number): () => Promise<number[]> {
  const times: number[] = [];
  let stopped = false;
  const running = (async () => {
    const calls: Promise<void>[] = [];
    for (let call = 0; !stopped; call++) {
      calls.push(
        (async () => {
          const startMs = performance.now();
          await caller.allocate(newContainerId(), 'other');
          times.push(performance.now() - startMs);
        })(),
      );
      await sleep(1000 / perSecond);
    }
    await Promise.all(calls);
  })();
  return async () => {
    stopped = true;
    await running;
    return times;
  };
}
