// Shim, plugin and services of different releases, at each border between them.
import { Failure } from '@podwire/shared/failure/failure';
import { RELEASE } from '@podwire/shared/rpc/release';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { Plugin } from './testing/plugin.js';
import type { Method } from './testing/services.js';

const SUCCESS = { exitCode: 0, stdout: '' };
const ATTACHMENT = { network: 'net', containerId: 'c0ffee', interfaceName: 'eth0' };
const IPAM = { plugin: 'podwire-ipam' };
const NODE = { cniVersion: '1.1.0' };
const EMPTY_LIST = { ...NODE, 'cni.dev/valid-attachments': [] };

let plugin: Plugin;

beforeEach(() => {
  plugin = new Plugin({ timeoutMs: 5_000, delServiceTimeoutMs: 5_000 });
});

afterEach(() => plugin.end());

/** A service on a busy machine may need longer than STATUS waits; answers are kept for a second, so each call uses another network. */
let asked = 0;
const untilReady = (rest = {}) =>
  vi.waitFor(
    async () => {
      const config = { ...NODE, name: `net${++asked}` };
      expect(await plugin.run('STATUS', { rest, config })).toEqual(SUCCESS);
    },
    { timeout: 20_000 },
  );

const errorOf = (answer: { readonly exitCode: number; readonly stdout: string }) => {
  expect(answer.exitCode, answer.stdout).toBe(1);
  return JSON.parse(answer.stdout);
};

describe('a service of an earlier release', () => {
  beforeEach(async () => {
    plugin.release = RELEASE - 1;
    await plugin.start();
  });

  const lacking = (...methods: readonly Method[]) => methods.forEach((method) => plugin.script.lacks.add(method));

  test('works when it has every method that is called', async () => {
    expect(await plugin.run('ADD')).toMatchObject({ exitCode: 0 });
    expect(await plugin.run('DEL')).toEqual(SUCCESS);
    await untilReady();
  });

  test.each<[Method, string]>([
    ['Allocate', 'podwire-ipam'],
    ['AttachPod', 'podwire-dataplane'],
  ])('without %s: ADD is 105, and leaves nothing', async (method, service) => {
    lacking(method);
    expect(errorOf(await plugin.run('ADD'))).toMatchObject({ code: 105, msg: expect.stringContaining(method) });
    expect(plugin.state(), service).toBe('\n--\n');
    expect(plugin.journal.isIdle).toBe(true);
  });

  test('without GetPool: an ADD as IPAM plugin is 105, and leaves nothing', async () => {
    lacking('GetPool');
    expect(errorOf(await plugin.run('ADD', { rest: IPAM }))).toMatchObject({ code: 105 });
    expect(plugin.state()).toBe('\n--\n');
  });

  test('without GetPod: a repeated ADD that fails keeps what ListPods lists', async () => {
    lacking('GetPod');
    const second = { variables: { CNI_CONTAINERID: 'second' } };
    expect(await plugin.run('ADD')).toMatchObject({ exitCode: 0 });
    expect(await plugin.run('ADD', second)).toMatchObject({ exitCode: 0 });
    const state = plugin.state();
    plugin.script.failNext('AttachPod', new Failure('KERNEL_REFUSED', 'sysctl: EROFS'));
    expect(errorOf(await plugin.run('ADD', second))).toMatchObject({ code: 101 });
    expect(plugin.state()).toBe(state);
    // An interrupted ADD had allocated.
    const unwired = { ...ATTACHMENT, containerId: 'third' };
    plugin.ipam.put(unwired);
    plugin.script.failNext('AttachPod', new Failure('KERNEL_REFUSED', 'link add: EPERM'));
    await plugin.run('ADD', { variables: { CNI_CONTAINERID: 'third' } });
    expect(plugin.state()).toBe(state);
  });

  test('without ListPods and GetPod: the first ADD works, and a repeat is 105 and removes nothing', async () => {
    lacking('ListPods', 'GetPod');
    expect(await plugin.run('ADD')).toMatchObject({ exitCode: 0 });
    const state = plugin.state();
    expect(errorOf(await plugin.run('ADD'))).toMatchObject({ code: 105 });
    expect(plugin.state()).toBe(state);
  });

  test.each<[Method]>([['GetEndpoint'], ['CheckPod']])('without %s: CHECK is 105', async (method) => {
    const added = await plugin.run('ADD');
    lacking(method);
    const config = { prevResult: JSON.parse(added.stdout) };
    expect(errorOf(await plugin.run('CHECK', { config }))).toMatchObject({ code: 105 });
  });

  test.each<[Method]>([['DetachPod'], ['Release']])('without %s: DEL succeeds through the journal', async (method) => {
    await plugin.run('ADD');
    lacking(method);
    expect(await plugin.run('DEL')).toEqual(SUCCESS);
    expect(plugin.journal.entries()).toMatchObject([{ attachment: ATTACHMENT }]);
    // The service is updated.
    plugin.script.lacks.clear();
    await plugin.replayed();
    expect(plugin.state()).toBe('\n--\n');
  });

  test('without ReleaseAddresses: the journal and GC release by attachment', async () => {
    await plugin.run('ADD');
    lacking('ReleaseAddresses', 'DetachPod');
    expect(await plugin.run('DEL')).toEqual(SUCCESS);
    plugin.script.lacks.delete('DetachPod');
    await plugin.replayed();
    plugin.ipam.put({ ...ATTACHMENT, containerId: 'left' });
    expect(await plugin.run('GC', { config: EMPTY_LIST })).toEqual(SUCCESS);
    expect(plugin.state()).toBe('\n--\n');
  });

  test('without CollectGarbage: GC detaches one by one', async () => {
    await plugin.run('ADD');
    lacking('CollectGarbage');
    const rest = { startedNs: BigInt(Date.now() + 60_000) * 1_000_000n };
    expect(await plugin.run('GC', { config: EMPTY_LIST, rest })).toEqual(SUCCESS);
    expect(plugin.state()).toBe('\n--\n');
  });

  test('without ListEndpoints: GC is 105, as the held addresses are unknown', async () => {
    lacking('ListEndpoints');
    expect(errorOf(await plugin.run('GC', { config: EMPTY_LIST }))).toMatchObject({ code: 105 });
  });

  test('without ExplainAllocation: STATUS uses the other answers', async () => {
    lacking('ExplainAllocation');
    await untilReady();
  });
});

