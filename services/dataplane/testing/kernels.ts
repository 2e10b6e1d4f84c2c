import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';

import { NetlinkError, type Monitor, type MonitorEvent } from '@podwire/netlink';
import type { PortProtocol } from '@podwire/shared/attachment/host-port';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, expect } from 'vitest';

import { NodeNetlinkKernel } from '../kernel/node-kernel.js';
import { NodeMonitor } from '../kernel/node-monitor.js';
import type { BatchOutcome, Kernel, PodSession } from '../pods/kernel.js';
import type { NodeKernel } from '../routes/kernel.js';
import type { NodeRoute, WantedVxlan } from '../routes/wanted.js';
import type { Step } from '../wiring/step.js';

/** A kernel under test, with the actions of operators and other programs. */
/** A flow in connection tracking. */
export interface Flow {
  readonly source: string;
  readonly destination: string;
  readonly protocol: PortProtocol;
  readonly port: number;
}

export interface KernelFixture {
  readonly kernel: Kernel;
  /** Path of the node's own network namespace. */
  readonly nodePath: string;
  /** Path of a file that is no namespace. */
  readonly filePath: string;
  /** Makes the network namespace of a pod. @returns its path */
  addPod(name: string): string;
  /** The namespace is destroyed, with everything in it. */
  removePod(name: string): void;
  /** A bridge, up, with an alias or none, on the node or in a pod. */
  addBridge(name: string, where: { readonly pod?: string; readonly alias?: string }): void;
  /** Another program gives a link a root qdisc `pfifo`, with the handle of Podwire's. */
  setQdisc(link: string, where: { readonly pod?: string }): void;
  /** Adds a flow to the node's connection tracking. */
  addFlow(flow: Flow): void;
  /** Number of flows in the node's connection tracking. */
  flowCount(): number;
  /** Removes everything. */
  destroy(): Promise<void>;
}

/** A kernel with one pod namespace, recreated for each test of a contract. */
export class KernelUnderTest {
  #made: { readonly fixture: KernelFixture; readonly session: PodSession } | undefined;

  /** Called within `describe`, or at the top of a file. */
  constructor(setUp: () => Promise<KernelFixture>) {
    beforeEach(async () => {
      const fixture = await setUp();
      this.#made = { fixture, session: await fixture.kernel.open(fixture.addPod('contract')) };
    });
    afterEach(async () => {
      await this.session.close();
      await this.fixture.destroy();
    });
  }

  get fixture(): KernelFixture {
    return this.#now().fixture;
  }

  get session(): PodSession {
    return this.#now().session;
  }

  async applyAll(steps: readonly Step[]): Promise<void> {
    expect((await this.session.apply(steps)).failed).toBeUndefined();
  }

  /** Errno and code of a refused step, or `done`. */
  async refusal(step: Step): Promise<string> {
    const { failed } = await this.session.apply([step]);
    return failed ? `${failed.errno} ${failed.failure.code}` : 'done';
  }

  #now() {
    if (!this.#made) throw new Error('the kernel exists only within a test');
    return this.#made;
  }
}

/** Wraps a kernel: counts steps, and can refuse one of them. */
export interface InterceptedKernel extends Kernel {
  /** Steps applied so far. */
  readonly finished: readonly Step[];
  /** Refuses one step, after this many more were applied. */
  refuseAfter(steps: number): void;
  /** Whether the refusal was used. */
  readonly refused: boolean;
}

export function intercept(kernel: Kernel): InterceptedKernel {
  const finished: Step[] = [];
  let remaining = Number.POSITIVE_INFINITY;
  let refused = false;

  async function apply(session: PodSession, steps: readonly Step[]): Promise<BatchOutcome> {
    const outcome = await session.apply(steps.slice(0, remaining));
    finished.push(...outcome.finished);
    const step = steps[remaining];
    if (outcome.failed || !step) {
      remaining -= steps.length;
      return outcome;
    }
    remaining = Number.POSITIVE_INFINITY;
    refused = true;
    return {
      ...outcome,
      failed: { step, errno: 'EIO', failure: new Failure('KERNEL_REFUSED', 'refused by the test') },
    };
  }

  return {
    finished,
    get refused() {
      return refused;
    },
    refuseAfter: (steps) => {
      remaining = steps;
      refused = false;
    },
    probe: () => kernel.probe(),
    open: async (netns) => {
      const session = await kernel.open(netns);
      return {
        identity: session.identity,
        observe: (wanted) => session.observe(wanted),
        podLink: (name) => session.podLink(name),
        rules: (table) => session.rules(table),
        orphanRules: () => session.orphanRules(),
        apply: (steps) => apply(session, steps),
        close: () => session.close(),
      };
    },
    identify: (netns) => kernel.identify(netns),
    veths: () => kernel.veths(),
    hostLink: (name) => kernel.hostLink(name),
    renameHostLink: (link, name) => kernel.renameHostLink(link, name),
    deleteHostLink: (link) => kernel.deleteHostLink(link),
    attachedLinks: () => kernel.attachedLinks(),
    deleteFlows: (address) => kernel.deleteFlows(address),
    deletePortFlows: (protocol, ports) => kernel.deletePortFlows(protocol, ports),
    close: () => kernel.close(),
  };
}

