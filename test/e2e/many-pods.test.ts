import { afterAll, beforeAll, expect, test } from 'vitest';

import { allocations, attachedPods, footprint } from '../support/leftovers.js';
import { callCni, makePod, removePod, type Pod } from '../support/pods.js';
import { pings } from '../support/programs.js';
import { Stack } from '../support/stack.js';

const CYCLES = 200;
const PARALLEL = 100;

const stack = new Stack();

const call = (command: string, pod: Pod) => callCni({ command, pod, socket: stack.sockets.plugin });

beforeAll(() => stack.start());

afterAll(() => stack.destroy());

test(`${CYCLES} pods, one after the other, leave nothing`, async () => {
  const pod = makePod('cycle');
  await call('ADD', pod);
  await call('DEL', pod);
  const before = await footprint(stack);
  for (let i = 0; i < CYCLES; i++) {
    const each = { ...pod, containerId: `cycle-${i}` };
    for (const command of ['ADD', 'DEL']) {
      const answer = await call(command, each);
      expect(answer.exitCode, answer.stdout).toBe(0);
    }
  }
  expect(await footprint(stack)).toEqual(before);
  removePod(pod);
}, 120_000);

test('an address comes back into use only after all others of its block', async () => {
  const pod = makePod('fifo');
  const addresses: string[] = [];
  for (let i = 0; i < 64; i++) {
    const each = { ...pod, containerId: `fifo-${i}` };
    addresses.push(JSON.parse((await call('ADD', each)).stdout).ips[0].address);
    await call('DEL', each);
  }
  expect(new Set(addresses).size).toBe(64);
  removePod(pod);
});

test(`${PARALLEL} pods at once each get an address of their own and a wire, and leave nothing`, async () => {
  const pods = Array.from({ length: PARALLEL }, (_, i) => makePod(`burst-${i}`));
  const before = await footprint(stack);
  const answers = await Promise.all(pods.map((pod) => call('ADD', pod)));
  expect(answers.filter(({ exitCode }) => exitCode !== 0).map(({ stdout }) => stdout)).toEqual([]);
  const addresses = answers.map(({ stdout }) => JSON.parse(stdout).ips[0].address.split('/')[0]);
  expect(new Set(addresses).size).toBe(PARALLEL);
  expect(await allocations(stack)).toHaveLength(PARALLEL);
  expect(await attachedPods(stack)).toHaveLength(PARALLEL);
  expect(addresses.filter((address) => !pings(address, stack.netnsPath))).toEqual([]);

  const deleted = await Promise.all(pods.map((pod) => call('DEL', pod)));
  expect(deleted.filter(({ exitCode }) => exitCode !== 0).map(({ stdout }) => stdout)).toEqual([]);
  expect(await footprint(stack)).toEqual(before);
  pods.forEach(removePod);
}, 120_000);
