import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';

import { EtcdServer } from '@podwire/ipam/engine/testing/etcd-server';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';

import { CalicoWriter } from '../support/calico-writer.js';
import { settled } from '../support/leftovers.js';
import { callCni, makePod, NETWORK, removePod, type CniAnswer, type CniCall, type Pod } from '../support/pods.js';
import { podwirectl } from '../support/podwirectl.js';
import { pings, rpc } from '../support/programs.js';
import { ROOT } from '../support/root.js';
import { Stack } from '../support/stack.js';

/** Workload endpoints in a real etcd, with records of Calico and its tools, while pods come, fail and go on a real kernel. */

const ENDPOINTS = '/calico/resources/v3/projectcalico.org/workloadendpoints/';
const BLOCKS = '/calico/ipam/v2/assignment/';
const HANDLES = '/calico/ipam/v2/handle/';

/** Enough leases for all pods: a refill would change blocks while the test writes them. */
const stack = new Stack({ env: { PODWIRE_NODE_LEASES_LOW: '0', PODWIRE_NODE_LEASES_HIGH: '16' } });
const pods: Pod[] = [];
let etcd: EtcdServer;
let ipam: ChildProcess;

beforeAll(async () => {
  etcd = await EtcdServer.start();
  const env = {
    PATH: process.env.PATH,
    PODWIRE_IPAM_LISTEN: `unix:${stack.sockets.ipam}`,
    PODWIRE_IPAM_STORE: 'etcd',
    PODWIRE_IPAM_ETCD_ENDPOINTS: etcd.url,
    PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.65.0.0/16',
  };
  ipam = spawn(process.execPath, [join(ROOT, 'services/ipam/dist/main.js')], { env, stdio: 'ignore' });
  await vi.waitFor(() => expect(existsSync(stack.sockets.ipam)).toBe(true), { timeout: 30_000 });
  await stack.start('node');
  const nodes = () => JSON.stringify(rpc(stack.sockets.ipam, 'podwire.ipam.v1.NodeService/ListNodes', {}));
  await vi.waitFor(() => expect(nodes()).toContain('198.18.0.1/32'), { timeout: 30_000 });
}, 120_000);

afterAll(async () => {
  await stack.stop('node');
  await stack.stop('node');
  const exited = once(ipam, 'exit');
  ipam.kill('SIGTERM');
  await exited;
  await stack.destroy();
  await etcd.dispose();
  pods.forEach(removePod);
}, 60_000);

/** Calls the plugin, and waits until etcd has the result. */
async function call(command: string, pod: Pod, rest: Partial<CniCall> = {}): Promise<CniAnswer> {
  const answer = await callCni({ command, pod, socket: stack.sockets.node, ...rest });
  await settled(stack);
  return answer;
}

async function added(name: string): Promise<{ readonly pod: Pod; readonly address: string }> {
  const pod = makePod(name);
  pods.push(pod);
  const answer = await call('ADD', pod);
  expect(answer, answer.stdout).toMatchObject({ exitCode: 0 });
  const result: { ips: { address: string }[] } = JSON.parse(answer.stdout);
  return { pod, address: result.ips[0]!.address.replace(/\/\d+$/, '') };
}

const isLease = (text: string) => text.includes('podwire-lease.');

/** The handles of pods, without the handle of the node's leases. */
const podHandles = () => [...etcd.dump(HANDLES)].filter(([key]) => !isLease(key));

/** The texts of the endpoints and handles of pods, and the holder of each of their addresses. A listing may add leases. */
function recorded(): unknown {
  const held = [...etcd.dump(BLOCKS)].flatMap(([key, text]) => {
    const block: { allocations: (number | null)[]; attributes: unknown[] } = JSON.parse(text);
    return block.allocations.flatMap((index, ordinal) => {
      const holder = index === null ? '' : JSON.stringify(block.attributes[index]);
      return holder === '' || isLease(holder) ? [] : [`${key} ${ordinal} ${holder}`];
    });
  });
  return { held, endpoints: [...etcd.dump(ENDPOINTS)], handles: podHandles() };
}

const endpointKeyOf = ({ name }: Pod) => `${ENDPOINTS}default/node--1-k8s-${name.replaceAll('-', '--')}-eth0`;

const ctl = (...args: readonly string[]) => podwirectl(stack.sockets.ipam, ...args);

