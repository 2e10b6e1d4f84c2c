import { Writable } from 'node:stream';

import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { createLogger } from '@podwire/shared/runtime/log';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { Events } from '../engine/events.js';
import { inconsistencies, readAll } from '../engine/testing/consistency.js';
import { MemoryStore, type MemoryStoreOptions } from '../engine/testing/memory-store.js';
import { forever, instantClock, keys, startReplica } from '../engine/testing/stores.js';
import { HistoryLog } from '../history/history-log.js';
import { Ipam } from '../ipam.js';
import { checkPool } from '../pools/rules.js';
import { address } from '../testing/allocations.js';
import { attachment, host, NOW_MS, request } from '../testing/records.js';

/**
 * Each reading of the clock is a later moment: the sequence numbers of a recreated block begin at the clock, and a frozen
 * clock would repeat those of the earlier block.
 */
async function startOn(store: MemoryStore, clock: { nowMs: () => number }): Promise<Ipam> {
  const { updater } = await startReplica(store);
  let uids = 0;
  const destination = new Writable({ write: (_chunk, _encoding, done) => done() });
  return new Ipam({
    updates: updater,
    events: new Events(createLogger({ service: 'test', level: 'fatal', destination })),
    clock: { ...instantClock, ...clock },
    newUid: () => `uid-${uids++}`,
    history: { log: new HistoryLog(store, keys), retentionHours: 168 },
    unknownNodes: 'register',
  });
}

/** Two replicas on one datastore with one pool. */
async function start(cidr: string, blockSizeBits: number, options: MemoryStoreOptions = {}) {
  const store = new MemoryStore(options);
  let nowMs = NOW_MS;
  const clock = { nowMs: () => ++nowMs };
  const replicas = [await startOn(store, clock), await startOn(store, clock)] as const;
  const checked = checkPool({ name: 'p', cidr, blockSizeBits, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  await replicas[0].pools.create(checked.spec, forever);
  return { store, replicas };
}

test('200 addresses over blocks of ten nodes are released in one call, with results in the order of the request', async () => {
  const { store, replicas } = await start('10.0.0.0/22', 27);
  const [ipam] = replicas;
  const given = await Promise.all(
    Array.from({ length: 200 }, (_, i) =>
      ipam.addresses.allocate(request(`c${i}`, { nodeName: `n${i % 10}` }), forever),
    ),
  );
  const releases = given.flatMap(({ endpoint }, index) =>
    endpoint.addresses.map(({ address: each, sequenceNumber }) => ({
      address: each,
      handleId: index % 50 === 0 ? 'net.other' : `net.c${index}`,
      sequenceNumber,
    })),
  );
  const results = await ipam.addresses.releaseEach(releases, forever);
  expect(results.map(({ state }) => state)).toEqual(
    releases.map((_, index) => (index % 50 === 0 ? 'mismatch' : 'released')),
  );
  const again = await ipam.addresses.releaseEach(releases, forever);
  expect(again.filter(({ state }) => state === 'released')).toEqual([]);
  expect(inconsistencies(await readAll(store, keys), NOW_MS)).toEqual([]);
  expect((await store.list(keys.history, forever)).records).toHaveLength(196);
});

test('a release and its entry of the history are one transaction', async () => {
  const { store, replicas } = await start('10.0.0.0/26', 26);
  await replicas[0].addresses.allocate(request('c1'), forever);
  const before = (await store.list('', forever)).revision;
  await replicas[0].addresses.release(attachment('c1'), forever);
  const after = await store.list('', forever);
  expect(after.revision).toBe(before + 1);
  expect(after.records.filter(({ key }) => key.startsWith(keys.history))).toMatchObject([
    { modRevision: after.revision },
  ]);
});

const ids = fc.constantFrom('c1', 'c2', 'c3');
const operation = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({ type: fc.constant('allocate' as const), id: ids, node: fc.constantFrom('n1', 'n2') }),
  },
  { weight: 2, arbitrary: fc.record({ type: fc.constant('attachment' as const), id: ids }) },
  { weight: 2, arbitrary: fc.record({ type: fc.constant('handle' as const), id: ids }) },
  {
    weight: 3,
    arbitrary: fc.record({ type: fc.constant('address' as const), host: fc.integer({ min: 0, max: 3 }), id: ids }),
  },
  { weight: 2, arbitrary: fc.record({ type: fc.constant('abandon' as const), node: fc.constantFrom('n1', 'n2') }) },
  fc.record({ type: fc.constant('claim' as const), node: fc.constantFrom('n1', 'n2') }),
);
type Operation = typeof operation extends fc.Arbitrary<infer Value> ? Value : never;

