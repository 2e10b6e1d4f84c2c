// Shim, podwire-node and podwire-ipam of different releases, at each border between them.
import { RELEASE } from '@podwire/shared/rpc/release';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { Plugin } from './testing/plugin.js';
import type { Method } from './testing/services.js';

const SUCCESS = { exitCode: 0, stdout: '' };
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

describe('podwire-ipam of an earlier release', () => {
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

  test('without Allocate: ADD is 105, and leaves nothing', async () => {
    lacking('Allocate');
    expect(errorOf(await plugin.run('ADD'))).toMatchObject({ code: 105, msg: expect.stringContaining('Allocate') });
    expect(plugin.state()).toBe('\n--\n');
    expect(plugin.journal.isIdle).toBe(true);
  });

  test('without ExplainAllocation: STATUS uses the other answers', async () => {
    lacking('ExplainAllocation');
    await untilReady();
  });
});

describe('podwire-ipam of the next release', () => {
  test('works', async () => {
    plugin.release = RELEASE + 1;
    await plugin.start();
    expect(await plugin.run('ADD')).toMatchObject({ exitCode: 0 });
    await untilReady();
    expect(await plugin.run('GC', { config: NODE })).toEqual(SUCCESS);
    expect(await plugin.run('DEL')).toEqual(SUCCESS);
  });
});

describe('podwire-ipam two releases ahead', () => {
  const REASON = new RegExp(
    `podwire-ipam at unix:.*: this service is of release ${RELEASE + 2} and works with releases .*, while the caller is of release ${RELEASE}; update the older of the two`,
  );

  test('fails an ADD with 105, which leaves nothing', async () => {
    plugin.release = RELEASE + 2;
    await plugin.start();
    expect(errorOf(await plugin.run('ADD'))).toMatchObject({
      code: 105,
      msg: expect.stringMatching(REASON),
      details: expect.stringMatching(/^RELEASE_MISMATCH/),
    });
    expect(plugin.script.calls.filter((call) => !call.startsWith('GetPod'))).toEqual([]);
  });

  test('fails STATUS with 50', async () => {
    plugin.release = RELEASE + 2;
    await plugin.start();
    await vi.waitFor(
      async () => {
        const config = { ...NODE, name: `net${++asked}` };
        const { code, msg } = errorOf(await plugin.run('STATUS', { config }));
        expect([code, msg]).toEqual([50, expect.stringMatching(REASON)]);
      },
      { timeout: 20_000 },
    );
  });

  test('does not block a DEL: the journal completes it after the update', async () => {
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
        msg: expect.stringMatching(/podwire-node is of release .*"podwire install"/),
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
