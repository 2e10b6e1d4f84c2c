import { execFile, execFileSync, spawn } from 'node:child_process';
import { existsSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import process from 'node:process';

import { hostInterfaceName } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { Peer } from '@podwire/shared/rpc/client';
import { systemClock } from '@podwire/shared/runtime/clock';
import type { Running } from '@podwire/shared/runtime/lifecycle';
import { propagateTraces } from '@podwire/shared/telemetry/telemetry';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';

import { startPlugin, type PluginDeps } from './service.js';
import { BOOT, CONFIG, ENVIRONMENT, NOTHING, Plugin, recordingLog, settingsIn } from './testing/plugin.js';

const SHIM_FOLDER = join(import.meta.dirname, 'shim');
const SHIM = join(SHIM_FOLDER, 'build', 'podwire');
const NETNS = '/run/netns/plugin-e2e';
const HOST = hostInterfaceName({ network: 'net', containerId: 'c0ffee', interfaceName: 'eth0' });

let services: Plugin;
let resident: Running;
/** Starts another plugin with the same settings. */
let start: () => Promise<Running>;
let socket: string;
let record: ReturnType<typeof recordingLog>;
let ipam: Peer;
let deps: PluginDeps;

const ip = (...args: string[]) => execFileSync('ip', args, { stdio: 'pipe' });

beforeAll(() => {
  execFileSync('make', ['-C', SHIM_FOLDER], { stdio: 'pipe' });
  ip('netns', 'add', 'plugin-e2e');
  propagateTraces();
});

afterAll(() => {
  ip('netns', 'delete', 'plugin-e2e');
});

beforeEach(async () => {
  services = await new Plugin().start();
  socket = join(services.folder, 'run', 'cni.sock');
  record = recordingLog();
  ipam = new Peer('podwire-ipam', services.address());
  deps = {
    log: record.log,
    clock: systemClock,
    random: Math.random,
    ipam,
    dataplane: services.client,
    nodeAddresses: services.nodeAddresses,
    boot: BOOT,
  };
  start = () => startPlugin(settingsIn(services.folder), deps);
  resident = await start();
});

afterEach(async () => {
  await resident.stop();
  ipam.close();
  await services.end();
});

interface Shim {
  readonly env?: Record<string, string>;
  readonly config?: Record<string, unknown>;
  readonly stdin?: string;
}

/** Runs the shim as a container runtime does. */
async function shim(command: string, { env = {}, config = {}, stdin }: Shim = {}) {
  const child = spawn(SHIM, [], { env: { ...ENVIRONMENT, CNI_NETNS: NETNS, CNI_COMMAND: command, ...env } });
  const output = { stdout: '', stderr: '' };
  child.stdout.setEncoding('utf8').on('data', (text: string) => (output.stdout += text));
  child.stderr.setEncoding('utf8').on('data', (text: string) => (output.stderr += text));
  child.stdin.end(stdin ?? JSON.stringify({ ...CONFIG, socket, ...config }));
  const exitCode = await new Promise((resolve) => child.once('close', resolve));
  return { exitCode, ...output };
}

describe('a container runtime that runs the shim', () => {
  test('gets the result of ADD, nothing from CHECK and DEL, and leaves nothing behind', async () => {
    const added = await shim('ADD');
    expect(added, added.stdout).toMatchObject({ exitCode: 0, stderr: '' });
    const prevResult = JSON.parse(added.stdout);
    expect(prevResult).toMatchObject({
      cniVersion: '1.0.0',
      interfaces: [{ name: HOST }, { name: 'eth0', sandbox: NETNS }],
      ips: [{ address: '10.65.0.0/32', interface: 1 }],
    });
    const { ino } = statSync(NETNS, { bigint: true });
    expect(services.ipam.toString()).toMatch(new RegExp(`@node-1 netns ${ino}$`));
    const nothing = { exitCode: 0, stdout: '', stderr: '' };
    expect(await shim('CHECK', { config: { prevResult } })).toEqual(nothing);
    expect(await shim('DEL', { config: { prevResult } })).toEqual(nothing);
    expect(await shim('DEL', { env: { CNI_NETNS: '' } })).toEqual(nothing);
    expect(services.state()).toBe(NOTHING);
  });

  test('can die in the middle of an ADD, which is then undone', async () => {
    services.script.hold('AttachPod');
    const child = spawn(SHIM, [], { env: { ...ENVIRONMENT, CNI_NETNS: NETNS, CNI_COMMAND: 'ADD' } });
    child.stdin.end(JSON.stringify({ ...CONFIG, socket }));
    await services.script.untilCalled('AttachPod');
    child.kill('SIGKILL');
    await services.script.untilCalled('ReleaseAddresses');
    await resident.stop();
    expect(services.state()).toBe(NOTHING);
    resident = { stop: () => Promise.resolve() };
  });
});

describe('the resident', () => {
  test('answers the command that the shim’s errors suggest', async () => {
    const file = join(services.folder, 'file');
    writeFileSync(file, '');
    const { details } = JSON.parse((await shim('ADD', { config: { socket: file } })).stdout);
    const command = /curl .*/.exec(details)?.[0].replace(file, socket) ?? '';
    const ask = () => new Promise((resolve) => execFile('sh', ['-c', command], (_, stdout) => resolve(stdout)));
    // Services on a busy machine may take longer than STATUS waits.
    await expect.poll(ask, { timeout: 20_000, interval: 500 }).toMatch(/^HTTP\/1\.1 200 /);
  });

  test('completes commands in flight when it is stopped, and removes its socket', async () => {
    const letGo = services.script.hold('AttachPod');
    const adding = shim('ADD');
    await services.script.untilCalled('AttachPod');
    const idle = connect(socket);
    await new Promise((resolve) => idle.once('connect', resolve));
    const stopped = resident.stop();
    letGo();
    expect(await adding).toMatchObject({ exitCode: 0 });
    await stopped;
    expect(() => statSync(socket)).toThrow('ENOENT');
    resident = { stop: () => Promise.resolve() };
  });

  test('cuts off waiting commands when it is stopped; the next process continues ADD and the pending release', async () => {
    await shim('ADD', { env: { CNI_CONTAINERID: 'older' } });
    const held = [services.script.hold('AttachPod')];
    const adding = shim('ADD');
    await services.script.untilCalled('AttachPod net/c0ffee');
    held.push(services.script.hold('DetachPod'));
    const deleting = shim('DEL', { env: { CNI_CONTAINERID: 'older' } });
    await services.script.untilCalled('DetachPod');
    const silent = connect(socket);
    silent.on('error', () => undefined);
    silent.write('POST /cni HTTP/1.1\r\nhost: podwire\r\ncontent-length: 9\r\n\r\n');
    await resident.stop();
    expect(await deleting).toMatchObject({ exitCode: 0, stdout: '' });
    expect(services.ipam.toString()).toMatch(/c0ffee[^]*older|older[^]*c0ffee/);
    for (const letGo of held) letGo();
    resident = await start();
    expect(await adding).toMatchObject({ exitCode: 0 });
    await expect.poll(() => services.ipam.toString(), { timeout: 20_000 }).toMatch(/^net\.c0ffee [^\n]*$/);
    await shim('DEL');
    expect(services.state()).toBe(NOTHING);
  });

  test('fails a cut-off ADD with code 11 when no other plugin starts', async () => {
    const letGo = services.script.hold('AttachPod');
    const adding = shim('ADD');
    await services.script.untilCalled('AttachPod');
    await resident.stop();
    const { exitCode, stdout } = await adding;
    expect([exitCode, JSON.parse(stdout)]).toMatchObject([
      1,
      { code: 11, msg: expect.stringContaining('podwire-node is stopping') },
    ]);
    letGo();
    resident = await start();
    await expect.poll(() => services.state(), { timeout: 20_000 }).toBe(NOTHING);
  });

  test('leaves a cut-off DEL that is not in the journal to the spool, which the next process executes', async () => {
    await shim('ADD');
    const letGo = services.script.hold('DetachPod');
    const deleting = shim('DEL');
    await services.script.untilCalled('DetachPod');
    const journal = join(services.folder, 'journal');
    rmSync(journal, { recursive: true });
    writeFileSync(journal, '');
    await resident.stop();
    expect(await deleting).toMatchObject({ exitCode: 0, stdout: '', stderr: '' });
    expect(record.lines().map(({ msg }) => msg)).toContainEqual(expect.stringContaining('is lost with this process'));
    letGo();
    rmSync(journal);
    resident = await start();
    await expect.poll(() => services.state(), { timeout: 20_000 }).toBe(NOTHING);
  });

  test('has any number of DELs in flight without a warning of a leak', async () => {
    const warnings: Error[] = [];
    const note = (warning: Error): unknown => warnings.push(warning);
    process.on('warning', note);
    const letGo = services.script.hold('DetachPod');
    const deleting = Array.from({ length: 16 }, (_, at) => shim('DEL', { env: { CNI_CONTAINERID: `many${at}` } }));
    await expect.poll(() => services.script.calls.filter((call) => call.startsWith('DetachPod')).length).toBe(16);
    letGo();
    for (const { exitCode } of await Promise.all(deleting)) expect(exitCode).toBe(0);
    process.off('warning', note);
    expect(warnings).toEqual([]);
  });

  test('leaves a DEL stored while it stops to the next process', async () => {
    await shim('ADD');
    const letGo = services.script.hold('DetachPod');
    const deleting = shim('DEL');
    await services.script.untilCalled('DetachPod');
    services.script.failNext('DetachPod', new Failure('KERNEL_REFUSED', 'the kernel refuses'));
    const stopped = resident.stop();
    await expect.poll(() => existsSync(socket)).toBe(false);
    letGo();
    expect(await deleting).toMatchObject({ exitCode: 0 });
    await stopped;
    resident = await start();
    await expect.poll(() => services.state(), { timeout: 40_000 }).toBe(NOTHING);
  });
});