/** Runs an operation. @returns the handle and the released addresses */
async function run(ipam: Ipam, asked: Operation): Promise<readonly string[]> {
  switch (asked.type) {
    case 'allocate':
      await ipam.addresses.allocate(request(asked.id, { nodeName: asked.node, pod: undefined }), forever);
      return [];
    case 'attachment': {
      const { addresses } = await ipam.addresses.release(attachment(asked.id), forever);
      return addresses.map((each) => `net.${asked.id} ${formatPrefix(each)}`);
    }
    case 'handle': {
      const handle = { handleId: `net.${asked.id}`, searchesAllBlocks: false };
      return (await ipam.handles.release(handle, forever)).map((each) => `net.${asked.id} ${formatPrefix(each)}`);
    }
    case 'address': {
      const wanted = {
        address: address(`10.0.0.${asked.host}`),
        handleId: `net.${asked.id}`,
        sequenceNumber: undefined,
      };
      const [result] = await ipam.addresses.releaseEach([wanted], forever);
      return result?.state === 'released' ? [`net.${asked.id} ${formatAddress(wanted.address)}/32`] : [];
    }
    case 'abandon': {
      const scope = { kind: 'owner', owner: host(asked.node) } as const;
      await ipam.affinities.release({ scope, mustBeEmpty: false }, forever);
      return [];
    }
    case 'claim': {
      const [pool] = (await ipam.pools.list({ after: '', limit: 1 }, forever)).items;
      if (pool) await ipam.affinities.claim({ cidr: pool.pool.prefix, nodeName: asked.node }, forever);
      return [];
    }
  }
}

test('property: of up to six concurrent operations on two replicas, each release frees its own addresses, once, with a history entry', async () => {
  const operations = fc.array(operation, { maxLength: 6 });
  const concurrent = fc.array(fc.tuple(operation, fc.constantFrom(0, 1)), { minLength: 2, maxLength: 6 });
  await fc.assert(
    fc.asyncProperty(fc.scheduler(), operations, concurrent, async (scheduler, sequence, together) => {
      let ordered = false;
      const before = async (step: string) => {
        if (ordered && step === 'commit') await scheduler.schedule(Promise.resolve());
      };
      const { store, replicas } = await start('10.0.0.0/30', 31, { before });
      const told: (readonly string[])[] = [];
      const note = async (work: Promise<readonly string[]>): Promise<void> => {
        told.push(await work.catch(expectRefusal));
      };
      for (const asked of sequence) await note(run(replicas[0], asked));
      ordered = true;
      await scheduler.waitFor(
        Promise.all(together.map(([asked, which]) => note(run(replicas[which === 0 ? 0 : 1], asked)))),
      );
      ordered = false;
      const view = await readAll(store, keys);
      const unowned = 'has no confirmed affinity';
      expect(inconsistencies(view, NOW_MS).filter((text) => !text.includes(unowned))).toEqual([]);
      for (const block of view.blocks())
        if (block.owner) expect(view.affinity(block.owner, block.prefix)?.state).toBe('confirmed');
      const { records } = await store.list(keys.history, forever);
      const past = records.map(({ value }) => JSON.parse(Buffer.from(value).toString()));
      expect(past.map(({ handleID, address: each }) => `${handleID} ${each}/32`).sort()).toEqual(told.flat().sort());
    }),
    { numRuns: 400, verbose: fc.VerbosityLevel.Verbose },
  );
}, 60_000);

/** Possible refusals of an operation. A defect is none of these. */
function expectRefusal(error: unknown): readonly string[] {
  expect(error).toMatchObject({ code: expect.stringMatching(/^(POOLS_EXHAUSTED|CONFLICT)$/) });
  return [];
}

describe('a release for a namespace, and a later attach in another one', () => {
  const dead = { bootId: 'boot', inode: 7n };
  const alive = { bootId: 'boot', inode: 8n };

  async function added() {
    const { store, replicas } = await start('10.0.0.0/26', 26);
    const asked = request('c1', { netns: dead });
    const { endpoint } = await replicas[0].addresses.allocate(asked, forever);
    const meant = endpoint.addresses.map(({ address: each, sequenceNumber }) => ({
      address: address(formatAddress(each)),
      handleId: 'net.c1',
      sequenceNumber,
      netns: dead,
    }));
    const release = async (ipam: Ipam) => {
      const [result] = await ipam.addresses.releaseEach(meant, forever);
      return result?.state;
    };
    const addAgain = (ipam: Ipam) => ipam.addresses.allocate({ ...asked, netns: alive }, forever);
    /** In any order, the later attachment has the addresses of its response. */
    const expectHeld = async ({ endpoint: told }: Awaited<ReturnType<typeof addAgain>>) => {
      const view = await readAll(store, keys);
      expect(inconsistencies(view, NOW_MS)).toEqual([]);
      const endpoints = view.all('endpoint').map(({ value }) => value);
      expect(endpoints).toMatchObject([{ netns: alive, addresses: told.addresses }]);
      expect(told.addresses).toHaveLength(1);
    };
    return { replicas, release, addAgain, expectHeld };
  }

  test('keeps the addresses when the attach came first', async () => {
    const { replicas, release, addAgain, expectHeld } = await added();
    const again = await addAgain(replicas[0]);
    expect(await release(replicas[1])).toBe('mismatch');
    await expectHeld(again);
  });

  test('releases those of the dead pod when it came first', async () => {
    const { replicas, release, addAgain, expectHeld } = await added();
    expect(await release(replicas[0])).toBe('released');
    await expectHeld(await addAgain(replicas[1]));
    expect(await release(replicas[0])).toBe('notAllocated');
  });

  test.each([
    [0, 1],
    [1, 0],
    [0, 0],
  ] as const)('at the same time, on replicas %i and %i, are executed one after the other', async (first, second) => {
    const { replicas, release, addAgain, expectHeld } = await added();
    const [state, again] = await Promise.all([release(replicas[first]), addAgain(replicas[second])]);
    expect(['released', 'mismatch']).toContain(state);
    await expectHeld(again);
  });
});
