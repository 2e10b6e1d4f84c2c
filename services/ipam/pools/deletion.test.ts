import { describe, expect, test } from 'vitest';

import { coolAddresses, takeOrdinals, type Block } from '../records/block.js';
import { leaseAttributes } from '../records/lease.js';
import { poolVersion, type Pool } from '../records/pool.js';
import { TestView } from '../testing/test-view.js';
import type { RecordValue } from '../records/view.js';
import {
  affinity,
  block,
  claimedBlock,
  failureOf,
  fullBlock,
  NOW_MS,
  pool,
  poolRecord,
  takeAddress,
} from '../testing/records.js';
import { splitPool } from './changes.js';
import { beginPoolDeletion, continuePoolDeletion, type PoolDeletionStep, type WhenInUse } from './deletion.js';

const P = '10.0.0.0/16';

const blockRecord = (value: Block): RecordValue => ({ kind: 'block', value });

/** A node's block with some addresses in use. */
function usedBlock(cidr: string, nodeName: string, count = 1): Block {
  let used = block(cidr, nodeName);
  for (let i = 0; i < count; i++) {
    const attributes = { handleId: `net.c${i}`, owner: { node: nodeName, pod: `p${i}` }, releasedAtMs: undefined };
    used = takeAddress(used, attributes)?.block ?? used;
  }
  return used;
}

const begin = (view: TestView, rest: { whenInUse?: WhenInUse; resourceVersion?: string } = {}) =>
  view.apply(beginPoolDeletion(view, { name: 'p', resourceVersion: '', whenInUse: 'drain', nowMs: NOW_MS, ...rest }));

const proceed = (view: TestView, original: Pool, whenInUse: WhenInUse = 'drain') =>
  view.apply(continuePoolDeletion(view, { original, whenInUse, nowMs: NOW_MS }));

/** Every step up to the step that would have to wait. */
function run(view: TestView, whenInUse: WhenInUse = 'drain'): PoolDeletionStep[] {
  const original = begin(view, { whenInUse });
  const steps: PoolDeletionStep[] = [];
  do steps.push(proceed(view, original, whenInUse));
  while (steps.at(-1)?.state === 'more');
  return steps;
}

describe.each<WhenInUse>(['drain', 'refuse'])('a deletion that would %s', (whenInUse) => {
  test('takes the pool out of use, then removes it with its empty blocks and their affinities', () => {
    const view = new TestView([
      poolRecord('p', P),
      ...claimedBlock(block('10.0.0.0/26', 'n1')),
      blockRecord(block('10.0.1.0/26', 'n1')),
      blockRecord(block('10.0.2.0/26', 'n1', { owner: undefined })),
    ]);
    const original = begin(view, { whenInUse });
    expect(original).toEqual(pool('p', P));
    const { disabled, deletionTimeMs } = view.pool('p')!;
    expect({ disabled, deletionTimeMs }).toEqual(
      whenInUse === 'refuse'
        ? { disabled: true, deletionTimeMs: undefined }
        : { disabled: false, deletionTimeMs: Date.parse('2026-08-22T06:33:25Z') },
    );
    expect(proceed(view, original, whenInUse)).toEqual({ state: 'done', removedBlocks: 3 });
    expect([...view.records.keys()]).toEqual([]);
  });

  test('removes incomplete claims of other writers', () => {
    const incomplete = [affinity('10.0.0.0/26', 'n2', 'pending'), affinity('10.0.9.0/26', 'n1', 'pendingDeletion')];
    const view = new TestView([
      poolRecord('p', P),
      ...claimedBlock(block('10.0.0.0/26', 'n1')),
      ...incomplete.map((value) => ({ kind: 'affinity', value }) as const),
    ]);
    expect(run(view, whenInUse).at(-1)).toMatchObject({ state: 'done' });
    expect([...view.records.keys()]).toEqual([]);
  });

  test('leaves other pools’ blocks and affinities unchanged', () => {
    const unrelated: RecordValue[] = [
      poolRecord('q', '10.1.0.0/16'),
      ...claimedBlock(block('10.1.0.0/26', 'n1')),
      { kind: 'affinity', value: affinity('10.1.1.0/26', 'n2', 'pending') },
    ];
    const view = new TestView([poolRecord('p', P), ...claimedBlock(block('10.0.0.0/26', 'n1')), ...unrelated]);
    run(view, whenInUse);
    expect(view.snapshot()).toEqual(new TestView(unrelated).snapshot());
  });

  test('takes steps that fit into one of etcd’s transactions', () => {
    const blocks = Array.from({ length: 120 }, (_, i) => claimedBlock(block(`10.0.${i}.0/26`, 'n1'))).flat();
    const incomplete = Array.from({ length: 150 }, (_, i): RecordValue => {
      return { kind: 'affinity', value: affinity(`10.0.${i}.64/26`, 'n1', 'pending') };
    });
    const view = new TestView([poolRecord('p', P), ...blocks, ...incomplete]);
    const original = begin(view, { whenInUse });
    const sizes: number[] = [];
    for (let state = 'more'; state === 'more';) {
      const { changes, outcome } = continuePoolDeletion(view, { original, whenInUse, nowMs: NOW_MS });
      sizes.push(changes.length);
      state = view.apply({ changes, outcome }).state;
    }
    expect(Math.max(...sizes)).toBeLessThanOrEqual(110);
    expect(view.records.size).toBe(0);
  });

  test('leaves the pool while another replica’s claim may be in flight', () => {
    const view = new TestView([poolRecord('p', P), ...claimedBlock(block('10.0.0.0/26', 'n1'))]);
    view.isBehind = true;
    expect(run(view, whenInUse)).toEqual([{ state: 'behind', removedBlocks: 1 }]);
    expect([...view.records.keys()]).toEqual(['pool p']);
    for (const record of claimedBlock(usedBlock('10.0.1.0/26', 'n2'))) view.put(record);
    view.isBehind = false;
    expect(proceed(view, pool('p', P), whenInUse).state).toBe(whenInUse === 'drain' ? 'held' : 'refused');
  });

  test('is done when another has completed it meanwhile, also when a new pool has its name', () => {
    const view = new TestView([poolRecord('p', P)]);
    const original = begin(view, { whenInUse });
    view.remove({ kind: 'pool', name: 'p' });
    expect(proceed(view, original, whenInUse)).toEqual({ state: 'done', removedBlocks: 0 });
    view.put(poolRecord('p', P, { uid: 'another' }));
    expect(proceed(view, original, whenInUse)).toEqual({ state: 'done', removedBlocks: 0 });
    expect(view.pool('p')?.uid).toBe('another');
  });

  test('fails when the pool is enabled meanwhile', () => {
    const view = new TestView([poolRecord('p', P)]);
    const original = begin(view, { whenInUse });
    view.put({ kind: 'pool', value: original });
    expect(failureOf(() => proceed(view, original, whenInUse)).code).toBe('CONFLICT');
  });

  test('needs a pool of that name, and of that version where one is given', () => {
    const view = new TestView([poolRecord('p', P)]);
    expect(failureOf(() => begin(new TestView(), { whenInUse })).code).toBe('POOL_NOT_FOUND');
    expect(failureOf(() => begin(view, { whenInUse, resourceVersion: 'old' })).code).toBe('STALE_VERSION');
    expect(begin(view, { whenInUse, resourceVersion: poolVersion(pool('p', P)) }).name).toBe('p');
  });
});

