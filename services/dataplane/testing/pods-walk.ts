import { formatAttachment } from '@podwire/shared/attachment/attachment';
import fc from 'fast-check';
import { expect } from 'vitest';

import type { Kernel } from '../pods/kernel.js';
import { attachmentOfAlias, type PodNetwork } from '../wiring/network.js';
import { MemoryRecordStore } from './memory-record-store.js';
import { address, FakeAddressBook, killableKernel, podNetwork, startNode } from './pods.js';

/** What people and programs do to a node behind the dataplane's back. */
export interface NodeOperator {
  readonly kernel: Kernel;
  addPod(name: string): void;
  removePod(name: string): void;
  /** Changes something of a wired pod, the kind by number. */
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

/** A node that is walked over, and what is known of it from the answers alone. */
class Walk {
  readonly #hands: NodeOperator;
  readonly #store = new MemoryRecordStore();
  readonly #addressBook = new FakeAddressBook();
  /** What the last answer for each pod said; undefined when none came. */
  readonly #answers = new Map<Pod, 'attached' | 'detached' | undefined>();
  #node: Awaited<ReturnType<typeof startNode>>;

  private constructor(hands: NodeOperator, node: Awaited<ReturnType<typeof startNode>>) {
    this.#hands = hands;
    this.#node = node;
  }

  static async start(hands: NodeOperator): Promise<Walk> {
    for (const name of PODS) hands.addPod(name);
    const walk = new Walk(hands, await startNode({ kernel: hands.kernel }));
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
        this.#hands.removePod(move.pod);
        this.#hands.addPod(move.pod);
        await expect.poll(async () => (await this.#linked()).includes(move.pod)).toBe(false);
        // The wire went with the namespace; what is recorded of it is for the sweep.
        this.#answers.set(move.pod, undefined);
        await this.#sweepTwice();
        break;
      case 'meddle':
        if (this.#answers.get(move.pod) === 'attached') this.#hands.changePod(networkOf(move.pod), move.kind);
        break;
      case 'restart':
        await this.#start();
        break;
      case 'check':
        await this.#node.reconciler.check();
        break;
    }
  }

  /** Kernel, records and answers agree, and there is nothing left to do: another look changes nothing. */
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
    const watched = killableKernel(this.#hands.kernel, 0);
    const { reconciler } = await this.#startOn(watched.kernel);
    await reconciler.recover();
    await reconciler.check();
    expect(this.#store.writes, 'records written the second time').toBe(writes);
  }

  async end(): Promise<void> {
    for (const name of PODS) await this.#node.dataplane.detach(networkOf(name), never());
    expect([await this.#linked(), this.#node.registry.all()]).toEqual([[], []]);
    for (const name of PODS) this.#hands.removePod(name);
  }

  async #kill(move: Extract<WalkStep, { readonly after: number }>): Promise<void> {
    const doomed = killableKernel(this.#hands.kernel, move.after);
    const { dataplane } = await this.#startOn(doomed.kernel);
    const network = networkOf(move.pod);
    const call =
      move.type === 'killed-attach' ? dataplane.attach(network, never()) : dataplane.detach(network, never());
    const answer = move.type === 'killed-attach' ? 'attached' : 'detached';
    // It may have been done before it was to be killed.
    const isAnswered = await Promise.race([call.then(() => true), doomed.died.then(() => false)]);
    this.#answers.set(move.pod, isAnswered ? answer : undefined);
    await this.#start();
  }

  async #start(): Promise<void> {
    this.#node = await this.#startOn(this.#hands.kernel);
    await this.#node.reconciler.recover();
  }

  #startOn(kernel: Kernel) {
    return startNode({ kernel, store: this.#store, addressBook: this.#addressBook });
  }

  async #sweepTwice(): Promise<void> {
    const { reconciler, clock } = this.#node;
    await reconciler.sweep();
    await clock.sleep(10_000, never());
    await reconciler.sweep();
    await reconciler.releaseAddresses();
  }

  async #linked(): Promise<string[]> {
    const links = await this.#hands.kernel.veths();
    return links.flatMap(({ alias, name }) => {
      const owner = attachmentOfAlias(alias)?.containerId;
      return owner === undefined ? (name.startsWith('podw') ? [`bare ${name}`] : []) : [owner];
    });
  }
}

/** Walks, and looks whether all agrees after every few moves and at the end. */
export async function walk(hands: NodeOperator, path: readonly WalkStep[]): Promise<void> {
  const walking = await Walk.start(hands);
  for (const [at, move] of path.entries()) {
    await walking.apply(move);
    if (at % 5 === 4) await walking.verify();
  }
  await walking.verify();
  await walking.end();
}
