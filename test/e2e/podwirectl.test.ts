import { spawnSync } from 'node:child_process';
import { mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { Readable, Writable } from 'node:stream';

import { run as runPodwirectl } from '@podwire/ctl/run';
import { addRequest, CalicoPlugin } from '@podwire/dataplane/testing/service';
import { HandleServiceService } from '@podwire/proto/podwire/ipam/v1/handle';
import { Peer } from '@podwire/shared/rpc/client';
import { readRelease } from '@podwire/shared/runtime/process-release';
import { afterAll, beforeAll, expect, test } from 'vitest';

import { COMMAND_DEPS } from '../support/command-deps.js';
import { settled } from '../support/leftovers.js';
import { callCni, makePod, NETWORK, removePod, type Pod } from '../support/pods.js';
import { run } from '../support/programs.js';
import { ROOT, SHIM } from '../support/root.js';
import { Stack } from '../support/stack.js';
import { until } from '../support/until.js';

const MAIN = join(ROOT, 'services/ctl/dist/main.js');
const CONFLIST = join(ROOT, 'plugin/conflist/10-podwire.conflist');

const startedMs = Date.now();
/** A few leases, which the test uses up; an ADD without a lease and without podwire-ipam waits for this long. */
const LEASES = { PODWIRE_NODE_LEASES_LOW: '0', PODWIRE_NODE_LEASES_HIGH: '1', PODWIRE_NODE_ADD_TIMEOUT_MS: '10000' };
const stack = new Stack({ env: { PODWIRE_NODE_DEL_SERVICE_TIMEOUT_MS: '300', ...LEASES } });
const pod = makePod('ctl-web');
const extraPods: Pod[] = [];

/** The container runtime's directory of CNI programs. */
const programs = join(stack.folder, 'bin');

beforeAll(async () => {
  mkdirSync(programs);
  symlinkSync(SHIM, join(programs, 'podwire'));
  symlinkSync(SHIM, join(programs, 'podwire-ipam'));
  symlinkSync('/usr/lib/cni/loopback', join(programs, 'loopback'));
  await stack.start();
});
afterAll(async () => {
  await stack.destroy();
  for (const each of [pod, ...extraPods]) removePod(each);
});

interface Answer {
  readonly exitCode: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** Environment of the node's processes. */
const env = {
  PATH: process.env.PATH,
  PODWIRE_NODE_IPAM_ADDRESS: `unix:${stack.sockets.ipam}`,
  PODWIRE_NODE_LISTEN: `unix:${stack.sockets.dataplane}`,
  PODWIRE_NODE_CNI_SOCKET: stack.sockets.node,
};

/** Runs podwirectl in this process, as on the node. */
async function podwirectl(...args: readonly string[]): Promise<Answer> {
  const texts = { stdout: '', stderr: '' };
  const stream = (name: keyof typeof texts) =>
    new Writable({
      write: (chunk: Buffer, _, done) => {
        texts[name] += chunk.toString();
        done();
      },
    });
  const streams = { env, stdin: Readable.from([]), stdout: stream('stdout'), stderr: stream('stderr') };
  const exitCode = await runPodwirectl(['--timeout', '60s', ...args], { process: streams, ...COMMAND_DEPS });
  return { exitCode, ...texts };
}

const nodeReady = () => podwirectl('node', 'ready', '--config', CONFLIST, '--bin-dir', programs);

const call = (command: string, target: Pod) => callCni({ command, pod: target, socket: stack.sockets.node });

/** Addresses without an interface, for another project's plugin: the node keeps no record of the attachment. */
const callIpamOnly = (command: string) =>
  callCni({
    command,
    pod,
    socket: stack.sockets.node,
    program: join(programs, 'podwire-ipam'),
    config: { name: 'ipam-only', type: 'ptp' },
  });

/** Adds pods without podwire-ipam until one is refused. @returns the refusal */
async function useUpLeases(): Promise<Answer> {
  for (;;) {
    const extra = makePod(`ctl-extra-${extraPods.length}`);
    extraPods.push(extra);
    const answer = await call('ADD', extra);
    if (answer.exitCode !== 0) return { ...answer, exitCode: answer.exitCode ?? -1 };
  }
}

async function add(target: Pod): Promise<string> {
  const answer = await call('ADD', target);
  expect(answer, answer.stdout).toMatchObject({ exitCode: 0 });
  return JSON.parse(answer.stdout).ips[0].address.split('/')[0];
}

test('shows the releases of all running processes', async () => {
  const { exitCode, stdout } = await podwirectl('version', '-o', 'json');
  expect(exitCode, stdout).toBe(0);
  const release = await readRelease();
  const { podwirectl: own, ...services } = Object.fromEntries(
    JSON.parse(stdout).components.map((each: { readonly component: string }) => [each.component, each]),
  );
  const running = { release, nodeVersion: process.version, error: null };
  expect(own).toMatchObject({ ...running, endpoint: null, startTime: null });
  expect(services).toMatchObject({
    'podwire-ipam': { ...running, endpoint: `unix:${stack.sockets.ipam}` },
    'podwire-node': { ...running, endpoint: `unix:${stack.sockets.dataplane}` },
  });
  for (const { startTime } of Object.values<{ readonly startTime: string }>(services)) {
    expect(Date.parse(startTime)).toBeGreaterThanOrEqual(startedMs);
    expect(Date.parse(startTime)).toBeLessThan(Date.now());
  }
});

test('shows a pod, its history, and its pending release while IPAM is down', async () => {
  const address = await add(pod);
  await settled(stack);
  const now = await podwirectl('who', address);
  expect(now, now.stderr).toMatchObject({ exitCode: 0 });
  expect(now.stdout).toMatch(/^Pod +default\/ctl-web$/m);
  expect(now.stdout).toMatch(/^Node +node-1$/m);
  expect(now.stdout).toMatch(/^Netns +inode \d+ of boot [0-9a-f-]{36}$/m);
  expect(now.stdout).toContain(`k8s-pod-network/${pod.containerId}/eth0`);

  expect((await podwirectl('get', 'wep', '--pod', 'default/ctl-web')).stdout).toContain(address);
  expect(await nodeReady()).toMatchObject({ exitCode: 0 });

  expect(await podwirectl('pods', 'check', 'default/ctl-web')).toMatchObject({ exitCode: 0 });
  run('ip', '-n', pod.name, 'route', 'delete', 'default');
  const broken = await podwirectl('pods', 'check', address);
  expect(broken).toMatchObject({ exitCode: 4, stdout: expect.stringContaining('default') });
  expect(await podwirectl('pods', 'repair', pod.containerId.slice(0, 12))).toMatchObject({
    exitCode: 0,
    stdout: expect.stringContaining('default'),
  });
  expect(run('ip', '-n', pod.name, 'route')).toContain('default');

  const ipamOnly = await callIpamOnly('ADD');
  expect(ipamOnly, ipamOnly.stdout).toMatchObject({ exitCode: 0 });
  await stack.kill('ipam');
  expect(await call('DEL', pod)).toMatchObject({ exitCode: 0 });
  expect(await callIpamOnly('DEL')).toMatchObject({ exitCode: 0 });
  const pending = await podwirectl('journal');
  expect(pending, pending.stderr).toMatchObject({ exitCode: 0, stdout: expect.stringContaining(pod.containerId) });
  expect(pending.stdout).toContain(JSON.parse(ipamOnly.stdout).ips[0].address.split('/')[0]);
  const releases = await podwirectl('version');
  expect([releases.exitCode, releases.stdout]).toEqual([5, expect.stringMatching(/^podwire-ipam +unreachable /m)]);
  expect(await podwirectl('get', 'ippools')).toMatchObject({ exitCode: 5, stderr: expect.stringContaining('--ipam') });
  expect(await nodeReady()).toMatchObject({ exitCode: 0 });
  expect(JSON.parse((await useUpLeases()).stdout)).toMatchObject({ code: 11 });
  const isReported = async () => (await nodeReady()).stdout.includes('podwire-ipam');
  await until(isReported, () => stack.log('node'));

  await stack.start('ipam');
  for (const each of extraPods) expect(await call('DEL', each)).toMatchObject({ exitCode: 0 });
  await until(
    async () => (await podwirectl('journal', 'retry')).exitCode === 0,
    () => stack.log('node'),
  );
  expect(await podwirectl('journal')).toMatchObject({ exitCode: 0, stdout: 'pending releases: none\n' });
  await settled(stack);
  const past = await podwirectl('who', address);
  expect(past).toMatchObject({ exitCode: 3 });
  expect(past.stdout).toMatch(/^State +free$/m);
  expect(past.stdout).toMatch(/^default\/ctl-web +node-1 /m);
  const history = await podwirectl('history', 'default/ctl-web');
  expect([history.exitCode, history.stdout]).toEqual([0, expect.stringContaining(address)]);
  expect(await podwirectl('audit')).toMatchObject({
    exitCode: 0,
    stdout: expect.stringContaining('audit: no findings'),
  });
  const pools = spawnSync(process.execPath, [MAIN, 'describe', 'ippools', '--output', 'json'], {
    env,
    encoding: 'utf8',
  });
  expect(pools).toMatchObject({ status: 0, stderr: '' });
  // The gateway of the other project's plugin stays.
  expect(JSON.parse(pools.stdout)).toMatchObject([{ pool: { cidr: '10.65.0.0/16', utilization: { allocated: '1' } } }]);
}, 240_000);

test('discards a release that host-local always refuses, after which GC succeeds', async () => {
  // host-local refuses every DEL without a range.
  const config = { cniVersion: '1.1.0', name: 'refused', ipam: { type: 'host-local' } };
  const callHostLocal = (command: string) => callCni({ command, pod, config, socket: stack.sockets.node });
  expect(await callHostLocal('DEL')).toMatchObject({ exitCode: 0 });
  const attachment = `refused/${pod.containerId}/eth0`;
  const preview = await podwirectl('journal', 'discard', pod.containerId);
  expect([preview.exitCode, preview.stdout]).toEqual([
    2,
    expect.stringContaining(`${attachment} would be discarded: its addresses of host-local`),
  ]);
  expect((await callHostLocal('GC')).exitCode).toBe(1);
  expect(await podwirectl('journal', 'discard', attachment, '--yes')).toMatchObject({ exitCode: 0 });
  expect(await podwirectl('journal')).toMatchObject({ exitCode: 0, stdout: 'pending releases: none\n' });
  expect(stack.log('node')).toContain(`journal: release of ${attachment} is discarded`);
  const again = await podwirectl('journal', 'discard', attachment, '--yes');
  expect(again).toMatchObject({ exitCode: 3, stderr: expect.stringContaining('not found') });
});

test('gc keeps an interface of Calico’s plugin while its address is allocated', async () => {
  const [ipam, dataplane] = [stack.sockets.ipam, stack.sockets.dataplane].map(
    (path) => new Peer('peer', `unix:${path}`),
  );
  const limits = () => ({ deadlineMs: Date.now() + 30_000 });
  // A leak as of calico-ipam: a handle and an address, without an endpoint of Podwire.
  const handleId = `${NETWORK}.${pod.containerId}`;
  const address = '10.65.0.77';
  const assigned = await podwirectl('ipam', 'assign', address, '--handle', handleId, '--node', 'node-1', '--yes');
  expect(assigned).toMatchObject({ exitCode: 0, stdout: expect.stringMatching(/^10\.65\.0\.77 +assigned /m) });
  const calico = new CalicoPlugin(dataplane!);
  expect(await calico.add(addRequest(pod.name, address))).toMatchObject({ successful: true });
  const kept = await podwirectl('gc', '--network', 'calico');
  expect(kept).toMatchObject({ exitCode: 0, stdout: expect.stringContaining('orphaned wires: none') });
  expect(kept.stderr).not.toContain('--network');
  await ipam!.call(HandleServiceService.releaseHandle, { handleId, searchAllBlocks: false }, limits());
  expect(await podwirectl('gc', '--network', 'calico', '--yes')).toMatchObject({
    exitCode: 0,
    stdout: expect.stringMatching(/^removed +calico\//m),
  });
  ipam!.close();
  dataplane!.close();
});
