import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';

import { NetlinkError, type Monitor, type MonitorEvent } from '@podwire/netlink';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, expect } from 'vitest';

import { NodeNetlinkKernel } from '../kernel/node-kernel.js';
import { NodeMonitor } from '../kernel/node-monitor.js';
import type { BatchOutcome, Kernel, PodSession } from '../pods/kernel.js';
import type { NodeKernel } from '../routes/kernel.js';
import type { NodeRoute, WantedVxlan } from '../routes/wanted.js';
import type { Step } from '../wiring/step.js';

/** A kernel to test, and what people and other programs do to it. */
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
  /** Makes the node remember a flow. */
  addFlow(flow: { readonly source: string; readonly destination: string }): void;
  /** Number of flows that the node remembers. */
  flowCount(): number;
  /** Takes everything away. */
  destroy(): Promise<void>;
}

/** A kernel with a pod of one namespace, made anew for each test of a contract. */
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

  /** What a step is refused with, or `done`. */
  async refusal(step: Step): Promise<string> {
    const { failed } = await this.session.apply([step]);
    return failed ? `${failed.errno} ${failed.failure.code}` : 'done';
  }

  #now() {
    if (!this.#made) throw new Error('there is a kernel within a test only');
    return this.#made;
  }
}

/** A kernel in front of another one that counts steps and can refuse one of them. */
export interface InterceptedKernel extends Kernel {
  /** Steps that were carried out so far. */
  readonly finished: readonly Step[];
  /** Refuses the step that comes after this many more were carried out, once. */
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
    close: () => kernel.close(),
  };
}

/** A subscription that tells what a test says, and ends when it says so. */
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

/** How the kernel ends a subscription. */
export const monitorFailure = () =>
  new NetlinkError({ operation: 'monitor', object: 'node', errno: 9, kernelMessage: undefined });

/**
 * What tests do to the real kernel, always in the throwaway namespaces of test/support/isolated.mjs: pods are made with
 * `ip netns add`, this process's own network namespace is the node.
 */

let isThrowaway = false;

/**
 * Tests begin with it, before they make links of their own, which it would take for the machine's.
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

/** Runs a program and gives its standard output. @throws Error with its standard error */
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
 * Deletes every link and table of the node that a test made, and every pod. Vitest calls it also after a test that was refused.
 * @throws Error unless {@link requireThrowawayNamespace} has let the test begin
 */
export function cleanUp(): void {
  if (!isThrowaway) throw new Error('nothing is cleaned up here: requireThrowawayNamespace did not let the test begin');
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

/** Fields that change by themselves, and what the kernel tells of a carrier, which it notices later. */
const VOLATILE =
  /"(ifindex|link_index|link_netnsid|used|updated|probes|confirmed|refcnt|state|operstate)":[^,}]*,?|"NO-CARRIER",|,?"(LOWER_UP|linkdown)"/g;

/** What is to be compared, as arguments of `ip`. */
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
 * Links, addresses, routes, neighbours and settings of the node and some pods, as text to compare. Of IPv6 without what the kernel
 * makes by itself and when it likes: link-local addresses, and the routes to them.
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

/** What a service gives its node at some time after the first pod, and does not take back. */
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

/** A command as people write it, on the node that this process is. */
export function runCommand(command: string): void {
  const [program = '', ...words] = command.split(' ');
  run(program, ...words);
}

/** Every interface but the loopback goes, and every route, as nothing is to be left of a test. */
export function clearNode(): void {
  for (const line of run('ip', '-br', 'link').split('\n')) {
    const [link = ''] = line.split(/[@\s]/);
    if (link === '' || link === 'lo') continue;
    try {
      run('ip', 'link', 'delete', link);
    } catch {
      // It went with its parent.
    }
  }
  for (const family of ['-4', '-6']) run('ip', family, 'route', 'flush', 'table', 'main', 'proto', '87');
  for (const family of ['-4', '-6']) run('ip', family, 'route', 'flush', 'table', 'main', 'proto', '4');
}

/** The node that this process is, as `test/support/isolated.mjs` makes it. */
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
      // Without duplicate address detection: nothing can be bound to an address before that is over.
      for (const address of addresses)
        runCommand(`ip address add ${address} dev ${name}${address.includes(':') ? ' nodad' : ''}`);
    },
    destroy: async () => {
      await kernel.close();
      clearNode();
    },
  };
}

/** A node's kernel to test, and what people and other programs do to it. */
export interface NodeKernelFixture {
  readonly kernel: NodeKernel;
  /** Carries out a command of `ip`, `bridge` or `sysctl` on the node. */
  readonly runCommand: (command: string) => void;
  /** An interface, up, with an MTU of 1500 bytes and addresses. */
  readonly addParent: (name: string, ...addresses: readonly string[]) => void;
  /** Takes everything away. */
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
