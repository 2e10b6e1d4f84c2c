import { parseAddress } from '@podwire/shared/net/address';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { NOTHING, Plugin, type Command } from '../testing/plugin.js';

let plugin: Plugin;
let folder: string;

beforeEach(async () => {
  plugin = await new Plugin().start();
  folder = mkdtempSync(join(tmpdir(), 'podwire-delegate-'));
});

afterEach(async () => {
  expect(plugin.script.unusedFaults()).toEqual([]);
  await plugin.end();
  rmSync(folder, { recursive: true });
});

const RESULT = JSON.stringify({ cniVersion: '1.0.0', ips: [{ address: '192.0.2.7/24', gateway: '192.0.2.1' }] });

/** Installs a shell script as the delegate; it records each of its calls. */
function install(script: string, directory = folder): void {
  mkdirSync(directory, { recursive: true });
  const lines = ['#!/bin/sh', `echo "$CNI_COMMAND" >> ${folder}/calls`, `cat > ${folder}/stdin`, script];
  writeFileSync(join(directory, 'other-ipam'), `${lines.join('\n')}\n`, { mode: 0o755 });
}

const calls = (): string[] =>
  existsSync(join(folder, 'calls')) ? readFileSync(join(folder, 'calls'), 'utf8').trim().split('\n') : [];

function run(command: string, { variables, config }: Command = {}) {
  const ipam = { type: 'other-ipam', subnet: '192.0.2.0/24' };
  return plugin.run(command, { variables: { CNI_PATH: folder, ...variables }, config: { ipam, ...config } });
}

async function failed(command: string, rest: Command = {}): Promise<{ code: number; msg: string; details: string }> {
  const answer = await run(command, rest);
  expect(answer.exitCode).toBe(1);
  return JSON.parse(answer.stdout);
}

