import { Writable } from 'node:stream';

import { Failure } from '@podwire/shared/failure/failure';
import { type Address, formatAddress, parseAddress } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { createLogger } from '@podwire/shared/runtime/log';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { Events } from '../engine/events.js';
import { countHeld, heldByHandle, inconsistencies, readAll } from '../engine/testing/consistency.js';
import { MemoryStore, type MemoryStoreOptions } from '../engine/testing/memory-store.js';
import { forever, instantClock, keys, startReplica } from '../engine/testing/stores.js';
import { HistoryLog } from '../history/history-log.js';
import { Ipam } from '../ipam.js';
import { checkPool } from '../pools/rules.js';
import { address, assignment } from '../testing/allocations.js';
import { startIpam } from '../testing/ipam.js';
import { attachment, host, NOW_MS, request } from '../testing/records.js';

/** An entry of the history that is no change of a pool or a node. */
const isRelease = ({ key }: { readonly key: string }) => key.startsWith(keys.history) && !keys.isChange(key);

interface Started {
  readonly ipam: Ipam;
  readonly store: MemoryStore;
}

interface Wanted {
  readonly cidr: string;
  readonly blockSizeBits: number;
}

async function withPool({ cidr, blockSizeBits }: Wanted, options: MemoryStoreOptions = {}): Promise<Started> {
  const store = new MemoryStore(options);
  const { ipam } = await startIpam(store);
  const checked = checkPool({ name: 'p', cidr, blockSizeBits, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  await ipam.pools.create(checked.spec, forever);
  return { ipam, store };
}

const agree = async (store: MemoryStore) => {
  const view = await readAll(store, keys);
  expect(inconsistencies(view, NOW_MS)).toEqual([]);
  return view;
};

const asking = (handleId: string, count: number, rest: Parameters<typeof assignment>[1] = {}) =>
  assignment(handleId, { counts: { 4: count, 6: 0 }, ...rest });

describe('an assignment', () => {
  test('takes as many transactions as its blocks need, and reports a shortage', async () => {
    const { ipam, store } = await withPool({ cidr: '10.0.0.0/25', blockSizeBits: 32 });
    const before = (await store.list('', forever)).revision;
    const { newAddresses, shortages } = await ipam.assignments.assign(asking('h', 130), forever);
    expect(new Set(newAddresses.map(({ address }) => formatPrefix(address))).size).toBe(128);
    expect(shortages.get(4)?.text).toContain('all 128 blocks are full');
    expect((await store.list('', forever)).revision - before).toBeGreaterThan(4);
    expect(countHeld(await agree(store))).toBe(128);
  });

  test('that fails in a later step reports the number of assigned addresses, and a retry continues', async () => {
    let commits = 0;
    const before = (operation: string): Promise<void> => {
      if (operation === 'commit' && ++commits === 4)
        return Promise.reject(new Failure('STORE_UNAVAILABLE', 'the cable is cut'));
      return Promise.resolve();
    };
    const { ipam, store } = await withPool({ cidr: '10.0.0.0/25', blockSizeBits: 32 }, { before });
    const asked = asking('h', 100, { maxPerHandleCount: 100 });
    const work = ipam.assignments.assign(asked, forever);
    await expect(work).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE', details: { assigned: '42' } });
    await expect(work).rejects.toThrow('42 addresses were assigned before the failure and stay with handle h');
    expect(commits).toBe(4);
    const kept = countHeld(await agree(store));
    expect(kept).toBe(42);
    const { newAddresses, held } = await ipam.assignments.assign(asked, forever);
    expect([newAddresses.length, held.length]).toEqual([100 - kept, kept]);
    expect(countHeld(await agree(store))).toBe(100);
  });
});

/** Cases of Calico's ipam_block_reader_writer_test.go. */
describe('at the same time', () => {
  test('four assignments of one node in a pool of two blocks: one block, one affinity, all distinct', async () => {
    const { ipam, store } = await withPool({ cidr: '10.0.0.0/25', blockSizeBits: 26 });
    const results = await Promise.all(
      Array.from({ length: 4 }, (_, i) => ipam.assignments.assign(asking(`h${i}`, 1), forever)),
    );
    const newAddresses = results.flatMap((result) => result.newAddresses.map(({ address }) => formatPrefix(address)));
    expect(new Set(newAddresses).size).toBe(4);
    const view = await agree(store);
    expect(view.affinities().map(({ state }) => state)).toEqual(['confirmed']);
  });

  test('32 nodes on three replicas in a pool of 16 blocks: each gets one address, 16 a block', async () => {
    const { ipam, store } = await withPool({ cidr: '10.0.0.0/22', blockSizeBits: 26 });
    const replicas = [ipam, (await startIpam(store)).ipam, (await startIpam(store)).ipam];
    const results = await Promise.all(
      Array.from({ length: 32 }, (_, i) =>
        replicas[i % 3]!.assignments.assign(asking(`h${i}`, 1, { owner: host(`n${i}`) }), forever),
      ),
    );
    expect(new Set(results.flatMap(({ newAddresses }) => newAddresses.map(({ address }) => address.value))).size).toBe(
      32,
    );
    const view = await agree(store);
    expect(view.affinities()).toHaveLength(16);
    expect(countHeld(view)).toBe(32);
  });

  test('as many as the pool has, over three replicas and all nodes, then one too many', async () => {
    const { ipam, store } = await withPool({ cidr: '10.0.0.0/28', blockSizeBits: 30 });
    const replicas = [ipam, (await startIpam(store)).ipam, (await startIpam(store)).ipam];
    const results = await Promise.allSettled(
      Array.from({ length: 17 }, (_, i) =>
        replicas[i % 3]!.addresses.allocate(request(`c${i}`, { nodeName: `n${i % 5}` }), forever),
      ),
    );
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(16);
    expect(results.filter(({ status }) => status === 'rejected')).toMatchObject([
      { reason: { code: 'POOLS_EXHAUSTED' } },
    ]);
    expect(countHeld(await agree(store))).toBe(16);
  });

  test('property: reclaims, borrows, claims and releases of three nodes, in any order of their transactions', async () => {
    const step = fc.record({
      node: fc.constantFrom('n1', 'n2', 'n3'),
      id: fc.constantFrom('a', 'b', 'c', 'd'),
      type: fc.constantFrom('allocate' as const, 'release' as const, 'assign' as const),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 3, maxLength: 12 }), fc.scheduler(), async (steps, scheduler) => {
        const before = (operation: string): Promise<void> =>
          operation === 'commit' ? scheduler.schedule(Promise.resolve(), operation) : Promise.resolve();
        const { ipam, store } = await scheduler.waitFor(
          withPool({ cidr: '10.0.0.0/30', blockSizeBits: 31 }, { before }),
        );
        const other = (await scheduler.waitFor(startIpam(store))).ipam;
        const work = steps.map(({ node, id, type }, index) => {
          const replica = index % 2 === 0 ? ipam : other;
          if (type === 'release') return replica.addresses.release(attachment(id), forever);
          if (type === 'assign')
            return replica.assignments.assign(asking(`h-${id}`, 2, { owner: host(node) }), forever);
          return replica.addresses.allocate(request(id, { nodeName: node }), forever);
        });
        await scheduler.waitFor(Promise.allSettled(work));
        await agree(store);
      }),
      { numRuns: 60, verbose: fc.VerbosityLevel.Verbose },
    );
  }, 60_000);
});

