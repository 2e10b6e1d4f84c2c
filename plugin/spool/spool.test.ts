import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, chmodSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { metrics, trace } from '@opentelemetry/api';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { ReadMetrics } from '@podwire/shared/testing/metrics';
import { propagateTraces } from '@podwire/shared/telemetry/telemetry';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import type { CniRequest } from '../requests/request.js';
import { CONFIG, NOTHING, Plugin, recordingLog } from '../testing/plugin.js';
import { spoolDel, spooledRequest, type SpooledRequest } from '../testing/spooled.js';
import { RecordingTracer } from '../testing/tracer.js';
import { SpoolDirectory } from './spool-directory.js';
import { Spool } from './spool.js';

/** Wait for a busy machine. */
const WAIT = { timeout: 20_000, interval: 5 };

describe('with the commands', () => {
  let plugin: Plugin;

  beforeEach(async () => {
    plugin = await new Plugin().start();
  });

  afterEach(() => plugin.end());

  const files = () => (existsSync(plugin.spoolPath) ? readdirSync(plugin.spoolPath) : []);
  const messages = () => plugin.record.lines().map(({ msg }) => msg);

  test('its span is an ordinary DEL’s in the runtime’s trace, without the shim’s', async () => {
    const tracer = new RecordingTracer();
    trace.setGlobalTracerProvider({ getTracer: () => tracer });
    propagateTraces();
    const traceId = '0af7651916cd43dd8448eb211c80319c';
    spoolDel(plugin.spoolPath, { headers: `traceparent: 00-${traceId}-b7ad6b7169203331-01\r\n` });
    plugin.spool.start();
    await vi.waitFor(() => expect(files()).toEqual([]), WAIT);
    const attributes = { 'podwire.spooled': true, 'podwire.result': 'success', 'container.id': 'c0ffee' };
    expect(tracer.named('CNI DEL')).toMatchObject([{ traceId, attributes }]);
    expect(tracer.named('podwire.shim')).toEqual([]);
    trace.disable();
  });

  test('an ADD of the same attachment runs after the spooled DEL, also before the first scan', async () => {
    await plugin.run('ADD');
    plugin.script.calls.length = 0;
    spoolDel(plugin.spoolPath);
    expect(await plugin.run('ADD')).toMatchObject({ exitCode: 0 });
    expect(files()).toEqual([]);
    plugin.spool.start();
    expect(plugin.script.calls.map((call) => call.split(' ')[0])).toEqual([
      'DetachPod',
      'Release',
      'Allocate',
      'AttachPod',
    ]);
    expect(plugin.state()).toContain('podw4b965d4c85b -> eth0@/run/netns/pod');
  });

  test('an ADD that started before the spooled DEL is cancelled, as its pod is deleted', async () => {
    const startedNs = BigInt(Date.now()) * 1_000_000n;
    spoolDel(plugin.spoolPath, { startedNs });
    const { exitCode, stdout } = await plugin.run('ADD', { rest: { startedNs: startedNs - 1n } });
    expect(exitCode).toBe(1);
    expect(stdout).toContain('superseded');
    expect(plugin.state()).toBe(NOTHING);
  });

  test('an ADD of another attachment does not wait', async () => {
    spoolDel(plugin.spoolPath);
    expect(await plugin.run('ADD', { variables: { CNI_CONTAINERID: 'cafe' } })).toMatchObject({ exitCode: 0 });
    expect(files()).toHaveLength(1);
  });

  test('with the services down it is left to the journal', async () => {
    const down = new Plugin({ delServiceTimeoutMs: 50 });
    spoolDel(down.spoolPath);
    down.spool.start();
    await vi.waitFor(() => expect(readdirSync(down.spoolPath)).toEqual([]), WAIT);
    expect(down.journal.entries()).toHaveLength(1);
    await down.end();
  });

  test.each<[string, string | SpooledRequest]>([
    ['it is not a complete request of the shim', ''],
    ['it is not a complete request of the shim', spooledRequest().slice(0, -1)],
    ['it is not a complete request of the shim', `${spooledRequest()}x`],
    ['it is not a complete request of the shim', spooledRequest().replace('POST /cni', 'GET /cni')],
    ['a line of its head is not a header', spooledRequest().replace('Host: podwire', 'Host')],
    ['its command is "ADD", not DEL', { command: 'ADD' }],
    ['its content is the DEL of another file', spooledRequest({ containerId: 'cafe' })],
    ['CNI_CONTAINERID', spooledRequest({ containerId: '../c0ffee' })],
    ['name', { configuration: JSON.stringify({ ...CONFIG, name: undefined }) }],
    ['JSON', { configuration: '{' }],
  ])('a file that cannot be replayed is set aside and logged once: %s', async (fault, content) => {
    if (typeof content === 'string') spoolDel(plugin.spoolPath, {}, content);
    else spoolDel(plugin.spoolPath, content);
    plugin.spool.start();
    await vi.waitFor(() => expect(files()).toEqual(['net,c0ffee,eth0.del.unreadable']), WAIT);
    expect(await plugin.run('ADD')).toMatchObject({ exitCode: 0 });
    const logged = messages().filter((text) => String(text).includes('cannot be replayed'));
    expect(logged).toEqual([expect.stringContaining(fault)]);
  });

  test('FIFOs and links in the spool hold up no command, and are set aside', async () => {
    mkdirSync(plugin.spoolPath, { recursive: true, mode: 0o700 });
    const names = ['c0ffee', 'cafe', 'babe', 'f00d', 'beef'].map((id) => `net,${id},eth0.del`);
    execFileSync(
      'mkfifo',
      names.map((name) => join(plugin.spoolPath, name)),
    );
    symlinkSync('missing', join(plugin.spoolPath, 'net,dead,eth0.del'));
    plugin.spool.start();
    expect(await plugin.run('ADD')).toMatchObject({ exitCode: 0 });
    expect(await plugin.run('DEL')).toMatchObject({ exitCode: 0 });
    await vi.waitFor(() => expect(files().every((name) => name.endsWith('.unreadable'))).toBe(true), WAIT);
    expect(files()).toHaveLength(6);
  });
});

