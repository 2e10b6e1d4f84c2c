import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

import { expect, onTestFinished } from 'vitest';

import { findings, storedAddresses } from './ipam-client.js';
import { callCni, makePod, NETWORK, removePod, type CniAnswer, type Pod } from './pods.js';
import { pings, run } from './programs.js';
import type { Stack } from './stack.js';

/** Until services and nodes agree, in milliseconds: they compare their states at times of their own. */
const AGREEMENT = { timeout: 120_000, interval: 200 };

/** Time between two attempts to start a pod, in milliseconds. */
const RETRY_MS = 200;

/** Attempts to start a pod on a node that refuses it for now. */
const ATTEMPTS = 300;

const DUAL_STACK = { ipam: { type: 'podwire-ipam', assign_ipv4: 'true', assign_ipv6: 'true' } };

interface PodInterface {
  readonly link_index?: number;
  readonly addr_info: readonly { readonly local: string; readonly scope: string }[];
}

interface Route {
  readonly dst: string;
  readonly dev?: string;
}

interface Link {
  readonly ifindex: number;
  readonly ifname: string;
}

export interface LivePod {
  readonly pod: Pod;
  readonly stack: Stack;
  /** Addresses of the interface after the ADD. */
  readonly addresses: readonly string[];
}

/** Network namespaces of all test files have one directory. */
let made = 0;

/** The pods of a test, on any number of nodes. Their addresses are read from their interfaces: no service is asked. */
export class LivePods {
  readonly #living = new Map<Pod, LivePod>();
  readonly #namespaces = new Set<Pod>();
  /** Whether pods get addresses of both families. */
  readonly #isDualStack: boolean;

