import { expect } from 'vitest';

import { Stack, type StackOptions } from '../support/stack.js';
import { until } from '../support/until.js';
import { Containerd, type PodOptions } from './containerd.js';
import type { SandboxConfig } from './cri.js';
import { conflist, expectHolding, expectReachable, nodeFootprint, type RunningPod } from './holdings.js';
import { prepareMachine } from './machine.js';

export interface RunningSandbox extends RunningPod {
  readonly config: SandboxConfig;
}

/** A node with containerd and the two processes of Podwire, and its state after pods came and went. */
export class RuntimeNode {
  readonly stack: Stack;
  readonly containerd: Containerd;
  #before: object = {};

  /** @throws Error with the operation that the machine does not allow, before anything is created */
  constructor(options: StackOptions = {}) {
    prepareMachine();
    this.stack = new Stack(options);
    this.containerd = new Containerd({ netns: this.stack.netnsPath, conflist: conflist(this.stack.sockets.node) });
  }

  /** Starts everything, and records the state after the first pod, with a port, came and went. */
  async start(): Promise<void> {
    await Promise.all([this.stack.start(), this.containerd.start()]);
    const first = await this.run('first', { ports: { 18099: 8080 } });
    await this.remove(first);
    this.#before = await nodeFootprint(this.stack);
  }

  /** Runs a pod as kubelet does. */
  async run(name: string, options: PodOptions = {}): Promise<RunningSandbox> {
    const config = this.containerd.pod(name, options);
    return this.#running(config, await this.containerd.cri.run(config));
  }

  /** Ends a pod as kubelet does. */
  async remove({ id }: Pick<RunningPod, 'id'>): Promise<void> {
    await this.containerd.cri.stop(id);
    await this.containerd.cri.remove(id);
  }

  /** Ends every pod that containerd knows, in any state. */
  async removeAll(): Promise<void> {
    for (const pod of await this.containerd.cri.list()) await this.remove(pod);
  }

  /** The machine is rebooted: files on disk stay, and nothing else. */
  async reboot(): Promise<void> {
    await this.containerd.reboot();
    await this.stack.reboot();
    await Promise.all([this.stack.start(), this.containerd.start()]);
  }

  expectHolding(pods: readonly RunningPod[]): Promise<void> {
    return expectHolding(this.stack, pods);
  }

  expectReachable(pods: readonly RunningPod[]): void {
    expectReachable(this.stack, pods);
  }

  /** Everything is as it was before the first pod. */
  async expectNothingLeft(): Promise<void> {
    // A shim ends by itself, soon after its sandbox is removed.
    let leftovers: readonly string[] = [];
    await until(
      async () => (leftovers = await this.containerd.leftovers()).length === 0,
      () => `containerd leaves ${leftovers.join()}`,
    );
    expect(await nodeFootprint(this.stack)).toEqual(this.#before);
  }

  async destroy(): Promise<void> {
    await this.containerd.destroy();
    await this.stack.destroy();
  }

  async #running(config: SandboxConfig, id: string): Promise<RunningSandbox> {
    const { status } = await this.containerd.cri.status(id);
    expect(status).toMatchObject({ state: 'SANDBOX_READY', network: { ip: expect.stringMatching(/^\d/) } });
    return { id, config, address: status.network?.ip ?? '', netns: await this.containerd.netnsOf(id) };
  }
}
