import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';

import { cleanUp, requireThrowawayNamespace, setNodeForwarding } from '@podwire/dataplane/testing/kernels';
import { BOOT, recordingLog } from '@podwire/dataplane/testing/pods';
import { NODE_MAIN, ServiceFixture } from '@podwire/dataplane/testing/service';
import { RecentLines } from '@podwire/shared/runtime/recent-lines';
import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { startNode } from './service.js';
import { readNodeSettings } from './settings.js';

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

function start({ env = {}, stopped }: { readonly env?: Record<string, string>; readonly stopped?: AbortSignal } = {}) {
  const { log, lines } = recordingLog();
  const deps = {
    log,
    clock: systemClock,
    random: Math.random,
    boot: BOOT,
    pid: process.pid,
    env: {},
    recentLines: new RecentLines(),
  };
  const settings = readNodeSettings({ ...bench.processEnv, ...env }, 'node-1');
  return { lines, started: startNode(settings, { ...deps, ...(stopped && { stopped }) }) };
}

test('serves gRPC and CNI calls in one process, and removes both sockets at its end', async () => {
  const node = await start().started;
  expect(await bench.nodeStatus()).toMatchObject({ nodeName: 'node-1' });
  const sockets = [bench.socket, bench.processEnv.PODWIRE_NODE_CNI_SOCKET];
  expect(sockets.map(existsSync)).toEqual([true, true]);
  await node.stop();
  expect(sockets.map(existsSync)).toEqual([false, false]);
});

describe('a second process', () => {
  test('waits, and has changed nothing of the first when it is stopped', async () => {
    const first = await start().started;
    try {
      // Nothing is set aside, and no temporary file is removed.
      const journal = join(bench.folder, 'journal');
      const files = [
        join(bench.records, 'spoilt.json'),
        join(journal, 'spoilt.json'),
        join(journal, 'new.json.writing'),
      ];
      for (const file of files) writeFileSync(file, '{');
      const stopping = new AbortController();
      const { lines, started } = start({ stopped: stopping.signal });
      started.catch(() => undefined);
      await expect.poll(() => lines).toMatchObject([{ msg: expect.stringContaining('waiting until it ends') }]);
      stopping.abort();
      await expect(started).rejects.toMatchObject({ code: 'CANCELLED' });
      expect(files.filter((file) => !existsSync(file))).toEqual([]);
      expect(await bench.nodeStatus()).toMatchObject({ nodeName: 'node-1' });
    } finally {
      await first.stop();
    }
  });

  test('that starts with a journal that can be neither read nor locked logs that', async () => {
    const file = join(bench.folder, 'file');
    writeFileSync(file, '');
    const { lines, started } = start({ env: { PODWIRE_NODE_STATE_DIRECTORY: file } });
    await (await started).stop();
    expect(lines.map(({ msg }) => msg)).toContain(
      'the journal cannot be locked: another process that uses it would not be detected',
    );
  });

  test('that cannot create its socket ends, and has released what it had', async () => {
    const file = join(bench.folder, 'file');
    writeFileSync(file, '');
    await expect(start({ env: { PODWIRE_NODE_CNI_SOCKET: file } }).started).rejects.toMatchObject({
      code: 'INVALID_SETTINGS',
    });
    await (await start().started).stop();
  });
});

/** Both processes of an update have the same port. */
const METRICS = {
  OTEL_METRICS_EXPORTER: 'prometheus',
  OTEL_EXPORTER_PROMETHEUS_HOST: '127.0.0.1',
  OTEL_EXPORTER_PROMETHEUS_PORT: '19464',
};

async function servedMetrics(): Promise<string> {
  const answer = await fetch(`http://127.0.0.1:${METRICS.OTEL_EXPORTER_PROMETHEUS_PORT}/metrics`);
  return answer.text();
}

test('of two processes that start at the same moment one serves, and the other takes over when that one ends', async () => {
  const logs = [join(bench.folder, 'a.log'), join(bench.folder, 'b.log')];
  // Reading the records takes long, so that the other process could begin as well.
  mkdirSync(bench.records);
  for (let count = 0; count < 5000; count++) writeFileSync(join(bench.records, `${count}.json`), '{');
  const children = logs.map((path) => {
    const log = openSync(path, 'a');
    const env = { ...process.env, ...bench.processEnv, ...METRICS };
    return spawn(process.execPath, [NODE_MAIN], { env, stdio: ['ignore', log, log] });
  });
  const said = () => logs.map((path) => readFileSync(path, 'utf8'));
  const listening = () => said().findIndex((text) => text.includes('listening'));
  await expect.poll(listening, { timeout: 60_000 }).not.toBe(-1);
  const [serving, waiting] = [children[listening()]!, 1 - listening()];
  expect(said()[waiting]!.trim().split('\n')).toEqual([expect.stringContaining('waiting until it ends')]);
  expect(await bench.nodeStatus()).toMatchObject({ nodeName: hostname() });
  const metrics = await servedMetrics();
  expect([metrics.includes('podwire_plugin_'), metrics.includes('podwire_dataplane_')]).toEqual([true, true]);
  serving.kill('SIGTERM');
  await expect.poll(() => said()[waiting], { timeout: 60_000 }).toContain('listening');
  bench.reconnect();
  expect(await bench.nodeStatus()).toMatchObject({ nodeName: hostname() });
  expect(await servedMetrics()).toContain('podwire_');
  children[waiting]!.kill('SIGTERM');
  await once(children[waiting]!, 'exit');
}, 150_000);
