import { spawn } from 'node:child_process';
import { once } from 'node:events';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { addPod, cleanUp, requireThrowawayNamespace, run, setNodeForwarding } from '../testing/kernels.js';
import { NODE_MAIN, podMessage, ServiceFixture } from '../testing/service.js';

/** A container without `privileged`: /proc/sys is read-only, a whole proc is mounted elsewhere, and few capabilities are left. */
const CONTAINER =
  'mount -t tmpfs tmpfs /mnt && mkdir /mnt/proc && mount --bind /proc /mnt/proc && mount --bind /proc/sys /proc/sys && ' +
  'mount -o remount,bind,ro /proc/sys && exec setpriv --bounding-set=-all,+net_admin,+sys_admin "$@"';

let bench: ServiceFixture;

beforeEach(() => {
  requireThrowawayNamespace();
  setNodeForwarding();
  bench = new ServiceFixture();
});
afterEach(() => {
  bench.clear();
  cleanUp();
});

function start(env: Readonly<Record<string, string>>) {
  const command = ['--mount', 'sh', '-c', CONTAINER, 'sh', process.execPath, NODE_MAIN];
  const child = spawn('unshare', command, { env: { ...process.env, ...bench.processEnv, ...env } });
  let log = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => (log += text));
  return { child, exited: once(child, 'exit'), log: () => log };
}

test.each([
  [{}, '/proc/sys is read-only, so no pod can be added; in a container, mount'],
  [{ PODWIRE_NODE_PROC_DIRECTORY: '/mnt' }, '/mnt is not a mount of proc: it has no sys/net/ipv4/ip_forward; in'],
  [{ PODWIRE_NODE_PROC_DIRECTORY: '/nothing' }, '/nothing is not a mount of proc: it has no sys/net/ipv4/'],
])('with a read-only /proc/sys and %j the start fails and names the setting', async (env, text) => {
  const { exited, log } = start(env);
  expect((await exited)[0]).toBe(1);
  expect(log().trim().split('\n')).toEqual([expect.stringContaining(`PODWIRE_NODE_PROC_DIRECTORY: ${text}`)]);
});

test('with a read-only /proc/sys and another mount of proc pods are attached and detached', async () => {
  // Before the process gets its mount namespace, which receives no later mounts.
  addPod('procpod');
  const { child, exited, log } = start({ PODWIRE_NODE_PROC_DIRECTORY: '/mnt/proc' });
  await expect.poll(log, { timeout: 30_000 }).toContain('listening');
  const pod = podMessage('procpod', '10.65.0.9');
  await bench.attach(pod);
  const key = `net.ipv4.conf.${pod.hostInterfaceName}.proxy_arp`;
  expect(run('sysctl', '-n', key).trim()).toBe('1');
  expect(await bench.check(pod)).toMatchObject({ differences: [] });
  await bench.detach(pod);
  child.kill('SIGTERM');
  expect((await exited)[0]).toBe(0);
});