describe('addresses of another IPAM plugin', () => {
  test('are not released for a pod whose ADD was refused before the plugin was called', async () => {
    install('exit 1');
    const config = { ipam: { type: 'other-ipam' }, mtu: 1 };
    expect(await failed('ADD', { config })).toMatchObject({ code: 7 });
    expect(await run('DEL', { config })).toEqual({ exitCode: 0, stdout: '' });
    expect([calls(), plugin.journal.entries()]).toEqual([[], []]);
  });

  test('of host-local with usePodCidr are of the podCIDR of the Node, which is read once', async () => {
    install(`test "$CNI_COMMAND" = ADD && echo '${RESULT}'; exit 0`);
    renameSync(join(folder, 'other-ipam'), join(folder, 'host-local'));
    const config = { ipam: { type: 'host-local', subnet: 'usePodCidr' } };
    expect(await failed('ADD', { config })).toMatchObject({
      code: 7,
      msg: expect.stringContaining("node's IPv4 podCIDR"),
    });
    expect(await run('DEL', { config })).toEqual({ exitCode: 0, stdout: '' });
    expect([calls(), plugin.journal.entries()]).toEqual([[], []]);
    plugin.ipam.podCidrs = ['fd65::/64', '192.0.2.0/24'];
    for (const container of ['a', 'b']) {
      const variables = { CNI_CONTAINERID: container };
      expect(await run('ADD', { config, variables })).toMatchObject({ exitCode: 0 });
      expect(JSON.parse(readFileSync(join(folder, 'stdin'), 'utf8'))).toMatchObject({
        ipam: { subnet: '192.0.2.0/24' },
      });
      await run('DEL', { config, variables });
    }
    // The refused ADD asked, and the next one.
    expect(plugin.script.calls.filter((call) => call.startsWith('GetNode'))).toHaveLength(2);
    expect(plugin.state()).toBe(NOTHING);
  });

  test('go to the dataplane with full prefix length and are released through the plugin', async () => {
    install(`test "$CNI_COMMAND" = ADD && echo '${RESULT}'; exit 0`);
    const added = await run('ADD');
    const result = JSON.parse(added.stdout);
    expect(result).toMatchObject({ cniVersion: '1.0.0', ips: [{ address: '192.0.2.7/32', interface: 1 }] });
    expect(plugin.dataplane.toString()).toContain(' 192.0.2.7/32 ');
    const [attached] = plugin.script.requests.filter(({ method }) => method === 'AttachPod');
    expect(attached?.request).toEqual({ pod: expect.not.objectContaining({ addressesFromIpam: true }) });
    expect(plugin.ipam.toString()).toBe('');
    expect(await run('CHECK', { config: { prevResult: result } })).toEqual({ exitCode: 0, stdout: '' });
    const extended = { ...result, ips: [...result.ips, { address: '198.51.100.7/24', interface: 0 }] };
    expect(await run('CHECK', { config: { prevResult: extended } })).toEqual({ exitCode: 0, stdout: '' });
    const checked = plugin.script.requests.filter(({ method }) => method === 'CheckPod');
    expect(checked).toMatchObject(Array(2).fill({ request: { pod: { addresses: [parseAddress('192.0.2.7')] } } }));
    expect(await run('DEL')).toEqual({ exitCode: 0, stdout: '' });
    expect(await run('DEL')).toEqual({ exitCode: 0, stdout: '' });
    expect(calls()).toEqual(['ADD', 'CHECK', 'CHECK', 'DEL', 'DEL']);
    expect(plugin.script.calls.filter((call) => /Allocate|Release|GetEndpoint/.test(call))).toEqual([]);
    expect(plugin.state()).toBe(NOTHING);
  });

  test.each([
    ['0.2.0', { ip4: { ip: '192.0.2.7/24', routes: [] } }],
    ['0.4.0', { ips: [{ version: '4', address: '192.0.2.7/24' }], routes: null }],
    // Go's encoder writes empty settings.
    ['1.0.0', { ips: [{ address: '192.0.2.7/24' }], dns: {} }],
    ['1.1.0', { ips: [{ address: '192.0.2.7/24' }], dns: { nameservers: ['192.0.2.53'] } }],
  ])('are read from a result of version %s', async (cniVersion, result) => {
    install(`test "$CNI_COMMAND" = ADD && echo '${JSON.stringify({ cniVersion, ...result })}'; exit 0`);
    const { stdout } = await run('ADD');
    const answer: { readonly dns?: object } = JSON.parse(stdout);
    expect(answer).toMatchObject({ ips: [{ address: '192.0.2.7/32' }] });
    expect(answer.dns).toEqual('dns' in result && 'nameservers' in result.dns ? result.dns : undefined);
  });

  test('the plugin gets the whole configuration, the CNI variables, a path, and nothing else', async () => {
    install(`env > ${folder}/environment; echo '${RESULT}'`);
    await run('ADD', { config: { mtu: 1400 } });
    const names = readFileSync(join(folder, 'environment'), 'utf8')
      .split('\n')
      .map((line) => line.split('=')[0] ?? '')
      // Variables that the shell sets.
      .filter((name) => !['', 'PWD', '_', 'SHLVL', 'OLDPWD'].includes(name));
    const variables = ['ARGS', 'COMMAND', 'CONTAINERID', 'IFNAME', 'NETNS', 'PATH'].map((name) => `CNI_${name}`);
    expect(names.sort()).toEqual([...variables, 'PATH']);
    expect(JSON.parse(readFileSync(join(folder, 'stdin'), 'utf8'))).toMatchObject({ name: 'net', mtu: 1400 });
  });

  test('are released when the dataplane cannot attach the pod', async () => {
    install(`test "$CNI_COMMAND" = ADD && echo '${RESULT}'; exit 0`);
    plugin.script.failNext('AttachPod', new Failure('KERNEL_REFUSED', 'link add: ENOMEM'));
    expect(await failed('ADD')).toMatchObject({ code: 101 });
    expect(calls()).toEqual(['ADD', 'DEL']);
    expect(plugin.state()).toBe(NOTHING);
  });

  test('stay with a running pod when its second ADD is refused', async () => {
    install(`test "$CNI_COMMAND" = ADD && echo '${RESULT}'; exit 0`);
    await run('ADD');
    const before = plugin.state();
    install(`echo '{"code":5,"msg":"duplicate allocation"}'; exit 1`);
    expect(await failed('ADD')).toMatchObject({ code: 108, msg: 'IPAM plugin other-ipam: ADD: duplicate allocation' });
    expect(calls()).toEqual(['ADD', 'ADD']);
    expect(plugin.state()).toBe(before);
  });

  test('are released later when the plugin fails its DEL', async () => {
    install(`test "$CNI_COMMAND" = ADD && echo '${RESULT}'; exit 0`);
    await run('ADD');
    install('exit 1');
    expect(await run('DEL')).toEqual({ exitCode: 0, stdout: '' });
    expect(plugin.journal.entries()).toMatchObject([{ action: 'release', delegate: { type: 'other-ipam' } }]);
    install('exit 0');
    await plugin.replayed();
    expect(calls().slice(0, 2)).toEqual(['ADD', 'DEL']);
    expect(plugin.script.calls.filter((call) => call.startsWith('Release'))).toEqual([]);
    expect(plugin.state()).toBe(NOTHING);
  });
});

