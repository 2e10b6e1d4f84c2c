import { symlinkSync } from 'node:fs';
import { join } from 'node:path';

import { afterAll, beforeAll, expect, test } from 'vitest';

import { allocations, attachedPods } from '../support/leftovers.js';
import { callCni, makePod, removePod, type CniCall } from '../support/pods.js';
import { SHIM } from '../support/root.js';
import { Stack } from '../support/stack.js';

/**
 * DELs while podwire-ipam is down, podwire-node killed after its answer: its next process completes them, from the attachments'
 * records, and from the journal where there is none.
 */

const stack = new Stack({ env: { PODWIRE_NODE_DEL_SERVICE_TIMEOUT_MS: '300', PODWIRE_NODE_LEASES_HIGH: '0' } });
const SUCCESS = { exitCode: 0, stdout: '' };
const call = (command: string, pod: ReturnType<typeof makePod>, config = {}, rest: Partial<CniCall> = {}) =>
  callCni({ command, pod, config, socket: stack.sockets.node, ...rest });

/** Addresses without an interface, for another project's plugin. */
const ipamOnly = join(stack.folder, 'podwire-ipam');
const callIpamOnly = (command: string, pod: ReturnType<typeof makePod>) =>
  call(command, pod, { type: 'ptp' }, { program: ipamOnly });

beforeAll(() => {
  symlinkSync(SHIM, ipamOnly);
  return stack.start();
});
afterAll(() => stack.destroy());

test('a DEL succeeds with podwire-ipam killed, and leaves nothing once it is reachable', async () => {
  const pods = ['journal-a', 'journal-b'].map(makePod);
  const stays = makePod('journal-c');
  for (const pod of [...pods, stays]) {
    const answer = await call('ADD', pod);
    expect(answer, answer.stdout).toMatchObject({ exitCode: 0 });
  }
  const withoutRecord = makePod('journal-d');
  expect(await callIpamOnly('ADD', withoutRecord)).toMatchObject({ exitCode: 0 });
  const held = (await allocations(stack)).length;
  await stack.kill('ipam');
  expect(await callIpamOnly('DEL', withoutRecord)).toMatchObject(SUCCESS);
  for (const pod of pods) expect(await call('DEL', pod)).toMatchObject(SUCCESS);
  const status = await call('STATUS', stays, { cniVersion: '1.1.0' });
  expect(JSON.parse(status.stdout)).toMatchObject({ code: 50 });
  await stack.kill('node');
  for (const pod of [...pods, withoutRecord]) removePod(pod);
  await stack.start('ipam', 'node');
  await expect.poll(async () => (await allocations(stack)).length, { timeout: 60_000 }).toBe(held - 3);
  expect((await attachedPods(stack)).map(({ attachment }) => attachment?.containerId)).toEqual([stays.containerId]);
  // STATUS gives services less time than a busy machine may need.
  await expect.poll(() => call('STATUS', stays, { cniVersion: '1.1.0' }), { timeout: 30_000 }).toMatchObject(SUCCESS);
  const list = { cniVersion: '1.1.0', 'cni.dev/valid-attachments': [] };
  expect(await call('GC', stays, list)).toMatchObject(SUCCESS);
  expect(await attachedPods(stack)).toEqual([]);
  expect(await allocations(stack)).toHaveLength(held - 4);
  removePod(stays);
}, 240_000);
