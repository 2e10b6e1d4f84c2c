// podwire install beside the real processes: the network configuration waits for them, and pods work with it.
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, beforeAll, expect, test } from 'vitest';

import { makePod } from '../support/pods.js';
import { ROOT } from '../support/root.js';
import { Stack } from '../support/stack.js';
import { until } from '../support/until.js';

const stack = new Stack();
const host = mkdtempSync(join(tmpdir(), 'podwire-install-e2e-'));
const conflist = join(host, 'etc', 'cni', 'net.d', '10-podwire.conflist');
const shim = join(host, 'opt', 'cni', 'bin', 'podwire');

beforeAll(() => stack.start());
afterAll(async () => {
  await stack.destroy();
  rmSync(host, { recursive: true });
});

test('the configuration is written once IPAM is reachable, and a pod works with it', { timeout: 120_000 }, async () => {
  await stack.kill('ipam');
  const member = { type: 'podwire', socket: stack.sockets.node };
  const config = { cniVersion: '1.0.0', cniVersions: ['1.0.0', '1.1.0'], name: 'net', plugins: [member] };
  const installer = spawn(process.execPath, [join(ROOT, 'plugin', 'dist', 'install', 'main.js'), 'install'], {
    env: { PODWIRE_INSTALL_ROOT: host, CNI_NETWORK_CONFIG: JSON.stringify(config) },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let log = '';
  installer.stderr.on('data', (chunk: Buffer) => (log += chunk.toString()));
  const ended = new Promise((resolve) => installer.on('exit', resolve));
  await until(
    () => log.includes('CNI code 50'),
    () => `no answer of the plugin that it is not ready: ${log}`,
  );
  expect([existsSync(shim), existsSync(conflist)]).toEqual([true, false]);
  await stack.start('ipam');
  expect(await ended, log).toBe(0);

  const installed = JSON.parse(readFileSync(conflist, 'utf8'));
  const pod = makePod('installed');
  const call = (command: string): string =>
    execFileSync(shim, {
      input: JSON.stringify({ ...installed.plugins[0], name: installed.name, cniVersion: installed.cniVersion }),
      env: {
        CNI_COMMAND: command,
        CNI_CONTAINERID: 'installed',
        CNI_NETNS: pod.netns,
        CNI_IFNAME: 'eth0',
        CNI_PATH: join(shim, '..'),
      },
      encoding: 'utf8',
    });
  expect(JSON.parse(call('ADD'))).toMatchObject({ cniVersion: '1.0.0', ips: [{ address: expect.any(String) }] });
  expect(call('DEL')).toBe('');
});
