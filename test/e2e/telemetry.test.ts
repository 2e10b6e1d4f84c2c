import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';

import { afterAll, afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { callCni, makePod, removePod } from '../support/pods.js';
import { Stack, type ProcessName } from '../support/stack.js';

const PROCESSES: readonly ProcessName[] = ['node', 'ipam'];
const ENDPOINT = 'http://127.0.0.1:4318';

/** An hour: the SDK itself would wait for the collector for longer than any test does. */
const HOUR_MS = '3600000';
const SDK_LIMITS = {
  OTEL_EXPORTER_OTLP_TIMEOUT: HOUR_MS,
  OTEL_BSP_EXPORT_TIMEOUT: HOUR_MS,
  OTEL_METRIC_EXPORT_INTERVAL: HOUR_MS,
  OTEL_METRIC_EXPORT_TIMEOUT: HOUR_MS,
};

/** Accepts connections and never answers. */
const HANGS = 'require("net").createServer(() => undefined).listen(4318, "127.0.0.1", () => console.log("listens"))';

const pod = makePod('exported');

afterAll(() => removePod(pod));

describe.each<[string, string | undefined]>([
  ['refuses connections', undefined],
  ['accepts connections and never answers', HANGS],
])('a collector that %s', (_, script) => {
  let stack: Stack;
  let collector: ChildProcess | undefined;

  beforeEach(async () => {
    stack = new Stack({ env: { OTEL_EXPORTER_OTLP_ENDPOINT: ENDPOINT, ...SDK_LIMITS } });
    if (script !== undefined) {
      const command = [`--net=${stack.netnsPath}`, process.execPath, '-e', script];
      collector = spawn('nsenter', command, { stdio: ['ignore', 'pipe', 'inherit'] });
      await once(collector.stdout!, 'data');
    }
    await stack.start();
    await vi.waitFor(() => expect(stack.log('node')).toContain('is registered with'), { timeout: 20_000 });
  });

  afterEach(async () => {
    await stack.destroy();
    collector?.kill('SIGKILL');
  });

  test('does not delay the stop of any process', async () => {
    const call = (command: string) => callCni({ command, pod, socket: stack.sockets.node });
    expect(await call('ADD')).toMatchObject({ exitCode: 0 });
    expect(await call('DEL')).toMatchObject({ exitCode: 0 });
    for (const name of PROCESSES) {
      expect(await stack.stop(name)).toBe(0);
      expect(stack.log(name), name).toContain('spans and metrics of the last seconds are lost');
    }
  });
});
