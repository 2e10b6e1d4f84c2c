// The program itself, with the shipped shim and a fake resident plugin.
import { execFileSync, spawn } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import { join } from 'node:path';

import { Program } from '@podwire/shared/testing/program';
import { afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';

import { scriptShim, Site } from '../testing/site.js';
import { isShim } from './conflist.js';

const MAIN = new URL('main.ts', import.meta.url).href;
const SHIM_FOLDER = join(import.meta.dirname, '..', 'shim');
const SHIPPED = join(SHIM_FOLDER, 'build', 'podwire');
const PATHS = ['bin/podwire', 'bin/podwire-ipam', 'net.d/10-podwire.conflist'];
const SLOW_MS = 60_000;

let site: Site;
let resident: Server | undefined;
const running: Program[] = [];

beforeAll(() => void execFileSync('make', ['-C', SHIM_FOLDER]), 120_000);
beforeEach(() => void (site = new Site()));
afterEach(async () => {
  for (const program of running.splice(0)) {
    program.child.kill('SIGKILL');
    await program.result;
  }
  const server = resident;
  resident = undefined;
  if (server !== undefined) await new Promise((resolve) => server.close(resolve));
  site.remove();
});

/** Starts the program on the site, below a root as in a container. */
function start(args: string, env: Record<string, string> = {}): Program {
  const program = new Program(MAIN, args.split(' '), {
    PODWIRE_INSTALL_ROOT: site.folder,
    CNI_BIN_DIR: '/bin',
    CNI_NET_DIR: '/net.d',
    CNI_NETWORK_CONFIG: configuration(),
    ...env,
  });
  running.push(program);
  return program;
}

const run = (args: string, env?: Record<string, string>) => start(args, env).result;

const socket = () => join(site.folder, 'cni.sock');

const configuration = () =>
  `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"podwire","mtu":__CNI_MTU__,"socket":"${socket()}"}]}`;

/** A resident plugin whose STATUS fails until the test changes it. */
async function startResident(): Promise<{ ready: () => void; refuse: () => void; seen: string[] }> {
  const seen: string[] = [];
  let isReady = false;
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      seen.push(`${String(request.headers['cni-command'])} ${Buffer.concat(chunks).toString()}`);
      if (isReady) response.end();
      else
        response
          .writeHead(503, {
            'content-length': Buffer.byteLength(
              '{"cniVersion":"1.1.0","code":50,"msg":"no pool has room","details":""}',
            ),
          })
          .end('{"cniVersion":"1.1.0","code":50,"msg":"no pool has room","details":""}');
    });
  });
  resident = server;
  await new Promise<void>((resolve) => server.listen(socket(), resolve));
  return { ready: () => (isReady = true), refuse: () => (isReady = false), seen };
}

/** Replaces a program by a rename: a write in place fails while the installer runs the program (ETXTBSY). */
function overwrite(name: string, content: string | Buffer): void {
  site.write('staged', content, 0o755);
  renameSync(join(site.folder, 'staged'), join(site.bin, name));
}

const messages = ({ log }: { log: readonly Record<string, unknown>[] }) => log.map(({ msg }) => String(msg)).join('\n');

