import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';

import { readTcp, run } from '../support/programs.js';
import { NODE_ADDRESS } from '../support/stack.js';
import { until } from '../support/until.js';
import { conflist } from './holdings.js';
import { RuntimeNode } from './node.js';

const PARALLEL = 50;

// A burst of pods on a machine under load must not exceed the deadline of one ADD.
const DEADLINES = { PODWIRE_NODE_ADD_TIMEOUT_MS: '60000', PODWIRE_NODE_DEL_TIMEOUT_MS: '60000' };

const node = new RuntimeNode({ env: DEADLINES });

beforeAll(() => node.start(), 120_000);

afterEach(() => node.expectNothingLeft(), 120_000);

afterAll(() => node.destroy());

test('pods of containerd reach each other and the node, and leave nothing after repeated stops', async () => {
  const mac = '02:00:00:00:00:07';
  const annotations = { 'cni.projectcalico.org/hwAddr': mac, 'example.com/team': 'a' };
  const pods = [await node.run('a', { annotations }), await node.run('b'), await node.run('c')];
  expect(run('nsenter', `--net=${pods[0]!.netns}`, 'ip', '-o', 'link', 'show', 'eth0')).toContain(mac);
  node.expectReachable(pods);
  await node.expectHolding(pods);
  const { cri } = node.containerd;
  const [a, ...rest] = pods;
  await cri.stop(a!.id);
  await cri.stop(a!.id);
  await node.expectHolding(rest);
  node.expectReachable(rest);
  await cri.remove(a!.id);
  await cri.remove(a!.id);
  for (const pod of rest) await cri.remove(pod.id);
}, 120_000);

test('a port of the node leads to the pod through portmap, until the pod is deleted', async () => {
  const [server, client] = [await node.run('server', { ports: { 18080: 8080 } }), await node.run('client')];
  await node.containerd.serve(server.id, { config: server.config, port: 8080 });
  const inPod = { address: server.address, port: 8080 };
  await until(
    () => readTcp(inPod, client.netns) !== undefined,
    () => 'the server does not answer',
  );
  expect(readTcp(inPod, client.netns)).toBe(`hello ${client.address}\n`);
  const onNode = { address: NODE_ADDRESS, port: 18080 };
  expect(readTcp(onNode, client.netns)).toBe(`hello ${client.address}\n`);
  expect(readTcp(onNode, node.stack.netnsPath)).toMatch(/^hello /);
  await node.remove(server);
  expect(readTcp(onNode, client.netns)).toBeUndefined();
  await node.remove(client);
}, 120_000);

test('a refused pod has the reason, and leaves nothing', async () => {
  const { containerd, stack } = node;
  const { node: socket } = stack.sockets;
  containerd.configure(conflist(socket, { mtu: 5 }));
  try {
    // containerd reads the configuration when the kernel notifies it of the file.
    const refused = async () => {
      const outcome = await node.run('refused').catch((error: unknown) => String(error));
      if (typeof outcome === 'string') return outcome;
      await node.remove(outcome);
      return undefined;
    };
    let message: string | undefined;
    await until(
      async () => (message = await refused()) !== undefined,
      () => 'the configuration has no effect',
    );
    expect(message).toMatch(/mtu.*68/);
  } finally {
    containerd.configure(conflist(socket));
  }
  await until(
    async () =>
      node.run('accepted').then(
        (pod) => node.remove(pod).then(() => true),
        () => false,
      ),
    () => 'the configuration has no effect',
  );
}, 120_000);

test(`${PARALLEL} pods at once each get an address and an interface`, async () => {
  const names = Array.from({ length: PARALLEL }, (_, i) => `burst-${i}`);
  const pods = await Promise.all(names.map((name) => node.run(name)));
  await node.expectHolding(pods);
  node.expectReachable(pods);
  await Promise.all(pods.map((pod) => node.remove(pod)));
}, 300_000);

test('pods keep their network while each process of Podwire, and all at once, are killed and restarted', async () => {
  const pods = [await node.run('kept'), await node.run('kept-with-port', { ports: { 18080: 8080 } })];
  for (const victims of [['node'], ['ipam'], ['node', 'ipam']] as const) {
    for (const victim of victims) await node.stack.kill(victim);
    node.expectReachable(pods);
    await node.stack.start(...victims);
    await node.expectHolding(pods);
    const later = await node.run(`after-${victims.join('-')}`);
    node.expectReachable([...pods, later]);
    await node.remove(later);
  }
  for (const pod of pods) await node.remove(pod);
}, 120_000);
