import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';

import { NETWORK } from '../support/pods.js';
import { readTcp, run } from '../support/programs.js';
import { NODE_ADDRESS, Stack } from '../support/stack.js';
import { until } from '../support/until.js';
import { conflist, expectHolding, expectReachable, nodeFootprint } from './holdings.js';
import { prepareMachine } from './machine.js';
import { Podman } from './podman.js';

prepareMachine();
const stack = new Stack();
const podman = new Podman({ netns: stack.netnsPath, conflist: conflist(stack.sockets.node) });
let before: object;

beforeAll(async () => {
  await Promise.all([stack.start(), podman.start()]);
  await podman.run('first', { options: ['--publish', '18099:8080'] });
  await podman.command('rm', '--force', '--time', '0', 'first');
  before = await nodeFootprint(stack);
}, 120_000);

afterEach(async () => {
  // Each container's monitor ends by itself, after the command that removes the container.
  let leftovers: readonly string[] = [];
  await until(
    async () => (leftovers = await podman.leftovers()).length === 0,
    () => `podman leaves ${leftovers.join()}`,
  );
  expect(await nodeFootprint(stack)).toEqual(before);
}, 120_000);

afterAll(async () => {
  await podman.destroy();
  await stack.destroy();
});

const remove = (...names: readonly string[]) => podman.command('rm', '--force', '--time', '0', ...names);

test('containers of podman reach each other, the node, and a port of it that leads to one of them', async () => {
  const server = await podman.run('server', { options: ['--publish', '18081:8080'], args: ['serve', '8080'] });
  const client = await podman.run('client');
  await expectHolding(stack, [server, client]);
  expectReachable(stack, [server, client]);
  const inPod = { address: server.address, port: 8080 };
  await until(
    () => readTcp(inPod, client.netns) !== undefined,
    () => 'the server does not answer',
  );
  expect(readTcp({ address: NODE_ADDRESS, port: 18081 }, client.netns)).toBe(`hello ${client.address}\n`);
  await remove('server');
  expect(readTcp({ address: NODE_ADDRESS, port: 18081 }, client.netns)).toBeUndefined();
  await expectHolding(stack, [client]);
  await remove('client');
}, 120_000);

test('a stopped container releases its address, and gets one when it is started again', async () => {
  await podman.run('stopped');
  await podman.command('stop', '--time', '0', 'stopped');
  await expectHolding(stack, []);
  await podman.command('start', 'stopped');
  const again = await podman.inspect('stopped');
  await expectHolding(stack, [again]);
  expectReachable(stack, [again]);
  await podman.command('restart', '--time', '0', 'stopped');
  const restarted = await podman.inspect('stopped');
  await expectHolding(stack, [restarted]);
  expectReachable(stack, [restarted]);
  await remove('stopped');
}, 120_000);

test('a container whose network is reloaded loses its interface and gets a new one, in the same namespace', async () => {
  const first = await podman.run('reloaded', { options: ['--publish', '18081:8080'], args: ['serve', '8080'] });
  await podman.command('network', 'reload', 'reloaded');
  const reloaded = await podman.inspect('reloaded');
  expect(reloaded).toMatchObject({ id: first.id, netns: first.netns });
  await expectHolding(stack, [reloaded]);
  expectReachable(stack, [reloaded]);
  expect(readTcp({ address: NODE_ADDRESS, port: 18081 }, stack.netnsPath)).toMatch(/^hello /);
  await remove('reloaded');
}, 120_000);

test('a disconnected container runs without an interface, until it is connected again', async () => {
  const { netns } = await podman.run('disconnected');
  await podman.command('network', 'disconnect', NETWORK, 'disconnected');
  expect(await nodeFootprint(stack)).toEqual(before);
  expect(run('nsenter', `--net=${netns}`, 'ip', '-br', 'link')).not.toContain('eth');
  await podman.command('network', 'connect', NETWORK, 'disconnected');
  const connected = await podman.inspect('disconnected');
  expect(connected.netns).toBe(netns);
  await expectHolding(stack, [connected]);
  expectReachable(stack, [connected]);
  await remove('disconnected');
}, 120_000);

test('eight containers are created at once and removed at once', async () => {
  const names = Array.from({ length: 8 }, (_, i) => `burst-${i}`);
  const pods = await Promise.all(names.map((name) => podman.run(name)));
  await expectHolding(stack, pods);
  expectReachable(stack, pods);
  await Promise.all(names.map((name) => remove(name)));
}, 120_000);
