import { expect, test } from 'vitest';

import { allocate } from '../addresses/allocate/allocate.js';
import { continueHandleRelease, release } from '../addresses/release.js';
import { releaseClaim } from '../affinities/affinities.js';
import type { RevisionChanges, Store } from '../engine/store.js';
import { inconsistencies, readAll } from '../engine/testing/consistency.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, keys, settleEvents, startReplica } from '../engine/testing/stores.js';
import { checkPool } from '../pools/rules.js';
import { encodeRecord, serialize } from '../records/json/registry.js';
import type { RecordValue, View } from '../records/view.js';
import { startIpam } from '../testing/ipam.js';
import {
  affinity,
  attachment,
  block,
  claimedBlock,
  config,
  host,
  nodeRecord,
  NOW_MS,
  poolRecord,
  prefix,
  request,
} from '../testing/records.js';
import { TestView } from '../testing/test-view.js';

/**
 * A replica that has read some records again after a lost comparison, but received nothing from its watch: it knows one of two records
 * that were written together. It compares the records that it takes for missing, so it finds the other, and nothing is left behind.
 */

const OLD = { claimTimeMs: NOW_MS - 3_600_000 };
const CIDR = '10.0.0.0/26';

/** The same store with a silent watch. */
function withSilentWatch(store: MemoryStore): Store {
  return {
    list: (listed, signal) => store.list(listed, signal),
    read: (wanted, signal) => store.read(wanted, signal),
    scan: (wanted, signal) => store.scan(wanted, signal),
    revision: (signal) => store.revision(signal),
    commit: (transaction, signal) => store.commit(transaction, signal),
    close: () => store.close(),
    async *watch(_, signal: AbortSignal): AsyncGenerator<RevisionChanges, void, void> {
      await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()));
      yield* [];
    },
  };
}

async function write(store: MemoryStore, records: readonly RecordValue[]): Promise<void> {
  const puts = records.map((record) => ({ key: keys.of(record), value: serialize(encodeRecord(record, undefined)) }));
  await store.commit({ comparisons: [], puts, deletes: [] }, forever);
}

interface Beginning {
  /** The records that the replica knows. */
  readonly known: readonly RecordValue[];
  /** The records that another replica wrote. */
  readonly then: readonly RecordValue[];
  /** The records that it has read again. */
  readonly reads: readonly string[];
}

async function begin({ known, then, reads }: Beginning) {
  const store = new MemoryStore();
  await write(store, known);
  const { mirror, updater } = await startReplica(withSilentWatch(store));
  await write(store, then);
  await mirror.refresh({ keys: reads, pools: false }, forever);
  return { store, updater };
}

const NODES = [nodeRecord('n1'), nodeRecord('n2')];
const BLOCK_KEY = keys.block(prefix(CIDR));

/** Pool as a replica that knows everything sees it. */
function knownPool(): TestView {
  return new TestView([poolRecord('p', CIDR), ...NODES]);
}

test('a block changes its owner together with the affinity, of which only the block is known', async () => {
  const { store, updater } = await begin({
    known: [poolRecord('p', CIDR), ...NODES],
    then: claimedBlock(block(CIDR, 'n2', OLD)),
    reads: [BLOCK_KEY],
  });
  const decide = (view: View) => allocate(view, { request: request('c1'), nowMs: NOW_MS });
  expect(await updater.update('n1', decide, { signal: forever })).toMatchObject({ reclaimed: [prefix(CIDR)] });
  const after = await readAll(store, keys);
  expect(after.affinities().map(({ owner }) => owner.name)).toEqual(['n1']);
  expect(inconsistencies(after, NOW_MS)).toEqual([]);
});

test('a block that is deleted with its last address takes an unknown affinity with it', async () => {
  const given = allocate(knownPool(), { request: request('c1', { nodeName: 'n2' }), nowMs: NOW_MS });
  const records = given.changes.flatMap((change) => (change.type === 'put' ? [change.record] : []));
  const { store, updater } = await begin({
    known: [...NODES],
    then: records.filter(({ kind }) => kind !== 'node'),
    reads: records.filter(({ kind }) => kind !== 'affinity').map((record) => keys.of(record)),
  });
  const decide = (view: View) => release(view, attachment('c1'), NOW_MS);
  expect((await updater.update('n2', decide, { signal: forever })).addresses).toHaveLength(1);
  const after = await readAll(store, keys);
  expect([after.blocks(), after.affinities(), after.handles(), after.endpoints()]).toEqual([[], [], [], []]);
});

