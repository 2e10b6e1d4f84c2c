import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';

import { metrics } from '@opentelemetry/api';
import { cleanUp, requireThrowawayNamespace, setNodeForwarding, snapshot } from '@podwire/dataplane/testing/kernels';
import { BOOT, recordingLog } from '@podwire/dataplane/testing/pods';
import { NODE_MAIN, ServiceFixture } from '@podwire/dataplane/testing/service';
import { systemClock } from '@podwire/shared/runtime/clock';
import { propagateTraces } from '@podwire/shared/telemetry/telemetry';
import { ReadMetrics } from '@podwire/shared/testing/metrics';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { rehearse } from './rehearsal.js';
import { readNodeSettings } from './settings.js';

let bench: ServiceFixture;

beforeEach(() => {
  requireThrowawayNamespace();
  setNodeForwarding();
  bench = new ServiceFixture();
});

afterEach(() => {
  metrics.disable();
  bench.clear();
  cleanUp();
});

const OWN = readlinkSync('/proc/self/ns/net');

/** The further network namespaces that a process has a descriptor of. */
function namespacesOf(pid: number | 'self'): string[] {
  const folder = `/proc/${pid}/fd`;
  return readdirSync(folder).flatMap((name) => {
    try {
      const target = readlinkSync(join(folder, name));
      return target.startsWith('net:') && target !== OWN ? [target] : [];
    } catch {
      // It is closed by now.
      return [];
    }
  });
}

test('wires and unwires a pod, and neither the node nor the process has anything of it, then or meanwhile', async () => {
  propagateTraces();
  const metricsRead = new ReadMetrics('podwire.');
  const before = snapshot();
  const { log, lines } = recordingLog();
  const settings = readNodeSettings(bench.processEnv, 'node-1');
  const done = new AbortController();
  const rehearsed = rehearse(settings, { log, clock: systemClock, random: Math.random, boot: BOOT });
  void rehearsed.finally(() => done.abort());
  const seen = new Set<string>();
  while (!done.signal.aborted) {
    for (const target of namespacesOf('self')) seen.add(target);
    expect(snapshot()).toBe(before);
    await systemClock.sleep(1, done.signal);
  }
  // A failure is logged.
  expect(lines).toEqual([]);
  expect(seen.size).toBe(2);
  expect(await metricsRead.read()).toEqual([]);
  await expect.poll(() => namespacesOf('self')).toEqual([]);
  expect(snapshot()).toBe(before);
  expect(readdirSync(bench.folder)).toEqual([]);
});

test('a failure is logged, and fails nothing', async () => {
  const { log, lines } = recordingLog();
  const settings = { ...readNodeSettings(bench.processEnv, 'node-1'), addTimeoutMs: 0 };
  await rehearse(settings, { log, clock: systemClock, random: Math.random, boot: BOOT });
  expect(lines).toMatchObject([{ level: 'info', msg: 'the rehearsal of an ADD failed: the first ADD takes longer' }]);
  await expect.poll(() => namespacesOf('self')).toEqual([]);
});

test('a process that is killed in it leaves nothing', async () => {
  const before = snapshot();
  const child = spawn(process.execPath, [NODE_MAIN], { env: { ...process.env, ...bench.processEnv }, stdio: 'ignore' });
  const pid = child.pid ?? 0;
  const ended = once(child, 'exit');
  while (namespacesOf(pid).length < 2) await systemClock.sleep(1, new AbortController().signal);
  child.kill('SIGKILL');
  await ended;
  expect(snapshot()).toBe(before);
  // The locks of the process are files.
  const files = readdirSync(bench.folder, { recursive: true, encoding: 'utf8' });
  expect(files.filter((name) => name.endsWith('.json'))).toEqual([]);
});
