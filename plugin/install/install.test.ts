import { randomUUID } from 'node:crypto';
import { mkdirSync, readlinkSync, rmSync, symlinkSync, utimesSync } from 'node:fs';
import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { systemClock } from '@podwire/shared/runtime/clock';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { scriptProgram, scriptShim, Site, watchedDisk } from '../testing/site.js';
import { statusRequest } from './conflist.js';
import { systemDisk } from './disk.js';
import { inspect } from './inspect.js';
import { uninstall } from './install.js';
import { systemShimRunner, type ShimRunner } from './shim-runner.js';

let site: Site;
beforeEach(() => void (site = new Site()));
afterEach(() => site.remove());

const refusal = (text: string) =>
  expect.objectContaining({ code: 'INSTALL_REFUSED', message: expect.stringContaining(text) });

describe('an installation', () => {
  test('writes programs and configuration, and a repeat changes nothing', async () => {
    const paths = ['bin/podwire', 'bin/podwire-ipam', 'net.d/10-podwire.conflist'];
    expect(await site.install()).toEqual(paths.map((path) => join(site.folder, path)));
    expect(Object.keys(site.state())).toEqual(paths);
    expect(paths.map((path) => site.mode(path))).toEqual(['755', '755', '600']);
    expect(site.json('net.d/10-podwire.conflist')).toEqual(site.spec().conflist);
    expect(await site.install()).toEqual([]);
  });

  test('has the spec permissions whatever the umask is', async () => {
    const before = process.umask(0o077);
    try {
      await site.install({ conflistMode: 0o644 });
    } finally {
      process.umask(before);
    }
    expect([site.mode('bin/podwire'), site.mode('net.d/10-podwire.conflist')]).toEqual(['755', '644']);
  });

  test('replaces programs of another release and wrong permissions', async () => {
    site.write('bin/podwire', scriptShim('0'), 0o755);
    site.write('bin/podwire-ipam', scriptShim(), 0o600);
    expect(await site.install()).toHaveLength(3);
    expect([site.read('bin/podwire'), site.mode('bin/podwire-ipam')]).toEqual([scriptShim().toString(), '755']);
  });

  test('keeps them with UPDATE_CNI_BINARIES=false, and skips SKIP_CNI_BINARIES', async () => {
    site.write('bin/podwire', scriptShim('0'), 0o755);
    await site.install({ updatesBinaries: false, binaries: ['podwire'] });
    expect(Object.keys(site.state())).toEqual(['bin/podwire', 'net.d/10-podwire.conflist']);
    expect(site.read('bin/podwire')).toBe(scriptShim('0').toString());
  });

  test('keeps plugins that another program added to the chain', async () => {
    const bandwidth = { type: 'bandwidth', capabilities: { bandwidth: true } };
    const spec = site.spec().conflist;
    const desired = { ...spec, plugins: [{ type: 'podwire', capabilities: { bandwidth: true } }] };
    const existing = { name: 'net', disableGC: true, plugins: [{ type: 'podwire', mtu: 9000 }, bandwidth] };
    site.write('net.d/10-podwire.conflist', JSON.stringify(existing));
    await site.install({ conflist: desired });
    const conflist = { ...spec, disableGC: true, plugins: [{ type: 'podwire', capabilities: {} }, bandwidth] };
    expect(site.json('net.d/10-podwire.conflist')).toEqual(conflist);
    expect(site.messages.join('\n')).toContain('keeping its bandwidth');
    expect(site.messages.join('\n')).toContain('program bandwidth of the chain is missing');
    expect(await site.install({ conflist: desired })).toEqual([]);
    expect(await inspect(site.spec({ conflist: desired }), site.options())).toEqual([]);
  });

  test('removes CNI_OLD_CONF_NAME last, and warns of other installers', async () => {
    site.write('net.d/10-calico.conflist', '{"name":"k","plugins":[{"type":"calico"}]}');
    await site.install();
    expect(site.messages.join('\n')).toMatch(/10-calico\.conflist is Calico’s: remove it.*CNI_OLD_CONF_NAME/);
    await site.install({ oldConfName: '10-calico.conflist' });
    expect(Object.keys(site.state())).not.toContain('net.d/10-calico.conflist');
    expect(await site.install({ oldConfName: '10-calico.conflist' })).toEqual([]);
    await site.install({ oldConfName: '10-podwire.conflist' });
    expect(Object.keys(site.state())).toContain('net.d/10-podwire.conflist');
  });

  test('installs the programs alone with --binaries-only', async () => {
    const rival = 'net.d/10-calico.conflist';
    site.write(rival, '{"name":"k","plugins":[{"type":"calico"}]}');
    await site.install({ oldConfName: '10-calico.conflist' }, { scope: 'binaries' });
    expect(Object.keys(site.state())).toEqual(['bin/podwire', 'bin/podwire-ipam', rival]);
    // The installer of the configuration warns of the files beside it.
    expect(site.messages.join('\n')).not.toContain('calico');
  });

  test('removes old temporary files of a dead installer, and no recent ones', async () => {
    const [old, young] = ['net.d/.podwire-install.0-a', 'net.d/.podwire-install.0-b'];
    for (const path of [old, young]) site.write(path, 'x');
    utimesSync(join(site.folder, old), 1, 1);
    await site.install();
    expect([site.read(old), site.read(young)]).toEqual([undefined, 'x']);
  });
});

