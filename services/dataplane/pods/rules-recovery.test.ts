import { expect, test } from 'vitest';

import { MemoryKernel } from '../testing/memory-kernel.js';
import { MemoryRecordStore } from '../testing/memory-record-store.js';
import { BY_FAMILY, killableKernel, podNetwork, secondInterface, startNode } from '../testing/pods.js';

/** Recovery of a pod's further interface whose rules an earlier process was creating or removing. */

const NETNS = '/run/netns/a';
const first = podNetwork('a', BY_FAMILY['both families']);
const second = secondInterface('a');
const STEPS_MAX = 60;

const never = () => new AbortController().signal;

/** A node whose pod has its first interface; `call` on the second is interrupted after some changes, then the next start follows. */
async function interrupt(call: 'attach' | 'detach', after: number) {
  const kernel = new MemoryKernel();
  kernel.addNamespace(NETNS);
  const store = new MemoryRecordStore();
  const before = await startNode({ kernel, store });
  await before.dataplane.attach(first, never());
  const one = kernel.print();
  if (call === 'detach') await before.dataplane.attach(second, never());
  const doomed = killableKernel(kernel, after);
  const { registry, dataplane } = await startNode({ kernel: doomed.kernel, store });
  const work: Promise<unknown> = dataplane[call](second, never());
  const isAnswered = await Promise.race([work.then(() => true), doomed.died.then(() => false)]);
  expect(registry.get(first.attachment)).toBeDefined();
  const next = await startNode({ kernel, store });
  await next.reconciler.recover();
  return { kernel, one, isAnswered, next };
}

test('an interrupted attach is finished with all its rules, or leaves none; a later detach leaves none', async () => {
  const outcomes: string[] = [];
  for (let after = 0; after < STEPS_MAX; after++) {
    const { kernel, one, isAnswered, next } = await interrupt('attach', after);
    const isWired = next.registry.get(second.attachment) !== undefined;
    expect(kernel.namespace(NETNS).rules.length, `after ${after}`).toBe(isWired ? 2 : 0);
    if (isWired) expect(await next.dataplane.check(second, never()), `after ${after}`).toEqual([]);
    await next.dataplane.detach(second, never());
    expect(kernel.print(), `after ${after}`).toBe(one);
    outcomes.push(isWired ? 'wired' : 'not wired');
    if (isAnswered) break;
  }
  expect(outcomes.length).toBeGreaterThan(15);
  expect(outcomes.at(-1)).toBe('wired');
});

test('an interrupted detach is finished, and removes the rules', async () => {
  let cuts = 0;
  for (let after = 0; after < STEPS_MAX; after++) {
    const { kernel, one, isAnswered } = await interrupt('detach', after);
    expect(kernel.print(), `after ${after}`).toBe(one);
    if (isAnswered) break;
    cuts++;
  }
  // Two rules and the wire.
  expect(cuts).toBe(3);
});