/** A subscription whose events and end are controlled by the test. */
export class FakeMonitor implements Monitor {
  isClosed = false;
  readonly #waiting: (MonitorEvent | Error)[] = [];
  #wake: () => void = () => undefined;

  push(event: MonitorEvent | Error): void {
    this.#waiting.push(event);
    this.#wake();
  }

  close(): void {
    this.isClosed = true;
    this.#wake();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<MonitorEvent, undefined> {
    while (!this.isClosed) {
      const event = this.#waiting.shift();
      if (event instanceof Error) throw event;
      if (event) yield event;
      else await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }
}

/** The error with which the kernel ends a subscription. */
export const monitorFailure = () =>
  new NetlinkError({ operation: 'monitor', object: 'node', errno: 9, kernelMessage: undefined });

/**
 * Actions on the real kernel, always in the throwaway namespaces of test/support/isolated.mjs: pods are created with
 * `ip netns add`, this process's own network namespace is the node.
 */

let isThrowaway = false;

/**
 * Every kernel test calls it first: links that a test creates before would be taken for the machine's.
 * @throws Error outside a namespace that was made for tests, so that no test can reach the machine's network
 */
export function requireThrowawayNamespace(): void {
  isThrowaway = false;
  const mounts = readFileSync('/proc/self/mounts', 'utf8');
  const uplinks = Object.keys(networkInterfaces()).filter((name) => name !== 'lo');
  if (!/^tmpfs \/run\/netns tmpfs /m.test(mounts) || uplinks.some((name) => /^(e|w)/.test(name))) {
    throw new Error('run kernel tests as `node test/support/isolated.mjs vitest run …`, in namespaces of their own');
  }
  isThrowaway = true;
}

/** Runs a program. @returns its standard output. @throws Error with its standard error */
export function run(program: string, ...args: readonly string[]): string {
  return execFileSync(program, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
}

export function addPod(name: string): string {
  run('ip', 'netns', 'add', name);
  return `/run/netns/${name}`;
}

export function removePod(name: string): void {
  run('ip', 'netns', 'delete', name);
}

/**
 * Deletes every link and table that a test created on the node, and every pod. Vitest calls it also after a refused test.
 * @throws Error unless {@link requireThrowawayNamespace} has accepted the namespace
 */
export function cleanUp(): void {
  if (!isThrowaway) throw new Error('clean-up refused: requireThrowawayNamespace has not accepted this namespace');
  run('nft', 'flush', 'ruleset');
  for (const kind of ['veth', 'bridge']) {
    for (const line of run('ip', '-br', 'link', 'show', 'type', kind).split('\n')) {
      const [link = ''] = line.split(/[@\s]/);
      if (link !== '') run('ip', 'link', 'delete', link);
    }
  }
  for (const line of run('ip', 'netns', 'list').split('\n')) {
    const [pod = ''] = line.split(' ');
    if (pod !== '') removePod(pod);
  }
}

/** Fields that change by themselves, and the carrier state, which the kernel updates with delay. */
const VOLATILE =
  /"(ifindex|link_index|link_netnsid|used|updated|probes|confirmed|refcnt|state|operstate)":[^,}]*,?|"NO-CARRIER",|,?"(LOWER_UP|linkdown)"/g;

/** The objects to compare, as arguments of `ip`. */
const OBJECTS: readonly (readonly string[])[] = [
  ['-4', 'link'],
  ['-4', 'address'],
  ['-4', 'route', 'show', 'table', 'all'],
  ['-4', 'neigh', 'show', 'nud', 'permanent'],
  ['-6', 'address', 'show', 'scope', 'global'],
  ['-6', 'route', 'show', 'table', 'all', 'proto', '87'],
  ['-6', 'neigh', 'show', 'nud', 'permanent'],
];

const SETTINGS =
  '^net.(ipv4.(ip_forward|conf|neigh)|ipv6.conf.*.(disable_ipv6|forwarding|accept_dad|addr_gen_mode|proxy_ndp|accept_ra))';

/**
 * Links, addresses, routes, neighbours and settings of the node and some pods, as text to compare. Omits the link-local
 * addresses and routes that the kernel creates by itself.
 */
export function snapshot(...pods: readonly string[]): string {
  const where = [[], ...pods.map((pod) => ['-n', pod])];
  const objects = where.flatMap((at) =>
    OBJECTS.map(([family = '', ...object]) => run('ip', family, ...at, '-j', ...object).replace(VOLATILE, '')),
  );
  const switches = pods.map((pod) => run('ip', 'netns', 'exec', pod, 'sysctl', '-a', '-r', SETTINGS));
  return [...objects, run('sysctl', '-a', '-r', SETTINGS), ...switches].join('\n');
}

const FORWARDING = ['net.ipv4.ip_forward', 'net.ipv6.conf.all.forwarding'];

/** Sets the forwarding switches that a service turns on after the first pod, and never off. */
export function setNodeForwarding(state: 'on' | 'off' = 'on'): void {
  run('sysctl', '-qw', ...FORWARDING.map((key) => `${key}=${state === 'on' ? '1' : '0'}`));
}

/** Whether one ping is answered within two seconds; from the node, or from a pod. */
export function canPing(address: string, pod?: string): boolean {
  const enter = pod === undefined ? [] : ['ip', 'netns', 'exec', pod];
  try {
    run('env', ...enter, 'ping', '-n', '-q', '-c', '1', '-W', '2', address);
    return true;
  } catch {
    return false;
  }
}

/** Runs a shell-like command on the node, which is this process's namespace. */
export function runCommand(command: string): void {
  const [program = '', ...words] = command.split(' ');
  run(program, ...words);
}

/** Deletes every interface except the loopback, and Podwire's and foreign test routes. */
export function clearNode(): void {
  for (const line of run('ip', '-br', 'link').split('\n')) {
    const [link = ''] = line.split(/[@\s]/);
    if (link === '' || link === 'lo') continue;
    try {
      run('ip', 'link', 'delete', link);
    } catch {
      // It was deleted with its parent.
    }
  }
  for (const family of ['-4', '-6']) run('ip', family, 'route', 'flush', 'table', 'main', 'proto', '87');
  for (const family of ['-4', '-6']) run('ip', family, 'route', 'flush', 'table', 'main', 'proto', '4');
}

/** The node of this process, as created by `test/support/isolated.mjs`. */
export async function netlinkNodeFixture(): Promise<NodeKernelFixture> {
  requireThrowawayNamespace();
  clearNode();
  const kernel = await NodeNetlinkKernel.open(new NodeMonitor());
  return {
    kernel,
    runCommand: runCommand,
    addParent: (name, ...addresses) => {
      runCommand(`ip link add ${name} type bridge`);
      runCommand(`ip link set ${name} up`);
      // Duplicate address detection is off: nothing can be bound to an address before that is over.
      for (const address of addresses)
        runCommand(`ip address add ${address} dev ${name}${address.includes(':') ? ' nodad' : ''}`);
    },
    destroy: async () => {
      await kernel.close();
      clearNode();
    },
  };
}

/** A node kernel under test, with the actions of operators and other programs. */
export interface NodeKernelFixture {
  readonly kernel: NodeKernel;
  /** Runs a command of `ip`, `bridge` or `sysctl` on the node. */
  readonly runCommand: (command: string) => void;
  /** An interface, up, with an MTU of 1500 bytes and addresses. */
  readonly addParent: (name: string, ...addresses: readonly string[]) => void;
  /** Removes everything. */
  readonly destroy: () => Promise<void>;
}

export const vxlan: WantedVxlan = {
  kind: 'vxlan',
  name: 'vxlan4.podwire',
  vni: 4096,
  port: 4789,
  local: '10.0.0.1',
  parent: 'up0',
  mac: '66:00:00:00:00:01',
  mtuBytes: 1450,
  address: '10.65.0.1/32',
};

export const unicast = (destination: string, gateway: string | undefined, by = vxlan.name): NodeRoute => ({
  destination,
  type: 'unicast',
  device: by,
  gateway,
  onlink: gateway !== undefined,
  source: undefined,
});

export const blackhole = (destination: string): NodeRoute => ({
  ...unicast(destination, undefined),
  type: 'blackhole',
  device: undefined,
});