const WANTED: Address = parseAddress('10.0.0.9')!;

const allocateWanted = async (ipam: Ipam, id: string) => {
  const { endpoint } = await ipam.addresses.allocate(request(id, { addresses: [WANTED] }), forever);
  return endpoint.addresses.map(({ address }) => formatPrefix(address)).join();
};

/** A container that requests an address, and whose response is lost before or after the commit. */
async function lostAnswer(type: 'fails' | 'failsAfterCommit') {
  const { ipam, store } = await withPool({ cidr: '10.0.0.0/28', blockSizeBits: 30 });
  store.injectFault('commit', { type, failure: new Failure('STORE_UNAVAILABLE', 'the connection was cut') });
  await expect(allocateWanted(ipam, 'c1')).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
  expect(store.unusedFaults()).toEqual([]);
  return { store, ipam };
}

// Addresses that stayed in use without a known holder, so that a pod with a fixed address could never start again:
// projectcalico/calico#5203, projectcalico/libcalico-go#1329.
describe.each(['fails', 'failsAfterCommit'] as const)(
  'a requested address, where the commit %s and the caller gets a failure,',
  (type) => {
    test('is returned to the retry', async () => {
      const { store, ipam } = await lostAnswer(type);
      expect(await allocateWanted(ipam, 'c1')).toBe('10.0.0.9/32');
      expect(inconsistencies(await readAll(store, keys), NOW_MS)).toEqual([]);
    });

    test('is free for the next container, after the release that follows a failed ADD', async () => {
      const { store, ipam } = await lostAnswer(type);
      await ipam.addresses.release(attachment('c1'), forever);
      expect(await allocateWanted(ipam, 'c2')).toBe('10.0.0.9/32');
      const view = await readAll(store, keys);
      expect(inconsistencies(view, NOW_MS)).toEqual([]);
      expect(view.all('handle').map(({ value }) => value.id)).toEqual(['net.c2']);
    });
  },
);

