import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { Plugin, type Command } from '../testing/plugin.js';

interface Result {
  readonly interfaces: readonly { readonly name: string; readonly mac: string; readonly sandbox?: string }[];
  readonly ips: readonly { readonly address: string }[];
}

let plugin: Plugin;
let prevResult: Result;

beforeEach(async () => {
  plugin = await new Plugin().start();
  prevResult = JSON.parse((await plugin.run('ADD')).stdout);
  plugin.script.calls.length = 0;
});

afterEach(() => plugin.end());

const check = (config: Command['config'] = { prevResult }) => plugin.run('CHECK', { config });

async function difference(answer = check()): Promise<string> {
  const { exitCode, stdout } = await answer;
  expect(exitCode).toBe(1);
  const { code, msg }: { code: number; msg: string } = JSON.parse(stdout);
  expect(code).toBe(104);
  return msg;
}

describe('CHECK', () => {
  test('succeeds for an intact pod, and changes nothing', async () => {
    const before = plugin.state();
    expect(await check()).toEqual({ exitCode: 0, stdout: '' });
    expect(plugin.script.calls).toEqual(['GetEndpoint net/c0ffee/eth0', 'CheckPod net/c0ffee/eth0']);
    expect(plugin.state()).toBe(before);
  });

  test('accepts what later plugins of the chain added', async () => {
    const chained = {
      ...prevResult,
      interfaces: [...prevResult.interfaces, { name: 'ifb0', mac: '02:00:00:00:00:01' }],
      ips: [{ address: '192.168.0.1/24', interface: 2 }, ...prevResult.ips],
      routes: [{ dst: '0.0.0.0/0' }],
    };
    expect(await check({ prevResult: chained })).toMatchObject({ exitCode: 0 });
  });

  test('accepts another MAC address in the pod: the result has the address of ADD, or of a later plugin', async () => {
    const interfaces = prevResult.interfaces.map((each) => ({ ...each, mac: '02:00:00:00:00:99' }));
    expect(await check({ prevResult: { ...prevResult, interfaces } })).toMatchObject({ exitCode: 0 });
  });
});

describe('CHECK reports the first difference', () => {
  test('when IPAM holds nothing', async () => {
    await plugin.run('DEL');
    expect(await difference()).toMatch(/^IPAM's endpoint: wanted present, is missing/);
  });

  test('when the result lacks the pod’s interface', async () => {
    const [host] = prevResult.interfaces;
    const onNode = { ...prevResult, interfaces: [host, { name: 'eth0', mac: host!.mac, sandbox: '' }] };
    expect(await difference(check({ prevResult: onNode }))).toMatch(
      /^prevResult interface eth0: wanted present, is missing/,
    );
  });

  test('when the result has another address than IPAM', async () => {
    const ips = [{ address: '10.65.0.9/32', interface: 1 }];
    expect(await difference(check({ prevResult: { ...prevResult, ips } }))).toMatch(
      /^prevResult ips: wanted 10\.65\.0\.0\/32, is 10\.65\.0\.9\/32/,
    );
    const without = { ...prevResult, ips: undefined };
    expect(await difference(check({ prevResult: without }))).toMatch(/^prevResult ips: wanted .*, is missing/);
  });

  test('when the kernel differs, the first of several', async () => {
    plugin.dataplane.addDrift({
      object: 'pod route default via 169.254.1.1 dev eth0',
      wanted: 'present',
      actual: 'missing',
    });
    plugin.dataplane.addDrift({ object: 'host sysctl x', wanted: '1', actual: '0' });
    expect(await difference()).toBe(
      'pod route default via 169.254.1.1 dev eth0: wanted present, is missing (interface eth0 of container c0ffee); recreate the pod',
    );
  });
});

test('CHECK fails with the reason when a service is unreachable', async () => {
  plugin.script.failNext('CheckPod', new Failure('KERNEL_REFUSED', 'dump: EIO'));
  const { stdout } = await check();
  expect(JSON.parse(stdout)).toMatchObject({ code: 101, msg: 'dump: EIO' });
});