test('a handle is not removed before the addresses in an unknown block', async () => {
  const given = allocate(knownPool(), { request: request('c1', { nodeName: 'n2' }), nowMs: NOW_MS });
  const records = given.changes.flatMap((change) => (change.type === 'put' ? [change.record] : []));
  const { store, updater } = await begin({
    known: [poolRecord('p', CIDR), ...NODES],
    then: records.filter(({ kind }) => kind !== 'node'),
    reads: [keys.handle('net.c1')],
  });
  const asked = { handleId: 'net.c1', nowMs: NOW_MS, searchesAllBlocks: false };
  const decide = (view: View) => continueHandleRelease(view, asked);
  expect((await updater.update('n2', decide, { signal: forever })).addresses).toHaveLength(1);
  const after = await readAll(store, keys);
  expect(after.handles()).toEqual([]);
  expect(after.block(prefix(CIDR))?.unallocated).toHaveLength(64);
  expect(inconsistencies(after, NOW_MS)).toEqual([]);
});

test('the end of a claim deletes its block, even if it is unknown', async () => {
  const { store, updater } = await begin({
    known: [poolRecord('p', CIDR), ...NODES],
    then: claimedBlock(block(CIDR, 'n2', OLD)),
    reads: [keys.affinity(host('n2'), prefix(CIDR))],
  });
  const claim = { owner: host('n2'), prefix: prefix(CIDR), mustBeEmpty: false, nowMs: NOW_MS };
  const decide = (view: View) => {
    const { changes, result } = releaseClaim(view, claim);
    return { changes, outcome: result };
  };
  expect(await updater.update('n2', decide, { signal: forever })).toBe('removed');
  const after = await readAll(store, keys);
  expect([after.blocks(), after.affinities()]).toEqual([[], []]);
});

test('an affinity is not stale because its block is known from before', async () => {
  const mine = { kind: 'affinity', value: affinity(CIDR, 'n1') } as const;
  const { store, updater } = await begin({
    known: [poolRecord('p', '10.0.0.0/25'), ...NODES, { kind: 'block', value: block(CIDR, 'n2', OLD) }],
    then: [{ kind: 'block', value: block(CIDR, 'n1') }, mine],
    reads: [keys.of(mine)],
  });
  const decide = (view: View) => allocate(view, { request: request('c1'), nowMs: NOW_MS });
  await updater.update('n1', decide, { signal: forever });
  const after = await readAll(store, keys);
  expect(after.affinity(host('n1'), prefix(CIDR))).toBeDefined();
  expect(inconsistencies(after, NOW_MS)).toEqual([]);
});

test('a cool-down is not over because its length is not known', async () => {
  const cooling = block('10.0.0.0/31', 'n1');
  const attributes = [
    { handleId: 'other', owner: {}, releasedAtMs: undefined },
    { handleId: undefined, owner: {}, releasedAtMs: NOW_MS },
  ];
  const value = { ...cooling, allocations: [0, 1], unallocated: [], attributes };
  const { store, updater } = await begin({
    known: [poolRecord('p', '10.0.0.0/30', { blockSizeBits: 31 }), ...NODES, ...claimedBlock(cooling)],
    then: [config({ cooldownSeconds: 30 }), { kind: 'block', value }],
    reads: [keys.block(cooling.prefix)],
  });
  const decide = (view: View) => allocate(view, { request: request('c1'), nowMs: NOW_MS });
  const { endpoint } = await updater.update('n1', decide, { signal: forever });
  expect(endpoint.addresses[0]?.block).toEqual(prefix('10.0.0.2/31'));
  expect((await readAll(store, keys)).block(cooling.prefix)?.attributes).toHaveLength(2);
});

test('no address is reported as free that another replica has allocated, before the watch reports it', async () => {
  const store = new MemoryStore();
  let openGate = (): void => undefined;
  const gate = new Promise<void>((resolve) => (openGate = resolve));
  const { ipam } = await startIpam(store);
  // Blocks of one address: the other replica knows the second as the node's, and empty.
  await ipam.pools.create(specOf('10.0.0.0/31', 32), forever);
  const first = await ipam.addresses.allocate(request('c1'), forever);
  await ipam.addresses.allocate(request('c2'), forever);
  await ipam.addresses.release(attachment('c2'), forever);
  const behind = await startIpam({
    ...withSilentWatch(store),
    async *watch(wanted, signal) {
      await gate;
      yield* store.watch(wanted, signal);
    },
  });
  const second = await ipam.addresses.allocate(request('c2'), forever);
  const releases = [first, second].flatMap(({ endpoint }) =>
    endpoint.addresses.map(({ address }) => ({ address, handleId: undefined, sequenceNumber: undefined })),
  );
  const asked = behind.ipam.addresses.releaseEach(releases, forever);
  await settleEvents();
  openGate();
  expect((await asked).map(({ state }) => state)).toEqual(['released', 'released']);
});

function specOf(cidr: string, blockSizeBits: number) {
  const checked = checkPool({ name: 'p', cidr, blockSizeBits, disabled: false });
  if (!checked.ok) throw new Error(cidr);
  return checked.spec;
}
