import { hostInterfaceName } from '@podwire/shared/attachment/names';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { callCni, makePod, NETWORK, removePod, type Pod } from '../support/pods.js';
import { pings } from '../support/programs.js';
import { Stack } from '../support/stack.js';

vi.setConfig({ testTimeout: 240_000, hookTimeout: 120_000 });

let stack: Stack;
let pod: Pod;

beforeEach(async () => {
  stack = new Stack();
  pod = makePod('renamed');
  await stack.start();
});

afterEach(async () => {
  removePod(pod);
  await stack.destroy();
});

const call = (command: string, config: object = {}) =>
  callCni({ command, pod, socket: stack.sockets.node, config: { ...config } });
const links = () =>
  stack
    .ip('-br', 'link', 'show', 'type', 'veth')
    .replace(/[@ ].*/gm, '')
    .trim();

test('a renamed host interface gets its name back; with the name taken, CHECK reports it and DEL works', async () => {
  const name = hostInterfaceName({ network: NETWORK, containerId: pod.containerId, interfaceName: 'eth0' });
  const added = await call('ADD');
  expect(added).toMatchObject({ exitCode: 0 });
  const prevResult: { ips: { address: string }[] } = JSON.parse(added.stdout);
  const address = prevResult.ips[0]!.address.split('/')[0]!;
  // While events of the attachment may still arrive.
  stack.ip('link', 'set', name, 'name', 'foo');
  await expect.poll(links, { timeout: 20_000 }).toBe(name);
  expect(pings(address, stack.netnsPath)).toBe(true);
  stack.ip('route', 'delete', address);
  await expect.poll(() => stack.ip('route', 'show', address), { timeout: 20_000 }).toContain(name);
  stack.ip('link', 'delete', name);
  await expect.poll(() => pings(address, stack.netnsPath), { timeout: 20_000 }).toBe(true);
  expect(await call('CHECK', { prevResult })).toMatchObject({ exitCode: 0, stdout: '' });

  await stack.kill('node');
  stack.ip('link', 'set', name, 'name', 'foo');
  stack.ip('link', 'add', name, 'type', 'bridge');
  await stack.start('node');
  const checked = await call('CHECK', { prevResult });
  expect(checked.exitCode).not.toBe(0);
  expect(checked.stdout).toContain(name);
  expect(await call('DEL')).toMatchObject({ exitCode: 0, stdout: '' });
  expect(links()).toBe('');
  expect(stack.ip('route', 'show', address)).toBe('');
});
