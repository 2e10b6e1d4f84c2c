import { formatPrefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { countHeld, inconsistencies, readAll } from '../engine/testing/consistency.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, keys, settleEvents } from '../engine/testing/stores.js';
import type { Ipam } from '../ipam.js';
import { poolVersion } from '../records/pool.js';
import { startIpam } from '../testing/ipam.js';
import { attachment, NOW_MS, request } from '../testing/records.js';
import { MAX_PARTS } from './changes.js';
import { checkPool } from './rules.js';

function spec(cidr: string, blockSizeBits = 0) {
  const checked = checkPool({ name: 'p', cidr, blockSizeBits, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  return checked.spec;
}

async function start(cidr: string, { store = new MemoryStore(), blockSizeBits = 0 } = {}) {
  const started = await startIpam(store);
  await started.ipam.pools.create(spec(cidr, blockSizeBits), forever);
  return { store, ...started };
}

const SPLIT = { pool: { by: 'name', name: 'p' }, partsCount: 2, resourceVersion: '' } as const;

const partNames = async (ipam: Ipam, rest: Partial<{ partsCount: number; resourceVersion: string }> = {}) => {
  const split = await ipam.pools.split({ ...SPLIT, ...rest }, forever);
  return split.ok ? split.parts.map(({ pool }) => pool.name) : split.faults.map(({ reason }) => reason);
};

const listed = async (ipam: Ipam) =>
  (await ipam.pools.list({ after: '', limit: 100 }, forever)).items.map(({ pool }) => pool.name);

test('a dry run returns the parts, or the faults, and changes nothing', async () => {
  const { ipam, dryRun } = await start('10.0.0.0/25');
  expect(await partNames(dryRun())).toEqual(['split-p-0', 'split-p-1']);
  expect(await partNames(dryRun(), { partsCount: 64 })).toEqual([expect.stringContaining('block')]);
  expect(await listed(ipam)).toEqual(['p']);
});

test('held addresses belong to the parts afterwards, in blocks, addresses and every list', async () => {
  const { ipam, store, lines } = await start('10.0.0.0/25');
  const given = await Promise.all(
    ['n1', 'n2'].map((nodeName) => ipam.addresses.allocate(request(`c-${nodeName}`, { nodeName }), forever)),
  );
  const before = (await readAll(store, keys)).blocks();
  expect(await partNames(ipam)).toEqual(['split-p-0', 'split-p-1']);
  const after = await readAll(store, keys);
  expect(after.blocks()).toEqual(before);
  expect(inconsistencies(after, NOW_MS)).toEqual([]);
  expect(await listed(ipam)).toEqual(['split-p-0', 'split-p-1']);
  for (const { endpoint } of given) {
    const { block } = endpoint.addresses[0] ?? {};
    const poolName = block && formatPrefix(block) === '10.0.0.0/26' ? 'split-p-0' : 'split-p-1';
    const found = await ipam.addresses.getEndpoint(endpoint.attachment, forever);
    expect(found.addresses.map((address) => address.poolName)).toEqual([poolName]);
    const query = { nodeName: '', namespace: '', podName: '', after: '', limit: 10, poolName };
    const { items } = await ipam.endpoints.list(query, forever);
    expect(items.map(({ value }) => value)).toEqual([found]);
    const repeat = await ipam.addresses.allocate(request(endpoint.attachment.containerId), forever);
    expect(repeat).toMatchObject({ added: [], endpoint: { addresses: [{ poolName }] } });
  }
  expect(
    (await ipam.audits.audit({ after: '', limit: 10, kinds: [], information: false, nodesLimit: 0 }, forever)).findings,
  ).toEqual([]);
  expect(lines.map((line) => JSON.parse(line).msg)).toContain('split pool "p" 10.0.0.0/25 into 2');
});

test('is one transaction, also into the most parts, which etcd takes', async () => {
  const { ipam, store } = await start('10.0.0.0/16');
  const { revision } = await store.list(keys.root, forever);
  expect(await partNames(ipam, { partsCount: MAX_PARTS })).toHaveLength(MAX_PARTS);
  expect((await store.list(keys.root, forever)).revision).toBe(revision + 1);
});

describe('unknown stored fields of the pool', () => {
  async function startWithStored() {
    const store = new MemoryStore();
    const stored = {
      kind: 'IPPool',
      apiVersion: 'projectcalico.org/v3',
      metadata: { name: 'p', uid: 'uid', creationTimestamp: '2020-01-01T00:00:00Z', labels: { team: 'a' } },
      spec: { cidr: '10.0.0.0/24', blockSize: 26, nodeSelector: 'all()', future: { field: 1 } },
    };
    const put = { key: keys.pool('p'), value: Buffer.from(JSON.stringify(stored)) };
    await store.commit({ comparisons: [], puts: [put], deletes: [] }, forever);
    const { ipam } = await startIpam(store);
    const parts = async () => {
      const { records } = await store.list(keys.pools, forever);
      return records.map(({ value }) => JSON.parse(Buffer.from(value).toString()));
    };
    return { ipam, store, parts };
  }

  test('is copied to the parts', async () => {
    const { ipam, parts } = await startWithStored();
    await partNames(ipam);
    expect((await parts()).map(({ spec: { cidr } }) => cidr)).toEqual(['10.0.0.0/25', '10.0.0.128/25']);
    for (const { metadata, spec: fields } of await parts()) {
      expect(metadata.labels).toEqual({ team: 'a' });
      expect(metadata.uid).not.toBe('uid');
      expect(metadata.creationTimestamp).toBe(new Date(NOW_MS).toISOString().replace(/\.\d+/, ''));
      expect(fields).toMatchObject({ future: { field: 1 }, blockSize: 26, nodeSelector: 'all()' });
    }
  });

  test('is copied to the parts of a part that is split in the same transaction', async () => {
    const { ipam, store, parts } = await startWithStored();
    const { revision } = await store.list(keys.root, forever);
    await Promise.all([
      partNames(ipam),
      ipam.pools.split({ ...SPLIT, pool: { by: 'name', name: 'split-p-0' } }, forever),
    ]);
    expect((await store.list(keys.root, forever)).revision).toBe(revision + 1);
    expect((await parts()).map(({ metadata: { name, labels } }) => `${name} ${labels?.team}`)).toEqual([
      'split-p-1 a',
      'split-split-p-0-0 a',
      'split-split-p-0-1 a',
    ]);
  });
});

test('of two concurrent splits of one version on two replicas, one is refused', async () => {
  const { ipam, store } = await start('10.0.0.0/24');
  const other = await startIpam(store);
  const resourceVersion = poolVersion((await ipam.pools.get('p', forever)).pool);
  const results = await Promise.allSettled([
    partNames(ipam, { resourceVersion }),
    partNames(other.ipam, { resourceVersion, partsCount: 4 }),
  ]);
  expect(results.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected']);
  expect(results.find(({ status }) => status === 'rejected')).toMatchObject({ reason: { code: 'POOL_NOT_FOUND' } });
  expect([2, 4]).toContain((await listed(ipam)).length);
});

describe('concurrent operations on two replicas, in any order of the transactions', () => {
  const orders = fc.scheduler({
    act: async (step) => {
      await step();
      await settleEvents();
    },
  });

  /** A pool of two blocks, with an address in use unless it is to be empty, a concurrent operation, and its result. */
  async function race(
    scheduler: fc.Scheduler,
    concurrent: (ipam: Ipam) => readonly Promise<unknown>[],
    { isEmpty } = { isEmpty: false },
  ) {
    let isOrdered = false;
    const before = async (operation: string) => {
      if (isOrdered && operation === 'commit') await scheduler.schedule(Promise.resolve());
    };
    const { ipam, store } = await start('10.0.0.0/30', { store: new MemoryStore({ before }), blockSizeBits: 31 });
    const other = (await startIpam(store)).ipam;
    await ipam.addresses.allocate(request('c0'), forever);
    if (isEmpty) await ipam.addresses.release(attachment('c0'), forever);
    await settleEvents();
    isOrdered = true;
    const results = Promise.allSettled([partNames(ipam), ...concurrent(other)]);
    await settleEvents();
    await scheduler.waitFor(results);
    isOrdered = false;
    const view = await readAll(store, keys);
    expect(inconsistencies(view, NOW_MS)).toEqual([]);
    return { ipam, view, results: await results };
  }

  test('property: addresses are given before or after it, and each is in the part that its block lies in', async () => {
    await fc.assert(
      fc.asyncProperty(orders, async (scheduler) => {
        const { ipam, view, results } = await race(scheduler, (other) => [
          other.addresses.allocate(request('c1'), forever),
          other.addresses.allocate(request('c2', { nodeName: 'n2' }), forever),
          other.addresses.release(attachment('c0'), forever),
        ]);
        expect(results.map(({ status }) => status)).toEqual(results.map(() => 'fulfilled'));
        expect(countHeld(view)).toBe(2);
        expect(view.pools().map(({ name }) => name)).toEqual(['split-p-0', 'split-p-1']);
        for (const id of ['c1', 'c2']) {
          const { addresses } = await ipam.addresses.getEndpoint(attachment(id), forever);
          expect(addresses.map(({ block, poolName }) => `${formatPrefix(block)} ${poolName}`)[0]).toMatch(
            /^10\.0\.0\.0\/31 split-p-0|10\.0\.0\.2\/31 split-p-1$/,
          );
        }
      }),
      { numRuns: 100 },
    );
  });

  test('property: an address of the pool by its name is allocated before it, or refused', async () => {
    await fc.assert(
      fc.asyncProperty(orders, async (scheduler) => {
        const { view, results } = await race(scheduler, (other) => [
          other.addresses.allocate(request('c1', { pools: ['p'] }), forever),
        ]);
        const [split, allocated] = results;
        expect(split.status).toBe('fulfilled');
        expect(countHeld(view)).toBe(allocated?.status === 'fulfilled' ? 2 : 1);
      }),
      { numRuns: 50 },
    );
  });

  test('property: a split and a change of the pool each happen completely or fail', async () => {
    await fc.assert(
      fc.asyncProperty(orders, async (scheduler) => {
        const change = { name: 'p', resourceVersion: '', natOutgoing: true };
        const { view, results } = await race(scheduler, (other) => [other.pools.update(change, forever)]);
        const [split, updated] = results;
        expect(split.status).toBe('fulfilled');
        const natted = updated?.status === 'fulfilled';
        expect(view.pools().map(({ natOutgoing }) => natOutgoing)).toEqual([natted, natted]);
      }),
      { numRuns: 50 },
    );
  });

  test.each(['drain', 'release', 'refuse'] as const)(
    'property: of it and a deletion (%s), one is refused',
    async (whenInUse) => {
      await fc.assert(
        fc.asyncProperty(orders, async (scheduler) => {
          const deletion = { name: 'p', resourceVersion: '', whenInUse };
          const isEmpty = whenInUse === 'refuse';
          const { view, results } = await race(scheduler, (other) => [other.pools.delete(deletion, forever)], {
            isEmpty,
          });
          const [split, deleted] = results;
          const names = view.pools().map(({ name }) => name);
          if (split.status === 'fulfilled') {
            expect(deleted?.status).toBe('rejected');
            expect(names).toEqual(['split-p-0', 'split-p-1']);
          } else {
            expect(deleted?.status).toBe('fulfilled');
            expect(names).toEqual(whenInUse === 'drain' ? ['p'] : []);
          }
        }),
        { numRuns: 50 },
      );
    },
  );
});
