import { afterEach, beforeEach, expect } from 'vitest';

import type { Kernel, PodSession } from '../pods/kernel.js';
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