test('addresses of podwire-ipam are released there when the configuration names another plugin by then', async () => {
  install('exit 0');
  expect(await run('ADD', { config: { ipam: {} } })).toMatchObject({ exitCode: 0 });
  expect(await run('DEL')).toEqual({ exitCode: 0, stdout: '' });
  expect(calls()).toEqual([]);
  expect(plugin.state()).toBe(NOTHING);
});

describe('another IPAM plugin that', () => {
  test.each([
    ['prints garbage', 'echo hello', 108, /invalid CNI result .*hello/],
    ['prints nothing', 'exit 0', 108, /invalid CNI result/],
    ['returns no address', `echo '{"cniVersion":"1.0.0"}'`, 108, /returned no address/],
    [
      'returns an invalid address',
      `echo '{"ips":[{"address":"192.0.2.7"}],"cniVersion":"1.0.0"}'`,
      108,
      /is not a CIDR/,
    ],
    ['is killed by a signal', 'kill -SEGV $$', 108, /was killed by SIGSEGV and printed nothing/],
    ['fails without an error object', 'echo oh >&2; exit 3', 108, /exited with code 3 and printed "oh/],
    ['returns code 11', `echo '{"code":11,"msg":"later"}'; exit 1`, 11, /other-ipam: ADD: later/],
    ['refuses the configuration', `echo '{"code":7,"msg":"no subnet"}'; exit 1`, 7, /other-ipam: ADD: no subnet/],
    ['prints an endless result', 'yes', 108, /printed more than 1048576 bytes/],
  ])('%s fails the ADD and gets a DEL', async (_, script, code, message) => {
    install(`test "$CNI_COMMAND" = DEL && exit 0\n${script}`);
    expect(await failed('ADD')).toMatchObject({ code, msg: expect.stringMatching(message) });
    expect(calls()).toEqual(['ADD', 'DEL']);
    expect(plugin.state()).toBe(NOTHING);
    expect(plugin.journal.isIdle).toBe(true);
  });

  test.each([
    [1, 1],
    [2, 7],
    [4, 4],
    [6, 6],
    [7, 7],
    [11, 11],
    [50, 50],
    [51, 51],
    // The delegate's private codes, which mean something else in Podwire.
    [3, 108],
    [5, 108],
    [100, 108],
    [999, 108],
  ])('answers with code %i is passed on as %i', async (own, code) => {
    install(`echo '{"code":${own},"msg":"why","details":"more"}'; exit 1`);
    const prevResult = { interfaces: [], ips: [] };
    const details = expect.stringMatching(new RegExp(`delegate: other-ipam; code: ${own}; said: more`));
    expect(await failed('CHECK', { config: { prevResult } })).toMatchObject({
      code,
      msg: 'IPAM plugin other-ipam: CHECK: why',
      details,
    });
  });

  test('hangs is killed with all its child processes', async () => {
    const own = await new Plugin({ timeoutMs: 5_000, delServiceTimeoutMs: 5_000 }).start();
    install(`test "$CNI_COMMAND" = DEL && exit 0\nsleep 1000 & echo $! > ${folder}/child; sleep 1000`);
    const config = { ipam: { type: 'other-ipam' } };
    const answer = await own.run('ADD', { variables: { CNI_PATH: folder }, config });
    expect(JSON.parse(answer.stdout)).toMatchObject({
      code: 11,
      msg: expect.stringMatching(/timed out and was killed/),
    });
    const child = readFileSync(join(folder, 'child'), 'utf8').trim();
    await vi.waitFor(() => expect(isAlive(child)).toBe(false), { timeout: 20_000 });
    await own.end();
  });

  test('is missing from CNI_PATH, or in a relative directory, is reported', async () => {
    install('exit 0', join(folder, 'elsewhere'));
    for (const path of [folder, 'elsewhere', '.', '']) {
      const error = await failed('ADD', { variables: { CNI_PATH: path } });
      expect(error).toMatchObject({
        code: 108,
        msg: expect.stringContaining('is not an executable in any directory of CNI_PATH'),
      });
    }
    expect(calls()).toEqual([]);
    writeFileSync(join(folder, 'other-ipam'), 'not executable', { mode: 0o644 });
    expect(await failed('ADD')).toMatchObject({ code: 108 });
  });

  test('is missing leaves no pending release: not its ADD, not the DEL after it; GC succeeds', async () => {
    for (const time of ['first', 'second']) {
      const variables = { CNI_CONTAINERID: time };
      expect(await failed('ADD', { variables })).toMatchObject({ code: 108 });
      expect(await run('DEL', { variables })).toEqual({ exitCode: 0, stdout: '' });
    }
    expect(plugin.journal.entries()).toEqual([]);
    const config = { cniVersion: '1.1.0', ipam: {}, 'cni.dev/valid-attachments': [] };
    expect(await plugin.run('GC', { config })).toEqual({ exitCode: 0, stdout: '' });
  });

  test('is missing leaves no pending release after repeated DELs', async () => {
    expect(await failed('ADD')).toMatchObject({ code: 108 });
    for (let time = 0; time < 2; time++) expect(await run('DEL')).toEqual({ exitCode: 0, stdout: '' });
    expect(plugin.journal.entries()).toEqual([]);
  });

  describe('refuses every ADD and DEL', () => {
    const refuse = `echo '{"code":999,"msg":"no subnet"}'; exit 1`;
    const names = () => plugin.journal.entries().map(({ attachment }) => attachment.containerId);
    const start = async (containerId: string, dels = 2) => {
      const variables = { CNI_CONTAINERID: containerId };
      await failed('ADD', { variables });
      for (let time = 0; time < dels; time++) expect(await run('DEL', { variables })).toMatchObject({ exitCode: 0 });
    };
    const attempts = Array.from({ length: 18 }, (_, index) => `c${index}`);

    test('leaves pending releases of the latest refused pods, and of every pod that got an address', async () => {
      install(`test "$CNI_COMMAND" = ADD && echo '${RESULT}'; exit 0`);
      await run('ADD');
      install(refuse);
      expect(await run('DEL')).toMatchObject({ exitCode: 0 });
      for (const containerId of attempts) await start(containerId);
      expect(names()).toEqual(['c0ffee', ...attempts.slice(-16)]);
      // A pending release that was dropped is not added again.
      expect(await run('DEL', { variables: { CNI_CONTAINERID: 'c0' } })).toMatchObject({ exitCode: 0 });
      expect(names()).toEqual(['c0ffee', ...attempts.slice(-15), 'c0']);
    });

    test('leaves the same number after a restart of the plugin; one more DEL changes nothing', async () => {
      install(refuse);
      for (const containerId of attempts.slice(0, 10)) await start(containerId);
      const { store } = plugin;
      await plugin.end();
      plugin = await new Plugin({ store }).start();
      expect(await run('DEL', { variables: { CNI_CONTAINERID: 'c9' } })).toMatchObject({ exitCode: 0 });
      for (const containerId of attempts.slice(10)) await start(containerId);
      expect(names()).toEqual(attempts.slice(-16));
    });

    test('leaves a pending release of an ADD that it did not answer', async () => {
      install(refuse);
      await start('unanswered', 0);
      const [asked, isAdd] = [`${folder}/asked`, 'test "$CNI_COMMAND" = ADD'];
      install(`${isAdd} && touch ${asked} && kill -KILL $$\ntest -e ${asked} || exit 0\n${refuse}`);
      await start('unanswered');
      install(refuse);
      for (const containerId of attempts) await start(containerId, 0);
      expect(names()).toEqual(['unanswered', ...attempts.slice(-16)]);
    });
  });

  describe.each([1, 2, 4, 6, 7])('refuses with code %i, as it would whenever it is called', (code) => {
    const refuse = `echo '{"code":${code},"msg":"no subnet"}'; exit 1`;

    test('leaves no pending release of a pod that it refused', async () => {
      install(refuse);
      await failed('ADD');
      expect(plugin.journal.entries()).toEqual([]);
      for (let time = 0; time < 2; time++) expect(await run('DEL')).toEqual({ exitCode: 0, stdout: '' });
      expect(plugin.journal.entries()).toEqual([]);
      expect(calls()).toEqual(['ADD', 'DEL', 'DEL', 'DEL']);
    });

    test('is not asked again to release the addresses of a pod, except on request', async () => {
      install(`test "$CNI_COMMAND" = ADD && echo '${RESULT}'; exit 0`);
      await run('ADD');
      install(refuse);
      expect(await run('DEL')).toEqual({ exitCode: 0, stdout: '' });
      await vi.waitFor(() => expect(calls()).toEqual(['ADD', 'DEL', 'DEL']), { timeout: 20_000 });
      // Its entry causes a round, in which only it is tried.
      await run('DEL', { variables: { CNI_CONTAINERID: 'other' } });
      await vi.waitFor(() => expect(calls()).toHaveLength(5), { timeout: 20_000 });
      install('exit 0');
      await plugin.replayed();
      expect(calls()).toHaveLength(7);
      expect(plugin.state()).toBe(NOTHING);
    });
  });

  test('is missing briefly gets its DEL afterwards, also when an ADD failed in between', async () => {
    install(`test "$CNI_COMMAND" = ADD && echo '${RESULT}'; exit 0`);
    await run('ADD');
    rmSync(join(folder, 'other-ipam'));
    expect(await failed('ADD')).toMatchObject({ code: 108 });
    expect(await run('DEL')).toEqual({ exitCode: 0, stdout: '' });
    expect(plugin.journal.entries()).toMatchObject([{ action: 'release', delegate: { type: 'other-ipam' } }]);
    install('exit 0');
    await plugin.replayed();
    expect(calls().slice(0, 2)).toEqual(['ADD', 'DEL']);
    expect(plugin.state()).toBe(NOTHING);
  });

  test('gets STATUS and GC', async () => {
    const config = { cniVersion: '1.1.0' };
    install(`test "$CNI_COMMAND" = STATUS || exit 0; echo '{"code":50,"msg":"no lease left"}'; exit 1`);
    expect(await failed('STATUS', { config })).toMatchObject({
      code: 50,
      msg: expect.stringMatching(/^IPAM plugin (?!.*IPAM plugin).*no lease left/),
    });
    expect(await run('GC', { config: { ...config, 'cni.dev/valid-attachments': [] } })).toMatchObject({ exitCode: 0 });
    expect(calls()).toEqual(['STATUS', 'GC']);
  });

  test('gets no GC while interfaces may still use its addresses', async () => {
    install('exit 0');
    plugin.script.failNext('CollectGarbage', new Failure('KERNEL_REFUSED', 'dump: EPERM'));
    const config = { cniVersion: '1.1.0', 'cni.dev/valid-attachments': [] };
    expect(await failed('GC', { config })).toMatchObject({ code: 101 });
    expect(calls()).toEqual([]);
  });

  test('gets GC also without a list of valid attachments', async () => {
    install('exit 0');
    expect(await run('GC', { config: { cniVersion: '1.1.0' } })).toMatchObject({ exitCode: 0 });
    expect(calls()).toEqual(['GC']);
  });

  test('fails GC when it refuses its own', async () => {
    install(`echo '{"code":11,"msg":"later"}'; exit 1`);
    const config = { cniVersion: '1.1.0', 'cni.dev/valid-attachments': [] };
    expect(await failed('GC', { config })).toMatchObject({ code: 11, msg: expect.stringContaining('GC: later') });
  });
});

function isAlive(pid: string): boolean {
  const state = existsSync(`/proc/${pid}/status`) ? readFileSync(`/proc/${pid}/status`, 'utf8') : 'State:\tZ';
  return !/^State:\s+[ZX]/m.test(state);
}