const PODS = ['a', 'b', 'c'];

async function allocateSandbox(
  ipam: Ipam,
  sandbox: string,
  { pod, bootId }: { readonly pod: string; readonly bootId: string },
) {
  const identity = { namespace: 'default', name: pod, uid: '' };
  const wanted = request(sandbox, { pod: identity, netns: { bootId, inode: 4026532000n } });
  const { endpoint } = await ipam.addresses.allocate(wanted, forever);
  return endpoint.addresses.map(({ address }) => formatPrefix(address)).join();
}

const REPAIR = { kinds: [], dryRun: false, releases: true, graceMs: 0, limit: 100 };

// Duplicates and leaked endpoints after a reboot: projectcalico/calicoctl#1523 and #1550, projectcalico/calico#13858.
test('old sandboxes after a reboot keep their addresses from new ones until an audit releases them', async () => {
  const { store, ipam } = await withPool({ cidr: '10.0.0.0/28', blockSizeBits: 30 });
  const old = await Promise.all(PODS.map((pod) => allocateSandbox(ipam, `old-${pod}`, { pod, bootId: 'one' })));
  const young = await Promise.all(PODS.map((pod) => allocateSandbox(ipam, `new-${pod}`, { pod, bootId: 'two' })));
  expect(new Set([...old, ...young]).size, 'a process of the old sandbox may live').toBe(2 * PODS.length);
  expect(await allocateSandbox(ipam, 'new-a', { pod: 'a', bootId: 'two' }), 'an ADD again').toBe(young[0]);
  const before = await readAll(store, keys);
  expect(inconsistencies(before, NOW_MS)).toEqual([]);
  expect(before.endpoints(), 'one for each pod').toHaveLength(PODS.length);

  const { results } = await ipam.audits.repair(REPAIR, forever);
  expect(results.map(({ finding, result }) => `${finding.kind} ${result.state}`)).toEqual(
    PODS.map(() => 'allocationUnused repaired'),
  );
  const after = await readAll(store, keys);
  expect(inconsistencies(after, NOW_MS)).toEqual([]);
  expect([...heldByHandle(after).values()].sort()).toEqual(young.toSorted());
  for (const [index, pod] of PODS.entries()) {
    await ipam.addresses.release(attachment(`old-${pod}`), forever);
    const { addresses } = await ipam.addresses.getEndpoint(attachment(`new-${pod}`), forever);
    expect(
      addresses.map(({ address }) => formatPrefix(address)),
      'after a late DEL of the old one',
    ).toEqual([young[index]]);
  }
});

