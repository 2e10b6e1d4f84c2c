import { setMaxListeners } from 'node:events';

import { parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { Block, Handle } from '../../records/block.js';
import { RecordKeys } from '../../records/json/keys.js';
import { encodeRecord, serialize } from '../../records/json/registry.js';
import type { Change } from '../../records/view.js';
import { Mirror, type MirrorEvent } from '../mirror/mirror.js';
import type { Store } from '../store.js';
import { Updater, type Decide, type UpdaterOptions } from '../updates/update-loop.js';
import { MemoryStore } from './memory-store.js';

/** Shared by the tests of mirror, draft and update loop. */

export const keys = new RecordKeys('/calico');
export const BLOCK = '10.0.0.0/26';

/** A signal that never fires. */
export const forever: AbortSignal = new AbortController().signal;
setMaxListeners(0, forever);

/** Waits end in the next iteration of the event loop, and time limits never expire. */
export const instantClock: Clock = {
  nowMs: () => 0,
  monotonicMs: () => 0,
  sleep: (_, signal) =>
    new Promise((resolve) => {
      signal.addEventListener('abort', () => resolve('aborted'));
      setImmediate(() => resolve('elapsed'));
    }),
  after: () => () => undefined,
};

/** A store that holds every commit back until it is released. */
export function blockingStore(): {
  readonly store: MemoryStore;
  readonly releaseNext: () => void;
  readonly blockedCount: () => number;
} {
  const waiting: (() => void)[] = [];
  const store = new MemoryStore({
    before: (operation) =>
      operation === 'commit' ? new Promise((resolve) => waiting.push(resolve)) : Promise.resolve(),
  });
  return { store, releaseNext: () => waiting.shift()?.(), blockedCount: () => waiting.length };
}

export function prefix(text: string): Prefix {
  const parsed = parsePrefix(text);
  if (!parsed.ok) throw new Error(`${text} ${parsed.fault}`);
  return parsed.prefix;
}

interface Replica {
  readonly mirror: Mirror;
  readonly updater: Updater;
  readonly events: MirrorEvent[];
}

export async function startReplica(store: Store, options: Partial<UpdaterOptions> = {}): Promise<Replica> {
  const events: MirrorEvent[] = [];
  const report = (event: MirrorEvent): number => events.push(event);
  const { clock = instantClock } = options;
  const mirror = await Mirror.start({ store, keys, clock, random: () => 0.5, report }, forever);
  const updater = new Updater({ store, mirror, keys, clock, random: () => 0.5, ...options });
  return { mirror, updater, events };
}

export function handle(id: string, count: number): Handle {
  return { id, blocks: new Map([[BLOCK, count]]) };
}

export function put(value: Handle): Change {
  return { type: 'put', record: { kind: 'handle', value } };
}

export function emptyBlock(cidr: string): Block {
  const size = 2 ** (32 - prefix(cidr).length);
  return {
    prefix: prefix(cidr),
    owner: undefined,
    claimTimeMs: undefined,
    allocations: Array.from({ length: size }, () => null),
    unallocated: Array.from({ length: size }, (_, ordinal) => ordinal),
    attributes: [],
    sequenceNumber: 1n,
    sequenceNumbers: Array.from({ length: size }, () => null),
  };
}

/** Increments the handle's count. The outcome is the count. */
export function increment(id: string): Decide<number> {
  return (view) => {
    const count = (view.handle(id)?.blocks.get(BLOCK) ?? 0) + 1;
    return { changes: [put(handle(id, count))], outcome: count };
  };
}

export function readCount(id: string): Decide<number> {
  return (view) => ({ changes: [], outcome: view.handle(id)?.blocks.get(BLOCK) ?? 0 });
}

/** Writes a handle as another replica would, past the mirrors. */
export async function writeHandle(store: MemoryStore, value: Handle): Promise<void> {
  const bytes = serialize(encodeRecord({ kind: 'handle', value }, undefined));
  const puts = [{ key: keys.handle(value.id), value: bytes }];
  await store.commit({ comparisons: [], puts, deletes: [] }, forever);
}

/** Runs everything that is ready to run. */
export async function settleEvents(): Promise<void> {
  for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
}
