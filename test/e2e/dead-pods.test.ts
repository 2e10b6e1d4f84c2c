import { readFileSync } from 'node:fs';

import { AddressServiceService, AllocateRequest } from '@podwire/proto/podwire/ipam/v1/address';
import { Peer } from '@podwire/shared/rpc/client';
import { afterAll, beforeAll, expect, test } from 'vitest';

import { allocations, attachedPods, settled } from '../support/leftovers.js';
import { callCni, makePod, NETWORK, removePod } from '../support/pods.js';
import { run } from '../support/programs.js';
import { Stack } from '../support/stack.js';

/** Pods that died without a DEL: their addresses return to IPAM, and no other addresses do. */

const stack = new Stack();
const EARLIER_BOOT = '11111111-1111-4111-8111-111111111111';
const THIS_BOOT = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();

/** Two checks with their intervals, as the pod's namespace ends right after the first; more where the machine is busy. */
const NOTICED_MS = 120_000;

const limits = () => ({ deadlineMs: Date.now() + 20_000 });
const holders = async () => (await allocations(stack)).map(({ handleId }) => handleId).sort();

async function allocate(containerId: string, netns: { readonly bootId: string; readonly inode: bigint } | undefined) {
  const ipam = new Peer('podwire-ipam', `unix:${stack.sockets.ipam}`);
  const attachment = { network: 'net', containerId, interfaceName: 'eth0' };
  await ipam.call(
    AddressServiceService.allocate,
    AllocateRequest.fromPartial({
      attachment,
      nodeName: containerId.startsWith('other') ? 'node-2' : 'node-1',
      netns,
    }),
    limits(),
  );
  ipam.close();
}

beforeAll(() => stack.start('ipam'));
afterAll(() => stack.destroy());

test('addresses of an earlier boot are returned; an attachment without proof of one stays', async () => {
  await allocate('untold', undefined);
  await allocate('this-boot', { bootId: THIS_BOOT, inode: 4_026_532_999n });
  await allocate('other-node', { bootId: EARLIER_BOOT, inode: 4_026_532_998n });
  // The allocation is, by podwire-ipam's clock, younger than this boot.
  await allocate('earlier-boot', { bootId: EARLIER_BOOT, inode: 4_026_532_997n });
  await stack.start('node');
  await expect.poll(holders, { timeout: NOTICED_MS }).toEqual(['net.other-node', 'net.this-boot', 'net.untold']);
});

test('a second machine gets no address under the name of a node that runs', async () => {
  const twin = allocate('twin', { bootId: EARLIER_BOOT, inode: 4_026_532_997n });
  await expect(twin).rejects.toMatchObject({ code: 'NODE_NAME_TAKEN' });
});

test('a namespace that ends without a DEL is noticed, and its address released; other pods stay', async () => {
  const [dies, lives] = [makePod('dead-dies'), makePod('dead-lives')];
  for (const pod of [dies, lives]) {
    const answer = await callCni({ command: 'ADD', pod, socket: stack.sockets.node });
    expect(answer, answer.stdout).toMatchObject({ exitCode: 0 });
  }
  const before = await holders();
  removePod(dies);
  await expect
    .poll(async () => (await holders()).length, { timeout: NOTICED_MS, interval: 500 })
    .toBe(before.length - 1);
  expect((await attachedPods(stack)).map(({ attachment }) => attachment?.containerId)).toEqual([lives.containerId]);
  await expect.poll(() => stack.log('node')).toContain('is dead');
  const answer = await callCni({ command: 'DEL', pod: lives, socket: stack.sockets.node });
  expect(answer).toMatchObject({ exitCode: 0 });
  removePod(lives);
  expect(await holders()).toEqual(['net.other-node', 'net.this-boot', 'net.untold']);
}, 240_000);

test('a deleted interface is restored while IPAM has its address, not after another tool released it', async () => {
  const pod = makePod('dead-cut');
  const add = () => callCni({ command: 'ADD', pod, socket: stack.sockets.node });
  expect(await add()).toMatchObject({ exitCode: 0 });
  const isWired = async () =>
    (await attachedPods(stack)).some(({ attachment, up }) => up && attachment?.containerId === pod.containerId);
  const cut = () => run('ip', '-n', pod.name, 'link', 'delete', 'eth0');
  cut();
  await expect.poll(isWired, { timeout: NOTICED_MS }).toBe(true);

  // A DEL as of Calico's plugin, with the release first, so that no answer of IPAM comes before it.
  const ipam = new Peer('podwire-ipam', `unix:${stack.sockets.ipam}`);
  const attachment = { network: NETWORK, containerId: pod.containerId, interfaceName: 'eth0' };
  const release = () => ipam.call(AddressServiceService.release, { attachment }, limits());
  await settled(stack);
  expect((await release()).addresses).toHaveLength(1);
  cut();
  await expect
    .poll(() => stack.log('node'), { timeout: NOTICED_MS })
    .toContain(`record of ${NETWORK}/${pod.containerId}/eth0 removed`);
  expect(await isWired()).toBe(false);
  ipam.close();
  expect(await add()).toMatchObject({ exitCode: 0 });
  expect(await isWired()).toBe(true);
  expect(await callCni({ command: 'DEL', pod, socket: stack.sockets.node })).toMatchObject({ exitCode: 0 });
  removePod(pod);
}, 240_000);