/**
 * Each reading of the clock is a later moment: the sequence numbers of a recreated block begin at the clock, and a frozen
 * clock would repeat the numbers of the earlier block.
 */
async function startIpamOn(store: MemoryStore, clock: { nowMs: () => number }): Promise<Ipam> {
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
async function startReplicas(cidr: string, blockSizeBits: number, options: MemoryStoreOptions = {}) {
  const store = new MemoryStore(options);
  let nowMs = NOW_MS;
  const clock = { nowMs: () => ++nowMs };
  const replicas = [await startIpamOn(store, clock), await startIpamOn(store, clock)] as const;
  const checked = checkPool({ name: 'p', cidr, blockSizeBits, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  await replicas[0].pools.create(checked.spec, forever);
  return { store, replicas };
}

test('200 addresses over blocks of ten nodes are released in one call, with results in the order of the request', async () => {
  const { store, replicas } = await startReplicas('10.0.0.0/22', 27);
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
  expect((await store.list(keys.history, forever)).records.filter(isRelease)).toHaveLength(196);
});

test('a release and its entry of the history are one transaction', async () => {
  const { store, replicas } = await startReplicas('10.0.0.0/26', 26);
  await replicas[0].addresses.allocate(request('c1'), forever);
  const before = (await store.list('', forever)).revision;
  await replicas[0].addresses.release(attachment('c1'), forever);
  const after = await store.list('', forever);
  expect(after.revision).toBe(before + 1);
  expect(after.records.filter(isRelease)).toMatchObject([{ modRevision: after.revision }]);
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
      const { addresses } = await ipam.handles.release(handle, forever);
      return addresses.map((each) => `net.${asked.id} ${formatPrefix(each)}`);
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

test('property: of concurrent operations, each release frees its own addresses, once, with a history entry', async () => {
  const operations = fc.array(operation, { maxLength: 6 });
  const concurrent = fc.array(fc.tuple(operation, fc.constantFrom(0, 1)), { minLength: 2, maxLength: 6 });
  await fc.assert(
    fc.asyncProperty(fc.scheduler(), operations, concurrent, async (scheduler, sequence, together) => {
      let ordered = false;
      const before = async (step: string) => {
        if (ordered && step === 'commit') await scheduler.schedule(Promise.resolve());
      };
      const { store, replicas } = await startReplicas('10.0.0.0/30', 31, { before });
      const released: (readonly string[])[] = [];
      const note = async (work: Promise<readonly string[]>): Promise<void> => {
        released.push(await work.catch(expectRefusal));
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
      const records = (await store.list(keys.history, forever)).records.filter(isRelease);
      const past = records.map(({ value }) => JSON.parse(Buffer.from(value).toString()));
      expect(past.map(({ handleID, address: each }) => `${handleID} ${each}/32`).sort()).toEqual(
        released.flat().sort(),
      );
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
    const { store, replicas } = await startReplicas('10.0.0.0/26', 26);
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
    /** Expects that in any order the later attachment has the addresses of its response. */
    const expectHeld = async ({ endpoint: later }: Awaited<ReturnType<typeof addAgain>>) => {
      const view = await readAll(store, keys);
      expect(inconsistencies(view, NOW_MS)).toEqual([]);
      const endpoints = view.all('endpoint').map(({ value }) => value);
      expect(endpoints).toMatchObject([{ netns: alive, addresses: later.addresses }]);
      expect(later.addresses).toHaveLength(1);
    };
    return { replicas, release, addAgain, expectHeld };
  }

  test('keeps the addresses when the attach came first', async () => {
    const { replicas, release, addAgain, expectHeld } = await added();
    const again = await addAgain(replicas[0]);
    expect(await release(replicas[1])).toBe('mismatch');
    await expectHeld(again);
  });

  test('releases addresses of the dead pod when it came first', async () => {
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