describe('podwire install', () => {
  test(
    'waits until the plugin is ready; check-install and uninstall know its files',
    { timeout: SLOW_MS },
    async () => {
      site.addLoopback();
      const { ready, seen } = await startResident();
      const program = start('install', { CNI_MTU: '1440', DATASTORE_TYPE: 'etcdv3' });
      await vi.waitFor(() => expect(seen).not.toEqual([]), SLOW_MS);
      expect(seen[0]).toBe(
        `STATUS {"type":"podwire","mtu":1440,"socket":"${socket()}","name":"net","cniVersion":"1.1.0"}`,
      );
      expect(Object.keys(site.state())).toEqual(PATHS.slice(0, 2));
      ready();
      const installed = await program.result;
      expect(installed).toMatchObject({ exitCode: 0, stdout: '' });
      expect(messages(installed)).toContain('ignored environment variables: DATASTORE_TYPE');
      expect(messages(installed)).toContain('not ready: no pool has room (CNI code 50)');
      expect(readFileSync(join(site.bin, 'podwire')).equals(readFileSync(SHIPPED))).toBe(true);

      expect(await run('check-install', { CNI_MTU: '1440' })).toMatchObject({
        exitCode: 0,
        stdout: 'the installation is complete\n',
      });
      const other = await run('check-install', { CNI_MTU: '9000' });
      expect(other).toMatchObject({
        exitCode: 1,
        stdout: expect.stringContaining('10-podwire.conflist differs'),
      });

      site.write('net.d/05-other.conf', '{"name":"k","type":"ptp"}');
      const [all, programs] = await Promise.all([
        run('check-install', { CNI_MTU: '1440' }),
        run('check-install --binaries-only', { CNI_MTU: '9000' }),
      ]);
      expect(all.stdout).toMatch(
        /^warning: 05-other\.conf comes before 10-podwire\.conflist.*\nthe installation is complete\n$/,
      );
      expect(programs).toMatchObject({ exitCode: 0, stdout: 'the installation is complete\n' });
      rmSync(join(site.folder, 'net.d/05-other.conf'));

      expect(await run('uninstall')).toMatchObject({ exitCode: 0 });
      expect(site.state()).toEqual({});
      expect(messages(await run('uninstall'))).toContain('nothing to remove: no file of Podwire is installed');
    },
  );

  test('installs the shipped files', { timeout: SLOW_MS }, async () => {
    const env = { CNI_NETWORK_CONFIG: '', KUBERNETES_NODE_NAME: 'node-1' };
    expect(await run('install --no-wait', env)).toMatchObject({ exitCode: 0 });
    const { plugins, ...shipped } = JSON.parse(
      readFileSync(join(import.meta.dirname, '..', 'conflist', '10-podwire.conflist'), 'utf8'),
    );
    expect(site.json(PATHS[2]!)).toEqual({ ...shipped, plugins: [{ ...plugins[0], nodename: 'node-1' }] });
    // Runtimes before CNI 1.1.0 know `cniVersion`, later ones choose the highest of `cniVersions`.
    expect(shipped).toMatchObject({ cniVersion: '1.0.0', cniVersions: ['0.3.1', '0.4.0', '1.0.0', '1.1.0'] });
    expect(isShim(readFileSync(SHIPPED))).toBe(true);
  });

  test('reports wrong input, and changes nothing', { timeout: SLOW_MS }, async () => {
    const refused = async (env: Record<string, string>, args = 'install --no-wait') => {
      const outcome = await run(args, env);
      expect([outcome.exitCode, site.state()]).toEqual([1, {}]);
      return messages(outcome);
    };
    const reasons = await Promise.all([
      refused({ CNI_NETWORK_CONFIG: '{"name":"__NOBODY__"}' }),
      refused({ CNI_NETWORK_CONFIG_FILE: '/nowhere' }),
      refused({ PODWIRE_INSTALL_SHIM: '/bin/true' }),
      refused({ SLEEP: 'maybe' }),
    ]);
    expect(reasons).toEqual([
      expect.stringContaining('without a value: __NOBODY__'),
      expect.stringContaining('correct CNI_NETWORK_CONFIG_FILE'),
      expect.stringContaining('is not Podwire’s shim'),
      expect.stringContaining('SLEEP is "maybe"'),
    ]);
    expect(await refused({ PODWIRE_INSTALL_WAIT_MS: '0' }, 'install')).toMatch(/not ready after 0 ms.*cannot connect/);
  });

  test('prints readable answers', { timeout: SLOW_MS }, async () => {
    const help = await run('--help');
    expect(help).toMatchObject({ exitCode: 0, stdout: expect.stringContaining('usage: podwire COMMAND') });
    expect(help.stdout).toContain('  CNI_BIN_DIR (/opt/cni/bin)\n      Where the container runtime looks');
    expect(help.stdout).not.toContain('OTEL_');
    expect(await run('--version')).toMatchObject({
      exitCode: 0,
      stdout: expect.stringMatching(/^podwire \d+\.\d+\.\d+\n$/),
    });
  });

  test(
    'stays with SLEEP=true, restores files that are overwritten or removed, and ends at SIGTERM',
    { timeout: SLOW_MS },
    async () => {
      const program = start('install --no-wait', { SLEEP: 'true', PODWIRE_INSTALL_CHECK_INTERVAL_MS: '100' });
      await vi.waitFor(() => expect(Object.keys(site.state())).toEqual(PATHS), SLOW_MS);
      const whole = site.state();
      rmSync(join(site.net, '10-podwire.conflist'));
      await vi.waitFor(() => expect(site.state()).toEqual(whole), SLOW_MS);
      overwrite('podwire-ipam', '#!/bin/sh\n');
      await vi.waitFor(() => expect(site.state()).toEqual(whole), SLOW_MS);
      const newer = scriptShim('of a later release');
      overwrite('podwire', newer);
      // The second repair comes from a check that began after the newer file existed.
      for (let looks = 0; looks < 2; looks++) {
        rmSync(join(site.bin, 'podwire-ipam'));
        await vi.waitFor(() => expect(site.state()['bin/podwire-ipam']).toBe(whole['bin/podwire-ipam']), SLOW_MS);
      }
      program.child.kill('SIGTERM');
      const ended = await program.result;
      expect(ended.exitCode).toBe(0);
      expect(messages(ended)).toMatch(/10-podwire\.conflist is missing: restoring it/);
      expect(messages(ended)).toMatch(/podwire is of another release: kept/);
      expect(site.read('bin/podwire')).toBe(newer.toString());
    },
  );
});

