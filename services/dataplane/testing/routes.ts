import { setImmediate } from 'node:timers/promises';

import { formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import { parsePrefix, prefixOf, splitCidr, type Prefix } from '@podwire/shared/net/prefix';
import type { Clock } from '@podwire/shared/runtime/clock';
import { createLogger } from '@podwire/shared/runtime/log';
import { ManualClock } from '@podwire/shared/testing/manual-clock';

import type { Cluster, ClusterBlock, ClusterNode, ClusterPool, ClusterView, NodeAddress } from '../cluster/cluster.js';
import { ReconcileEvents } from '../routes/events.js';
import type { NodeKernel } from '../routes/kernel.js';
import { equalRoutes } from '../routes/observed.js';
import { changedKeys, NO_CHANGE, RoutePlanner, type PlannedNode } from '../routes/planner.js';
import { RouteReconciler, type ReconcilerOptions } from '../routes/reconciler.js';
import type { NodeFacts, NodeRoute, VxlanPeer, WantedNode, WantedTunnel } from '../routes/wanted.js';
import { runNodeCommand } from './memory-node-commands.js';
import { MemoryNodeKernel } from './memory-node-kernel.js';

/** Clusters in short notation, and the wanted state of a node as `ip` and `bridge` print it. */

function address(text: string): Address {
  const parsed = parseAddress(text);
  if (!parsed) throw new Error(`${text} is no address`);
  return parsed;
}

export function prefix(text: string): Prefix {
  const parsed = parsePrefix(text);
  if (!parsed.ok) throw new Error(`${text}: ${parsed.fault}`);
  return parsed.prefix;
}

/** `192.0.2.1/24`: an address and the subnet it is in. */
function nodeAddress(cidr: string): NodeAddress {
  const parts = splitCidr(cidr);
  if (!parts) throw new Error(`${cidr} is no CIDR`);
  return { address: parts.address, subnet: prefixOf(parts.address, parts.length) };
}

interface NodeText {
  readonly ipv4?: string;
  readonly ipv6?: string;
  readonly vxlan4?: string;
  readonly vxlan6?: string;
  readonly ipip?: string;
  readonly mac?: string;
  readonly asNumber?: number;
  readonly interfaceAddresses?: readonly string[];
}

export function node(name: string, text: NodeText): ClusterNode {
  return {
    name,
    ipv4: text.ipv4 === undefined ? undefined : nodeAddress(text.ipv4),
    ipv6: text.ipv6 === undefined ? undefined : nodeAddress(text.ipv6),
    vxlanIpv4: text.vxlan4 === undefined ? undefined : { address: address(text.vxlan4), mac: text.mac },
    vxlanIpv6: text.vxlan6 === undefined ? undefined : { address: address(text.vxlan6), mac: text.mac },
    ipip: text.ipip === undefined ? undefined : address(text.ipip),
    asNumber: text.asNumber,
    ...(text.interfaceAddresses && { interfaceAddresses: text.interfaceAddresses.map(address) }),
  };
}

export function pool(name: string, cidr: string, rest: Partial<ClusterPool> = {}): ClusterPool {
  return { name, cidr: prefix(cidr), encapsulation: 'none', natOutgoing: false, loadBalancerOnly: false, ...rest };
}

/** @param borrowed - address → node */
export function block(
  cidr: string,
  {
    pool: poolName,
    node: nodeName,
    borrowed = {},
  }: { pool?: string; node?: string; borrowed?: Record<string, string> },
): ClusterBlock {
  const users = Object.entries(borrowed).map(([text, user]) => ({ address: address(text), nodeName: user }));
  return { cidr: prefix(cidr), poolName, nodeName, borrowed: users };
}

export interface ClusterText {
  readonly nodes?: readonly ClusterNode[];
  readonly pools?: readonly ClusterPool[];
  readonly blocks?: readonly ClusterBlock[];
}

export function cluster({ nodes = [], pools = [], blocks = [] }: ClusterText): Cluster {
  return {
    nodes: new Map(nodes.map((each) => [each.name, each])),
    pools: new Map(pools.map((each) => [each.name, each])),
    blocks: new Map(blocks.map((each) => [`${formatAddress(each.cidr)}/${each.cidr.length}`, each])),
  };
}

export function view(self: string, text: ClusterText): ClusterView {
  return { self, isDatastoreLocked: false, cluster: cluster(text) };
}

/** A node with both families on eth0, an MTU of 1500 bytes, every kernel feature, and no router. */
export function facts(rest: Partial<NodeFacts> = {}): NodeFacts {
  return {
    parents: { 4: 'eth0', 6: 'eth0' },
    mtuBytes: 1500,
    hasVxlan: true,
    hasIpip: true,
    routing: 'native',
    routed: [],
    connected: [],
    ...rest,
  };
}

/** `10.1.0.0/26 via 10.1.0.1 dev vxlan4.podwire onlink`, without the length of a single address. */
function routeText({ destination, type, device, gateway, onlink }: NodeRoute): string {
  const to = destination.replace(/^(\d+\.\d+\.\d+\.\d+)\/32$|^(.*)\/128$/, '$1$2');
  if (type === 'blackhole') return `blackhole ${to}`;
  return `${to}${gateway === undefined ? '' : ` via ${gateway}`} dev ${device}${onlink ? ' onlink' : ''}`;
}

export function routeTexts(wanted: WantedNode): string[] {
  return [...wanted.routes.values()].map(routeText).sort();
}

export function tunnelText(tunnel: WantedTunnel): string {
  const dev = tunnel.kind === 'vxlan' && tunnel.parent !== undefined ? ` dev ${tunnel.parent}` : '';
  const id = tunnel.kind === 'vxlan' ? ` id ${tunnel.vni} dstport ${tunnel.port}` : '';
  const mac = tunnel.kind === 'vxlan' ? ` address ${tunnel.mac}` : '';
  const of = `${tunnel.kind}${id} local ${tunnel.local}${dev}`;
  return `${tunnel.name} mtu ${tunnel.mtuBytes}${mac} type ${of} inet ${tunnel.address}`;
}

export function peerText({ device, tunnelAddress, mac, nodeAddress: to }: VxlanPeer): string {
  return `${tunnelAddress} lladdr ${mac} dev ${device}; ${mac} dst ${to}`;
}

export function reasons(wanted: WantedNode): string[] {
  return wanted.conditions.map(({ reason }) => reason).sort();
}

/** The wanted state of a node from a new planner. */
export function planNode(seen: ClusterView, given: NodeFacts): WantedNode {
  return new RoutePlanner().update(seen, { blocks: 'all', hasOtherChanges: true }, given).wanted;
}

export const NOTHING: WantedNode = { tunnels: [], routes: new Map(), peers: [], sysctls: [], conditions: [] };

export function routesOf(...routes: readonly NodeRoute[]): Map<string, NodeRoute> {
  return new Map(routes.map((route) => [route.destination, route]));
}

/** A planner that returns a wanted state set by the test, and records the facts. */
class StubPlanner {
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
  isDatastoreLocked: false,
  cluster: { nodes: new Map([[self.name, self]]), pools: new Map(), blocks: new Map() },
};

export interface Loop {
  readonly planner: StubPlanner;
  readonly reconciler: RouteReconciler;
  /** Lines of the log from level `info` on. */
  readonly lines: () => string[];
  /** Sets the wanted state, and notifies the loop of a change of the cluster. */
  readonly setWanted: (wanted: WantedNode) => void;
}

interface LoopOptions extends Partial<ReconcilerOptions> {
  readonly kernel: NodeKernel;
  readonly clock: Clock;
}

export function startLoop(options: LoopOptions): Loop {
  const planner = new StubPlanner();
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
    setWanted: (wanted) => {
      planner.wanted = wanted;
      reconciler.follow(VIEW, NO_CHANGE);
    },
  };
}