describe('a pool with addresses in use', () => {
  const used = () =>
    new TestView([
      poolRecord('p', P),
      ...claimedBlock(fullBlock('10.0.0.0/30', 'n2')),
      ...claimedBlock(usedBlock('10.0.1.0/26', 'n1')),
      ...claimedBlock(block('10.0.2.0/26', 'n1')),
    ]);

  test('stays while addresses are leased, which are counted apart', () => {
    const attributes = leaseAttributes({ nodeName: 'n1', bootId: 'b', nowMs: NOW_MS });
    const leased = takeOrdinals(usedBlock('10.0.1.0/26', 'n1'), [7, 8], attributes);
    const view = new TestView([poolRecord('p', P), ...claimedBlock(leased)]);
    expect(failureOf(() => begin(view, { whenInUse: 'refuse' })).message).toContain(
      'addresses of it are in use (1 on node n1, 2 leased to nodes)',
    );
    expect(run(view)).toMatchObject([{ state: 'held', holders: { inUseCount: 1, leasedCount: 2 } }]);
    const unused = new TestView([
      poolRecord('p', P),
      ...claimedBlock(takeOrdinals(block('10.0.1.0/26', 'n1'), [0], attributes)),
    ]);
    expect(run(unused)).toMatchObject([{ state: 'held', holders: { inUseCount: 0, leasedCount: 1, nodes: [] } }]);
  });

  test('drains: removes empty blocks, and returns the holders of the rest', () => {
    const view = used();
    expect(run(view)).toEqual([
      {
        state: 'held',
        removedBlocks: 1,
        holders: {
          inUseCount: 5,
          leasedCount: 0,
          coolingCount: 0,
          tunnelCount: 0,
          nodes: [
            { nodeName: 'n1', count: 1 },
            { nodeName: 'n2', count: 4 },
          ],
        },
      },
    ]);
    expect([...view.records.keys()].sort()).toEqual([
      'affinity host:n1 10.0.1.0/26',
      'affinity host:n2 10.0.0.0/30',
      'block 10.0.0.0/30',
      'block 10.0.1.0/26',
      'pool p',
    ]);
  });

  test('continues draining when the deletion is repeated, also with the earlier version', () => {
    const view = used();
    run(view);
    const before = view.snapshot();
    begin(view, { resourceVersion: poolVersion(pool('p', P)) });
    expect(view.snapshot()).toEqual(before);
    begin(view, { resourceVersion: poolVersion(view.pool('p')!) });
    expect(view.snapshot()).toEqual(before);
  });

  test('is refused with the number of addresses and their nodes, where requested, and nothing changes', () => {
    const view = used();
    const before = view.snapshot();
    const failure = failureOf(() => begin(view, { whenInUse: 'refuse' }));
    expect(failure.code).toBe('POOL_IN_USE');
    expect(failure.message).toContain(
      'pool "p" 10.0.0.0/16 cannot be deleted: addresses of it are in use (1 on node n1, 4 on node n2)',
    );
    expect(view.snapshot()).toEqual(before);
  });

  test('names 8 nodes, and counts the rest', () => {
    const blocks = Array.from({ length: 12 }, (_, i) => blockRecord(fullBlock(`10.0.${i}.0/30`, `n${i + 10}`)));
    const view = new TestView([poolRecord('p', P), ...blocks]);
    const { message } = failureOf(() => begin(view, { whenInUse: 'refuse' }));
    expect(message).toContain('4 on node n17, and more on 4 other nodes)');
  });

  test('is refused, and unchanged, when an address was allocated just before the first step', () => {
    const view = new TestView([poolRecord('p', P)]);
    const decided = beginPoolDeletion(view, { name: 'p', resourceVersion: '', whenInUse: 'refuse', nowMs: NOW_MS });
    for (const record of claimedBlock(usedBlock('10.0.1.0/26', 'n1'))) view.put(record);
    const original = view.apply(decided);
    expect(proceed(view, original, 'refuse')).toMatchObject({ state: 'refused', failure: { code: 'POOL_IN_USE' } });
    expect(view.pool('p')).toEqual(original);
  });

  test('names its parts, which are disabled, when it was split after the first step', () => {
    const view = new TestView([poolRecord('p', P)]);
    const original = begin(view, { whenInUse: 'refuse' });
    const request = { pool: { by: 'name', name: 'p' }, partsCount: 2, resourceVersion: '' } as const;
    view.apply(splitPool(view, { request, uids: ['a', 'b'], nowMs: NOW_MS }));
    const failure = failureOf(() => proceed(view, original, 'refuse'));
    expect(failure.code).toBe('CONFLICT');
    expect(failure.message).toContain('delete its parts, or enable them: split-p-0, split-p-1');
    expect(view.pools().map(({ disabled }) => disabled)).toEqual([true, true]);
  });

  test('keeps a concurrent change when the deletion is refused after it', () => {
    const view = new TestView([poolRecord('p', P)]);
    const original = begin(view, { whenInUse: 'refuse' });
    for (const record of claimedBlock(usedBlock('10.0.1.0/26', 'n1'))) view.put(record);
    for (const rest of [{ disabled: true, natOutgoing: true }, { deletionTimeMs: NOW_MS }]) {
      view.put(poolRecord('p', P, rest));
      expect(proceed(view, original, 'refuse').state).toBe('refused');
      expect(view.pool('p')).toEqual(pool('p', P, rest));
    }
  });

  test('is kept by an address that cools down, until that is over', () => {
    const config: RecordValue = {
      kind: 'config',
      value: { strictAffinity: false, autoAllocateBlocks: true, maxBlocksPerHostCount: 0, cooldownSeconds: 60 },
    };
    const cooling = coolAddresses(usedBlock('10.0.1.0/26', 'n1'), [0], NOW_MS);
    const view = new TestView([config, poolRecord('p', P), ...claimedBlock(cooling)]);
    expect(run(view)).toMatchObject([{ state: 'held', holders: { inUseCount: 0, coolingCount: 1, nodes: [] } }]);
    const { message } = failureOf(() => begin(view, { whenInUse: 'refuse' }));
    expect(message).toContain('(1 that cools down)');
    const later = { original: pool('p', P), whenInUse: 'drain', nowMs: NOW_MS + 60_000 } as const;
    expect(view.apply(continuePoolDeletion(view, later))).toEqual({ state: 'done', removedBlocks: 1 });
    expect([...view.records.keys()]).toEqual(['config']);
  });
});

test('a pool goes at once with the blocks of another one that serves in its range', () => {
  const records = [blockRecord(usedBlock('10.0.1.0/26', 'n1')), poolRecord('other', '10.0.0.0/20')];
  expect(run(new TestView([poolRecord('p', P), ...records]))).toEqual([{ state: 'done', removedBlocks: 0 }]);
  const view = new TestView([poolRecord('p', P), ...records, blockRecord(usedBlock('10.0.64.0/26', 'n1'))]);
  expect(run(view)).toMatchObject([{ state: 'held', holders: { inUseCount: 1 } }]);
  const disabled = poolRecord('other', '10.0.0.0/20', { disabled: true });
  expect(run(new TestView([poolRecord('p', P), ...records, disabled]))).toMatchObject([{ state: 'held' }]);
});