describe('programs of the chain', () => {
  const portmap = { type: 'portmap' };
  const spec = () => ({ conflist: { ...site.spec().conflist, plugins: [{ type: 'podwire' }, portmap] } });
  const versions = () => site.json('net.d/10-podwire.conflist');

  test('determine the offered versions: one that a program lacks is left out and reported', async () => {
    site.write('bin/portmap', scriptProgram('0.4.0', '1.0.0'), 0o755);
    await site.install(spec());
    expect(versions()).toMatchObject({ cniVersion: '1.0.0', cniVersions: ['1.0.0'] });
    expect(site.messages.join('\n')).toMatch(/10-podwire\.conflist does not offer.*portmap lacks CNI 1\.1\.0/);
    expect(await site.install(spec())).toEqual([]);
    site.write('bin/portmap', scriptProgram('1.0.0', '1.1.0'), 0o755);
    await site.install(spec());
    expect(versions()).toMatchObject({ cniVersions: ['1.0.0', '1.1.0'] });
  });

  test('include plugins that another program added: Debian’s portmap', async () => {
    mkdirSync(site.bin);
    symlinkSync('/usr/lib/cni/portmap', join(site.bin, 'portmap'));
    const existing = { ...site.spec().conflist, plugins: [{ type: 'podwire' }, portmap] };
    site.write('net.d/10-podwire.conflist', JSON.stringify(existing), 0o600);
    const findings = await inspect(site.spec(), site.options());
    expect(findings.at(-1)).toMatchObject({
      difference: 'different',
      text: 'offers versions of CNI that its chain does not support: portmap lacks CNI 1.1.0',
    });
    await site.install();
    expect(versions()).toMatchObject({ cniVersion: '1.0.0', cniVersions: ['1.0.0'] });
    expect(await inspect(site.spec(), site.options())).toEqual([]);
  });

  test('are reported when missing, loopback too', async () => {
    await site.install(spec());
    expect(site.messages.join('\n')).toMatch(/program portmap of the chain is missing.*\n.*program loopback/);
    site.addLoopback();
    site.messages.length = 0;
    await site.install();
    expect(site.messages.join('\n')).not.toContain('loopback');
  });
});