  /** Their namespaces are removed when the test ends. */
  constructor({ isDualStack = false }: { readonly isDualStack?: boolean } = {}) {
    this.#isDualStack = isDualStack;
    onTestFinished(() => this.#namespaces.forEach(removePod));
  }

  get living(): readonly LivePod[] {
    return [...this.#living.values()];
  }

  /** A namespace without a network. @param podName - of a pod with an earlier sandbox, if it has one */
  make(podName?: string): Pod {
    const name = `live-${process.pid}-${made++}`;
    const pod = { ...makePod(name), ...(podName !== undefined && { podName }) };
    this.#namespaces.add(pod);
    return pod;
  }

  call(stack: Stack, command: string, pod: Pod): Promise<CniAnswer> {
    const config = this.#isDualStack ? DUAL_STACK : {};
    return callCni({ command, pod, socket: stack.sockets.node, config });
  }

  /** One ADD. @returns its answer; a pod whose ADD succeeded lives */
  async tryAdd(stack: Stack, pod = this.make()): Promise<CniAnswer> {
    const answer = await this.call(stack, 'ADD', pod);
    if (answer.exitCode === 0) this.#living.set(pod, { pod, stack, addresses: addressesIn(pod) });
    return answer;
  }

  /** Starts a pod as the kubelet does: an ADD that fails is followed by a DEL and by an ADD of a new sandbox. */
  async start(stack: Stack, podName?: string): Promise<LivePod> {
    const first = this.make(podName);
    for (let attempt = 0; ; attempt++) {
      const containerId = createHash('sha256').update(`${first.name}/${attempt}`).digest('hex');
      const pod = { ...first, containerId };
      const answer = await this.tryAdd(stack, pod);
      const added = this.#living.get(pod);
      if (added) return added;
      if (attempt === ATTEMPTS) throw new Error(`a pod does not start: ${answer.stdout}\n${stack.log('node')}`);
      await this.call(stack, 'DEL', pod);
      await sleep(RETRY_MS);
    }
  }

  startAll(stack: Stack, count: number): Promise<LivePod[]> {
    return Promise.all(Array.from({ length: count }, () => this.start(stack)));
  }

  /** Deletes a pod, and expects success. */
  async stop({ pod, stack }: LivePod): Promise<void> {
    expect(await this.call(stack, 'DEL', pod)).toEqual({ exitCode: 0, stdout: '', stderr: '' });
    this.#living.delete(pod);
  }

  /** The pods of a machine end with it. */
  endAll(stack: Stack): void {
    for (const [pod, living] of this.#living)
      if (living.stack === stack) {
        this.#living.delete(pod);
        this.#remove(pod);
      }
  }

  /**
   * Checks the pods' interfaces and the nodes' routes: no address is on two interfaces, every pod still has the addresses of its
   * ADD, and its node routes them to its interface.
   */
  expectDistinct(): void {
    const held = new Map<string, string>();
    const faults: string[] = [];
    const devices = new Map(this.living.map(({ stack }) => [stack, deviceOf(stack)]));
    for (const { pod, stack, addresses } of this.living) {
      const { link_index: index } = interfaceOf(pod);
      const present = addressesIn(pod);
      if (present.join() !== addresses.join())
        faults.push(`${pod.name} had ${addresses.join()}, now ${present.join()}`);
      for (const address of present) {
        const other = held.get(address);
        if (other !== undefined) faults.push(`${address} is on ${other} and on ${pod.name}`);
        held.set(address, pod.name);
        const route = devices.get(stack)?.get(address);
        if (route === undefined || route !== index) faults.push(`${address} is not routed to ${pod.name}`);
      }
    }
    expect(faults).toEqual([]);
    expect(held.size).toBe(this.living.length * (this.#isDualStack ? 2 : 1));
  }

  /** Waits until a node reaches every pod, wherever it runs. */
  async expectReachable(from: Stack): Promise<void> {
    const silent = () =>
      this.living.flatMap(({ addresses }) => addresses.filter((address) => !pings(address, from.netnsPath)));
    await expect.poll(silent, AGREEMENT).toEqual([]);
  }

  /** Waits until podwire-ipam has the addresses of all pods and no further one, and an audit finds nothing. */
  async expectStored(ipamSocket: string): Promise<void> {
    await expect.poll(() => storedAddresses(ipamSocket), AGREEMENT).toEqual(this.#stored());
    await expect.poll(() => findings(ipamSocket), AGREEMENT).toEqual([]);
    this.expectDistinct();
  }

  #stored(): string[] {
    return this.living
      .flatMap(({ pod, addresses }) => addresses.map((address) => `${NETWORK}.${pod.containerId} ${address}`))
      .sort();
  }

  #remove(pod: Pod): void {
    for (const each of this.#namespaces)
      if (each.name === pod.name) {
        removePod(each);
        this.#namespaces.delete(each);
      }
  }
}

function interfaceOf({ name }: Pod): PodInterface {
  const [found]: PodInterface[] = JSON.parse(run('ip', '-n', name, '-j', 'address', 'show', 'dev', 'eth0'));
  if (!found) throw new Error(`${name} has no eth0`);
  return found;
}

/** The addresses of a pod's interface, IPv4 before IPv6. */
function addressesIn(pod: Pod): string[] {
  return interfaceOf(pod)
    .addr_info.filter(({ scope }) => scope === 'global')
    .map(({ local }) => local);
}

/** Index of the interface that a node routes each address to. */
function deviceOf({ netns }: Stack): Map<string, number> {
  const links: Link[] = JSON.parse(run('ip', '-n', netns, '-j', 'link'));
  const indexes = new Map(links.map(({ ifname, ifindex }) => [ifname, ifindex]));
  const routes = ['-4', '-6'].flatMap((family): Route[] => JSON.parse(run('ip', '-n', netns, family, '-j', 'route')));
  return new Map(routes.flatMap(({ dst, dev = '' }) => (indexes.has(dev) ? [[dst, indexes.get(dev) ?? 0]] : [])));
}

/** The error of a failed command. */
export function errorOf({ exitCode, stdout }: CniAnswer): { readonly code: number; readonly text: string } {
  expect(exitCode, stdout).toBe(1);
  const { code, msg, details = '' }: { code: number; msg: string; details?: string } = JSON.parse(stdout);
  return { code, text: `${msg} ${details}` };
}
