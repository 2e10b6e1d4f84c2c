import { Failure } from '@podwire/shared/failure/failure';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import type { RevisionChanges, Store, WatchRequest } from '../engine/store.js';
import { inconsistencies, readAll } from '../engine/testing/consistency.js';
import { MemoryStore, type MemoryStoreOptions } from '../engine/testing/memory-store.js';
import { forever, keys, settleEvents } from '../engine/testing/stores.js';
import type { Ipam } from '../ipam.js';
import { ordinalsWhere } from '../records/block.js';
import { poolVersion } from '../records/pool.js';
import { startIpam } from '../testing/ipam.js';
import { attachment, NOW_MS, request } from '../testing/records.js';
import type { PoolDeleted } from './deletion.js';
import { checkPool } from './rules.js';

/** New log lines of a replica about pools. */
function newLines(lines: string[]): string[] {
  return lines.splice(0).flatMap((line) => {
    const message = /"msg":"((?:[^"\\]|\\.)*)"/.exec(line)?.[1]?.replaceAll('\\"', '"') ?? '';
    return message.includes('pool') ? [message] : [];
  });
}

async function startDraining() {
  const store = new MemoryStore();
  const [first, second] = [await startIpam(store), await startIpam(store)];
  const checked = checkPool({ name: 'p', cidr: '10.0.0.0/24', blockSizeBits: 26, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  await first.ipam.pools.create(checked.spec, forever);
  for (const id of ['c1', 'c2']) await first.ipam.addresses.allocate(request(id), forever);
  await first.ipam.pools.delete({ name: 'p', resourceVersion: '', whenInUse: 'drain' }, forever);
  await settleEvents();
  for (const { lines } of [first, second]) newLines(lines);
  return { store, first, second };
}

const GONE = 'deleted pool "p" 10.0.0.0/24 with the release of its last address';

test('the replica that releases the last address of a draining pool reports its deletion, once', async () => {
  const { first, second } = await startDraining();
  await second.ipam.addresses.release(attachment('c1'), forever);
  expect(newLines(second.lines)).toEqual([]);
  await second.ipam.handles.release({ handleId: 'net.c2', searchesAllBlocks: false }, forever);
  expect(newLines(second.lines)).toEqual([GONE]);
  await second.ipam.addresses.release(attachment('c2'), forever);
  await second.ipam.pools.finishDeletions(forever);
  expect([newLines(first.lines), newLines(second.lines)]).toEqual([[], []]);
});

test('a draining pool is reported only after its last address is released', async () => {
  const { store, second } = await startDraining();
  await second.ipam.addresses.release(attachment('c1'), forever);
  store.injectFault('commit', { type: 'losesRace' });
  store.injectFault('commit', { type: 'fails', failure: new Error('planned') });
  await expect(second.ipam.addresses.release(attachment('c2'), forever)).rejects.toThrow('planned');
  expect([store.unusedFaults(), newLines(second.lines)]).toEqual([[], []]);
  await second.ipam.nodes.delete({ name: 'n1', resourceVersion: '' }, forever);
  expect(newLines(second.lines)).toEqual([GONE]);
});

/** The same store, whose watch brings each change only after a wait. */
function withLateWatch(store: MemoryStore, wait: () => Promise<void>): Store {
  return {
    list: (prefix, signal) => store.list(prefix, signal),
    read: (wanted, signal) => store.read(wanted, signal),
    scan: (request, signal) => store.scan(request, signal),
    revision: (signal) => store.revision(signal),
    commit: (transaction, signal) => store.commit(transaction, signal),
    close: () => store.close(),
    async *watch(request: WatchRequest, signal: AbortSignal): AsyncGenerator<RevisionChanges, void, void> {
      for await (const changes of store.watch(request, signal)) {
        await wait();
        yield changes;
      }
    },
  };
}

async function start(options: MemoryStoreOptions = {}) {
  const store = new MemoryStore(options);
  return { store, ...(await startIpam(store)) };
}

function spec(name: string, cidr: string, blockSizeBits = 0) {
  const checked = checkPool({ name, cidr, blockSizeBits, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  return checked.spec;
}

async function withPool(cidr: string, options: MemoryStoreOptions = {}) {
  const started = await start(options);
  await started.ipam.pools.create(spec('p', cidr), forever);
  return started;
}

/**
 * Orders of waiting work. After each step all following work reaches its own wait, which takes iterations of the event
 * loop; else a single entry of the queue would always be next.
 */
const orders = fc.scheduler({
  act: async (step) => {
    await step();
    await settleEvents();
  },
});

const DRAIN = { name: 'p', resourceVersion: '', whenInUse: 'drain' } as const;
const REFUSE = { ...DRAIN, whenInUse: 'refuse' } as const;
const RELEASE = { ...DRAIN, whenInUse: 'release' } as const;

const listed = async (ipam: Ipam) =>
  (await ipam.pools.list({ after: '', limit: 10 }, forever)).items.map(({ pool }) => pool.name);

const messages = (lines: readonly string[]): string[] => lines.map((line) => JSON.parse(line).msg);

/** Keys of a pool below the root: itself, its blocks, and records of its addresses. */
async function leftOf(store: MemoryStore): Promise<string[]> {
  const view = await readAll(store, keys);
  return [...view.records.keys()].filter((key) => !key.startsWith('node '));
}

test('two overlapping pools created concurrently on two replicas: one is refused', async () => {
  const { ipam, store } = await start();
  const other = await startIpam(store);
  const results = await Promise.allSettled([
    ipam.pools.create(spec('a', '10.0.0.0/16'), forever),
    other.ipam.pools.create(spec('b', '10.0.0.0/17'), forever),
  ]);
  expect(results.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected']);
  expect(await listed(ipam)).toHaveLength(1);
});

test('of two concurrent changes of the same version on two replicas, one is refused', async () => {
  const { ipam, store } = await withPool('10.0.0.0/24');
  const other = await startIpam(store);
  const { pool } = await ipam.pools.get('p', forever);
  const change = { name: 'p', resourceVersion: poolVersion(pool) };
  const results = await Promise.allSettled([
    ipam.pools.update({ ...change, natOutgoing: true }, forever),
    other.ipam.pools.update({ ...change, vxlanMode: 'Always' }, forever),
  ]);
  expect(results.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected']);
  expect(results.find(({ status }) => status === 'rejected')).toMatchObject({ reason: { code: 'STALE_VERSION' } });
  const after = (await ipam.pools.get('p', forever)).pool;
  expect(after.natOutgoing).toBe(after.vxlanMode === 'Never');
});

describe('deleting a pool', () => {
  test('deletes its empty blocks, in several transactions', async () => {
    const { ipam, store } = await start();
    await ipam.pools.create(spec('p', '10.0.0.0/24', 32), forever);
    await Promise.all(Array.from({ length: 130 }, (_, i) => ipam.addresses.allocate(request(`c${i}`), forever)));
    await Promise.all(Array.from({ length: 130 }, (_, i) => ipam.addresses.release(attachment(`c${i}`), forever)));
    expect(await ipam.pools.delete(DRAIN, forever)).toMatchObject({ isGone: true, removedBlocks: 130 });
    expect(await leftOf(store)).toEqual([]);
  });

  test('is checked without a change; the refusal names tunnel addresses', async () => {
    const { ipam, dryRun, lines } = await withPool('10.0.0.0/24');
    const before = lines.length;
    const check = (whenInUse: 'refuse' | 'drain') => dryRun().pools.delete({ ...DRAIN, whenInUse }, forever);
    expect(await check('refuse')).toMatchObject({ isGone: true });
    expect(lines).toHaveLength(before);
    await ipam.addresses.allocate(request('c1'), forever);
    await expect(check('refuse')).rejects.toMatchObject({ code: 'POOL_IN_USE' });
    expect(await check('drain')).toMatchObject({ isGone: false, holders: { inUseCount: 1 } });
    expect((await ipam.pools.get('p', forever)).pool).toMatchObject({ disabled: false, deletionTimeMs: undefined });
  });

  test('is checked through all of its transactions', async () => {
    const { ipam, dryRun, store } = await start();
    await ipam.pools.create(spec('p', '10.0.0.0/24', 32), forever);
    await Promise.all(Array.from({ length: 130 }, (_, i) => ipam.addresses.allocate(request(`c${i}`), forever)));
    const before = store.toString();
    expect(await dryRun().pools.delete(RELEASE, forever)).toMatchObject({ isGone: true, releasedAddresses: 130 });
    expect(store.toString()).toBe(before);
  });

  test('waits for the release of its addresses, which removes the rest in its own transaction', async () => {
    const { ipam, store, lines } = await withPool('10.0.0.0/24');
    await ipam.addresses.allocate(request('c1'), forever);
    await ipam.addresses.allocate(request('c2', { nodeName: 'n2' }), forever);
    expect(await ipam.pools.delete(DRAIN, forever)).toEqual({
      isGone: false,
      removedBlocks: 0,
      releasedAddresses: 0,
      kept: [],
      holders: {
        inUseCount: 2,
        leasedCount: 0,
        coolingCount: 0,
        tunnelCount: 0,
        nodes: [
          { nodeName: 'n1', count: 1 },
          { nodeName: 'n2', count: 1 },
        ],
      },
    });
    await expect(ipam.addresses.allocate(request('c3'), forever)).rejects.toMatchObject({
      message: expect.stringContaining('being deleted'),
    });
    expect((await ipam.addresses.allocate(request('c1'), forever)).added, 'held addresses stay valid').toEqual([]);
    await ipam.addresses.release(attachment('c1'), forever);
    expect(await listed(ipam)).toEqual(['p']);
    await settleEvents();
    await ipam.addresses.release(attachment('c2'), forever);
    expect(await leftOf(store)).toEqual([]);
    expect(messages(lines)).toContain(
      'pool "p" 10.0.0.0/24 is being deleted and waits for the release of its addresses',
    );
  });

  test('releases all addresses if requested', async () => {
    const { ipam, store } = await withPool('10.0.0.0/24');
    const ids = Array.from({ length: 70 }, (_, i) => `c${i}`);
    await Promise.all(ids.map((id) => ipam.addresses.allocate(request(id), forever)));
    const deleted = await ipam.pools.delete(RELEASE, forever);
    expect(deleted).toMatchObject({ isGone: true, releasedAddresses: 70, holders: { inUseCount: 0 } });
    expect(await leftOf(store)).toEqual([]);
  });

  test('is refused while addresses are in use, if requested, and changes nothing', async () => {
    const { ipam, store } = await withPool('10.0.0.0/24');
    await ipam.addresses.allocate(request('c1'), forever);
    const before = store.toString();
    await expect(ipam.pools.delete(REFUSE, forever)).rejects.toMatchObject({ code: 'POOL_IN_USE' });
    expect(store.toString()).toBe(before);
  });

  test('is finished in the background after a replica ended in the middle of it', async () => {
    for (let commits = 1; commits <= 3; commits++) {
      let left = Infinity;
      const before = (operation: string): Promise<void> =>
        operation === 'commit' && left-- <= 0 ? new Promise(() => undefined) : Promise.resolve();
      const { ipam, store } = await start({ before });
      await ipam.pools.create(spec('p', '10.0.0.0/24', 32), forever);
      const ids = Array.from({ length: 120 }, (_, i) => `c${i}`);
      await Promise.all(ids.map((id) => ipam.addresses.allocate(request(id), forever)));
      await Promise.all(ids.map((id) => ipam.addresses.release(attachment(id), forever)));
      left = commits;
      void ipam.pools.delete(DRAIN, forever);
      await settleEvents();
      left = Infinity;
      const other = await startIpam(store);
      expect(await listed(other.ipam)).toEqual(['p']);
      await other.ipam.pools.finishDeletions(forever);
      expect(await leftOf(store)).toEqual([]);
      expect(messages(other.lines)).toContainEqual(expect.stringMatching(/^deleted pool "p"/));
    }
  });

  test('that fails in the background does not hold up the other deletions', async () => {
    const failure = new Failure('STORE_UNAVAILABLE', 'the datastore is down');
    let left = Infinity;
    const before = (operation: string): Promise<void> =>
      operation === 'commit' && left-- <= 0 ? Promise.reject(failure) : Promise.resolve();
    const { ipam, store, lines } = await start({ before });
    for (const [name, cidr] of [
      ['p', '10.0.0.0/24'],
      ['q', '10.0.1.0/24'],
    ] as const) {
      await ipam.pools.create(spec(name, cidr), forever);
      await ipam.addresses.allocate(request(name, { pools: [name] }), forever);
      await ipam.addresses.release(attachment(name), forever);
      left = 1;
      await expect(ipam.pools.delete({ ...DRAIN, name }, forever)).rejects.toBe(failure);
      left = Infinity;
    }
    expect(await listed(ipam)).toEqual(['p', 'q']);
    store.injectFault('commit', { type: 'fails', failure: new Failure('STORE_CORRUPT', 'a record of p is damaged') });
    await ipam.pools.finishDeletions(forever);
    expect(await listed(ipam)).toEqual(['p']);
    expect(messages(lines).join('\n')).toContain('deletion of pool "p"');
    await expect(ipam.pools.finishDeletions(AbortSignal.abort())).rejects.toThrow();
    await ipam.pools.finishDeletions(forever);
    expect(await leftOf(store)).toEqual([]);
  });

  test('in the background keeps pools that are not being deleted, and addresses in use', async () => {
    const { ipam, store } = await withPool('10.0.0.0/24');
    await ipam.addresses.allocate(request('c1'), forever);
    const before = store.toString();
    await ipam.pools.finishDeletions(forever);
    expect(store.toString()).toBe(before);
    await ipam.pools.delete(DRAIN, forever);
    const draining = store.toString();
    await ipam.pools.finishDeletions(forever);
    expect(store.toString()).toBe(draining);
  });

  describe('and allocating from it at the same time on two replicas, in any order of their transactions', () => {
    async function race(
      scheduler: fc.Scheduler,
      deletion: typeof DRAIN | typeof REFUSE | typeof RELEASE,
      held: readonly string[] = [],
    ) {
      let ordered = false;
      const wait = async () => {
        if (ordered) await scheduler.schedule(Promise.resolve());
      };
      const store = new MemoryStore({ before: (operation) => (operation === 'commit' ? wait() : Promise.resolve()) });
      const other = await startIpam(store);
      await other.ipam.pools.create(spec('p', '10.0.0.0/24'), forever);
      for (const id of held) await other.ipam.addresses.allocate(request(id), forever);
      const { ipam } = await startIpam(withLateWatch(store, wait));
      ordered = true;
      const results = Promise.allSettled([
        ipam.pools.delete(deletion, forever),
        other.ipam.addresses.allocate(request('c1'), forever),
      ]);
      await settleEvents();
      await scheduler.waitFor(results);
      ordered = false;
      const [deleted, allocated] = await results;
      await scheduler.waitIdle();
      const view = await readAll(store, keys);
      expect(inconsistencies(view, NOW_MS)).toEqual([]);
      const heldCount = view.blocks().reduce((sum, block) => sum + ordinalsWhere(block, () => true).length, 0);
      return { ipam, other: other.ipam, store, deleted, allocated, pool: view.pool('p'), heldCount };
    }

    test('property: refused, or nothing was allocated', async () => {
      await fc.assert(
        fc.asyncProperty(orders, async (scheduler) => {
          const { deleted, allocated, pool, heldCount } = await race(scheduler, REFUSE);
          expect([deleted.status, allocated.status].sort()).toEqual(['fulfilled', 'rejected']);
          expect(pool?.disabled).toBe(allocated.status === 'fulfilled' ? false : undefined);
          expect(heldCount).toBe(allocated.status === 'fulfilled' ? 1 : 0);
        }),
        { numRuns: 50 },
      );
    });

    test('property: granted addresses are known to hold the pool, and its release ends it', async () => {
      await fc.assert(
        // The scheduler comes last: its choices start with the same random numbers as later values.
        fc.asyncProperty(fc.constantFrom([], ['c0']), orders, async (held, scheduler) => {
          const { ipam, other, store, deleted, allocated, pool, heldCount } = await race(scheduler, DRAIN, held);
          expect(heldCount).toBe(held.length + (allocated.status === 'fulfilled' ? 1 : 0));
          const answer: Partial<PoolDeleted> = deleted.status === 'fulfilled' ? deleted.value : {};
          expect(answer.isGone).toBe(pool === undefined);
          expect(answer.isGone).toBe(heldCount === 0);
          expect(answer.holders?.inUseCount, 'nothing is given after the answer').toBe(heldCount);
          for (const id of [...held, 'c1']) await other.addresses.release(attachment(id), forever);
          await settleEvents();
          await ipam.pools.finishDeletions(forever);
          expect(await leftOf(store)).toEqual([]);
        }),
        { numRuns: 100 },
      );
    });

    test('property: deleted with the allocated addresses', async () => {
      await fc.assert(
        fc.asyncProperty(orders, async (scheduler) => {
          const { deleted, store } = await race(scheduler, RELEASE);
          expect(deleted).toMatchObject({ status: 'fulfilled', value: { isGone: true } });
          expect(await leftOf(store)).toEqual([]);
        }),
        { numRuns: 50 },
      );
    });
  });

  test('property: two concurrent releases of the last addresses leave a pool that the background deletes', async () => {
    await fc.assert(
      fc.asyncProperty(orders, async (scheduler) => {
        let ordered = false;
        const before = async (operation: string) => {
          if (ordered && operation === 'commit') await scheduler.schedule(Promise.resolve());
        };
        const { ipam, store } = await withPool('10.0.0.0/24', { before });
        const other = await startIpam(store);
        await ipam.addresses.allocate(request('c1'), forever);
        await ipam.addresses.allocate(request('c2', { nodeName: 'n2' }), forever);
        await settleEvents();
        expect((await ipam.pools.delete(DRAIN, forever)).isGone).toBe(false);
        ordered = true;
        const releases = Promise.all([
          ipam.addresses.release(attachment('c1'), forever),
          other.ipam.addresses.release(attachment('c2'), forever),
        ]);
        await settleEvents();
        await scheduler.waitFor(releases);
        ordered = false;
        const left = await leftOf(store);
        expect(left.filter((key) => key !== 'pool p')).toEqual([]);
        await other.ipam.pools.finishDeletions(forever);
        expect(await leftOf(store)).toEqual([]);
      }),
      { numRuns: 50 },
    );
  });
});
