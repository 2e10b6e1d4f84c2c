import { kernelFailure } from '../pods/errno.js';
import type { NodeKernel, NodeListener, NodeRefusal, NodeScope, NodeWatch } from '../routes/kernel.js';
import {
  isPodInterface,
  isRouted,
  NODE_ROUTE_PROTOCOL,
  ownerOf,
  TUNNEL_DEVICES,
  type NodeAbilities,
  type NodeChange,
  type ObservedDevice,
  type ObservedNode,
  type KernelRoute,
} from '../routes/observed.js';
import { formatNodeStep, type NodeStep } from '../routes/step.js';
import type { NodeRoute } from '../routes/wanted.js';
import { keyText } from '../wiring/observed.js';
import { Errno } from './memory-namespace.js';
import { MemoryNode, observed } from './memory-node-state.js';

/** Operations that a test can make fail. */
type NodeOperation = NodeStep['type'] | 'any step' | 'abilities' | 'observe' | 'watch';

interface Fault {
  readonly operation: NodeOperation;
  readonly errno: string;
  /** Number of successes before the failure. */
  after: number;
}

/** The fake kernel of a node, with the rules of {@link MemoryNode}. It counts calls, and can fail and lose notifications. */
export class MemoryNodeKernel implements NodeKernel {
  readonly node = new MemoryNode();
  /** Every applied or refused step, as its command. */
  readonly commands: string[] = [];
  /** Number of full readings. */
  observations = 0;
  supportedTunnels: NodeAbilities = { hasVxlan: true, hasIpip: true };
  /** Number of notifications still to be lost without a report. */
  lostNotificationCount = 0;
  readonly #faults: Fault[] = [];
  readonly #listeners = new Set<NodeListener>();
  #held: NodeChange[] | undefined;
  /** Pods' interfaces as last notified. */
  readonly #pods = new Map<string, ObservedDevice>();
  #closed = false;

  constructor() {
    this.node.announce = (change) => this.#announce(change);
  }

  /** Lets an operation fail, once, after it has succeeded `after` times. */
  failNext(operation: NodeOperation, { errno = 'EIO', after = 0 } = {}): void {
    this.#faults.push({ operation, errno, after });
  }

  /** Number of faults that no operation has used. A test should end with none. */
  get unusedFaults(): number {
    return this.#faults.length;
  }

  /** Removes all faults. */
  clearFaults(): void {
    this.#faults.length = 0;
  }

  /** Holds notifications back until {@link release}. */
  hold(): void {
    this.#held ??= [];
  }

  /** Sends the held notifications, or only an overrun. */
  release({ asOverrun = false } = {}): void {
    const held = this.#held ?? [];
    this.#held = undefined;
    for (const change of asOverrun ? [{ object: 'overrun' } as const] : held) this.#announce(change);
  }