describe('supplied programs', () => {
  const given = (...names: string[]) => ({
    programs: names.map((name) => ({ name, path: join(site.folder, 'given', name) })),
  });
  const text = scriptProgram('1.0.0', '1.1.0');
  beforeEach(() => site.write('given/portmap', text, 0o755));

  test('are installed where they are missing, and compared', async () => {
    site.write('given/loopback', text, 0o755);
    expect((await inspect(site.spec(given('portmap')), site.options()))[2]).toMatchObject({
      path: join(site.bin, 'portmap'),
      difference: 'absent',
    });
    const paths = await site.install(given('loopback', 'portmap'));
    expect(paths).toContain(join(site.bin, 'loopback'));
    expect([site.read('bin/portmap'), site.mode('bin/portmap')]).toEqual([text, '755']);
    expect(await site.install(given('loopback', 'portmap'))).toEqual([]);
    expect(site.messages.join('\n')).not.toContain('has no program');
  });

  test('replace no existing program without --replace', async () => {
    const other = scriptProgram('0.4.0', '1.0.0');
    site.write('bin/portmap', other, 0o755);
    await site.install(given('portmap'));
    expect(site.read('bin/portmap')).toBe(other);
    expect(await inspect(site.spec(given('portmap')), site.options())).toEqual([]);
    await site.install(given('portmap'), { replaces: true });
    expect(site.read('bin/portmap')).toBe(text);
  });

  test('that do not run here are refused, and nothing changes', async () => {
    site.write('given/portmap', '#!/bin/sh\nexit 3\n', 0o755);
    await expect(site.install(given('portmap'))).rejects.toEqual(refusal('does not answer VERSION'));
    expect(site.state()).toEqual({});
  });

  test('stay when Podwire is uninstalled, as other plugins may use them', async () => {
    await site.install(given('portmap'));
    await uninstall(site.spec(given('portmap')), { disk: systemDisk(randomUUID), log: site.log, scope: 'all' });
    expect(Object.keys(site.state())).toEqual(['bin/portmap']);
  });
});

describe('a file that is not Podwire’s', () => {
  test('makes the installer refuse before any change', async () => {
    site.write('bin/podwire-ipam', '#!/bin/sh\n', 0o755);
    const before = site.state();
    await expect(site.install()).rejects.toEqual(refusal('bin/podwire-ipam is another program'));
    expect(site.state()).toEqual(before);
    rmSync(site.bin, { recursive: true });
    site.write('net.d/10-podwire.conflist', '{"name":"n","plugins":[{"type":"bridge"}]}');
    await expect(site.install()).rejects.toEqual(refusal('it has plugins of type bridge'));
    expect(Object.keys(site.state())).toEqual(['net.d/10-podwire.conflist']);
  });

  test('is replaced with --replace', async () => {
    site.write('bin/podwire', '#!/bin/sh\n', 0o755);
    site.write('net.d/10-podwire.conflist', '{"name":"n","plugins":[{"type":"bridge"}]}');
    expect(await site.install({}, { replaces: true })).toHaveLength(3);
    expect(site.json('net.d/10-podwire.conflist')).toEqual(site.spec().conflist);
  });

  test('is not replaced when it is a directory', async () => {
    mkdirSync(join(site.bin, 'podwire'), { recursive: true });
    await expect(site.install({}, { replaces: true })).rejects.toEqual(refusal('bin/podwire is a directory'));
  });

  test('counts as Podwire’s when it is an unreadable configuration', async () => {
    site.write('net.d/10-podwire.conflist', '{"name":"n","plu');
    await site.install();
    expect(site.json('net.d/10-podwire.conflist')).toEqual(site.spec().conflist);
  });
});

