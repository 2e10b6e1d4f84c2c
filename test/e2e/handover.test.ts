import { setTimeout as sleep } from 'node:timers/promises';

import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { allocations, attachedPods } from '../support/leftovers.js';
import { callCni, makePod, removePod, type CniAnswer, type Pod } from '../support/pods.js';
import { Stack, type ProcessName } from '../support/stack.js';

const WORKERS = 6;
const HANDOVERS = 3;

/** A busy machine takes long for single calls; the shim's own window for podwire-node (5 s) stays. */
const TIMEOUT_MS = 180_000;

describe('successors of podwire-node start while their predecessors serve', () => {
  const stack = new Stack();
  const pods: Pod[] = [];
  const failed: CniAnswer[] = [];
  let added = 0;

  beforeAll(async () => {
    await stack.start();
    pods.push(...Array.from({ length: WORKERS }, (_, i) => makePod(`handover-${i}`)));
  });

  afterAll(async () => {
    await stack.destroy();
    pods.forEach(removePod);
  });

  /** Adds and deletes one pod repeatedly, each time as another container. */
  async function load(pod: Pod, ended: AbortSignal): Promise<void> {
    for (let round = 0; !ended.aborted; round++) {
      const container = { ...pod, containerId: `${round.toString(16)}-${pod.containerId}`.slice(0, 64) };
      for (const command of ['ADD', 'DEL']) {
        const answer = await callCni({ command, pod: container, socket: stack.sockets.node });
        if (answer.exitCode !== 0) failed.push(answer);
        else if (command === 'ADD') added += 1;
      }
    }
  }

  test(
    'no ADD and no DEL fails, and nothing is left',
    async () => {
      const ended = new AbortController();
      const loads = pods.map((pod) => load(pod, ended.signal));
      for (let count = 0; count < HANDOVERS; count++) {
        const before = added;
        await stack.handOver('node');
        // Each successor executes ADDs.
        await expect.poll(() => added, { timeout: 60_000 }).toBeGreaterThan(before + WORKERS);
      }
      ended.abort();
      await Promise.all(loads);
      expect(failed.map(({ stdout }) => stdout)).toEqual([]);
      await expect.poll(() => allocations(stack), { timeout: 30_000 }).toEqual([]);
      expect(await attachedPods(stack)).toEqual([]);
    },
    TIMEOUT_MS,
  );
});

describe('a process that is killed three times in a row', () => {
  const stack = new Stack();

  beforeAll(() => stack.start());
  afterAll(() => stack.destroy());

  test.each<ProcessName>(['ipam', 'node'])(
    '%s serves again after each start',
    async (name) => {
      for (let count = 0; count < 3; count++) {
        await stack.kill(name);
        await stack.start(name);
        await sleep(100);
      }
    },
    TIMEOUT_MS,
  );
});