describe('the schedule', () => {
  const clock = new ManualClock();
  let folder: string;
  let path: string;
  let spool: Spool;
  let requests: CniRequest[];
  let answer: (request: CniRequest) => Promise<{ exitCode: 0 | 1; isForNextProcess?: boolean }>;
  let record: ReturnType<typeof recordingLog>;

  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'podwire-spool-'));
    path = join(folder, 'spool');
    requests = [];
    answer = () => Promise.resolve({ exitCode: 0 });
    record = recordingLog();
    const run = (request: CniRequest) => {
      requests.push(request);
      return answer(request);
    };
    const directory = new SpoolDirectory(path, { nowMs: () => Date.now() });
    spool = new Spool({ directory, run, clock, random: () => 0.5, log: record.log });
  });

  afterEach(async () => {
    await spool.stop();
    rmSync(folder, { recursive: true });
  });

  const attachment = { network: 'net', containerId: 'c0ffee', interfaceName: 'eth0' };
  const called = (count: number) => vi.waitFor(() => expect(requests).toHaveLength(count), WAIT);
  const empty = () => vi.waitFor(() => expect(readdirSync(path)).toEqual([]), WAIT);
  const sleeping = (count: number) => vi.waitFor(() => expect(clock.sleeping).toBe(count), WAIT);

  test('a file that appears later is found within 5 s', async () => {
    spool.start();
    await sleeping(1);
    spoolDel(path);
    clock.advance(5_000);
    await empty();
    expect(requests).toHaveLength(1);
  });

  test('a DEL that fails keeps its file and is repeated after growing pauses', async () => {
    answer = () => Promise.resolve({ exitCode: 1 });
    spoolDel(path);
    spool.start();
    await called(1);
    for (const [index, pauseMs] of [500, 1000, 2000].entries()) {
      await sleeping(2);
      clock.advance(pauseMs - 1);
      expect(requests).toHaveLength(index + 1);
      clock.advance(1);
      await called(index + 2);
    }
    const failed = { code: 'STATE_IO', message: expect.stringContaining('the spooled DEL of net/c0ffee/eth0 failed') };
    await expect(spool.replayOf(attachment)).rejects.toMatchObject(failed);
    answer = () => Promise.resolve({ exitCode: 0 });
    await spool.replayOf(attachment);
    await empty();
  });

  test('of a stopping process it is the next one’s, and so is an ADD that waits for it', async () => {
    answer = () => Promise.resolve({ exitCode: 1, isForNextProcess: true });
    spoolDel(path);
    const stopping = { code: 'CANCELLED', message: expect.stringContaining('is stopping') };
    await expect(spool.replayOf(attachment)).rejects.toMatchObject(stopping);
    expect(readdirSync(path)).toHaveLength(1);
  });

  test('eight DELs are in flight at most, each file once', async () => {
    const open: ((value: { exitCode: 0 }) => void)[] = [];
    answer = () => new Promise((resolve) => open.push(resolve));
    for (let count = 0; count < 20; count++) spoolDel(path, { containerId: `c${count}` });
    spool.start();
    await called(8);
    await sleeping(1);
    clock.advance(5_000);
    await sleeping(1);
    expect(requests).toHaveLength(8);
    answer = () => Promise.resolve({ exitCode: 0 });
    for (const end of open) end({ exitCode: 0 });
    await empty();
    expect(new Set(requests.map(({ variables }) => variables.CNI_CONTAINERID)).size).toBe(20);
    expect(requests).toHaveLength(20);
  });

  test('a file that is replaced during its DEL is replayed again before an ADD', async () => {
    answer = () => {
      if (requests.length === 1) spoolDel(path);
      return Promise.resolve({ exitCode: 0 });
    };
    spoolDel(path);
    await expect(spool.replayOf(attachment)).rejects.toMatchObject({ code: 'STATE_IO' });
    await spool.replayOf(attachment);
    expect(requests).toHaveLength(2);
    await empty();
  });

  test('the request is the shim’s, which arrived when it was spooled', async () => {
    const beforeNs = BigInt(Date.now() - 10) * 1_000_000n;
    spoolDel(path, { startedNs: 42n, configuration: JSON.stringify({ name: 'net', note: 'é' }) });
    await spool.replayOf(attachment);
    const variables = { CNI_COMMAND: 'DEL', CNI_CONTAINERID: 'c0ffee', CNI_IFNAME: 'eth0' };
    const request = { plugin: 'podwire', shimRelease: '1', startedNs: 42n, isSpooled: true, variables };
    expect(requests).toMatchObject([{ ...request, configuration: '{"name":"net","note":"é"}' }]);
    expect(requests[0]!.arrivedNs).toBeGreaterThanOrEqual(beforeNs);
    expect(requests[0]!.arrivedNs).toBeLessThanOrEqual(BigInt(Date.now() + 1) * 1_000_000n);
  });

  test('a directory of another user is not read, which is logged once', async () => {
    mkdirSync(path);
    chmodSync(path, 0o777);
    spool.start();
    for (let round = 0; round < 3; round++) {
      await sleeping(1);
      clock.advance(5_000);
    }
    await sleeping(1);
    expect(record.lines().map(({ msg }) => msg)).toEqual([expect.stringContaining('spool: cannot be listed: ')]);
    chmodSync(path, 0o700);
    spoolDel(path);
    clock.advance(5_000);
    await empty();
  });

  test('the gauge counts the DELs that are not done', async () => {
    const metricsRead = new ReadMetrics('podwire.plugin.spool.');
    answer = () => Promise.resolve({ exitCode: requests.length === 1 ? 1 : 0 });
    spoolDel(path, { containerId: 'a' });
    spoolDel(path, { containerId: 'b' });
    spool.start();
    await vi.waitFor(async () => expect(await metricsRead.read()).toEqual(['depth 1']), WAIT);
    await sleeping(2);
    clock.advance(500);
    await empty();
    await vi.waitFor(async () => expect(await metricsRead.read()).toEqual(['depth 0']), WAIT);
    metrics.disable();
  });
});