describe('readiness', () => {
  test('is queried like the runtime does, with the runtime’s path of the programs', async () => {
    const status = vi.fn<ShimRunner['status']>(() => Promise.resolve(undefined));
    const runner = { ...systemShimRunner(systemClock), status };
    await site.install({ runtimeBinaryDirectory: '/opt/cni/bin' }, { runner, waitMs: 0 });
    expect(status.mock.calls).toMatchObject([
      [
        {
          path: join(site.bin, 'podwire'),
          binaryDirectory: '/opt/cni/bin',
          configuration: statusRequest(site.spec().conflist),
        },
      ],
    ]);
  });

  test('is not queried where a kept program does not run', async () => {
    site.write('bin/podwire', scriptShim().toString().replace('VERSION)', 'NOTHING)'), 0o755);
    await expect(site.install({ updatesBinaries: false })).rejects.toThrow('does not answer VERSION');
    expect(Object.keys(site.state())).toEqual(['bin/podwire']);
  });

  test('the configuration is written only once the plugin is ready', async () => {
    const pending = site.install({}, { waitMs: 60_000 });
    await vi.waitFor(() => expect(site.messages.join('\n')).toContain('not ready: IPAM is down (CNI code 50)'), 30_000);
    expect(Object.keys(site.state())).toEqual(['bin/podwire', 'bin/podwire-ipam']);
    site.write('ready', '');
    expect(await pending).toHaveLength(3);
  });

  test('reasons that differ in times alone are logged once', async () => {
    const reasons = ['not reached within 300 ms', 'not reached within 800 ms', 'no pool', 'not reached within 300 ms'];
    const runner = { ...site.options().runner, status: () => Promise.resolve(reasons.shift()) };
    await site.install({}, { waitMs: 60_000, runner });
    expect(site.messages.filter((message) => message.includes('not ready'))).toEqual([
      'the plugin is not ready: not reached within 300 ms',
      'the plugin is not ready: no pool',
    ]);
  });

  test('when the plugin does not become ready, everything is restored', async () => {
    site.write('bin/podwire', scriptShim('0'), 0o750);
    site.write('net.d/10-podwire.conflist', '{"name":"net","plugins":[{"type":"podwire"}]}');
    const before = site.state();
    const failure = { code: 'DEADLINE_EXCEEDED', message: expect.stringMatching(/not ready after 0 ms.*IPAM is down/) };
    await expect(site.install({}, { waitMs: 0 })).rejects.toEqual(expect.objectContaining(failure));
    expect(site.state()).toEqual(before);
  });

  test('a signal ends the wait, and everything is restored', async () => {
    const stop = new AbortController();
    const clock = new ManualClock();
    const pending = site.install({}, { waitMs: 60_000, clock, signal: stop.signal });
    pending.catch(() => undefined);
    await vi.waitFor(() => expect(clock.sleeping).toBe(1), 30_000);
    stop.abort();
    await expect(pending).rejects.toMatchObject({ code: 'CANCELLED' });
    expect(site.state()).toEqual({});
  });

  test('a program that does not answer VERSION is never installed under its name', async () => {
    site.write('bin/podwire', scriptShim('0'), 0o755);
    const before = site.state();
    const commit = vi.fn();
    const disk = { ...systemDisk(randomUUID), commit };
    for (const shim of [
      Buffer.from('#!/bin/sh\nexit 3\n'),
      Buffer.from('\x7fELF'),
      Buffer.from('#!/bin/sh\necho {}'),
    ]) {
      await expect(site.install({ shim }, { disk })).rejects.toEqual(refusal('does not answer VERSION'));
      expect(site.state()).toEqual(before);
    }
    expect(commit).not.toHaveBeenCalled();
  });

  test('requires the program: its absence is an error', async () => {
    const refused = refusal('bin/podwire is missing, but STATUS needs it: do not skip it');
    await expect(site.install({ binaries: ['podwire-ipam'] }, { waitMs: 0 })).rejects.toEqual(refused);
    expect(site.state()).toEqual({});
  });
});