describe('services of the next release', () => {
  test('work', async () => {
    plugin.release = RELEASE + 1;
    await plugin.start();
    expect(await plugin.run('ADD')).toMatchObject({ exitCode: 0 });
    await untilReady();
    expect(await plugin.run('GC', { config: NODE })).toEqual(SUCCESS);
    expect(await plugin.run('DEL')).toEqual(SUCCESS);
  });
});

describe('services two releases ahead', () => {
  const REASON = new RegExp(
    `podwire-(ipam|dataplane) at unix:.*: this service is of release ${RELEASE + 2} and works with releases .*, while the caller is of release ${RELEASE}; update the older of the two`,
  );

  test('fail an ADD with 105, which leaves nothing', async () => {
    plugin.release = RELEASE + 2;
    await plugin.start();
    expect(errorOf(await plugin.run('ADD'))).toMatchObject({
      code: 105,
      msg: expect.stringMatching(REASON),
      details: expect.stringMatching(/^RELEASE_MISMATCH/),
    });
    expect(plugin.script.calls).toEqual([]);
  });

  test('fail STATUS with 50, with both names', async () => {
    plugin.release = RELEASE + 2;
    await plugin.start();
    await vi.waitFor(
      async () => {
        const config = { ...NODE, name: `net${++asked}` };
        const { code, msg } = errorOf(await plugin.run('STATUS', { config }));
        expect([code, msg]).toEqual([50, expect.stringMatching(REASON)]);
        expect(msg).toMatch(/podwire-ipam at .*podwire-dataplane at /);
      },
      { timeout: 20_000 },
    );
  });

  test('do not block a DEL: the journal completes it after the update', async () => {
    await plugin.start();
    await plugin.run('ADD');
    await plugin.stopServices();
    plugin.release = RELEASE + 2;
    await plugin.start();
    expect(await plugin.run('DEL')).toEqual(SUCCESS);
    expect(plugin.journal.entries()).toMatchObject([{ reason: expect.stringMatching(REASON) }]);
    await plugin.stopServices();
    plugin.release = RELEASE + 1;
    await plugin.start();
    await plugin.replayed();
    expect(plugin.state()).toBe('\n--\n');
  });
});

describe('a shim', () => {
  beforeEach(() => plugin.start());

  test.each([undefined, String(RELEASE - 1), String(RELEASE), String(RELEASE + 1)])(
    'that states release %s is served',
    async (shimRelease) => {
      const rest = { shimRelease };
      expect(await plugin.run('ADD', { rest })).toMatchObject({ exitCode: 0 });
      await untilReady(rest);
    },
  );

  test.each([String(RELEASE + 2), '', 'latest'])('of release %j is refused with the reason', async (shimRelease) => {
    const rest = { shimRelease };
    for (const command of ['ADD', 'CHECK']) {
      expect(errorOf(await plugin.run(command, { rest }))).toMatchObject({
        code: 105,
        msg: expect.stringMatching(/podwire-plugin is of release .*"podwire install"/),
      });
    }
    expect(errorOf(await plugin.run('GC', { rest, config: EMPTY_LIST }))).toMatchObject({ code: 105 });
    expect(errorOf(await plugin.run('STATUS', { rest, config: NODE }))).toMatchObject({ code: 50 });
    expect(plugin.script.calls).toEqual([]);
    expect(await plugin.run('VERSION', { rest })).toMatchObject({ exitCode: 0 });
  });

  test('of any release deletes pods, with a warning', async () => {
    await plugin.run('ADD');
    for (let count = 0; count < 2; count++) {
      expect(await plugin.run('DEL', { rest: { shimRelease: String(RELEASE + 9) } })).toEqual(SUCCESS);
    }
    expect(plugin.state()).toBe('\n--\n');
    const warnings = plugin.record.lines().filter(({ level, msg }) => level === 'warn' && String(msg).includes('shim'));
    expect(warnings).toHaveLength(1);
  });
});
