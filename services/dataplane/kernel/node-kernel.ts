import {
  NetlinkError,
  openNamespace,
  type IpipAdd,
  type MonitorEvent,
  type Namespace,
  type Outcome,
  type Request,
  type RouteRequest,
  type VxlanAdd,
} from '@podwire/netlink';

import type { NodeKernel, NodeListener, NodeRefusal, NodeScope, NodeWatch } from '../routes/kernel.js';
import { NODE_ROUTE_PROTOCOL, type NodeAbilities, type ObservedNode } from '../routes/observed.js';
import type { NodeStep } from '../routes/step.js';
import type { WantedTunnel } from '../routes/wanted.js';
import type { NodeMonitor } from './node-monitor.js';
import { NodeLinks, observeNode, toChange } from './node-observe.js';
import { callKernel, failureOfNetlink, hasErrno } from './refusal.js';

/** Batch limit of the addon. */
const BATCH_COUNT = 1000;

/**
 * Probes for a device kind: the kernel refuses this name with EINVAL when it knows the kind, and with EOPNOTSUPP when it does
 * not. A `%` in a name must precede a number format (`__dev_alloc_name`). An invalid MTU is not enough: IPIP accepts and corrects
 * it.
 */
const PROBE = { name: 'probe%.podwire', local: '192.0.2.1', mtuBytes: 1, address: undefined } as const;

type Refusals = readonly (NodeRefusal | undefined)[];

/** Consecutive steps of one kind. */
type StepGroup =
  | { readonly kind: 'device'; readonly steps: Exclude<DeviceStep, { type: 'device-delete' }>[] }
  | { readonly kind: 'deletion'; readonly steps: Extract<DeviceStep, { type: 'device-delete' }>[] }
  | { readonly kind: 'sysctl'; readonly steps: SysctlStep[] }
  | { readonly kind: 'plain'; readonly steps: PlainStep[] };

/** The real kernel's node side, through rtnetlink and /proc/sys. The node's network namespace is this process's. */
export class NodeNetlinkKernel implements NodeKernel {
  readonly #node: Namespace;
  readonly #links = new NodeLinks();
  readonly #monitor: NodeMonitor;

  private constructor(node: Namespace, monitor: NodeMonitor) {
    this.#node = node;
    this.#monitor = monitor;
  }

  /** @throws Failure KERNEL_REFUSED when no netlink socket can be opened */
  static async open(monitor: NodeMonitor): Promise<NodeNetlinkKernel> {
    return new NodeNetlinkKernel(await callKernel(() => openNamespace()), monitor);
  }

