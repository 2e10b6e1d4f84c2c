import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import process from 'node:process';
import { setTimeout as sleep } from 'node:timers/promises';

import type { Endpoint } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { builtFile } from '@podwire/shared/testing/program';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { EmbeddedStore } from '../engine/embedded/embedded-store.js';
import { countHeld, inconsistencies, readAll } from '../engine/testing/consistency.js';
import { RecordKeys } from '../records/json/keys.js';
import { Caller, Place } from '../testing/service.js';

const CALLERS = 100;

/** Addresses of the pool: two blocks for each node. A node's callers hold at most 100 at once. */
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

/** Starts podwire-ipam as a separate process. */
function startProcess(): ChildProcess {
  child = spawn(process.execPath, [builtFile(join(import.meta.dirname, '../main.ts'))], {
    env: { ...process.env, ...place.env() },
    stdio: 'ignore',
  });
  return child;
}

async function end(ending: ChildProcess, signal: NodeJS.Signals): Promise<number | null> {
  const exited = once(ending, 'exit');
  ending.kill(signal);
  await exited;
  return ending.exitCode;
}

const nodeOf = (i: number) => ({ nodeName: NODES[i % NODES.length]! });

/** Reads the stored records while no process serves them. @returns how many addresses are held */
async function checkDatastore(): Promise<number> {
  const store = await EmbeddedStore.open({ directory: place.storeDirectory, pid: process.pid });
  const view = await readAll(store, new RecordKeys('/calico'));
  await store.close();
  expect(inconsistencies(view, Date.now())).toEqual([]);
  return countHeld(view);
}

/** The callers' knowledge of their containers. */
interface History {
  readonly held: Map<string, Endpoint>;
  readonly released: Set<string>;
  /** Requested, or being released, without an answer. */
  readonly unknown: Set<string>;
}

/** One of many that allocate without a pause, each releasing its last container but one, until a call fails. */
async function churn(caller: Caller, number: number, { held, released, unknown }: History): Promise<void> {
  for (let i = 0; ; i++) {
    const [newest, oldest] = [`c${number}-${i}`, `c${number}-${i - 1}`];
    unknown.add(newest);
    const { endpoint } = await caller.allocate(newest, nodeOf(number));
    held.set(newest, endpoint!);
    unknown.delete(newest);
    if (i === 0) continue;
    unknown.add(oldest);
    held.delete(oldest);
    await caller.release(oldest);
    released.add(oldest);
    unknown.delete(oldest);
  }
}

/** Allocates the remaining addresses for every node. @returns the allocated addresses */
async function fill(caller: Caller): Promise<string[]> {
  const allocated: string[] = [];
  for (const nodeName of NODES) {
    for (let i = 0; ; i++) {
      const [result] = await Promise.allSettled([caller.allocateAddress(`fill-${nodeName}-${i}`, { nodeName })]);
      if (result.status === 'fulfilled') {
        allocated.push(result.value);
        continue;
      }
      expect(result.reason).toMatchObject({ code: 'POOLS_EXHAUSTED' });
      break;
    }
  }
  return allocated;
}

test.each([1, 40, 150])(
  'SIGKILL in the middle of 100 parallel callers, %i ms after the first answer: all answered addresses are held, all other addresses can be allocated',
  async (delayMs) => {
    const killed = startProcess();
    const caller = new Caller(place.address);
    await caller.health();
    const history: History = { held: new Map(), released: new Set(), unknown: new Set() };
    const callers = Array.from({ length: CALLERS }, (_, number) => churn(caller, number, history));
    const settled = Promise.allSettled(callers);
    while (history.held.size === 0) await sleep(1);
    await sleep(delayMs);
    await end(killed, 'SIGKILL');
    await settled;
    caller.close();

    const { held, released, unknown } = history;
    expect(held.size).toBeGreaterThan(0);
    expect(unknown.size).toBe(CALLERS);
    const heldCount = await checkDatastore();
    expect(heldCount).toBeGreaterThanOrEqual(held.size);
    expect(heldCount).toBeLessThanOrEqual(held.size + unknown.size);

    const restarted = startProcess();
    const again = new Caller(place.address);
    await Promise.all([
      ...[...held].map(async ([id, endpoint]) => expect(await again.getEndpoint(id)).toEqual({ endpoint })),
      ...[...released].map((id) => expect(again.getEndpoint(id)).rejects.toMatchObject({ code: 'ENDPOINT_NOT_FOUND' })),
    ]);
    // The runtime's reaction to a failed ADD, and to a DEL without an answer.
    await Promise.all([...unknown].map((id) => again.release(id)));
    const kept = [...held.values()].map(({ addresses }) => addresses[0]!.address);
    const all = [...kept, ...(await fill(again)).map((address) => address)];
    expect(new Set(all).size).toBe(ADDRESSES);
    expect(all).toHaveLength(ADDRESSES);
    again.close();
    expect(await end(restarted, 'SIGTERM')).toBe(0);
    expect(await checkDatastore()).toBe(ADDRESSES);
  },
  180_000,
);
