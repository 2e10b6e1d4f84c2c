import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { serve, startService } from '../service.js';
import {
  addPod,
  cleanUp,
  setNodeForwarding,
  canPing,
  requireThrowawayNamespace,
  snapshot,
} from '../testing/kernels.js';
import { MemoryKernel } from '../testing/memory-kernel.js';
import { recordingLog } from '../testing/pods.js';
import { podMessage, ServiceFixture } from '../testing/service.js';

/** Built by `npm run build`, which `npm test` does first. */
const MAIN = join(dirname(fileURLToPath(import.meta.url)), '..', 'dist', 'main.js');

let bench: ServiceFixture;

beforeEach(() => {
  bench = new ServiceFixture();
});
afterEach(() => bench.clear());

test('a second process at its socket waits, and has changed nothing of the first when it is stopped', async () => {
  requireThrowawayNamespace();
  setNodeForwarding();
  const service = await startService(bench.config(), bench.deps());
  try {
    const record = join(bench.records, 'spoilt.json');
    writeFileSync(record, '{');
    const stopped = new AbortController();
    const { log, lines } = recordingLog();
    const second = startService(bench.config(), { ...bench.deps(), log, stopped: stopped.signal });
    second.catch(() => undefined);
    await expect.poll(() => lines).toMatchObject([{ msg: expect.stringContaining('waiting until it ends') }]);
    stopped.abort();
    await expect(second).rejects.toMatchObject({ code: 'CANCELLED' });
    expect(existsSync(record)).toBe(true);
    expect(await bench.nodeStatus()).toMatchObject({ nodeName: 'node-1' });
  } finally {
    await service.stop();
    cleanUp();
  }
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
  requireThrowawayNamespace();
  const logs = [join(bench.folder, 'a.log'), join(bench.folder, 'b.log')];
  // Reading the records takes long, so that the other process could begin as well.
  mkdirSync(bench.records);
  for (let count = 0; count < 5000; count++) writeFileSync(join(bench.records, `${count}.json`), '{');
  const children = logs.map((path) => {
    const log = openSync(path, 'a');
    const env = { ...process.env, ...bench.env, ...METRICS };
    return spawn(process.execPath, [MAIN], { env, stdio: ['ignore', log, log] });
  });
  const said = () => logs.map((path) => readFileSync(path, 'utf8'));
  const listening = () => said().findIndex((text) => text.includes('listening'));
  await expect.poll(listening, { timeout: 60_000 }).not.toBe(-1);
  const [serving, waiting] = [children[listening()]!, 1 - listening()];
  expect(said()[waiting]!.trim().split('\n')).toEqual([expect.stringContaining('waiting until it ends')]);
  expect(await bench.nodeStatus()).toMatchObject({ nodeName: hostname() });
  expect(await servedMetrics()).toContain('podwire_');
  serving.kill('SIGTERM');
  await expect.poll(() => said()[waiting], { timeout: 60_000 }).toContain('listening');
  bench.reconnect();
  expect(await bench.nodeStatus()).toMatchObject({ nodeName: hostname() });
  expect(await servedMetrics()).toContain('podwire_');
  children[waiting]!.kill('SIGTERM');
  await once(children[waiting]!, 'exit');
  cleanUp();
}, 150_000);

describe('life and death', () => {
  test('it is healthy only once the kernel is known to support pods', async () => {
    const kernel = new MemoryKernel();
    const probing = kernel.pauseBefore('probe');
    const starting = serve(kernel, { config: bench.config(), deps: bench.deps() });
    await probing.reached;
    expect(await bench.health()).toBe(2);
    probing.release();
    const service = await starting;
    expect(await bench.health()).toBe(1);
    await service.stop();
    expect(existsSync(bench.socket)).toBe(false);
  });

  test('it does not start on a kernel without veth', async () => {
    const kernel = new MemoryKernel();
    kernel.failNext('probe', { errno: 'EOPNOTSUPP' });
    const starting = serve(kernel, { config: bench.config(), deps: bench.deps() });
    await expect(starting).rejects.toMatchObject({ code: 'KERNEL_UNSUPPORTED' });
    expect(kernel.unusedFaults).toBe(0);
  });

  test('it completes calls in flight before it stops', async () => {
    const kernel = new MemoryKernel();
    kernel.addNamespace('/run/netns/a');
    const service = await serve(kernel, { config: bench.config(), deps: bench.deps() });
    const pause = kernel.pauseBefore('route-add');
    const attaching = bench.attach(podMessage('a', '10.65.0.7'));
    await pause.reached;
    const stopping = service.stop();
    pause.release();
    expect(await attaching).toMatchObject({ podInterface: { name: 'eth0' } });
    await stopping;
  });

  test('a call that is cut off at the end is undone before the kernel is let go', async () => {
    const kernel = new MemoryKernel();
    kernel.addNamespace('/run/netns/a');
    const before = kernel.print();
    const options = { config: { ...bench.config(), drainTimeoutMs: 0 }, deps: bench.deps() };
    const service = await serve(kernel, options);
    const pause = kernel.pauseBefore('link-add');
    const attaching = bench.attach(podMessage('a', '10.65.0.7')).catch((failure: unknown) => failure);
    await pause.reached;
    const stopping = service.stop();
    expect(await attaching).toBeInstanceOf(Error);
    pause.release();
    await stopping;
    expect(kernel.print()).toBe(before);
  });
});

describe('SIGKILL in the middle of twenty attaches, then another start', () => {
  let child: ChildProcess;

  async function start(): Promise<void> {
    const settings = { PATH: process.env.PATH, PODWIRE_DATAPLANE_LOG_LEVEL: 'error', ...bench.env };
    bench.reconnect();
    child = spawn(process.execPath, [MAIN], { env: settings, stdio: ['ignore', 'ignore', 'inherit'] });
    await bench.list(1);
  }

  async function end(signal: NodeJS.Signals): Promise<number | null> {
    const exited = once(child, 'exit');
    child.kill(signal);
    await exited;
    return child.exitCode;
  }

  beforeEach(() => {
    requireThrowawayNamespace();
    setNodeForwarding();
  });
  afterEach(cleanUp);

  // The moment is random; crashes.kernel.test.ts checks the number of answers, and that all agrees then.
  test.each([0, 6])(
    'after %i ms: every pod can be attached, checked and detached, and nothing is left',
    async (afterMs) => {
      const pods = Array.from({ length: 20 }, (_, at) => podMessage(`p${at}`, `10.65.0.${at + 1}`));
      const names = pods.map(({ attachment }) => attachment!.containerId);
      names.forEach(addPod);
      await start();
      const before = snapshot();
      const attaching = pods.map((pod) => bench.attach(pod, 500).catch(() => undefined));
      await sleep(afterMs);
      await end('SIGKILL');
      await Promise.all(attaching);
      await start();

      await Promise.all(pods.map((pod) => bench.attach(pod)));
      for (const pod of pods) expect(await bench.check(pod)).toMatchObject({ differences: [] });
      expect(canPing('10.65.0.1', 'p19')).toBe(true);
      expect(await Promise.all(pods.map((pod) => bench.detach(pod)))).toEqual(pods.map(() => ({ removed: true })));
      expect(snapshot()).toBe(before);
      expect(await end('SIGTERM')).toBe(0);
    },
    120_000,
  );
});