  abilities(): Promise<NodeAbilities> {
    return callKernel(async () => {
      const [vxlan, ipip] = await this.#node.batch([
        toTunnelAdd({ kind: 'vxlan', ...PROBE, vni: 1, port: 1, parent: undefined, mac: '02:00:00:00:00:01' }),
        toTunnelAdd({ kind: 'ipip', ...PROBE }),
      ]);
      return { hasVxlan: isKnown(vxlan), hasIpip: isKnown(ipip) };
    });
  }

  observe(scope: NodeScope): Promise<ObservedNode> {
    return callKernel(() => observeNode(this.#node, this.#links, scope));
  }

  async apply(steps: readonly NodeStep[]): Promise<Refusals> {
    const answers: (NodeRefusal | undefined)[] = [];
    for (const group of toStepGroups(steps)) {
      try {
        answers.push(...(await this.#applyGroup(group)));
      } catch (error) {
        // The kernel could not be queried: the outcome of the steps is unknown.
        const refusal = refusalOf(error);
        answers.push(...group.steps.map(() => refusal));
      }
    }
    return answers;
  }

  async watch(listener: NodeListener): Promise<NodeWatch> {
    const early: MonitorEvent[] = [];
    this.#links.forgetCreations();
    let deliver = (event: MonitorEvent): void => void early.push(event);
    const subscription = await callKernel(() =>
      this.#monitor.subscribe({
        onEvent: (event) => deliver(event),
        onFailure: (failure) => listener.failed(failureOfNetlink(failure)),
      }),
    );
    try {
      // Load the link names first, so that the first announcements can be resolved.
      this.#links.reset(await callKernel(() => this.#node.links()));
    } catch (error) {
      subscription.close();
      throw error;
    }
    deliver = (event) => {
      const change = toChange(event, this.#links);
      if (change) listener.changed(change);
    };
    early.forEach(deliver);
    return subscription;
  }

  close(): Promise<void> {
    return this.#node.close();
  }

  async #applyGroup(group: StepGroup): Promise<Refusals> {
    switch (group.kind) {
      case 'device':
        return this.#changeDevices(group.steps);
      case 'deletion':
        return Promise.all(group.steps.map((step) => this.#deleteDevice(step.name)));
      case 'sysctl':
        return (await this.#node.writeSysctls(group.steps)).map(toRefusal);
      case 'plain':
        return this.#applyPlain(group.steps);
    }
  }

  async #changeDevices(steps: Extract<StepGroup, { kind: 'device' }>['steps']): Promise<Refusals> {
    const unmarks = steps.flatMap((step) =>
      step.type === 'device-add' ? [this.#links.markCreating(step.tunnel.name)] : [],
    );
    const refusals = (
      await this.#node.sequence(steps.map((step) => ({ optional: true, ...toDeviceRequest(step) })))
    ).map(toRefusal);
    if (refusals.some((refusal) => refusal !== undefined)) for (const unmark of unmarks) unmark();
    return refusals;
  }

  async #deleteDevice(name: string): Promise<NodeRefusal | undefined> {
    const unmark = this.#links.markDeleting(name);
    try {
      await this.#node.deleteLink({ name });
      return undefined;
    } catch (error) {
      unmark();
      return refusalOf(error);
    }
  }

  async #applyPlain(steps: readonly PlainStep[]): Promise<Refusals> {
    const answers: (NodeRefusal | undefined)[] = [];
    for (let start = 0; start < steps.length; start += BATCH_COUNT) {
      const part = steps.slice(start, start + BATCH_COUNT);
      const outcomes = await this.#node.batch(part.map((step) => toPlainRequest(step, this.#links)));
      for (const [position, outcome] of outcomes.entries()) {
        const step = part[position];
        // The device of that index is gone; another may have its name.
        const name = step && !outcome.ok && hasErrno(outcome.error, 'ENODEV') ? deviceOf(step) : undefined;
        if (name !== undefined) this.#links.forget(name);
        answers.push(toRefusal(outcome));
      }
    }
    return answers;
  }
}

function toStepGroups(steps: readonly NodeStep[]): StepGroup[] {
  const groups: StepGroup[] = [];
  for (const step of steps) {
    const last = groups.at(-1);
    switch (step.type) {
      case 'device-add':
      case 'device-set':
        if (last?.kind === 'device') last.steps.push(step);
        else groups.push({ kind: 'device', steps: [step] });
        break;
      case 'device-delete':
        if (last?.kind === 'deletion') last.steps.push(step);
        else groups.push({ kind: 'deletion', steps: [step] });
        break;
      case 'sysctl-write':
        if (last?.kind === 'sysctl') last.steps.push(step);
        else groups.push({ kind: 'sysctl', steps: [step] });
        break;
      case 'address-add':
      case 'address-delete':
      case 'neighbour-set':
      case 'neighbour-delete':
      case 'forwarding-set':
      case 'forwarding-delete':
      case 'route-add':
      case 'route-replace':
      case 'route-delete':
        if (last?.kind === 'plain') last.steps.push(step);
        else groups.push({ kind: 'plain', steps: [step] });
    }
  }
  return groups;
}

function isKnown(outcome: Outcome | undefined): boolean {
  if (outcome?.ok !== false) throw new Error(`the kernel created a device with the invalid name ${PROBE.name}`);
  if (hasErrno(outcome.error, 'EOPNOTSUPP')) return false;
  // EEXIST: another device has the same VNI or addresses, which some kernels check first.
  if (hasErrno(outcome.error, 'EINVAL') || hasErrno(outcome.error, 'EEXIST')) return true;
  throw outcome.error;
}

function toRefusal(outcome: Outcome): NodeRefusal | undefined {
  return outcome.ok ? undefined : refusalOf(outcome.error);
}

function refusalOf(error: unknown): NodeRefusal {
  if (!(error instanceof NetlinkError)) throw error;
  return { failure: failureOfNetlink(error), errno: error.code };
}

/** Steps that create, change or delete a device: later steps depend on their outcome. */
type DeviceStep = Extract<NodeStep, { type: 'device-add' | 'device-set' | 'device-delete' }>;
type SysctlStep = Extract<NodeStep, { type: 'sysctl-write' }>;
/** All other steps, which are independent within a plan. */
type PlainStep = Exclude<NodeStep, DeviceStep | SysctlStep>;

/** The addon request that creates a tunnel device. */
function toTunnelAdd(tunnel: WantedTunnel): VxlanAdd | IpipAdd {
  const { name, mtuBytes, local } = tunnel;
  if (tunnel.kind === 'ipip') return { type: 'link.add', kind: 'ipip', name, mtuBytes, local };
  const { vni, port, mac, parent } = tunnel;
  return {
    type: 'link.add',
    kind: 'vxlan',
    name,
    mtuBytes,
    local,
    vni,
    port,
    mac,
    ...(parent === undefined ? {} : { parent: { name: parent } }),
  };
}

function toDeviceRequest(step: Exclude<DeviceStep, { type: 'device-delete' }>): Request {
  if (step.type === 'device-add') return toTunnelAdd(step.tunnel);
  return { type: 'link.set', link: { name: step.name }, ...step.changeSteps };
}

function toPlainRequest(step: PlainStep, links: NodeLinks): Request {
  switch (step.type) {
    case 'address-add':
      return { type: 'address.add', link: links.select(step.device), address: step.address, noDad: true };
    case 'address-delete':
      return { type: 'address.delete', link: links.select(step.device), address: step.address };
    case 'neighbour-set':
      return { type: 'neighbour.replace', link: links.select(step.device), address: step.address, mac: step.mac };
    case 'neighbour-delete':
      return { type: 'neighbour.delete', link: links.select(step.device), address: step.address };
    case 'forwarding-set':
      return {
        type: 'fdb.replace',
        link: links.select(step.device),
        mac: step.mac,
        destination: step.nodeAddress,
      };
    case 'forwarding-delete':
      return {
        type: 'fdb.delete',
        link: links.select(step.device),
        mac: step.mac,
        destination: step.nodeAddress,
      };
    case 'route-add':
      return toRoute('route.add', step, links);
    case 'route-replace':
      return toRoute('route.replace', step, links);
    case 'route-delete':
      return toRoute('route.delete', step, links);
  }
}

type RouteStep = Extract<NodeStep, { type: 'route-add' | 'route-replace' | 'route-delete' }>;

function toRoute(type: RouteRequest['type'], step: RouteStep, links: NodeLinks): RouteRequest {
  const { destination, device, gateway, source, onlink, type: routeType } = step.route;
  return {
    type,
    destination,
    protocol: NODE_ROUTE_PROTOCOL,
    onlink,
    ...(routeType === 'other' ? {} : { routeType }),
    ...(device === undefined ? {} : { output: links.select(device) }),
    ...(gateway === undefined ? {} : { gateway }),
    ...(source === undefined ? {} : { source }),
    ...(step.type === 'route-delete' ? { metric: step.route.metric } : {}),
  };
}

/** The device that a step requires. */
function deviceOf(step: PlainStep): string | undefined {
  return 'route' in step ? step.route.device : step.device;
}
