import { afterAll, beforeAll, expect, test } from 'vitest';

import { allocations, attachedPods } from '../support/leftovers.js';
import { callCni, makePod, removePod } from '../support/pods.js';
import { Stack } from '../support/stack.js';

/** DELs while podwire-ipam is down, podwire-node killed after its answer: its next process completes them. */

const stack = new Stack({ env: { PODWIRE_NODE_DEL_SERVICE_TIMEOUT_MS: '300' } });
const SUCCESS = { exitCode: 0, stdout: '' };
const call = (command: string, pod: ReturnType<typeof makePod>, config = {}) =>
  callCni({ command, pod, config, socket: stack.sockets.node });

beforeAll(() => stack.start());
afterAll(() => stack.destroy());

test('a DEL succeeds with podwire-ipam killed, and leaves nothing once it is reachable', async () => {
  const pods = ['journal-a', 'journal-b'].map(makePod);
  const stays = makePod('journal-c');
  for (const pod of [...pods, stays]) {
    const answer = await call('ADD', pod);
    expect(answer, answer.stdout).toMatchObject({ exitCode: 0 });
  }
  const held = (await allocations(stack)).length;
  await stack.kill('ipam');
  for (const pod of pods) expect(await call('DEL', pod)).toMatchObject(SUCCESS);
  const status = await call('STATUS', stays, { cniVersion: '1.1.0' });
  expect(JSON.parse(status.stdout)).toMatchObject({ code: 50 });
  await stack.kill('node');
  for (const pod of pods) removePod(pod);
  await stack.start('ipam', 'node');
  await expect.poll(async () => (await allocations(stack)).length, { timeout: 60_000 }).toBe(held - 2);
  expect((await attachedPods(stack)).map(({ attachment }) => attachment?.containerId)).toEqual([stays.containerId]);
  // STATUS gives services less time than a busy machine may need.
  await expect.poll(() => call('STATUS', stays, { cniVersion: '1.1.0' }), { timeout: 30_000 }).toMatchObject(SUCCESS);
  const list = { cniVersion: '1.1.0', 'cni.dev/valid-attachments': [] };
  expect(await call('GC', stays, list)).toMatchObject(SUCCESS);
  expect(await attachedPods(stack)).toEqual([]);
  expect(await allocations(stack)).toHaveLength(held - 3);
  removePod(stays);
}, 240_000);
