import { afterAll, beforeAll, expect, test } from 'vitest';

import { allocations, attachedPods, footprint } from '../support/leftovers.js';
import { callCni, makePod, removePod, type Pod } from '../support/pods.js';
import { pings } from '../support/programs.js';
import { Stack } from '../support/stack.js';

/** Addresses of a block. */
const BLOCK = 64;

/** Pods one after the other: more than a block has addresses, so that each is used again. */
const CYCLES = 100;
const PARALLEL = 100;

const stack = new Stack();

const call = (command: string, pod: Pod) => callCni({ command, pod, socket: stack.sockets.node });

beforeAll(() => stack.start());

afterAll(() => stack.destroy());

test(`${CYCLES} pods, one after the other, get every address of the block in turn and leave nothing`, async () => {
  const pod = makePod('cycle');
  await call('ADD', pod);
  await call('DEL', pod);
  const before = await footprint(stack);
  const addresses: string[] = [];
  for (let i = 0; i < CYCLES; i++) {
    const each = { ...pod, containerId: `cycle-${i}` };
    const added = await call('ADD', each);
    expect(added.exitCode, added.stdout).toBe(0);
    addresses.push(JSON.parse(added.stdout).ips[0].address);
    const deleted = await call('DEL', each);
    expect(deleted.exitCode, deleted.stdout).toBe(0);
  }
  // An address is used again only after all other addresses of its block.
  for (let i = 0; i + BLOCK <= CYCLES; i++) expect(new Set(addresses.slice(i, i + BLOCK)).size).toBe(BLOCK);
  expect(await footprint(stack)).toEqual(before);
  removePod(pod);
}, 300_000);

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
}, 300_000);
