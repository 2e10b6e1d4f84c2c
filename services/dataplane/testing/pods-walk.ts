import { formatAttachment } from '@podwire/shared/attachment/attachment';
import fc from 'fast-check';
import { expect } from 'vitest';

import type { Kernel } from '../pods/kernel.js';
import { attachmentOfAlias } from '../wiring/network.js';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import { MemoryRecordStore } from './memory-record-store.js';
import { address, FakeEndpoints, killableKernel, podNetwork, startNode } from './pods.js';

/** Changes to a node by operators and other programs. */
export interface NodeOperator {
  readonly kernel: Kernel;
  addPod(name: string): void;
  removePod(name: string): void;
  /** Changes a wired pod; the number selects the kind of change. */
  changePod(network: PodNetwork, kind: number): void;
}

const CHANGE_KINDS = 5;

const PODS = ['p0', 'p1', 'p2', 'p3'] as const;

type Pod = (typeof PODS)[number];

type WalkStep =
  | { readonly type: 'attach' | 'detach' | 'replace-namespace'; readonly pod: Pod }
  | { readonly type: 'killed-attach' | 'killed-detach'; readonly pod: Pod; readonly after: number }
  | { readonly type: 'meddle'; readonly pod: Pod; readonly kind: number }
  | { readonly type: 'restart' | 'check' };

const pod = fc.constantFrom(...PODS);
const after = fc.nat({ max: 18 });

export const walkSteps: fc.Arbitrary<WalkStep[]> = fc.array(
  fc.oneof(
    fc.record({ type: fc.constantFrom('attach', 'attach', 'detach', 'replace-namespace'), pod }),
    fc.record({ type: fc.constantFrom('killed-attach', 'killed-detach'), pod, after }),
    fc.record({ type: fc.constant('meddle' as const), pod, kind: fc.nat({ max: CHANGE_KINDS - 1 }) }),
    fc.record({ type: fc.constantFrom('restart', 'check') }),
  ),
  { minLength: 5, maxLength: 25 },
);

const never = (): AbortSignal => new AbortController().signal;

const networkOf = (name: Pod): PodNetwork =>
  podNetwork(name, { addresses: [address(`10.65.0.${PODS.indexOf(name) + 1}`)], ipForwarding: true });

/** A random walk over a node, with the state that is known from the answers alone. */
class Walk {
  readonly #operator: NodeOperator;
  readonly #store = new MemoryRecordStore();
  readonly #ipam = new FakeEndpoints();
  /** The last answer for each pod; undefined when none arrived. */
  readonly #answers = new Map<Pod, 'attached' | 'detached' | undefined>();
  #node: Awaited<ReturnType<typeof startNode>>;

  private constructor(operator: NodeOperator, node: Awaited<ReturnType<typeof startNode>>) {
    this.#operator = operator;
    this.#node = node;
  }

  static async start(operator: NodeOperator): Promise<Walk> {
    for (const name of PODS) operator.addPod(name);
    const walk = new Walk(operator, await startNode({ kernel: operator.kernel }));
    await walk.#start();
    return walk;
  }

  async apply(move: WalkStep): Promise<void> {
    switch (move.type) {
      case 'attach':
        await this.#node.dataplane.attach(networkOf(move.pod), never());
        this.#answers.set(move.pod, 'attached');
        break;
      case 'detach':
        await this.#node.dataplane.detach(networkOf(move.pod), never());
        this.#answers.set(move.pod, 'detached');
        break;
      case 'killed-attach':
      case 'killed-detach':
        await this.#kill(move);
        break;
      case 'replace-namespace':
        this.#operator.removePod(move.pod);
        this.#operator.addPod(move.pod);
        await expect.poll(async () => (await this.#linked()).includes(move.pod)).toBe(false);
        // The wire vanished with the namespace; the sweep removes its record.
        this.#answers.set(move.pod, undefined);
        await this.#sweepTwice();
        break;
      case 'meddle':
        if (this.#answers.get(move.pod) === 'attached') this.#operator.changePod(networkOf(move.pod), move.kind);
        break;
      case 'restart':
        await this.#start();
        break;
      case 'check':
        await this.#node.reconciler.check();
        break;
    }
  }

  /** Verifies that kernel, records and answers agree, and that another check changes nothing. */
  async verify(): Promise<void> {
    await this.#start();
    await this.#sweepTwice();
    const recorded = this.#node.registry.all().map(({ network }) => network.attachment.containerId);
    expect((await this.#linked()).sort(), 'kernel and records').toEqual(recorded.sort());
    expect([...this.#store.texts.keys()].sort()).toEqual(
      this.#node.registry
        .all()
        .map(({ network }) => formatAttachment(network.attachment))
        .sort(),
    );
    for (const name of PODS) {
      const answer = this.#answers.get(name);
      if (answer) expect(recorded.includes(name), `answer for ${name}`).toBe(answer === 'attached');
      if (recorded.includes(name)) expect(await this.#node.dataplane.check(networkOf(name), never())).toEqual([]);
    }
    const writes = this.#store.writes;
    const watched = killableKernel(this.#operator.kernel, 0);
    const { reconciler } = await this.#startOn(watched.kernel);
    await reconciler.recover();
    await reconciler.check();
    expect(this.#store.writes, 'records written the second time').toBe(writes);
  }

  async end(): Promise<void> {
    for (const name of PODS) await this.#node.dataplane.detach(networkOf(name), never());
    expect([await this.#linked(), this.#node.registry.all()]).toEqual([[], []]);
    for (const name of PODS) this.#operator.removePod(name);
  }

  async #kill(move: Extract<WalkStep, { readonly after: number }>): Promise<void> {
    const killable = killableKernel(this.#operator.kernel, move.after);
    const { dataplane } = await this.#startOn(killable.kernel);
    const network = networkOf(move.pod);
    const call =
      move.type === 'killed-attach' ? dataplane.attach(network, never()) : dataplane.detach(network, never());
    const answer = move.type === 'killed-attach' ? 'attached' : 'detached';
    // The call may finish before the process is killed.
    const isAnswered = await Promise.race([call.then(() => true), killable.died.then(() => false)]);
    this.#answers.set(move.pod, isAnswered ? answer : undefined);
    await this.#start();
  }

  async #start(): Promise<void> {
    this.#node = await this.#startOn(this.#operator.kernel);
    await this.#node.reconciler.recover();
  }

  #startOn(kernel: Kernel) {
    return startNode({ kernel, store: this.#store, ipam: this.#ipam });
  }

  async #sweepTwice(): Promise<void> {
    const { reconciler, clock } = this.#node;
    await reconciler.sweep();
    await clock.sleep(10_000, never());
    await reconciler.sweep();
  }

  async #linked(): Promise<string[]> {
    const links = await this.#operator.kernel.veths();
    return links.flatMap(({ alias, name }) => {
      const owner = attachmentOfAlias(alias)?.containerId;
      return owner === undefined ? (name.startsWith('podw') ? [`bare ${name}`] : []) : [owner];
    });
  }
}

/** Walks, and verifies the state after every few steps and at the end. */
export async function walk(operator: NodeOperator, path: readonly WalkStep[]): Promise<void> {
  const walking = await Walk.start(operator);
  for (const [at, move] of path.entries()) {
    await walking.apply(move);
    if (at % 5 === 4) await walking.verify();
  }
  await walking.verify();
  await walking.end();
}
