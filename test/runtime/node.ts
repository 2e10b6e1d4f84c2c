import { expect } from 'vitest';

import { allocations, attachedPods, auditFindings, footprint } from '../support/leftovers.js';
import { NETWORK } from '../support/pods.js';
import { pings, run } from '../support/programs.js';
import { NODE_ADDRESS, Stack, type StackOptions } from '../support/stack.js';
import { Containerd, type PodOptions } from './containerd.js';
import type { SandboxConfig } from './cri.js';

/** A pod that runs. */
export interface RunningPod {
  /** The sandbox's, which is CNI's container ID. */
  readonly id: string;
  readonly config: SandboxConfig;
  readonly address: string;
  /** Path of its network namespace. */
  readonly netns: string;
}

/** Podwire followed by others' plugins, as a cluster's configuration has it. */
export function conflist(socket: string, keys: object = {}): object {
  const capabilities = { 'io.kubernetes.cri.pod-annotations': true };
  const podwire = { type: 'podwire', socket, ipam: { type: 'podwire-ipam' }, capabilities, ...keys };
  const portmap = { type: 'portmap', capabilities: { portMappings: true }, snat: true };
  return { cniVersion: '1.0.0', name: NETWORK, plugins: [podwire, portmap] };
}

/** Rules of the packet filter, counters left out: those of `iptables`, which portmap makes, and all others. */
export function packetFilter(stack: Stack): object {
  const inNode = (...command: readonly [string, ...string[]]) => run('nsenter', `--net=${stack.netnsPath}`, ...command);
  return { nat: inNode('iptables', '-t', 'nat', '-S'), ruleset: inNode('nft', '--stateless', 'list', 'ruleset') };
}

/** A node with containerd, the three processes of Podwire, and what they leave when pods have come and gone. */
export class RuntimeNode {
  readonly stack: Stack;
  readonly containerd: Containerd;
  #before: object = {};

  constructor(options: StackOptions = {}) {
    this.stack = new Stack(options);
    this.containerd = new Containerd({ netns: this.stack.netnsPath, conflist: conflist(this.stack.sockets.plugin) });
  }

  /** Starts everything, and looks at what there is when the first pod, with a port, has come and gone. */
  async start(): Promise<void> {
    await Promise.all([this.stack.start(), this.containerd.start()]);
    const first = await this.run('first', { ports: { 18099: 8080 } });
    await this.remove(first);
    this.#before = await this.#footprint();
  }

  /** Runs a pod as kubelet does. */
  async run(name: string, options: PodOptions = {}): Promise<RunningPod> {
    const config = this.containerd.pod(name, options);
    return this.#running(config, await this.containerd.cri.run(config));
  }

  /** Ends a pod as kubelet does. */
  async remove({ id }: Pick<RunningPod, 'id'>): Promise<void> {
    await this.containerd.cri.stop(id);
    await this.containerd.cri.remove(id);
  }

  /** Ends every pod that containerd knows of, whatever has become of it. */
  async removeAll(): Promise<void> {
    for (const pod of await this.containerd.cri.list()) await this.remove(pod);
  }

  /** The machine goes down and comes up again: what is on disk stays, and nothing else. */
  async reboot(): Promise<void> {
    await this.containerd.reboot();
    await this.stack.reboot();
    await Promise.all([this.stack.start(), this.containerd.start()]);
  }

  /** Every pod has its address alone and its wire, in the kernel and in the records, and nobody else has one. */
  async expectHolding(pods: readonly RunningPod[]): Promise<void> {
    const owner = ({ id }: { readonly id: string }) => `${NETWORK}.${id}`;
    const expected = pods.map((pod) => `${owner(pod)} ${pod.address}`).sort();
    const held = (await allocations(this.stack)).map(({ handleId, address }) => `${handleId} ${address}`);
    expect(held.sort()).toEqual(expected);
    expect(new Set(pods.map(({ address }) => address)).size).toBe(pods.length);
    expect((await attachedPods(this.stack)).map(({ attachment }) => attachment?.containerId).sort()).toEqual(
      pods.map(({ id }) => id).sort(),
    );
    expect(await auditFindings(this.stack)).toEqual([]);
  }

  /** Every pod reaches the node and the next pod, and the node reaches it. */
  expectReachable(pods: readonly RunningPod[]): void {
    const lost = pods.flatMap(({ address, netns }, i) => {
      const next = pods[(i + 1) % pods.length]?.address ?? address;
      return [
        ...(pings(address, this.stack.netnsPath) ? [] : [`node → ${address}`]),
        ...(pings(NODE_ADDRESS, netns) ? [] : [`${address} → node`]),
        ...(pings(next, netns) ? [] : [`${address} → ${next}`]),
      ];
    });
    expect(lost).toEqual([]);
  }

  /** Everything is as it was before there were pods. */
  async expectNothingLeft(): Promise<void> {
    expect(await this.containerd.leftovers()).toEqual([]);
    expect(await this.#footprint()).toEqual(this.#before);
    expect(await auditFindings(this.stack)).toEqual([]);
  }

  async destroy(): Promise<void> {
    await this.containerd.destroy();
    await this.stack.destroy();
  }

  async #running(config: SandboxConfig, id: string): Promise<RunningPod> {
    const { status } = await this.containerd.cri.status(id);
    expect(status).toMatchObject({ state: 'SANDBOX_READY', network: { ip: expect.stringMatching(/^\d/) } });
    return { id, config, address: status.network?.ip ?? '', netns: await this.containerd.netnsOf(id) };
  }

  async #footprint(): Promise<object> {
    return { ...(await footprint(this.stack)), ...packetFilter(this.stack) };
  }
}