describe('the rollback', () => {
  test('restores links, owners, modes and removed files', async () => {
    site.write('elsewhere', scriptShim('0'), 0o755);
    mkdirSync(site.bin);
    symlinkSync('../elsewhere', join(site.bin, 'podwire'));
    site.write('net.d/old.conf', '{"type":"podwire"}', 0o640);
    const before = site.state();
    let isOver = false;
    const disk = systemDisk(randomUUID);
    const failing = { ...disk, remove: (path: string) => (isOver ? disk.remove(path) : late(disk.remove(path))) };
    const late = async (removed: Promise<void>) => {
      await removed;
      isOver = true;
      throw new Error('late');
    };
    await expect(site.install({ oldConfName: 'old.conf' }, { disk: failing })).rejects.toThrow('late');
    expect(site.state()).toEqual(before);
    expect(readlinkSync(join(site.bin, 'podwire'))).toBe('../elsewhere');
  });

  test('begins with the configuration, and continues after a file that cannot be restored', async () => {
    site.write('net.d/old.conf', '{"type":"podwire"}');
    const before = site.state();
    const disk = systemDisk(randomUUID);
    const removed: string[] = [];
    const remove = async (path: string) => {
      removed.push(path.slice(site.folder.length + 1));
      if (!/old\.conf|podwire-ipam/.test(path)) return disk.remove(path);
      throw new Failure('INSTALL_IO', `cannot remove ${path}`);
    };
    await expect(site.install({ oldConfName: 'old.conf' }, { disk: { ...disk, remove } })).rejects.toThrow('old.conf');
    expect(removed).toEqual(['net.d/old.conf', 'net.d/10-podwire.conflist', 'bin/podwire-ipam', 'bin/podwire']);
    expect(Object.keys(site.state())).toEqual(['bin/podwire-ipam', ...Object.keys(before)]);
    expect(site.messages.join('\n')).toMatch(/rollback is incomplete: cannot remove .*podwire-ipam/);
  });

  test('removes a file that was renamed but failed to reach the disk', async () => {
    const disk = systemDisk(randomUUID);
    const commit = async (staged: string, path: string) => {
      await disk.commit(staged, path);
      if (path.endsWith('.conflist')) throw new Error('fsync: EIO');
    };
    await expect(site.install({}, { disk: { ...disk, commit } })).rejects.toThrow('EIO');
    expect(site.state()).toEqual({});
  });

  test('keeps files that another installer changed meanwhile', async () => {
    const other = scriptShim('of another installer');
    const disk = systemDisk(randomUUID);
    const makeTrouble = (path: string) => {
      if (path.endsWith('.conflist')) {
        site.write('bin/podwire', other, 0o755);
        throw new Error('no space');
      }
    };
    const failing = {
      ...disk,
      commit: async (staged: string, path: string) => {
        makeTrouble(path);
        await disk.commit(staged, path);
      },
    };
    await expect(site.install({}, { disk: failing })).rejects.toThrow('no space');
    expect(site.state()).toEqual({ 'bin/podwire': `755 ${other.toString()}` });
    expect(site.messages.join('\n')).toContain('bin/podwire was changed by another process meanwhile');
  });
});

describe('a killed installer', () => {
  const conflist = '{"name":"net","plugins":[{"type":"podwire"},{"type":"bandwidth"}]}';
  const before = () => {
    site.write('bin/podwire', scriptShim('0'), 0o755);
    site.write('net.d/10-podwire.conflist', conflist);
    site.write('net.d/05-old.conflist', '{"name":"old","plugins":[{"type":"ptp"}]}');
  };
  const spec = { oldConfName: '05-old.conflist' };

  /** Installs until a step that never completes: for the disk, that is SIGKILL before the step. @returns whether it got there */
  async function dieAt(deathStep: number): Promise<boolean> {
    return new Promise((resolve, reject) => {
      const disk = watchedDisk(systemDisk(randomUUID), async (step) => {
        if (step < deathStep) return;
        resolve(true);
        await new Promise(() => undefined);
      });
      site.install(spec, { disk }).then(() => resolve(false), reject);
    });
  }

  test('leaves each file old or new, in order, at every step; the next run completes the installation', async () => {
    before();
    await site.install(spec);
    const after = site.state();
    for (let step = 0; ; step += 1) {
      site.remove();
      before();
      const old = site.state();
      const died = await dieAt(step);
      const state = Object.entries(site.state());
      const visible = state.filter(([path]) => !path.includes('/.podwire-install.'));
      for (const [path, content] of visible)
        expect([old[path], after[path]], `${path} at step ${step}`).toContain(content);
      const now = Object.fromEntries(visible);
      const isNew = (path: string) => now[path] === after[path];
      // The configuration is written after both programs, and the old one removed after that.
      if (isNew('net.d/10-podwire.conflist')) expect(isNew('bin/podwire') && isNew('bin/podwire-ipam')).toBe(true);
      if (now['net.d/05-old.conflist'] === undefined) expect(isNew('net.d/10-podwire.conflist')).toBe(true);
      expect(state.length - visible.length).toBeLessThanOrEqual(1);
      await site.install(spec);
      expect(Object.fromEntries(Object.entries(site.state()).filter(([path]) => !path.includes('/.')))).toEqual(after);
      if (!died) break;
      expect(step).toBeLessThan(100);
    }
  }, 120_000);
});

