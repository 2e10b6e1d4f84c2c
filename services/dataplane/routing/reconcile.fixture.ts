import { setImmediate } from 'node:timers/promises';

import type { Clock } from '@podwire/shared/runtime/clock';
import { createLogger } from '@podwire/shared/runtime/log';
import { ManualClock } from '@podwire/shared/testing/manual-clock';

import type { ClusterNode, ClusterView } from '../cluster/cluster.js';
import { ReconcileEvents } from '../routes/events.js';
import type { NodeKernel } from '../routes/kernel.js';
import { NO_CHANGE, type PlannedNode } from '../routes/planner.js';
import { RouteReconciler, type ReconcilerOptions } from '../routes/reconciler.js';
import type { NodeRoute, WantedNode } from '../routes/wanted.js';
import { doByHand } from '../testing/memory-node-hands.js';
import { MemoryNodeKernel } from '../testing/memory-node-kernel.js';
import { changedKeys, equalRoutes } from './difference.js';
import type { NodeFacts } from './facts.js';

export const NOTHING: WantedNode = { tunnels: [], routes: new Map(), peers: [], sysctls: [], conditions: [] };

export function routesOf(...routes: readonly NodeRoute[]): Map<string, NodeRoute> {
  return new Map(routes.map((route) => [route.destination, route]));
}

/** A planner that wants what a test says, and remembers the facts it was given. */
class GivenPlanner {
  wanted = NOTHING;
  facts: NodeFacts | undefined;
  #before = NOTHING;

  update(_view: ClusterView, _change: unknown, facts: NodeFacts): PlannedNode {
    this.facts = facts;
    const changedRoutes = new Set(changedKeys(this.#before.routes, this.wanted.routes, equalRoutes));
    this.#before = this.wanted;
    return { wanted: this.wanted, changedRoutes };
  }
}

const self: ClusterNode = {
  name: 'node1',
  ipv4: { address: { family: 4, value: 0x0a00_0001n }, subnet: { family: 4, value: 0x0a00_0000n, length: 24 } },
  ipv6: undefined,
  vxlanIpv4: undefined,
  vxlanIpv6: undefined,
  ipip: undefined,
  asNumber: undefined,
};

export const VIEW: ClusterView = {
  self: 'node1',
  cluster: { nodes: new Map([[self.name, self]]), pools: new Map(), blocks: new Map() },
};

export interface Loop {
  readonly planner: GivenPlanner;
  readonly reconciler: RouteReconciler;
  /** Lines of the log, from the level of information on. */
  readonly lines: () => string[];
  /** Wants something, and tells the loop that the cluster has changed. */
  readonly want: (wanted: WantedNode) => void;
}

export interface LoopOptions extends Partial<ReconcilerOptions> {
  readonly kernel: NodeKernel;
  readonly clock: Clock;
}

export function startLoop(options: LoopOptions): Loop {
  const planner = new GivenPlanner();
  const lines: { readonly msg: unknown }[] = [];
  const destination = { write: (line: string) => void lines.push(JSON.parse(line)) };
  const log = createLogger({ service: 'test', level: 'info', destination });
  const reconciler = new RouteReconciler({
    planner,
    routing: 'native',
    random: () => 0.5,
    events: new ReconcileEvents(log),
    ...options,
  });
  return {
    planner,
    reconciler,
    lines: () => lines.map(({ msg }) => String(msg)),
    want: (wanted) => {
      planner.wanted = wanted;
      reconciler.follow(VIEW, NO_CHANGE);
    },
  };
}

/** A node on the fake kernel with an interface `up0`, and the loop that looks after it. */
export class Scene {
  readonly kernel = new MemoryNodeKernel();
  readonly clock = new ManualClock();
  loop: Loop;
  /** Pods' host interfaces that were told of. */
  readonly pods: (string | undefined)[] = [];

  constructor(options: Partial<ReconcilerOptions> = {}) {
    for (const command of [
      'ip link add up0 type bridge',
      'ip link set up0 up',
      'ip address add 10.0.0.1/24 dev up0',
      'ip address add fd00::1/64 dev up0',
    ]) {
      this.byHand(command);
    }
    this.loop = this.start(options);
  }

  /** Another loop on the same kernel, as after a restart; the one before is to be stopped. */
  start(options: Partial<ReconcilerOptions> = {}): Loop {
    this.loop = startLoop({
      kernel: this.kernel,
      clock: this.clock,
      onPodInterface: (name) => void this.pods.push(name),
      ...options,
    });
    return this.loop;
  }

  byHand(command: string): void {
    doByHand(this.kernel.node, command);
  }

  /** Wants something, and waits until nothing is left to be done at once. */
  async want(wanted: WantedNode): Promise<void> {
    this.loop.want(wanted);
    await this.calm();
  }

  /** Lets the loop work until it only waits for things that take longer than settling. */
  async calm(): Promise<void> {
    for (;;) {
      await this.#asleep();
      const nextMs = this.clock.nextMs ?? Infinity;
      if (nextMs > 5) return;
      this.clock.advance(nextMs);
    }
  }

  /** Lets time pass, and the loop work whenever its time has come. */
  async pass(durationMs: number): Promise<void> {
    let leftMs = durationMs;
    for (;;) {
      await this.calm();
      const nextMs = this.clock.nextMs ?? Infinity;
      if (nextMs > leftMs) break;
      leftMs -= nextMs;
      this.clock.advance(nextMs);
    }
    this.clock.advance(leftMs);
    await this.calm();
  }

  /** What was done to the kernel while something went on. */
  async commandsDuring(work: () => Promise<void>): Promise<string[]> {
    const before = this.kernel.commands.length;
    await work();
    return this.kernel.commands.slice(before);
  }

  /** The loop sleeps, and goes on sleeping after all that is under way has had its turn. */
  async #asleep(): Promise<void> {
    for (let calm = 0; calm < 5;) {
      await setImmediate();
      calm = this.clock.sleeping > 0 ? calm + 1 : 0;
    }
  }
}
