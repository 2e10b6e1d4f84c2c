import { readdirSync, readlinkSync } from 'node:fs';
import { readFile } from 'node:fs/promises';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { Events } from '../pods/events.js';
import { PodWiring } from '../pods/pods.js';
import { addPod, cleanUp, requireThrowawayNamespace } from '../testing/kernels.js';
import { address, podNetwork, recordingLog, testRegistry } from '../testing/pods.js';
import { NetlinkKernel } from './pod-kernel.js';

/** Concurrent pods: more than the pool has threads. */
const PODS_COUNT = 40;

const THREADS = '/proc/self/task';

let kernel: NetlinkKernel;
let dataplane: PodWiring;

beforeEach(async () => {
  requireThrowawayNamespace();
  kernel = await NetlinkKernel.open();
  dataplane = new PodWiring({ kernel, registry: testRegistry(), events: new Events(recordingLog().log) });
});

afterEach(async () => {
  await kernel.close();
  cleanUp();
});

/** The permanent threads: the main one, the engine's, and libuv's pool, which the first work creates. */
async function permanentThreads(): Promise<string[]> {
  await Promise.all(Array.from({ length: 32 }, () => readFile('/proc/self/stat')));
  return readdirSync(THREADS);
}

/** Polls the threads while work is in flight. @returns the number of polls, and the namespaces of the threads */
async function watched(threads: readonly string[], work: Promise<unknown>): Promise<[number, Set<string>]> {
  const namespaces = new Set<string>();
  let looks = 0;
  const ended = new AbortController();
  const end = (): void => ended.abort();
  work.then(end, end);
  while (!ended.signal.aborted) {
    for (const thread of threads) namespaces.add(readlinkSync(`${THREADS}/${thread}/ns/net`));
    looks++;
    await new Promise((resolve) => setImmediate(resolve));
  }
  await work;
  return [looks, namespaces];
}

test('no thread of the process ever enters a pod’s namespace', async () => {
  const own = readlinkSync('/proc/self/ns/net');
  const pods = Array.from({ length: PODS_COUNT }, (_, at) => {
    const name = `pod-${at}`;
    addPod(name);
    const addresses = [address(`10.65.0.${at + 1}`), address(`fd65::${(at + 1).toString(16)}`)];
    return podNetwork(name, { addresses });
  });
  const threads = await permanentThreads();
  const signal = new AbortController().signal;
  const [looks, namespaces] = await watched(
    threads,
    Promise.all(
      pods.map(async (pod) => {
        await dataplane.attach(pod, signal);
        await dataplane.check(pod, signal);
        await kernel.identify(pod.netns);
        await dataplane.detach(pod, signal);
      }),
    ),
  );
  expect([...namespaces]).toEqual([own]);
  expect(looks).toBeGreaterThan(PODS_COUNT);
  expect(new Set(readdirSync(THREADS).map((thread) => readlinkSync(`${THREADS}/${thread}/ns/net`)))).toEqual(
    new Set([own]),
  );
});
