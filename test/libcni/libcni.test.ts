// Podwire driven by Go's libcni, the library of all common runtimes, from Debian's packaged sources: `npm run test:libcni`.
import { spawn, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { allocations, attachedPods } from '../support/leftovers.js';
import { makePod, removePod, type Pod } from '../support/pods.js';
import { pings, run } from '../support/programs.js';
import { ROOT, SHIM } from '../support/root.js';
import { NODE_ADDRESS, Stack } from '../support/stack.js';

/** The path of Debian's golang-github-appc-cni-dev. */
const GOPATH = '/usr/share/gocode';

const stack = new Stack();
const folder = mkdtempSync(join(tmpdir(), 'podwire-libcni-'));
const client = join(folder, 'client');
const bin = join(folder, 'bin');

interface Answer {
  readonly exitCode: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

interface Result {
  readonly cniVersion: string;
  readonly ips: readonly { readonly address: string }[];
  readonly interfaces: readonly { readonly name: string; readonly sandbox?: string }[];
}

beforeAll(async () => {
  // Modules are off: they would load the library from the network.
  const env = { ...process.env, GO111MODULE: 'off', GOPATH, GOCACHE: join(folder, 'cache'), CGO_ENABLED: '0' };
  const source = join(import.meta.dirname, 'client.go');
  const built = spawnSync('go', ['build', '-o', client, source], { env, encoding: 'utf8' });
  const reason = built.error?.message ?? built.stderr;
  expect(built.status, `${reason}\napt-get install golang-go golang-github-appc-cni-dev`).toBe(0);
  mkdirSync(bin);
  symlinkSync(SHIM, join(bin, 'podwire'));
  await stack.start();
}, 600_000);

afterAll(async () => {
  await stack.destroy();
  rmSync(folder, { recursive: true });
});

/** Writes a list of plugins, and returns its path. */
function conflist(name: string, keys: object): string {
  const path = join(folder, `${name}.conflist`);
  writeFileSync(path, JSON.stringify({ name, ...keys }));
  return path;
}

const PORTS = { portMappings: [{ hostPort: 8088, containerPort: 80, protocol: 'tcp' }] };

async function call(verb: string, list: string, pod: Pod): Promise<Answer> {
  const attachment = [list, pod.containerId, pod.netns, 'eth0', join(folder, 'results')];
  const args = [`--net=${stack.netnsPath}`, client, verb, ...attachment, `${bin}:/usr/lib/cni`, JSON.stringify(PORTS)];
  const child = spawn('nsenter', args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let [stdout, stderr] = ['', ''];
  child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text));
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text));
  const exitCode = await new Promise<number | null>((resolve, reject) => {
    child.once('close', resolve).once('error', reject);
  });
  return { exitCode, stdout, stderr };
}

async function succeeded(verb: string, list: string, pod: Pod): Promise<string> {
  const answer = await call(verb, list, pod);
  expect(answer, verb).toMatchObject({ exitCode: 0, stderr: '' });
  return answer.stdout;
}

const podwire = () => ({ type: 'podwire', socket: stack.sockets.node, ipam: { type: 'podwire-ipam' } });

describe.each(['0.3.1', '0.4.0', '1.0.0'])('in CNI %s', (cniVersion) => {
  test('ADD, CHECK and DEL work, twice, in a chain', async () => {
    const pod = makePod(`libcni-${cniVersion}`);
    const tuning = { type: 'tuning', sysctl: { 'net.ipv4.conf.eth0.arp_filter': '1' } };
    const portmap = { type: 'portmap', capabilities: { portMappings: true } };
    const list = conflist(`chain-${cniVersion}`, { cniVersion, plugins: [podwire(), tuning, portmap] });
    expect(JSON.parse(await succeeded('validate', list, pod))).toEqual(['portMappings']);
    for (let round = 0; round < 2; round++) {
      const result: Result = JSON.parse(await succeeded('add', list, pod));
      expect(result.cniVersion).toBe(cniVersion);
      const address = result.ips[0]?.address.split('/')[0] ?? '';
      expect(pings(address, stack.netnsPath)).toBe(true);
      expect(pings(NODE_ADDRESS, pod.netns)).toBe(true);
      const rules = () => run('nsenter', `--net=${stack.netnsPath}`, 'iptables-save', '-t', 'nat');
      expect(rules()).toContain(`--to-destination ${address}:80`);
      expect(JSON.parse(await succeeded('cached', list, pod))).toEqual(result);
      for (let count = 0; count < 2; count++) await succeeded('del', list, pod);
      expect(rules()).not.toContain(address);
      expect(await attachedPods(stack)).toEqual([]);
    }
    removePod(pod);
    expect(await allocations(stack)).toEqual([]);
  });
});

test('CHECK accepts the result of ADD, and names a later change', async () => {
  const pod = makePod('libcni-check');
  const list = conflist('check', { cniVersion: '1.0.0', plugins: [podwire()] });
  await succeeded('add', list, pod);
  await succeeded('check', list, pod);
  run('ip', '-n', pod.name, 'route', 'delete', 'default');
  const { exitCode, stderr } = await call('check', list, pod);
  expect([exitCode, stderr]).toEqual([1, expect.stringMatching(/^code 104: .*default/)]);
  await succeeded('del', list, pod);
  removePod(pod);
});

test('the shipped configuration is used in its version, whatever later ones it lists', async () => {
  const shipped = JSON.parse(readFileSync(join(ROOT, 'plugin', 'conflist', '10-podwire.conflist'), 'utf8'));
  const plugins = [{ ...shipped.plugins[0], socket: stack.sockets.node }];
  const list = conflist('shipped', { ...shipped, plugins });
  const pod = makePod('libcni-shipped');
  expect(JSON.parse(await succeeded('validate', list, pod))).toContain('io.kubernetes.cri.pod-annotations');
  expect(JSON.parse(await succeeded('add', list, pod))).toMatchObject({ cniVersion: shipped.cniVersion });
  await succeeded('del', list, pod);
  removePod(pod);
});

test('an error reaches the runtime with its code and text, and DEL after it succeeds', async () => {
  const list = conflist('refused', { cniVersion: '1.0.0', plugins: [podwire()] });
  const pod = { ...makePod('libcni-refused'), netns: '/run/netns/nowhere' };
  const { exitCode, stderr } = await call('add', list, pod);
  expect([exitCode, stderr]).toEqual([1, expect.stringMatching(/^code 4: .*\/run\/netns\/nowhere does not exist/)]);
  await succeeded('del', list, pod);
  removePod(pod);
});