test(
  'a waiting installer restores files before the plugin is ready, and reports Calico’s return',
  { timeout: SLOW_MS },
  async () => {
    const { ready, refuse } = await startResident();
    ready();
    const program = start('install', { SLEEP: 'true', PODWIRE_INSTALL_CHECK_INTERVAL_MS: '100' });
    await vi.waitFor(() => expect(Object.keys(site.state())).toEqual(PATHS), SLOW_MS);
    const whole = site.state();
    // A pod, whose address the plugin may wait for, cannot be deleted without the programs.
    refuse();
    for (const path of PATHS) rmSync(join(site.folder, path));
    await vi.waitFor(() => expect(site.state()).toEqual(whole), 20_000);
    site.write('net.d/10-calico.conflist', '{"name":"net","plugins":[{"type":"calico"}]}');
    // The second repair comes from a check that began after the file existed and was reported.
    for (let looks = 0; looks < 2; looks++) {
      rmSync(join(site.bin, 'podwire'));
      await vi.waitFor(() => expect(site.state()).toMatchObject(whole), 20_000);
    }
    program.child.kill('SIGTERM');
    const ended = await program.result;
    expect(ended.exitCode).toBe(0);
    expect(messages(ended)).toContain('10-calico.conflist is Calico’s');
  },
);

describe('a node in trouble', () => {
  const mount = (...args: string[]) => void execFileSync('mount', args);
  const umount = (path: string) => void execFileSync('umount', [path]);

  test('a full disk: the previous files are restored', { timeout: SLOW_MS }, async () => {
    mkdirSync(site.bin);
    mkdirSync(site.net);
    // Room for the old program and one copy of the shim, but not for two.
    mount('-t', 'tmpfs', '-o', 'size=1200k', 'tmpfs', site.bin);
    try {
      site.write('bin/podwire', scriptShim('0'), 0o755);
      const before = site.state();
      const outcome = await run('install --no-wait');
      expect([outcome.exitCode, site.state()]).toEqual([1, before]);
      expect(messages(outcome)).toMatch(/cannot write into .*bin \(ENOSPC.*: free space/);
    } finally {
      umount(site.bin);
    }
  });

  test('a read-only file system', { timeout: SLOW_MS }, async () => {
    expect(await run('install --no-wait')).toMatchObject({ exitCode: 0 });
    mount('--bind', site.bin, site.bin);
    mount('-o', 'remount,bind,ro', site.bin);
    try {
      // Nothing has to be written: that is no failure.
      expect(await run('install --no-wait')).toMatchObject({ exitCode: 0 });
      const refused = await run('uninstall');
      expect(refused.exitCode).toBe(1);
      expect(messages(refused)).toMatch(/cannot remove .*bin\/podwire \(EROFS.*: mount the file system for writing/);
    } finally {
      umount(site.bin);
    }
    expect(await run('uninstall')).toMatchObject({ exitCode: 0 });
    expect(site.state()).toEqual({});
  });

  test('a running program is replaced', { timeout: SLOW_MS }, async () => {
    mkdirSync(site.bin);
    const path = join(site.bin, 'podwire');
    writeFileSync(path, Buffer.concat([readFileSync('/bin/sleep'), scriptShim('0')]));
    chmodSync(path, 0o755);
    const sleeper = new AbortController();
    const child = spawn(path, ['60'], { signal: sleeper.signal });
    child.on('error', () => undefined);
    await new Promise((resolve) => child.once('spawn', resolve));
    // The kernel refuses to write to it in place (ETXTBSY).
    expect(() => writeFileSync(path, '')).toThrow(/ETXTBSY/);
    expect(await run('install --no-wait')).toMatchObject({ exitCode: 0 });
    expect(readFileSync(path).equals(readFileSync(SHIPPED))).toBe(true);
    expect(child.exitCode).toBeNull();
    sleeper.abort();
  });

  test('a killed installer leaves complete files, and the next run finishes', { timeout: 120_000 }, async () => {
    const shim = readFileSync(SHIPPED);
    const old = scriptShim('0');
    const json = '{"name":"net","plugins":[{"type":"podwire"}]}';
    for (let round = 0; round < 6; round += 1) {
      site.write('bin/podwire', old, 0o755);
      site.write('net.d/10-podwire.conflist', json);
      rmSync(join(site.bin, 'podwire-ipam'), { force: true });
      const program = start('install --no-wait');
      // A little later each time, beginning with its first write.
      const begun = () => existsSync(site.bin) && site.state()['bin/podwire'] !== `755 ${old.toString()}`;
      const staged = () => Object.keys(site.state()).some((path) => path.includes('.podwire-install.'));
      await vi.waitFor(() => expect(staged() || begun()).toBe(true), { timeout: SLOW_MS, interval: 1 });
      await new Promise((resolve) => setTimeout(resolve, round * 3));
      program.child.kill('SIGKILL');
      await program.result;
      const programFile = readFileSync(join(site.bin, 'podwire'));
      expect(programFile.equals(old) || programFile.equals(shim)).toBe(true);
      const path = join(site.bin, 'podwire-ipam');
      expect(!existsSync(path) || readFileSync(path).equals(shim)).toBe(true);
      expect(() => JSON.parse(site.read('net.d/10-podwire.conflist')!)).not.toThrow();
    }
    expect(await run('install --no-wait')).toMatchObject({ exitCode: 0 });
    const lacking = await run('check-install');
    expect(lacking).toMatchObject({
      exitCode: 1,
      stdout: expect.stringMatching(/^program loopback, .* is missing in \S*bin: .*\n$/),
    });
    site.addLoopback();
    expect(await run('check-install')).toMatchObject({ exitCode: 0 });
  });
});
