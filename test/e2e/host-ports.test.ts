import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';

import { AddressServer } from '../support/address-server.js';
import { attachedPods } from '../support/leftovers.js';
import { callCni, makePod, removePod, type CniAnswer, type Pod } from '../support/pods.js';
import { podwirectl } from '../support/podwirectl.js';
import { readTcp, run } from '../support/programs.js';
import { NODE_ADDRESS, Stack } from '../support/stack.js';

/** Ports of the node that lead to pods, from the runtime to the kernel. */

const stack = new Stack();
const pods: Pod[] = [];
const servers: AddressServer[] = [];

const mapping = (hostPort: number, more: object = {}) => ({ hostPort, containerPort: 8080, protocol: 'tcp', ...more });

const call = (command: string, target: Pod, portMappings: readonly object[] = []) =>
  callCni({ command, pod: target, socket: stack.sockets.node, config: { runtimeConfig: { portMappings } } });

/** A pod with a server at port 8080, which sends clients their address. */
async function pod(name: string, ...portMappings: readonly object[]): Promise<CniAnswer> {
  const made = makePod(name);
  pods.push(made);
  servers.push(await AddressServer.start(made.netns));
  return call('ADD', made, portMappings);
}

const reached = (port: number, address = NODE_ADDRESS) => readTcp({ address, port }, stack.netnsPath) !== undefined;

const ctl = async (...args: readonly string[]) => {
  const address = `unix:${stack.sockets.dataplane}`;
  return (await podwirectl(stack.sockets.ipam, '--dataplane', address, ...args)).output;
};

beforeAll(() => stack.start());

afterEach(async () => {
  for (const server of servers.splice(0)) await server.stop();
  for (const each of pods.splice(0)) {
    expect(await call('DEL', each)).toMatchObject({ exitCode: 0 });
    removePod(each);
  }
  expect(reached(8080)).toBe(false);
});

afterAll(() => stack.destroy());

test('a pod has its ports until its DEL, also after a kill of podwire-node', async () => {
  expect(await pod('e2e-ports', mapping(8080), mapping(8081, { hostIP: '127.0.0.1' }))).toMatchObject({ exitCode: 0 });
  for (const address of [NODE_ADDRESS, '127.0.0.1']) expect(reached(8080, address)).toBe(true);
  expect([reached(8081), reached(8081, '127.0.0.1')]).toEqual([false, true]);
  await stack.kill('node');
  expect(reached(8080)).toBe(true);
  await stack.start('node');
  expect(reached(8080)).toBe(true);
  expect(await ctl('node', 'ports')).toMatch(/any +tcp +8080 +8080 +default\/e2e-ports/);
  expect(await ctl('pods')).toContain('tcp/8080, tcp/127.0.0.1:8081');
});

test('a port that another pod has is refused with its name, and the refused pod leaves nothing', async () => {
  expect(await pod('e2e-holder', mapping(8080))).toMatchObject({ exitCode: 0 });
  const refused = await pod('e2e-late', mapping(8082), mapping(8080));
  expect(JSON.parse(refused.stdout)).toMatchObject({
    code: 11,
    msg: expect.stringContaining('host port tcp/8080: pod default/e2e-holder of this node has it'),
  });
  expect(reached(8082)).toBe(false);
  expect(await attachedPods(stack)).toHaveLength(1);
});

test('wrong mappings are refused with all their faults, before anything is allocated', async () => {
  const wrong = [
    mapping(0),
    mapping(65_536, { protocol: 'icmp' }),
    mapping(80, { hostIP: 'x' }),
    mapping(81),
    mapping(81),
  ];
  const refused = await pod('e2e-wrong', ...wrong);
  const { code, msg } = JSON.parse(refused.stdout);
  expect(code).toBe(7);
  for (const fault of [
    '[0].hostPort is 0',
    '[1].hostPort is 65536',
    '[1].protocol is "icmp"',
    '[2].hostIP is "x"',
    '[4] repeats tcp/81',
  ])
    expect(msg).toContain(fault);
  expect(await attachedPods(stack)).toEqual([]);
});

test('a pod that dies without a DEL loses its ports, and the next pod gets them', async () => {
  expect(await pod('e2e-dies', mapping(8080))).toMatchObject({ exitCode: 0 });
  for (const server of servers.splice(0)) await server.stop();
  run('ip', 'netns', 'delete', 'e2e-dies');
  run('ip', 'netns', 'add', 'e2e-dies');
  const next = makePod('e2e-next');
  pods.push(next);
  servers.push(await AddressServer.start(next.netns));
  await expect
    .poll(async () => (await call('ADD', next, [mapping(8080)])).exitCode, { timeout: 60_000, interval: 500 })
    .toBe(0);
  expect(reached(8080)).toBe(true);
});
