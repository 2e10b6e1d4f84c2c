import { existsSync, readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { allocations, attachedPods, settled } from '../support/leftovers.js';
import { callCni, makePod, removePod, type Pod } from '../support/pods.js';
import { pings } from '../support/programs.js';
import { Stack } from '../support/stack.js';

/** DELs while the resident plugin is killed: the shim writes them to disk, and the next process executes them. */

const SUCCESS = { exitCode: 0, stdout: '', stderr: '' };

let stack: Stack;
let pod: Pod;

beforeEach(async () => {
  stack = new Stack();
  await stack.start();
  pod = makePod('spooled');
});

afterEach(async () => {
  await stack.destroy();
  removePod(pod);
});

const call = (command: string, config = {}) => callCni({ command, pod, config, socket: stack.sockets.node });
const addressOf = (stdout: string): string => JSON.parse(stdout).ips[0].address.split('/')[0];
const directory = () => join(dirname(stack.sockets.node), 'spool');
const files = () => (existsSync(directory()) ? readdirSync(directory()) : []);

test('a DEL without the plugin succeeds, and the next process removes interface and address', async () => {
  const added = await call('ADD');
  expect(added, added.stdout).toMatchObject({ exitCode: 0 });
  await settled(stack);
  await stack.kill('node');
  expect(await call('DEL')).toEqual(SUCCESS);
  expect(await call('DEL')).toEqual(SUCCESS);
  expect(files()).toEqual([`k8s-pod-network,${pod.containerId},eth0.del`]);
  expect(await allocations(stack)).toHaveLength(1);
  await stack.start('node');
  await expect.poll(files, { timeout: 30_000 }).toEqual([]);
  expect(await allocations(stack)).toEqual([]);
  expect(await attachedPods(stack)).toEqual([]);
  await expect.poll(() => stack.log('node')).toContain('the spooled DEL of k8s-pod-network/');
}, 120_000);

test('an ADD of the same attachment after a spooled DEL keeps its address and interface', async () => {
  expect(await call('ADD')).toMatchObject({ exitCode: 0 });
  await stack.kill('node');
  expect(await call('DEL')).toEqual(SUCCESS);
  // Its shim waits for the socket, so it is among the first commands of the next process.
  const adding = call('ADD');
  await stack.start('node');
  const added = await adding;
  expect(added, added.stdout).toMatchObject({ exitCode: 0 });
  expect(files()).toEqual([]);
  const address = addressOf(added.stdout);
  // Longer than the interval between two scans of the spool.
  await new Promise((resolve) => setTimeout(resolve, 6_000));
  expect((await allocations(stack)).map((each) => each.address)).toEqual([address]);
  expect(pings(address, stack.netnsPath)).toBe(true);
  expect(await call('CHECK', { prevResult: JSON.parse(added.stdout) })).toMatchObject({ exitCode: 0 });
  expect(await call('DEL')).toEqual(SUCCESS);
  expect(await allocations(stack)).toEqual([]);
}, 120_000);