describe.each([
  ['on a second network for the same interface', { config: { name: 'second-network' } }, (pod: Pod) => pod],
  ['of a second sandbox of the pod', {}, (pod: Pod) => ({ ...pod, containerId: `${pod.containerId}-2` })],
] as const)('an ADD %s that cannot be attached', (_, rest, sandboxOf) => {
  test('leaves etcd unchanged, and the pod its address, also after the DEL that follows', async () => {
    const { pod, address } = await added(`shared-${pods.length}`);
    const before = recorded();
    const second = sandboxOf(pod);
    const failed = await call('ADD', second, rest);
    expect([failed.exitCode, JSON.parse(failed.stdout)]).toEqual([1, expect.objectContaining({ code: 101 })]);
    expect(recorded()).toEqual(before);
    expect(await call('DEL', second, rest)).toMatchObject({ exitCode: 0 });
    expect(recorded()).toEqual(before);
    expect(pings(address, stack.netnsPath)).toBe(true);
    expect(await ctl('audit')).toMatchObject({ exitCode: 0 });
    expect(await call('DEL', pod)).toMatchObject({ exitCode: 0 });
    expect([...etcd.dump(ENDPOINTS).keys()]).toEqual([]);
  }, 120_000);
});

test('a lost endpoint is written again, and the address of its pod is not allocated to another', async () => {
  const { pod, address } = await added('lost');
  const before = etcd.dump(ENDPOINTS);
  const [text = ''] = before.values();
  etcd.ctl('del', endpointKeyOf(pod));
  expect(await ctl('audit')).toMatchObject({ exitCode: 4, output: expect.stringContaining('endpoint-missing') });
  const repaired = await ctl('audit', '--repair', '--release-unused', '--grace', '1m', '--yes');
  expect(repaired).toMatchObject({ exitCode: 0, output: expect.stringMatching(/repaired +endpoint-missing/) });
  const written = etcd.dump(ENDPOINTS).get(endpointKeyOf(pod)) ?? '';
  expect(JSON.parse(written)).toMatchObject({
    metadata: { uid: JSON.parse(text).metadata.uid },
    spec: JSON.parse(text).spec,
  });
  expect(pings(address, stack.netnsPath)).toBe(true);
  expect(await ctl('audit')).toMatchObject({ exitCode: 0 });
  expect(await call('DEL', pod)).toMatchObject({ exitCode: 0 });
  expect([...etcd.dump(ENDPOINTS).keys()]).toEqual([]);
}, 120_000);

test('DEL deletes an endpoint whose address another tool released; an audit keeps none for a dead pod', async () => {
  const { pod, address } = await added('released');
  expect(await new CalicoWriter(etcd).release(address)).toBe(true);
  await expect.poll(() => ctl('audit')).toMatchObject({ exitCode: 4 });
  expect(await call('DEL', pod)).toMatchObject({ exitCode: 0 });
  expect([...etcd.dump(ENDPOINTS).keys()]).toEqual([]);
  await ctl('audit', '--repair', '--yes');
  expect(podHandles()).toEqual([]);
  expect(await ctl('audit')).toMatchObject({ exitCode: 0 });
}, 120_000);

test('a pod of Calico is listed with its creator, and deleted by Podwire’s DEL', async () => {
  const { pod, address } = await added('calicos');
  // Podwire has no record of Calico's pods.
  await stack.kill('node');
  for (const name of readdirSync(stack.recordsDirectory)) rmSync(join(stack.recordsDirectory, name));
  // Allocation as Calico's plugin writes it: the attributes have neither network nor interface, and the endpoint has no annotations.
  const [key, text] = [...etcd.dump(BLOCKS)].find(([, value]) => value.includes(pod.containerId)) ?? ['', ''];
  etcd.ctl('put', key, text.replace(`"network":"${NETWORK}","interface":"eth0",`, ''));
  const endpoint: { metadata: { annotations?: unknown } } = JSON.parse(
    etcd.dump(ENDPOINTS).get(endpointKeyOf(pod)) ?? '{}',
  );
  delete endpoint.metadata.annotations;
  etcd.ctl('put', endpointKeyOf(pod), JSON.stringify(endpoint));
  const [, podwires] = / (podw[0-9a-f]{11})/.exec(stack.ip('route', 'show', address)) ?? [];
  stack.ip('link', 'delete', podwires ?? '');
  const [host, peer] = ['calicalicos0001', ['type', 'veth', 'peer', 'name', 'eth0', 'netns', pod.name]] as const;
  stack.ip('link', 'add', host, ...peer);
  stack.ip('link', 'set', host, 'up');
  stack.ip('route', 'add', address, 'dev', host, 'scope', 'link');
  await stack.start('node');
  const row = new RegExp(`^default/calicos +${address.replaceAll('.', '\\.')} +node-1 .* Calico$`, 'm');
  await expect.poll(async () => (await ctl('get', 'workloadendpoints', '-A')).output).toMatch(row);
  expect(await ctl('audit')).toMatchObject({ exitCode: 0 });
  expect(await call('DEL', pod)).toMatchObject({ exitCode: 0 });
  expect([...etcd.dump(ENDPOINTS), ...podHandles()]).toEqual([]);
  expect([stack.ip('route', 'show', address), stack.ip('-br', 'link')]).toEqual([
    '',
    expect.not.stringContaining(host),
  ]);
}, 120_000);
