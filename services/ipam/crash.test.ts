import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import process from 'node:process';
import { setTimeout as sleep } from 'node:timers/promises';

import { systemClock } from '@podwire/shared/runtime/clock';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { attributesAt } from './allocator/block.js';
import { validateBlock } from './allocator/block-invariants.js';
import { Caller, Place } from './service.fixture.js';
import { EmbeddedStore } from './store/embedded/embedded-store.js';
import { Mirror, type MirrorEvent } from './store/mirror.js';
import { RecordKeys } from './store/record/keys.js';

const CONDITIONS = ['podwire:source', 'node', 'import', 'module', 'default'];

/** Node cannot run TypeScript before 22; vite, which vitest brings, can. */
const RUN_TYPESCRIPT = `
  const { runnerImport } = await import('vite');
  const conditions = ${JSON.stringify(CONDITIONS)};
  await runnerImport(process.argv[1], {
    configFile: false, logLevel: 'error', resolve: { conditions }, ssr: { resolve: { conditions } },
  });`;

const PODS = 100;
const ADDRESSES = 256;
const NODES = ['node-1', 'node-2'];

let place: Place;
let child: ChildProcess | undefined;
beforeEach(() => {
  place = new Place();
});
afterEach(() => {
  child?.kill('SIGKILL');
  place.remove();
});

/** Starts podwire-ipam as a process of its own. */
function startProcess(): ChildProcess {
  const command = ['--input-type=module', '-e', RUN_TYPESCRIPT, join(import.meta.dirname, 'main.ts')];
  child = spawn(process.execPath, command, { env: { ...process.env, ...place.env() }, stdio: 'ignore' });
  return child;
}

async function end(ending: ChildProcess, signal: NodeJS.Signals): Promise<number | null> {
  const exited = once(ending, 'exit');
  ending.kill(signal);
  await exited;
  return ending.exitCode;
}

const nodeOf = (i: number) => ({ nodeName: NODES[i % NODES.length]! });

/** Blocks, affinities, handles and endpoints as they are stored, each against the others. */
async function checkDatastore(): Promise<{ readonly allocatedCount: number }> {
  const signal = new AbortController().signal;
  const keys = new RecordKeys('/calico');
  const store = await EmbeddedStore.open({ directory: place.storeDirectory, pid: process.pid });
  const events: MirrorEvent[] = [];
  const report = (event: MirrorEvent) => events.push(event);
  const mirror = await Mirror.start({ store, keys, clock: systemClock, random: Math.random, report }, signal);
  const { records } = await store.list('/', signal);
  const stored = records.map(({ key }) => keys.parse(key));
  const blocks = [...mirror.view.blocksIn({ family: 4, value: 0n, length: 0 })];
  expect(events).toEqual([]);
  expect(blocks.flatMap((block) => validateBlock(block, Date.now()))).toEqual([]);
  const affinities = stored.flatMap((name) => (name?.kind === 'affinity' ? [name] : []));
  expect(affinities.map(({ owner, block }) => mirror.view.affinity(owner, block)?.state)).toEqual(
    blocks.map(() => 'confirmed'),
  );
  expect(affinities.map(({ owner, block }) => [owner, formatPrefix(block)])).toEqual(
    expect.arrayContaining(blocks.map(({ owner, prefix }) => [owner, formatPrefix(prefix)])),
  );
  const holders = blocks.flatMap((block) =>
    block.allocations.flatMap((_, ordinal) => attributesAt(block, ordinal)?.handleId ?? []),
  );
  expect(new Set(holders).size).toBe(holders.length);
  const handles = stored.flatMap((name) => (name?.kind === 'handle' ? [name.id] : []));
  expect(handles.sort()).toEqual([...holders].sort());
  const endpoints = stored.flatMap((name) => (name?.kind === 'endpoint' ? [mirror.view.endpoint(name.key)] : []));
  expect(endpoints.map((endpoint) => `net.${endpoint?.attachment.containerId}`).sort()).toEqual([...holders].sort());
  await mirror.close();
  await store.close();
  return { allocatedCount: holders.length };
}

test.each([0, 5, 20])(
  'SIGKILL %i ms after the first of 100 parallel answers: all that was answered is there, all else can be had',
  async (delayMs) => {
    const killed = startProcess();
    const caller = new Caller(place.address);
    await caller.health();
    const calls = Array.from({ length: PODS }, (_, i) => {
      const call = caller.allocate(`c${i}`, nodeOf(i));
      return call.then(({ endpoint }) => endpoint!);
    });
    const settled = Promise.allSettled(calls);
    await Promise.any(calls);
    await sleep(delayMs);
    await end(killed, 'SIGKILL');
    caller.close();
    const answered = (await settled).flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []));
    expect(answered.length).toBeGreaterThan(0);
    expect((await checkDatastore()).allocatedCount).toBeGreaterThanOrEqual(answered.length);

    const restarted = startProcess();
    const again = new Caller(place.address);
    for (const endpoint of answered)
      expect(await again.getEndpoint(endpoint.attachment!.containerId)).toEqual({ endpoint });
    const repeated = await Promise.all(calls.map((_, i) => again.allocateAddress(`c${i}`, nodeOf(i))));
    expect(new Set(repeated).size).toBe(PODS);
    const kept = answered.map(({ addresses }) => addresses[0]!.address);
    expect(repeated).toEqual(expect.arrayContaining(kept));

    // Two nodes own the four blocks between them; each is filled to its last address.
    const filled = [...repeated];
    for (const nodeName of NODES) {
      for (let i = 0; ; i++) {
        const [result] = await Promise.allSettled([again.allocateAddress(`fill-${nodeName}-${i}`, { nodeName })]);
        if (result.status === 'rejected') break;
        filled.push(result.value);
      }
    }
    expect(new Set(filled).size).toBe(ADDRESSES);
    expect(filled).toHaveLength(ADDRESSES);
    again.close();
    expect(await end(restarted, 'SIGTERM')).toBe(0);
    expect((await checkDatastore()).allocatedCount).toBe(ADDRESSES);
  },
  120_000,
);
