import { NetlinkError, openNamespace, type Monitor, type Namespace, type Outcome } from '@podwire/netlink';

import type { NodeAbilities, ObservedNode } from '../../routing/node-observed.js';
import { type NodeStep } from '../../routing/node-step.js';
import type { NodeKernel, NodeListener, NodeRefusal, NodeScope, NodeWatch } from '../node-kernel.js';
import { NodeLinks } from './node-links.js';
import { observeNode } from './node-observe.js';
import {
  deviceOf,
  toDeviceRequest,
  toPlainRequest,
  toTunnelAdd,
  type DeviceStep,
  type PlainStep,
  type SysctlStep,
} from './node-requests.js';
import { asking, failureOfNetlink, hasErrno } from './refusal.js';
import { relay } from './node-watch.js';

/** What the addon takes at once. */
const BATCH_COUNT = 1000;

/** An MTU that the kernel refuses with EINVAL where it knows the kind of device, and with EOPNOTSUPP where it does not. */
const IMPOSSIBLE_MTU_BYTES = 1;

const PROBE = {
  name: 'probe.podwire',
  local: '192.0.2.1',
  mtuBytes: IMPOSSIBLE_MTU_BYTES,
  address: undefined,
} as const;

type Answers = readonly (NodeRefusal | undefined)[];

/** Steps of one kind that follow each other. */
type Run =
  | { readonly kind: 'device'; readonly steps: Exclude<DeviceStep, { type: 'device-delete' }>[] }
  | { readonly kind: 'deletion'; readonly steps: Extract<DeviceStep, { type: 'device-delete' }>[] }
  | { readonly kind: 'sysctl'; readonly steps: SysctlStep[] }
  | { readonly kind: 'plain'; readonly steps: PlainStep[] };

/** The real kernel's node side, through rtnetlink and /proc/sys. The node's network namespace is that of this process. */
export class NodeNetlinkKernel implements NodeKernel {
  readonly #node: Namespace;
  readonly #links = new NodeLinks();
  readonly #monitors = new Set<Monitor>();

  private constructor(node: Namespace) {
    this.#node = node;
  }

  /** @throws Failure KERNEL_REFUSED when no netlink socket can be opened */
  static async open(): Promise<NodeNetlinkKernel> {
    return new NodeNetlinkKernel(await asking(() => openNamespace()));
  }

  abilities(): Promise<NodeAbilities> {
    return asking(async () => {
      const [vxlan, ipip] = await this.#node.batch([
        toTunnelAdd({ kind: 'vxlan', ...PROBE, vni: 1, port: 1, parent: undefined, mac: '02:00:00:00:00:01' }),
        toTunnelAdd({ kind: 'ipip', ...PROBE }),
      ]);
      return { hasVxlan: isKnown(vxlan), hasIpip: isKnown(ipip) };
    });
  }

  observe(scope: NodeScope): Promise<ObservedNode> {
    return asking(() => observeNode(this.#node, this.#links, scope));
  }

  async apply(steps: readonly NodeStep[]): Promise<Answers> {
    const answers: (NodeRefusal | undefined)[] = [];
    for (const run of toRuns(steps)) {
      try {
        answers.push(...(await this.#carryOut(run)));
      } catch (error) {
        // The kernel could not be asked at all: what became of them is not known.
        const refusal = refusalOf(error);
        answers.push(...run.steps.map(() => refusal));
      }
    }
    return answers;
  }

  async watch(listener: NodeListener): Promise<NodeWatch> {
    const monitor = await asking(() => this.#node.monitor({ groups: ['links', 'addresses', 'routes', 'neighbours'] }));
    // Without the names behind the indexes, the first announcements would be of devices that nobody knows.
    this.#links.reset(await asking(() => this.#node.links()));
    this.#monitors.add(monitor);
    void relay(monitor, this.#links, listener);
    return { close: () => this.#end(monitor) };
  }

  async close(): Promise<void> {
    for (const monitor of this.#monitors) this.#end(monitor);
    await this.#node.close();
  }

  #end(monitor: Monitor): void {
    this.#monitors.delete(monitor);
    monitor.close();
  }

  async #carryOut(run: Run): Promise<Answers> {
    switch (run.kind) {
      case 'device':
        return this.#changeDevices(run.steps);
      case 'deletion':
        return Promise.all(run.steps.map((step) => this.#deleteDevice(step.name)));
      case 'sysctl':
        return (await this.#node.writeSysctls(run.steps)).map(toRefusal);
      case 'plain':
        return this.#carryOutPlain(run.steps);
    }
  }

  async #changeDevices(steps: Extract<Run, { kind: 'device' }>['steps']): Promise<Answers> {
    const outcomes = await this.#node.sequence(steps.map((step) => ({ ...toDeviceRequest(step), optional: true })));
    return outcomes.map(toRefusal);
  }

  async #deleteDevice(name: string): Promise<NodeRefusal | undefined> {
    this.#links.forget(name);
    try {
      await this.#node.deleteLink({ name });
      return undefined;
    } catch (error) {
      return refusalOf(error);
    }
  }

  async #carryOutPlain(steps: readonly PlainStep[]): Promise<Answers> {
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

function toRuns(steps: readonly NodeStep[]): Run[] {
  const runs: Run[] = [];
  for (const step of steps) {
    const last = runs.at(-1);
    switch (step.type) {
      case 'device-add':
      case 'device-set':
        if (last?.kind === 'device') last.steps.push(step);
        else runs.push({ kind: 'device', steps: [step] });
        break;
      case 'device-delete':
        if (last?.kind === 'deletion') last.steps.push(step);
        else runs.push({ kind: 'deletion', steps: [step] });
        break;
      case 'sysctl-write':
        if (last?.kind === 'sysctl') last.steps.push(step);
        else runs.push({ kind: 'sysctl', steps: [step] });
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
        else runs.push({ kind: 'plain', steps: [step] });
    }
  }
  return runs;
}

function isKnown(outcome: Outcome | undefined): boolean {
  if (outcome?.ok !== false) throw new Error(`the kernel made a device of MTU ${IMPOSSIBLE_MTU_BYTES}`);
  if (hasErrno(outcome.error, 'EOPNOTSUPP')) return false;
  if (hasErrno(outcome.error, 'EINVAL')) return true;
  throw outcome.error;
}

function toRefusal(outcome: Outcome): NodeRefusal | undefined {
  return outcome.ok ? undefined : refusalOf(outcome.error);
}

function refusalOf(error: unknown): NodeRefusal {
  if (!(error instanceof NetlinkError)) throw error;
  return { failure: failureOfNetlink(error), errno: error.code };
}
