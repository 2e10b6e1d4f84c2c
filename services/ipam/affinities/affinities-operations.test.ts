import { Failure } from '@podwire/shared/failure/failure';
import { formatPrefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { countHeld, inconsistencies, readAll } from '../engine/testing/consistency.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, keys, settleEvents } from '../engine/testing/stores.js';
import type { Ipam } from '../ipam.js';
import { checkPool } from '../pools/rules.js';
import { encodeRecord, serialize } from '../records/json/registry.js';
import { startIpam } from '../testing/ipam.js';
import { block, claimedBlock, host, NOW_MS, prefix, request } from '../testing/records.js';

/** A pool of two blocks of two addresses. */
async function start(store: MemoryStore) {
  const checked = checkPool({ name: 'p', cidr: '10.0.0.0/30', blockSizeBits: 31, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  const { ipam } = await startIpam(store);
  await ipam.pools.create(checked.spec, forever);
  return ipam;
}

const CIDR = prefix('10.0.0.0/31');

const claim = (ipam: Ipam, nodeName: string) => ipam.affinities.claim({ cidr: CIDR, nodeName }, forever);
const end = (ipam: Ipam, nodeName: string, mustBeEmpty = false) =>
  ipam.affinities.release({ scope: { kind: 'range', cidr: CIDR, owner: host(nodeName) }, mustBeEmpty }, forever);

describe('the claim of a block and its end at the same time on three replicas, in any order of the transactions', () => {
  // Once each step has reached its own wait, which takes iterations of the event loop.
  const orders = fc.scheduler({
    act: async (step) => {
      await step();
      await settleEvents();
    },
  });

  async function race(
    scheduler: fc.Scheduler,
    operations: (ipams: readonly Ipam[]) => readonly (() => Promise<unknown>)[],
  ) {
    let isOrdered = false;
    const before = async (operation: string) => {
      if (isOrdered && operation === 'commit') await scheduler.schedule(Promise.resolve());
    };
    const store = new MemoryStore({ before });
    const ipams = [await start(store), (await startIpam(store)).ipam, (await startIpam(store)).ipam];
    await claim(ipams[0]!, 'n1');
    await settleEvents();
    isOrdered = true;
    // An operation without a commit is over when it begins; so its begin is in the order, too.
    const begun = operations(ipams).map((run) => scheduler.schedule(Promise.resolve()).then(run));
    const results = Promise.allSettled(begun);
    await settleEvents();
    await scheduler.waitFor(results);
    isOrdered = false;
    const view = await readAll(store, keys);
    expect(inconsistencies(view, NOW_MS), 'each confirmed affinity has its block, each block its affinity').toEqual([]);
    return { results: await results, view };
  }

  test('property: a claim of it by another node: the block belongs to that node, or has no owner', async () => {
    const owners = new Set<string | undefined>();
    await fc.assert(
      fc.asyncProperty(orders, async (scheduler) => {
        const { view, results } = await race(scheduler, ([a, b]) => [() => end(a!, 'n1'), () => claim(b!, 'n2')]);
        expect(view.affinitiesOf(host('n1'))).toEqual([]);
        const owner = view.block(CIDR)?.owner;
        const answer = owner ? { claimed: [CIDR], refused: [] } : { claimed: [], refused: [expect.anything()] };
        expect(results[1]).toEqual({ status: 'fulfilled', value: answer });
        expect(owner?.name ?? 'n2').toBe('n2');
        owners.add(owner?.name);
      }),
      { numRuns: 50 },
    );
    expect(owners, 'both came up').toEqual(new Set(['n2', undefined]));
  });

  test('property: the same node’s new claim: it has the block with its affinity, or neither', async () => {
    await fc.assert(
      fc.asyncProperty(orders, async (scheduler) => {
        const { view } = await race(scheduler, ([a, b]) => [() => end(a!, 'n1'), () => claim(b!, 'n1')]);
        const states = view.affinitiesOf(host('n1')).map(({ state }) => state);
        expect(states).toEqual(view.block(CIDR)?.owner ? ['confirmed'] : []);
      }),
      { numRuns: 50 },
    );
  });

  test('property: an address of it: the block stays with the address, owned or not', async () => {
    await fc.assert(
      fc.asyncProperty(fc.boolean(), orders, async (mustBeEmpty, scheduler) => {
        const { view, results } = await race(scheduler, ([a, b, c]) => [
          () => end(a!, 'n1', mustBeEmpty),
          () => b!.addresses.allocate(request('c1'), forever),
          () => c!.addresses.allocate(request('c2', { nodeName: 'n2' }), forever),
        ]);
        expect(results.map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled', 'fulfilled']);
        expect(countHeld(view)).toBe(2);
      }),
      { numRuns: 100 },
    );
  });
});

describe('a block that has to be reclaimed from another node', () => {
  /** Both blocks are another node's, empty, and were claimed long ago. */
  async function startReclaimable() {
    const store = new MemoryStore();
    const ipam = await start(store);
    const old = { claimTimeMs: NOW_MS - 3_600_000 };
    const records = ['10.0.0.0/31', '10.0.0.2/31'].flatMap((cidr) => claimedBlock(block(cidr, 'n2', old)));
    const puts = records.map((record) => ({ key: keys.of(record), value: serialize(encodeRecord(record, undefined)) }));
    await store.commit({ comparisons: [], puts, deletes: [] }, forever);
    await settleEvents();
    return { store, ipam };
  }

  test('is reclaimed in one transaction', async () => {
    const { store, ipam } = await startReclaimable();
    const { revision } = await store.list(keys.root, forever);
    const { endpoint } = await ipam.addresses.allocate(request('c1'), forever);
    const { revision: after } = await store.list(keys.root, forever);
    expect(after).toBe(revision + 1);
    const view = await readAll(store, keys);
    expect(inconsistencies(view, NOW_MS)).toEqual([]);
    expect(view.affinitiesOf(host('n1')).map(({ block: of }) => formatPrefix(of))).toEqual(
      endpoint.addresses.map(({ block: of }) => formatPrefix(of)),
    );
    expect(view.affinitiesOf(host('n2'))).toHaveLength(1);
  });

  test('stays unchanged when the datastore fails, and the caller gets the failure', async () => {
    const { store, ipam } = await startReclaimable();
    const before = store.toString();
    const failure = new Failure('STORE_UNAVAILABLE', 'gone');
    store.injectFault('commit', { type: 'fails', failure });
    await expect(ipam.addresses.allocate(request('c1'), forever)).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
    expect(store.unusedFaults()).toEqual([]);
    expect(store.toString()).toBe(before);
  });

  test('stays unchanged when the caller cancels, and the call fails', async () => {
    const { store, ipam } = await startReclaimable();
    const before = store.toString();
    const calling = new AbortController();
    const call = ipam.addresses.allocate(request('c1'), calling.signal);
    calling.abort();
    await expect(call).rejects.toMatchObject({ code: 'CANCELLED' });
    await settleEvents();
    expect(store.toString()).toBe(before);
  });
});
