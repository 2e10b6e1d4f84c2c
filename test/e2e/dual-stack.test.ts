import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';

import { callCni, makePod, removePod, type CniCall, type Pod } from '../support/pods.js';
import { pings, rpc, run } from '../support/programs.js';
import { Stack } from '../support/stack.js';

/** Pods of both families, by the shim, IPAM, the dataplane and the kernel. */

interface CniResult {
  readonly interfaces: readonly { readonly name: string }[];
  readonly ips: readonly { readonly address: string; readonly interface: number; readonly version?: string }[];
}

const stack = new Stack();
const pods: Pod[] = [];

const call = (command: string, pod: Pod, rest: Partial<CniCall> = {}) =>
  callCni({ command, pod, socket: stack.sockets.node, ...rest });

function newPod(name: string): Pod {
  const pod = makePod(name);
  pods.push(pod);
  return pod;
}

const BOTH = { type: 'podwire-ipam', assign_ipv4: 'true', assign_ipv6: 'true' };

async function add(pod: Pod, config: CniCall['config'] = {}): Promise<CniResult> {
  const answer = await call('ADD', pod, { config: { ipam: BOTH, ...config } });
  expect(answer, answer.stdout).toMatchObject({ exitCode: 0, stderr: '' });
  return JSON.parse(answer.stdout);
}

const addressesOf = ({ ips }: CniResult) => ips.map(({ address }) => address.replace(/\/\d+$/, ''));

beforeAll(async () => {
  await stack.start();
  const pool = { name: 'ipv6', cidr: 'fd65::/48' };
  rpc(stack.sockets.ipam, 'podwire.ipam.v1.PoolService/CreatePool', { pool });
  // The node forwards IPv6 once it knows the pool.
  const forwarding = () => run('ip', 'netns', 'exec', stack.netns, 'sysctl', '-n', 'net.ipv6.conf.all.forwarding');
  await vi.waitFor(() => expect(forwarding().trim()).toBe('1'), { timeout: 30_000 });
});

afterAll(async () => {
  await stack.destroy();
  pods.forEach(removePod);
});

describe('pods of both families', () => {
  test('reach each other over both, and their results have both', async () => {
    const [a, b] = [newPod('e2e-dual-a'), newPod('e2e-dual-b')];
    const [toA, toB] = [addressesOf(await add(a)), addressesOf(await add(b))];
    expect(toA).toEqual([expect.stringMatching(/^10\.65\./), expect.stringMatching(/^fd65:/)]);
    const unreached = [
      ...toB.filter((address) => !pings(address, a.netns)),
      ...toA.filter((address) => !pings(address, b.netns)),
      ...[...toA, ...toB].filter((address) => !pings(address, stack.netnsPath)),
    ];
    expect(unreached).toEqual([]);
    for (const target of [a, b]) expect(await call('DEL', target)).toMatchObject({ exitCode: 0, stdout: '' });
    expect(stack.ip('-br', 'link')).not.toContain('podw');
    expect(stack.ip('-6', 'route', 'show', 'table', 'all')).not.toContain('podw');
  });

  test('get a result in older versions that separates the families, and pass CHECK', async () => {
    const pod = newPod('e2e-dual-old');
    const result = await add(pod, { cniVersion: '0.4.0' });
    expect(result.ips.map(({ version, interface: at }) => [version, at])).toEqual([
      ['4', 1],
      ['6', 1],
    ]);
    const config = { cniVersion: '0.4.0', prevResult: result };
    expect(await call('CHECK', pod, { config })).toMatchObject({ exitCode: 0, stdout: '' });
    run('ip', '-n', pod.name, '-6', 'route', 'delete', 'default');
    const answer = await call('CHECK', pod, { config });
    expect(JSON.parse(answer.stdout).msg).toContain('default via fe80::ecee:eeff:feee:eeee');
    expect((await call('DEL', pod)).exitCode).toBe(0);
  });
});