  /** Ends all watches as a broken socket does. */
  breakWatches(): void {
    const listeners = [...this.#listeners];
    this.#listeners.clear();
    for (const listener of listeners) listener.failed(failureOf('watch', { object: 'node', errno: 'EIO' }));
  }

  get watches(): number {
    return this.#listeners.size;
  }

  abilities(): Promise<NodeAbilities> {
    return this.#answer('abilities', () => this.supportedTunnels);
  }

  observe(scope: NodeScope): Promise<ObservedNode> {
    return this.#answer('observe', () => {
      this.observations++;
      return this.#read(scope);
    });
  }

  async apply(steps: readonly NodeStep[]): Promise<readonly (NodeRefusal | undefined)[]> {
    await yieldToEventLoop();
    return steps.map((step) => this.#applyStep(step));
  }

  watch(listener: NodeListener): Promise<NodeWatch> {
    return this.#answer('watch', () => {
      this.#listeners.add(listener);
      return { close: () => void this.#listeners.delete(listener) };
    });
  }

  close(): Promise<void> {
    this.#closed = true;
    this.#listeners.clear();
    return Promise.resolve();
  }

  #read({ sysctls, isWanted }: NodeScope): ObservedNode {
    const { devices, addresses, routes, neighbours, forwarding } = this.node;
    const ours = ({ device }: { readonly device: string }) => TUNNEL_DEVICES.includes(device);
    return {
      devices: new Map(
        devices.filter((device) => !isPodInterface(device)).map((device) => [device.name, observed(device)]),
      ),
      addresses: [...addresses],
      routes: routes.filter((route) => ownerOf(route) === 'node' || isWanted(route.destination)),
      routed: routes.filter(isRouted).map(({ destination }) => destination),
      neighbours: neighbours.filter(ours),
      forwarding: forwarding.filter(ours),
      sysctls: new Map(sysctls.map((key) => [keyText(key), this.node.sysctls.get(keyText(key)) ?? null])),
    };
  }

  async #answer<Answer>(operation: NodeOperation, answer: () => Answer): Promise<Answer> {
    await yieldToEventLoop();
    const errno = this.#closed ? 'EBADF' : this.#takeFault(operation);
    if (errno !== undefined) throw failureOf(operation, { object: 'node', errno });
    return answer();
  }

  #applyStep(step: NodeStep): NodeRefusal | undefined {
    const command = formatNodeStep(step);
    try {
      const errno = this.#closed ? 'EBADF' : (this.#takeFault(step.type) ?? this.#takeFault('any step'));
      if (errno !== undefined) throw new Errno(errno, 'injected');
      if (step.type === 'device-add') this.#checkAbility(step.tunnel.kind);
      applyStep(step, this.node);
      this.commands.push(command);
      return undefined;
    } catch (error) {
      if (!(error instanceof Errno)) throw error;
      this.commands.push(`${command} # ${error.errno}`);
      return {
        errno: error.errno,
        failure: failureOf(step.type.replace('-', '.'), { object: command, errno: error.errno }),
      };
    }
  }

  #checkAbility(kind: 'vxlan' | 'ipip'): void {
    const isKnown = kind === 'vxlan' ? this.supportedTunnels.hasVxlan : this.supportedTunnels.hasIpip;
    if (!isKnown) throw new Errno('EOPNOTSUPP', 'Unknown device type');
  }

  #takeFault(operation: NodeOperation): string | undefined {
    const fault = this.#faults.find((candidate) => candidate.operation === operation);
    if (!fault || fault.after-- > 0) return undefined;
    this.#faults.splice(this.#faults.indexOf(fault), 1);
    return fault.errno;
  }

  #announce(change: NodeChange): void {
    const notification = this.#notificationOf(change);
    if (!notification) return;
    if (this.#held) this.#held.push(notification);
    else if (this.lostNotificationCount > 0) this.lostNotificationCount--;
    else for (const listener of this.#listeners) queueMicrotask(() => this.#notify(listener, notification));
  }

  /** The notification of a change; undefined when the kernel sends none. */
  #notificationOf(change: NodeChange): NodeChange | undefined {
    if (change.object === 'neighbour' || change.object === 'forwarding') {
      return TUNNEL_DEVICES.includes(change.device) ? change : undefined;
    }
    if (change.object !== 'device') return change;
    const { name } = change.device;
    const alias = this.node.devices.find((device) => device.name === name)?.alias ?? null;
    if (!isPodInterface({ name, alias })) return change;
    const known = this.#pods.get(name);
    if (change.deleted) this.#pods.delete(name);
    else this.#pods.set(name, change.device);
    const isChanged = known?.up === true && JSON.stringify(known) !== JSON.stringify(change.device);
    return { object: 'pod-interface', name, isInterference: change.deleted || isChanged };
  }

  #notify(listener: NodeListener, change: NodeChange): void {
    if (this.#listeners.has(listener)) listener.changed(change);
  }
}

function applyStep(step: NodeStep, node: MemoryNode): void {
  switch (step.type) {
    case 'device-add': {
      node.addTunnel(step.tunnel);
      return;
    }
    case 'device-set': {
      node.setDevice(step.name, step.changeSteps);
      return;
    }
    case 'device-delete': {
      node.deleteDevice(step.name);
      return;
    }
    case 'address-add': {
      node.addAddress(step);
      return;
    }
    case 'address-delete': {
      node.deleteAddress(step);
      return;
    }
    case 'neighbour-set': {
      node.setNeighbour({ device: step.device, address: step.address, mac: step.mac });
      return;
    }
    case 'neighbour-delete': {
      node.deleteNeighbour(step);
      return;
    }
    case 'forwarding-set': {
      node.setForwarding({ device: step.device, mac: step.mac, nodeAddress: step.nodeAddress });
      return;
    }
    case 'forwarding-delete': {
      node.deleteForwarding(step);
      return;
    }
    case 'route-add': {
      node.addRoute(ownRoute(step.route));
      return;
    }
    case 'route-replace': {
      node.replaceRoute(ownRoute(step.route));
      return;
    }
    case 'route-delete': {
      node.deleteRoute({ ...step.route, protocol: NODE_ROUTE_PROTOCOL });
      return;
    }
    case 'sysctl-write': {
      node.writeSysctl(keyText(step.key), step.value);
      return;
    }
  }
}

function ownRoute(route: NodeRoute): KernelRoute {
  return { ...route, protocol: NODE_ROUTE_PROTOCOL, metric: route.destination.includes(':') ? 1024 : 0 };
}

interface FailureDetails {
  readonly object: string;
  readonly errno: string;
}

function failureOf(operation: string, { object, errno }: FailureDetails) {
  return kernelFailure({ operation, object, errno, message: `${operation} ${object}: ${errno}` });
}

/** Other callbacks run before the answer, as with the real kernel. */
function yieldToEventLoop(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
