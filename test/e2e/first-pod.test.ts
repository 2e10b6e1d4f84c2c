import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { callCni, makePod, removePod, type CniCall, type Pod } from '../support/pods.js';
import { pings, rpc, run } from '../support/programs.js';
import { NODE_ADDRESS, Stack } from '../support/stack.js';

interface CniResult {
  readonly cniVersion: string;
  readonly interfaces: readonly { readonly name: string; readonly mac?: string; readonly sandbox?: string }[];
  readonly ips: readonly { readonly address: string; readonly interface: number; readonly version?: string }[];
}

const stack = new Stack();
const pods: Pod[] = [];

const call = (command: string, pod: Pod, rest: Partial<CniCall> = {}) =>
  callCni({ command, pod, socket: stack.sockets.node, ...rest });

function pod(name: string): Pod {
  const made = makePod(name);
  pods.push(made);
  return made;
}

async function add(target: Pod, rest: Partial<CniCall> = {}): Promise<CniResult> {
  const answer = await call('ADD', target, rest);
  expect(answer, answer.stdout).toMatchObject({ exitCode: 0, stderr: '' });
  return JSON.parse(answer.stdout);
}

const addressOf = (result: CniResult) => result.ips[0]!.address.split('/')[0]!;

beforeAll(() => stack.start());

afterAll(async () => {
  await stack.destroy();
  pods.forEach(removePod);
});

describe('two pods of one node', () => {
  test('reach each other and the node, and the node reaches them', async () => {
    const [a, b] = [pod('e2e-a'), pod('e2e-b')];
    const [toA, toB] = [addressOf(await add(a)), addressOf(await add(b))];
    expect(toA).not.toBe(toB);
    expect({
      'a → b': pings(toB, a.netns),
      'b → a': pings(toA, b.netns),
      'node → a': pings(toA, stack.netnsPath),
      'node → b': pings(toB, stack.netnsPath),
      'a → node': pings(NODE_ADDRESS, a.netns),
      'b → node': pings(NODE_ADDRESS, b.netns),
    }).toEqual({
      'a → b': true,
      'b → a': true,
      'node → a': true,
      'node → b': true,
      'a → node': true,
      'b → node': true,
    });
    for (const target of [a, b]) expect(await call('DEL', target)).toMatchObject({ exitCode: 0, stdout: '' });
    expect(stack.ip('-br', 'link')).not.toContain('podw');
  });

  test('keep their network while every process of Podwire is restarted', async () => {
    const [a, b] = [pod('e2e-live-a'), pod('e2e-live-b')];
    await add(a);
    const toB = addressOf(await add(b));
    for (const name of ['node', 'ipam'] as const) {
      expect(await stack.stop(name)).toBe(0);
      expect(pings(toB, a.netns)).toBe(true);
      await stack.start(name);
    }
    expect(addressOf(await add(b))).toBe(toB);
    for (const target of [a, b]) expect((await call('DEL', target)).exitCode).toBe(0);
  });
});

describe('ADD', () => {
  test.each(['0.3.1', '0.4.0', '1.0.0'])('returns a result of cniVersion %s', async (cniVersion) => {
    const target = pod(`e2e-version-${cniVersion}`);
    const result = await add(target, { config: { cniVersion } });
    expect(result.cniVersion).toBe(cniVersion);
    expect(result.interfaces).toMatchObject([
      { name: expect.stringMatching(/^podw/) },
      { name: 'eth0', sandbox: target.netns },
    ]);
    expect(result.ips).toMatchObject([{ interface: 1, address: expect.stringMatching(/^10\.65\.\d+\.\d+\/32$/) }]);
    expect(result.ips[0]!.version).toBe(cniVersion === '1.0.0' ? undefined : '4');
    const [link] = JSON.parse(run('ip', '-n', target.name, '-j', 'link', 'show', 'eth0'));
    expect(link.address).toBe(result.interfaces[1]!.mac);
    expect((await call('DEL', target, { config: { cniVersion } })).exitCode).toBe(0);
  });

  test('repeated, and twice at once, allocates one address', async () => {
    const target = pod('e2e-twice');
    const results = await Promise.all([add(target), add(target), add(target)]);
    results.push(await add(target));
    expect(new Set(results.map(addressOf)).size).toBe(1);
    expect(await call('DEL', target)).toMatchObject({ exitCode: 0 });
  });

  test('attaches a second interface beside the first, each with routes of its own', async () => {
    const target = pod('e2e-two-interfaces');
    const address = addressOf(await add(target));
    const second = await add(target, { interfaceName: 'net1' });
    expect(addressOf(second)).not.toBe(address);
    expect(second.interfaces[1]).toMatchObject({ name: 'net1', sandbox: target.netns });
    const routes = JSON.parse(run('ip', '-n', target.name, '-j', 'route', 'show', 'default'));
    expect(routes.map(({ dev, metric = 0 }: { dev: string; metric?: number }) => [dev, metric])).toEqual([
      ['eth0', 0],
      ['net1', 1],
    ]);
    const config = { prevResult: second };
    expect(await call('CHECK', target, { interfaceName: 'net1', config })).toMatchObject({ exitCode: 0, stdout: '' });
    expect(pings(address, stack.netnsPath)).toBe(true);
    expect((await call('DEL', target, { interfaceName: 'net1' })).exitCode).toBe(0);
    expect(run('ip', '-n', target.name, '-br', 'link')).not.toContain('net1');
    expect(pings(address, stack.netnsPath)).toBe(true);
    expect((await call('DEL', target)).exitCode).toBe(0);
  });
});

describe('CHECK', () => {
  test('succeeds for an intact pod, and names the first difference of another', async () => {
    const target = pod('e2e-check');
    const prevResult = await add(target);
    expect(await call('CHECK', target, { config: { prevResult } })).toMatchObject({ exitCode: 0, stdout: '' });
    run('ip', '-n', target.name, 'route', 'delete', 'default');
    const answer = await call('CHECK', target, { config: { prevResult } });
    expect(answer.exitCode).toBe(1);
    expect(JSON.parse(answer.stdout).msg).toContain('default');
    expect((await call('DEL', target)).exitCode).toBe(0);
  });
});

describe('DEL', () => {
  test('succeeds repeatedly, without a namespace, and for an unknown attachment', async () => {
    const target = pod('e2e-del');
    await add(target);
    for (const env of [{}, {}, { CNI_NETNS: '' }, { CNI_NETNS: '/run/netns/gone' }]) {
      expect(await call('DEL', target, { env })).toMatchObject({ exitCode: 0, stdout: '' });
    }
    const never = { ...target, containerId: 'never-added' };
    expect(await call('DEL', never)).toMatchObject({ exitCode: 0, stdout: '' });
  });

  test('releases the address when the namespace ended first', async () => {
    const target = makePod('e2e-dead');
    const address = addressOf(await add(target));
    removePod(target);
    expect((await call('DEL', target)).exitCode).toBe(0);
    const endpoints = () => JSON.stringify(rpc(stack.sockets.ipam, 'podwire.ipam.v1.EndpointService/ListEndpoints'));
    await expect.poll(endpoints).not.toContain(`"${address}/`);
  });
});

describe('VERSION', () => {
  test('is answered without any process of Podwire', async () => {
    const answer = await callCni({ command: 'VERSION', pod: pod('e2e-version'), socket: '/nowhere' });
    expect(answer.exitCode).toBe(0);
    expect(JSON.parse(answer.stdout).supportedVersions).toEqual([
      '0.1.0',
      '0.2.0',
      '0.3.0',
      '0.3.1',
      '0.4.0',
      '1.0.0',
      '1.1.0',
    ]);
  });
});