test('concurrent installers leave one complete installation', async () => {
  site.write('net.d/10-podwire.conflist', '{"name":"net","plugins":[{"type":"podwire"},{"type":"bandwidth"}]}');
  await Promise.all(Array.from({ length: 8 }, () => site.install()));
  expect(await inspect(site.spec(), site.options())).toEqual([]);
  expect(Object.keys(site.state())).toEqual(['bin/podwire', 'bin/podwire-ipam', 'net.d/10-podwire.conflist']);
  expect(site.read('net.d/10-podwire.conflist')).toContain('bandwidth');
});

describe('a comparison', () => {
  const found = async (changes = {}) => {
    const findings = await inspect(site.spec(changes), site.options());
    return findings.map(({ path, difference }) => `${path.slice(site.folder.length + 1)} ${difference}`);
  };

  test('reports missing, broken, foreign and different files', async () => {
    expect(await found()).toEqual([
      'bin/podwire absent',
      'bin/podwire-ipam absent',
      'net.d/10-podwire.conflist absent',
    ]);
    await site.install();
    expect(await found()).toEqual([]);
    site.write('bin/podwire', scriptShim('2'));
    expect(await found()).toEqual(['bin/podwire different']);
    expect(await found({ updatesBinaries: false })).toEqual([]);
    expect(await found({ updatesBinaries: false, conflistMode: 0o644 })).toEqual([
      'net.d/10-podwire.conflist different',
    ]);
    site.write('bin/podwire', scriptShim().subarray(0, 120));
    site.write('bin/podwire-ipam', '#!/bin/sh\necho \'{"supportedVersions":["1.0.0"]}\'\n');
    site.write('net.d/10-podwire.conflist', '{"name":');
    expect(await found()).toEqual([
      'bin/podwire broken',
      'bin/podwire-ipam foreign',
      'net.d/10-podwire.conflist broken',
    ]);
    site.write('net.d/10-podwire.conflist', '{"name":"n","plugins":[{"type":"ptp"}]}');
    expect((await found()).at(-1)).toBe('net.d/10-podwire.conflist foreign');
  });

  test('accepts plugins that another program added, and another layout of the text', async () => {
    await site.install();
    const { conflist } = site.spec();
    site.write(
      'net.d/10-podwire.conflist',
      JSON.stringify({ ...conflist, plugins: [...conflist.plugins, { type: 'x' }] }),
    );
    expect(await found()).toEqual([]);
    site.write('net.d/10-podwire.conflist', JSON.stringify({ ...conflist, name: 'other' }));
    expect(await found()).toEqual(['net.d/10-podwire.conflist different']);
    expect(await found({ conflistMode: 0o644 })).toEqual(['net.d/10-podwire.conflist different']);
  });
});

describe('removal', () => {
  const remove = () => uninstall(site.spec(), { disk: systemDisk(randomUUID), log: site.log, scope: 'all' });

  test('removes Podwire’s files, the configuration first, and can be repeated', async () => {
    await site.install();
    expect(await remove()).toEqual([
      join(site.net, '10-podwire.conflist'),
      join(site.bin, 'podwire'),
      join(site.bin, 'podwire-ipam'),
    ]);
    expect(site.state()).toEqual({});
    expect(await remove()).toEqual([]);
  });

  test('keeps the files of other programs', async () => {
    site.write('bin/podwire', '#!/bin/sh\n');
    site.write('bin/podwire-ipam', scriptShim('0'));
    site.write('bin/bandwidth', 'x');
    site.write('net.d/10-podwire.conflist', '{"name":"n","plugins":[{"type":"ptp"}]}');
    expect(await remove()).toEqual([join(site.bin, 'podwire-ipam')]);
    expect(Object.keys(site.state())).toEqual(['bin/bandwidth', 'bin/podwire', 'net.d/10-podwire.conflist']);
    expect(site.messages.filter((message) => message.endsWith('is not Podwire’s and is kept'))).toHaveLength(2);
  });
});