/** A node on the fake kernel with an interface `up0`, and the loop that reconciles it. */
export class ReconcilerFixture {
  readonly kernel = new MemoryNodeKernel();
  readonly clock = new ManualClock();
  loop: Loop;
  /** Pods' host interfaces that the loop reported. */
  readonly pods: (string | undefined)[] = [];

  constructor(options: Partial<ReconcilerOptions> = {}) {
    for (const command of [
      'ip link add up0 type bridge',
      'ip link set up0 up',
      'ip address add 10.0.0.1/24 dev up0',
      'ip address add fd00::1/64 dev up0',
    ]) {
      this.runCommand(command);
    }
    this.loop = this.start(options);
  }

  /** Starts another loop on the same kernel, as after a restart. Stop the earlier one first. */
  start(options: Partial<ReconcilerOptions> = {}): Loop {
    this.loop = startLoop({
      kernel: this.kernel,
      clock: this.clock,
      onPodInterface: (name) => void this.pods.push(name),
      ...options,
    });
    return this.loop;
  }

  runCommand(command: string): void {
    runNodeCommand(this.kernel.node, command);
  }

  /** Sets the wanted state, and waits until the loop is idle. */
  async setWanted(wanted: WantedNode): Promise<void> {
    this.loop.setWanted(wanted);
    await this.waitUntilIdle();
  }

  /** Runs the loop until its next wait is longer than the collection of notifications. */
  async waitUntilIdle(): Promise<void> {
    for (;;) {
      await this.#waitUntilAsleep();
      const nextMs = this.clock.nextMs ?? Infinity;
      if (nextMs > 5) return;
      this.clock.advance(nextMs);
    }
  }

  /** Advances the clock, and runs the loop whenever it is due. */
  async advance(durationMs: number): Promise<void> {
    let leftMs = durationMs;
    for (;;) {
      await this.waitUntilIdle();
      const nextMs = this.clock.nextMs ?? Infinity;
      if (nextMs > leftMs) break;
      leftMs -= nextMs;
      this.clock.advance(nextMs);
    }
    this.clock.advance(leftMs);
    await this.waitUntilIdle();
  }

  /** The changes of the kernel during some work. */
  async commandsDuring(work: () => Promise<void>): Promise<string[]> {
    const before = this.kernel.commands.length;
    await work();
    return this.kernel.commands.slice(before);
  }

  /** Waits until the loop sleeps, also after all pending callbacks have run. */
  async #waitUntilAsleep(): Promise<void> {
    for (let idleCount = 0; idleCount < 5;) {
      await setImmediate();
      idleCount = this.clock.sleeping > 0 ? idleCount + 1 : 0;
    }
  }
}
