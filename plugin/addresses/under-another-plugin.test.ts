import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { NOTHING, OWN_NETNS, Plugin } from '../testing/plugin.js';

let plugin: Plugin;

beforeEach(async () => {
  plugin = await new Plugin().start();
});

afterEach(async () => {
  expect(plugin.script.unusedFaults()).toEqual([]);
  await plugin.end();
});

describe('podwire-ipam under another plugin', () => {
  const rest = { plugin: 'podwire-ipam' };

  test.each([
    ['0.1.0', { ip4: { ip: '10.65.0.0/26', gateway: '10.65.0.1', routes: [{ dst: '0.0.0.0/0' }] } }],
    [
      '0.4.0',
      { ips: [{ version: '4', address: '10.65.0.0/26', gateway: '10.65.0.1' }], routes: [{ dst: '0.0.0.0/0' }] },
    ],
    ['1.1.0', { ips: [{ address: '10.65.0.0/26', gateway: '10.65.0.1' }], routes: [{ dst: '0.0.0.0/0' }] }],
  ])('returns a result of version %s, repeats it, and releases', async (cniVersion, wanted) => {
    const dns = { nameservers: ['10.65.0.53'] };
    const ipam = { type: 'podwire-ipam', routes: [{ dst: '0.0.0.0/0' }], dns };
    // The outer plugin adds to its prevResult.
    const prevResult = { interfaces: [{ name: 'eth9' }], ips: [{ address: '192.0.2.9/24', interface: 0 }], x: 1 };
    const config = { cniVersion, type: 'ptp', ipam, prevResult };
    for (let time = 0; time < 2; time++) {
      const { stdout } = await plugin.run('ADD', { config, rest });
      expect(JSON.parse(stdout)).toEqual({ cniVersion, ...wanted, dns });
    }
    for (let time = 0; time < 2; time++) {
      expect(await plugin.run('DEL', { config, rest })).toEqual({ exitCode: 0, stdout: '' });
    }
    // The node's gateway is kept.
    expect(plugin.ipam.toString()).toMatch(/^net\.podwire-gateway-[0-9a-f]{32} 10\.65\.0\.1\/32 [^\n]*$/);
    expect(plugin.script.calls.filter((call) => call.includes('Pod'))).toEqual([]);
  });

  test('works the same under the name of Calico’s plugin', async () => {
    const own = await plugin.run('ADD', { rest });
    expect(await plugin.run('ADD', { rest: { plugin: 'calico-ipam' } })).toEqual(own);
    expect(plugin.script.calls.filter((call) => call.includes('Pod'))).toEqual([]);
  });

  test('creates no interface in the node, whatever the runtime requests', async () => {
    const refused = { variables: { CNI_NETNS: OWN_NETNS }, rest: { overridesNetns: true } };
    expect(JSON.parse((await plugin.run('ADD', refused)).stdout)).toMatchObject({ code: 4 });
    const config = { prevResult: { cniVersion: '1.0.0', ips: [] } };
    expect(JSON.parse((await plugin.run('CHECK', { ...refused, config })).stdout)).toMatchObject({ code: 4 });
    expect(plugin.state()).toBe(NOTHING);
  });

  test('returns Calico’s result under its main plugin, without a gateway', async () => {
    const { stdout } = await plugin.run('ADD', { rest, config: { type: 'calico' } });
    expect(JSON.parse(stdout)).toMatchObject({
      ips: [{ address: '10.65.0.0/26' }],
      routes: [{ dst: '10.65.0.0/32' }],
    });
    const requested = { CNI_CONTAINERID: 'requested', CNI_ARGS: 'IP=10.65.0.9' };
    const { ips } = JSON.parse(
      (await plugin.run('ADD', { rest, config: { type: 'calico' }, variables: requested })).stdout,
    );
    expect(ips).toEqual([{ address: '10.65.0.9/32' }]);
    expect(plugin.ipam.toString()).not.toMatch(/gateway/);
  });

  test('returns a segment that ends with the block, unless its gateway lies beyond', async () => {
    plugin.ipam.blockLength = 30;
    const add = async (name: string) =>
      JSON.parse((await plugin.run('ADD', { rest, variables: { CNI_CONTAINERID: name } })).stdout).ips;
    expect(await add('a')).toEqual([{ address: '10.65.0.0/30', gateway: '10.65.0.1' }]);
    expect(await add('b')).toEqual([{ address: '10.65.0.2/30', gateway: '10.65.0.1' }]);
    // 10.65.0.3 is the block's broadcast address: it goes back, and the pod gets the next one.
    expect(await add('c')).toEqual([{ address: '10.65.0.4/29', gateway: '10.65.0.1' }]);
    expect(plugin.ipam.toString()).not.toContain('10.65.0.3/');
  });

  test('returns the configured gateway, or none', async () => {
    const ipam = (gateways: readonly string[]) => ({ ipam: { type: 'podwire-ipam', gateways } });
    const given = await plugin.run('ADD', { config: ipam(['fd00::1', '10.65.0.62']), rest });
    expect(JSON.parse(given.stdout).ips).toEqual([{ address: '10.65.0.0/26', gateway: '10.65.0.62' }]);
    const none = await plugin.run('ADD', { config: ipam([]), rest });
    expect(JSON.parse(none.stdout).ips).toEqual([{ address: '10.65.0.0/26' }]);
    const bad = await plugin.run('ADD', { config: ipam(['gate']), rest });
    expect(JSON.parse(bad.stdout)).toMatchObject({ code: 7, msg: expect.stringContaining('must be an IP address') });
  });

  const config = { ipam: { type: 'podwire-ipam', gateways: ['10.65.0.62'] } };

  test('releases the address when it has no gateway for it', async () => {
    plugin.script.failNext('GetPool', new Failure('POOL_NOT_FOUND', 'there is no pool default'));
    expect(await plugin.run('ADD', { rest, config })).toMatchObject({ exitCode: 1 });
    expect(plugin.state()).toBe(NOTHING);
  });

  test('keeps the address of a running pod when a second ADD fails', async () => {
    await plugin.run('ADD', { rest, config });
    const before = plugin.state();
    plugin.script.failNext('GetPool', new Failure('POOL_NOT_FOUND', 'there is no pool default'));
    expect(await plugin.run('ADD', { rest, config })).toMatchObject({ exitCode: 1 });
    expect(plugin.state()).toBe(before);
  });

  test('CHECK compares the record with the result', async () => {
    const added = JSON.parse((await plugin.run('ADD', { rest })).stdout);
    expect(await plugin.run('CHECK', { rest, config: { prevResult: added } })).toEqual({ exitCode: 0, stdout: '' });
    const prevResult = { ...added, ips: [{ address: '10.65.0.9/26' }] };
    const differs = await plugin.run('CHECK', { rest, config: { prevResult } });
    expect(JSON.parse(differs.stdout)).toMatchObject({ code: 104 });
    await plugin.run('DEL', { rest });
    const gone = await plugin.run('CHECK', { rest, config: { prevResult: added } });
    expect(JSON.parse(gone.stdout)).toMatchObject({ code: 104, msg: expect.stringContaining("IPAM's endpoint") });
  });

  test('GC releases unlisted attachments, and STATUS asks IPAM, without the dataplane', async () => {
    await plugin.run('ADD', { rest });
    await plugin.run('ADD', { rest, variables: { CNI_CONTAINERID: 'stays' } });
    const later = { ...rest, arrivedNs: BigInt(Date.now() + 60_000) * 1_000_000n };
    const valid = [{ containerID: 'stays', ifname: 'eth0' }];
    const config = { cniVersion: '1.1.0', 'cni.dev/valid-attachments': valid };
    expect(await plugin.run('GC', { config, rest: later })).toEqual({ exitCode: 0, stdout: '' });
    expect(plugin.ipam.toString()).toMatch(/net\.podwire-gateway-/);
    expect(plugin.ipam.toString()).toContain('net.stays');
    expect(plugin.ipam.toString()).not.toContain('c0ffee');
    expect(plugin.script.calls.filter((call) => /Pod|Garbage/.test(call))).toEqual([]);
  });
});
