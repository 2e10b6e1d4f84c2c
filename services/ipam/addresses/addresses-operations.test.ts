import { Failure } from '@podwire/shared/failure/failure';
import { formatPrefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { countHeld, inconsistencies, readAll } from '../engine/testing/consistency.js';
import { MemoryStore, type MemoryStoreOptions } from '../engine/testing/memory-store.js';
import { forever, keys } from '../engine/testing/stores.js';
import type { Ipam } from '../ipam.js';
import { checkPool } from '../pools/rules.js';
import { assignment } from '../testing/allocations.js';
import { startIpam } from '../testing/ipam.js';
import { attachment, host, NOW_MS, request } from '../testing/records.js';

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

/** As in Calico's ipam_block_reader_writer_test.go. */
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
