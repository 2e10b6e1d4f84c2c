import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import type { Allocation } from '../addresses/allocate/allocate.js';
import { inconsistencies, readAll } from '../engine/testing/consistency.js';
import { MemoryStore, type MemoryStoreOptions } from '../engine/testing/memory-store.js';
import { forever, keys, settleEvents } from '../engine/testing/stores.js';
import type { Ipam } from '../ipam.js';
import { checkPool } from '../pools/rules.js';
import { validateBlock } from '../records/block.js';
import { startIpam, type StartedIpam } from '../testing/ipam.js';
import { attachment, NOW_MS, request } from '../testing/records.js';

interface Started extends StartedIpam {
  readonly store: MemoryStore;
}

async function start(options: MemoryStoreOptions = {}): Promise<Started> {
  const store = new MemoryStore(options);
  return { store, ...(await startIpam(store)) };
}

function spec(name: string, cidr: string, blockSizeBits = 0) {
  const checked = checkPool({ name, cidr, blockSizeBits, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  return checked.spec;
}

async function withPool(cidr: string, options: MemoryStoreOptions = {}): Promise<Started> {
  const started = await start(options);
  await started.ipam.pools.create(spec('p', cidr), forever);
  return started;
}

const ALL_BLOCKS = { after: undefined, limit: 1000, poolName: '', nodeName: '' };

async function blocksOf(ipam: Ipam) {
  const { items } = await ipam.blocks.list(ALL_BLOCKS, forever);
  return items.map(({ block }) => block);
}

const addressOf = ({ endpoint }: Allocation): string => formatAddress(endpoint.addresses[0]!.address);

describe('concurrent requests', () => {
  test('100 allocations of one node get distinct addresses, in few transactions, and are released in few', async () => {
    const { ipam, store } = await withPool('10.0.0.0/16');
    const before = (await store.list('', forever)).revision;
    const given = await Promise.all(
      Array.from({ length: 100 }, (_, i) => ipam.addresses.allocate(request(`c${i}`), forever)),
    );
    expect(new Set(given.map(addressOf)).size).toBe(100);
    const blocks = await blocksOf(ipam);
    expect(blocks.flatMap((block) => validateBlock(block, NOW_MS))).toEqual([]);
    expect(blocks.map(({ allocations }) => allocations.filter((index) => index !== null).length)).toEqual([64, 36]);
    const between = (await store.list('', forever)).revision;
    expect(between - before).toBeLessThan(10);
    await Promise.all(given.map(({ endpoint }) => ipam.addresses.release(endpoint.attachment, forever)));
    expect((await store.list('', forever)).revision - between).toBeLessThan(10);
  });

  test('of one attachment get one address', async () => {
    const { ipam } = await withPool('10.0.0.0/16');
    const given = await Promise.all(Array.from({ length: 10 }, () => ipam.addresses.allocate(request('c1'), forever)));
    expect(new Set(given.map(addressOf)).size).toBe(1);
    expect(given.map(({ added }) => added.length)).toEqual([1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
  });

  test('of one attachment on two replicas get one address', async () => {
    const { ipam, store } = await withPool('10.0.0.0/16');
    const other = await startIpam(store);
    const given = await Promise.all(
      [ipam, other.ipam].map((replica) => replica.addresses.allocate(request('c1'), forever)),
    );
    expect(new Set(given.map(addressOf)).size).toBe(1);
  });

  test('of 32 nodes in a pool of 16 blocks: all get an address, 16 a block with it, the remaining nodes borrow', async () => {
    const { ipam, store } = await withPool('10.0.0.0/22');
    const given = await Promise.all(
      Array.from({ length: 32 }, (_, i) => ipam.addresses.allocate(request(`c${i}`, { nodeName: `n${i}` }), forever)),
    );
    expect(new Set(given.map(addressOf)).size).toBe(32);
    expect(given.filter(({ claimed }) => claimed.length === 1)).toHaveLength(16);
    expect(given.filter(({ borrowed }) => borrowed.length === 1)).toHaveLength(16);
    const view = await readAll(store, keys);
    expect(view.affinities().map(({ state }) => state)).toEqual(Array.from({ length: 16 }, () => 'confirmed'));
    expect(inconsistencies(view, NOW_MS)).toEqual([]);
  });

  test('a release and the allocation of another container never share an address while both are held', async () => {
    const { ipam } = await withPool('10.0.0.0/26');
    for (let i = 0; i < 64; i++) await ipam.addresses.allocate(request(`old-${i}`), forever);
    const work = Array.from({ length: 64 }, async (_, i) => {
      await ipam.addresses.release(attachment(`old-${i}`), forever);
      return ipam.addresses.allocate(request(`new-${i}`), forever);
    });
    expect(new Set((await Promise.all(work)).map(addressOf)).size).toBe(64);
  });
});

test('an allocation on a node with a block is one transaction, and so is its release; a repeat has none', async () => {
  const commits: string[] = [];
  const before = (operation: string) => {
    if (operation === 'commit') commits.push(operation);
    return Promise.resolve();
  };
  const { ipam } = await withPool('10.0.0.0/16', { before });
  const counted = async (work: () => Promise<unknown>) => {
    commits.length = 0;
    await work();
    return commits.length;
  };
  expect(await counted(() => ipam.addresses.allocate(request('first'), forever))).toBe(1);
  expect(await counted(() => ipam.addresses.allocate(request('c1'), forever))).toBe(1);
  expect(await counted(() => ipam.addresses.allocate(request('c1'), forever))).toBe(0);
  expect(await counted(() => ipam.addresses.release(attachment('c1'), forever))).toBe(1);
  expect(await counted(() => ipam.addresses.release(attachment('c1'), forever))).toBe(0);
});

describe('interleavings', () => {
  const ids = fc.constantFrom('c1', 'c2', 'c3');
  const operation = fc.oneof(
    {
      weight: 4,
      arbitrary: fc.record({ type: fc.constant('allocate' as const), id: ids, node: fc.constantFrom('n1', 'n2') }),
    },
    { weight: 3, arbitrary: fc.record({ type: fc.constant('release' as const), id: ids }) },
    fc.record({
      type: fc.constant('delete' as const),
      pool: fc.constantFrom('p', 'q'),
      whenInUse: fc.constantFrom('drain' as const, 'refuse' as const, 'release' as const),
    }),
    fc.record({ type: fc.constant('finish' as const) }),
    fc.record({ type: fc.constant('update' as const), pool: fc.constantFrom('p', 'q'), disabled: fc.boolean() }),
    fc.record({ type: fc.constant('create' as const), pool: fc.constantFrom('p', 'q') }),
  );
  type Operation = typeof operation extends fc.Arbitrary<infer Value> ? Value : never;

  /** Containers of one pod, so that they compete for its endpoint as well. */
  const pod = { namespace: 'default', name: 'web', uid: '' };

  function run(ipam: Ipam, asked: Operation): Promise<unknown> {
    switch (asked.type) {
      case 'allocate':
        return ipam.addresses.allocate(request(asked.id, { nodeName: asked.node, pod }), forever);
      case 'release':
        return ipam.addresses.release(attachment(asked.id), forever);
      case 'delete':
        return ipam.pools.delete({ name: asked.pool, resourceVersion: '', whenInUse: asked.whenInUse }, forever);
      case 'finish':
        return ipam.pools.finishDeletions(forever);
      case 'update':
        return ipam.pools.update({ name: asked.pool, resourceVersion: '', disabled: asked.disabled }, forever);
      case 'create':
        return ipam.pools.create(spec(asked.pool, asked.pool === 'p' ? '10.0.0.0/30' : '10.0.0.0/29', 31), forever);
    }
  }

  /** All following work reaches its own wait after each step; a single entry of the queue would always be next. */
  const orders = fc.scheduler({
    act: async (step) => {
      await step();
      await settleEvents();
    },
  });

  test('property: of up to six concurrent operations on a tiny pool, all records agree after each order of transactions', async () => {
    const operations = fc.array(operation, { minLength: 2, maxLength: 6 });
    await fc.assert(
      // The scheduler comes last: its choices begin with the same random numbers as later values.
      fc.asyncProperty(operations, operations, orders, async (sequence, concurrent, scheduler) => {
        let ordered = false;
        const before = async (step: string) => {
          if (ordered && step === 'commit') await scheduler.schedule(Promise.resolve());
        };
        const { ipam, store } = await start({ before });
        await ipam.pools.create(spec('p', '10.0.0.0/29', 31), forever);
        for (const asked of sequence) await run(ipam, asked).catch(expectFailure);
        ordered = true;
        const ends = Promise.all(concurrent.map((asked) => run(ipam, asked).catch(expectFailure)));
        await settleEvents();
        await scheduler.waitFor(ends);
        ordered = false;
        expect(inconsistencies(await readAll(store, keys), NOW_MS)).toEqual([]);
      }),
      { numRuns: 500, verbose: fc.VerbosityLevel.Verbose },
    );
  }, 60_000);
});

/** Possible refusals of an operation. A defect is none of these. */
function expectFailure(error: unknown): void {
  expect(error).toMatchObject({
    code: expect.stringMatching(
      /^(NO_POOL|NO_POOL_SERVES|POOLS_EXHAUSTED|POOL_EXISTS|POOL_NOT_FOUND|POOL_OVERLAP|POOL_IN_USE|POOL_BEING_DELETED|CONFLICT)$/,
    ),
  });
}

describe('failures of the datastore', () => {
  const failure = new Failure('STORE_UNAVAILABLE', 'the datastore is unavailable');

  test('before the commit: nothing is allocated, and the retry works', async () => {
    const { ipam, store } = await withPool('10.0.0.0/24');
    store.injectFault('commit', { type: 'fails', failure });
    await expect(ipam.addresses.allocate(request('c1'), forever)).rejects.toBe(failure);
    expect(store.unusedFaults()).toEqual([]);
    expect(await blocksOf(ipam)).toEqual([]);
    expect((await ipam.addresses.allocate(request('c1'), forever)).added).toEqual([4]);
  });

  test('after the commit: the retry finds the address, a release frees it', async () => {
    const { ipam, store } = await withPool('10.0.0.0/24');
    store.injectFault('commit', { type: 'failsAfterCommit', failure });
    await expect(ipam.addresses.allocate(request('c1'), forever)).rejects.toBe(failure);
    expect(store.unusedFaults()).toEqual([]);
    expect((await ipam.addresses.allocate(request('c1'), forever)).added).toEqual([]);
    expect((await ipam.addresses.release(attachment('c1'), forever)).addresses).toHaveLength(1);
  });

  test('a caller that has already cancelled gets nothing', async () => {
    const { ipam } = await withPool('10.0.0.0/24');
    const gone = AbortSignal.abort(new Failure('CANCELLED', 'the caller gave up'));
    await expect(ipam.addresses.allocate(request('c1'), gone)).rejects.toMatchObject({ code: 'CANCELLED' });
    expect(await blocksOf(ipam)).toEqual([]);
  });
});

test('events are logged once they are durable', async () => {
  const { ipam, lines } = await withPool('10.0.0.0/26');
  const pod = { namespace: 'default', name: 'web', uid: '' };
  await ipam.addresses.allocate(request('old', { pod }), forever);
  await ipam.addresses.allocate(request('new', { pod }), forever);
  await ipam.addresses.allocate(request('new', { pod }), forever);
  await ipam.addresses.release(attachment('old'), forever);
  await ipam.addresses.release(attachment('old'), forever);
  await ipam.addresses.release(attachment('new'), forever);
  await ipam.pools.delete({ name: 'p', resourceVersion: '', whenInUse: 'drain' }, forever);
  expect(lines.map((line) => JSON.parse(line).msg)).toEqual([
    'created pool "p" 10.0.0.0/26 with blocks of /26',
    'allocated 10.0.0.0',
    'node n1 claimed block 10.0.0.0/26',
    'allocated 10.0.0.1',
    'replaced the endpoint of net/old/eth0, which keeps its addresses until its release',
    'allocated already',
    'released 10.0.0.0',
    'nothing to release',
    'released 10.0.0.1',
    'deleted pool "p" 10.0.0.0/26 and its 1 empty block',
  ]);
});
