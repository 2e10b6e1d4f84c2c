import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { serve } from '../service.js';
import {
  addPod,
  cleanUp,
  setNodeForwarding,
  canPing,
  requireThrowawayNamespace,
  snapshot,
} from '../testing/kernels.js';
import { MemoryKernel } from '../testing/memory-kernel.js';
import { NODE_MAIN, podMessage, ServiceFixture } from '../testing/service.js';

let bench: ServiceFixture;

beforeEach(() => {
  bench = new ServiceFixture();
});
afterEach(() => bench.clear());

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
    const settings = { PATH: process.env.PATH, PODWIRE_NODE_LOG_LEVEL: 'error', ...bench.processEnv };
    bench.reconnect();
    child = spawn(process.execPath, [NODE_MAIN], { env: settings, stdio: ['ignore', 'ignore', 'inherit'] });
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
