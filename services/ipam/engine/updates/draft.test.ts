import { formatPrefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import type { Affinity } from '../../records/block.js';
import { endpointKey, makeEndpoint } from '../../records/endpoint.js';
import type { HistoryEntry } from '../../records/history.js';
import { RecordKeys } from '../../records/json/keys.js';
import { encodeRecord, serialize } from '../../records/json/registry.js';
import type { Change, RecordValue, View } from '../../records/view.js';
import { nodeRecord, pool as poolWith } from '../../testing/records.js';
import { MemoryStore } from '../testing/memory-store.js';
import { emptyBlock, forever, handle, keys, prefix, put, settleEvents, startReplica } from '../testing/stores.js';
import { Draft } from './draft.js';

const owner = { kind: 'host', name: 'node-1' } as const;

const pool = (name: string) => poolWith(name, '10.0.0.0/16', { blockSizeBits: 30 });
const affinity = (cidr: string): Affinity => ({ owner, block: prefix(cidr), state: 'confirmed' });
const block = (cidr: string): RecordValue => ({ kind: 'block', value: emptyBlock(cidr) });

async function draftOver(records: readonly RecordValue[]): Promise<Draft> {
  const store = new MemoryStore();
  const puts = records.map((record) => ({ key: keys.of(record), value: serialize(encodeRecord(record, undefined)) }));
  await store.commit({ comparisons: [], puts, deletes: [] }, forever);
  const { mirror } = await startReplica(store);
  return new Draft(mirror, keys, { marksReleases: false });
}

function endpoint(containerId: string): RecordValue {
  const attachment = { network: 'podwire', containerId, interfaceName: 'eth0' };
  const parts = { attachment, nodeName: 'node-1', pod: undefined };
  return {
    kind: 'endpoint',
    key: endpointKey(parts),
    value: makeEndpoint({ ...parts, netns: undefined, createdAtMs: 0 }, []),
  };
}

const change = (type: 'put' | 'delete' | 'expect', record: RecordValue): Change => ({ type, record });

describe('a draft', () => {
  it('knows whether it shows everything that was committed before a pool was last written', async () => {
    const store = new MemoryStore();
    const { mirror } = await startReplica(store);
    const record: RecordValue = { kind: 'pool', value: pool('p') };
    const draft = new Draft(mirror, keys, { marksReleases: false });
    draft.fold([change('put', record)]);
    const { writes } = draft.build();
    expect(draft.view.showsAllBefore({ kind: 'pool', value: pool('p') }), 'while it is not committed').toBe(false);
    // Committed after another replica’s change, of revision 2, which the watch has not delivered yet.
    mirror.applyOwn(3, writes, { poolsCompared: false });
    const shows = () =>
      new Draft(mirror, keys, { marksReleases: false }).view.showsAllBefore({ kind: 'pool', value: pool('p') });
    expect([mirror.view.pool('p')?.name, shows()]).toEqual(['p', false]);
    for (const id of ['a', 'b']) {
      const puts = [
        { key: keys.handle(id), value: serialize(encodeRecord({ kind: 'handle', value: handle(id, 1) }, undefined)) },
      ];
      await store.commit({ comparisons: [], puts, deletes: [] }, forever);
      await settleEvents();
      expect(shows()).toBe(id === 'b');
    }
    const expecting = new Draft(mirror, keys, { marksReleases: false });
    expecting.fold([change('expect', record)]);
    expect(expecting.view.showsAllBefore({ kind: 'pool', value: pool('p') })).toBe(true);
  });

  it('lists compared records as stored, beside written ones', async () => {
    const recordsOf = (name: string, cidr: string): RecordValue[] => [
      { kind: 'pool', value: pool(name) },
      { kind: 'handle', value: handle(name, 1) },
      { kind: 'affinity', value: affinity(cidr) },
      { kind: 'reservation', value: { name, uid: '', createTimeMs: 0, prefixes: [] } },
      nodeRecord(name),
      endpoint(name),
    ];
    const [compared, written] = [recordsOf('a', '10.0.0.0/30'), recordsOf('b', '10.0.0.8/30')];
    const listed = (view: View): string[] =>
      [
        ...view.pools(),
        ...view.reservations(),
        ...view.nodes(),
        ...[...view.handles()].map(({ id }) => ({ name: id })),
        ...[...view.affinities(), ...view.affinitiesOf(owner)].map(({ block }) => ({ name: formatPrefix(block) })),
        ...[...view.endpoints(), ...view.endpointsAfter('')].map(({ key }) => key),
      ]
        .map(({ name }) => name)
        .sort();
    const draft = await draftOver([...compared, ...written]);
    const before = listed(draft.view);
    draft.fold(compared.map((record) => change('expect', record)));
    draft.fold(written.map((record) => change('put', record)));
    expect(listed(draft.view)).toEqual(before);
    expect(before).toHaveLength(16);
  });

  it('shows the mirror with the changes folded so far', async () => {
    const stored = ['10.0.0.0/30', '10.0.0.8/30', '10.0.0.16/30'];
    const draft = await draftOver([
      ...stored.map(block),
      { kind: 'pool', value: pool('b') },
      { kind: 'affinity', value: affinity('10.0.0.8/30') },
      { kind: 'handle', value: handle('old', 1) },
    ]);
    draft.fold([
      change('put', block('10.0.0.12/30')),
      change('put', block('10.0.0.4/30')),
      change('delete', block('10.0.0.0/30')),
      change('expect', block('10.0.0.16/30')),
      change('put', { kind: 'pool', value: pool('a') }),
      change('put', { kind: 'affinity', value: affinity('10.0.0.0/30') }),
      change('delete', { kind: 'handle', value: handle('old', 1) }),
    ]);
    const blocks = [...draft.view.blocksIn(prefix('10.0.0.0/27'))].map((item) => item.prefix);
    expect(blocks).toEqual(['10.0.0.4/30', '10.0.0.8/30', '10.0.0.12/30', '10.0.0.16/30'].map(prefix));
    expect(draft.view.pools().map(({ name }) => name)).toEqual(['a', 'b']);
    expect(draft.view.pool('a')).toEqual(pool('a'));
    expect(draft.view.affinitiesOf(owner)).toEqual([affinity('10.0.0.0/30'), affinity('10.0.0.8/30')]);
    expect(draft.view.affinity(owner, prefix('10.0.0.0/30'))).toEqual(affinity('10.0.0.0/30'));
    expect(draft.view.handle('old')).toBeUndefined();
    expect(draft.view.block(prefix('10.0.0.0/30'))).toBeUndefined();
  });

  it('compares every named record with its seen revision, and writes each once', async () => {
    const draft = await draftOver([{ kind: 'handle', value: handle('a', 1) }, block('10.0.0.0/30')]);
    draft.fold([put(handle('a', 2)), change('expect', block('10.0.0.0/30'))]);
    draft.fold([put(handle('a', 3)), put(handle('new', 1)), { type: 'expectPools' }]);
    const { transaction } = draft.build();
    expect(transaction.comparisons).toEqual([
      { type: 'record', key: keys.handle('a'), modRevision: 2 },
      { type: 'record', key: keys.block(prefix('10.0.0.0/30')), modRevision: 2 },
      { type: 'record', key: keys.handle('new'), modRevision: 0 },
      { type: 'prefix', prefix: keys.pools, notAfterRevision: 2 },
    ]);
    expect(transaction.puts.map(({ key, value }) => [key, Buffer.from(value).toString()])).toEqual([
      [keys.handle('a'), '{"deleted":false,"block":{"10.0.0.0/26":3}}'],
      [keys.handle('new'), '{"deleted":false,"block":{"10.0.0.0/26":1}}'],
    ]);
    expect(transaction.deletes).toEqual([]);
  });

  it('neither writes nor deletes a record that was created and removed within it', async () => {
    const draft = await draftOver([]);
    draft.fold([put(handle('a', 1))]);
    draft.fold([change('delete', { kind: 'handle', value: handle('a', 1) })]);
    const { transaction } = draft.build();
    expect([transaction.puts, transaction.deletes]).toEqual([[], []]);
    expect(transaction.comparisons).toHaveLength(1);
  });

  it('folds nothing of a decision that would replace an unreadable record', async () => {
    const store = new MemoryStore();
    const puts = [{ key: keys.handle('bad'), value: Buffer.from('[]') }];
    await store.commit({ comparisons: [], puts, deletes: [] }, forever);
    const { mirror } = await startReplica(store);
    await settleEvents();
    const draft = new Draft(mirror, keys, { marksReleases: false });
    expect(() => draft.fold([put(handle('good', 1)), put(handle('bad', 1))])).toThrow(
      expect.objectContaining({ code: 'STORE_CORRUPT' }),
    );
    expect(draft.isEmpty).toBe(true);
  });
});

describe('entries of the history', () => {
  const entry = (address: string): HistoryEntry => ({
    address: prefix(`${address}/32`),
    block: prefix('10.0.0.0/30'),
    handleId: 'net.c1',
    owner: {},
    allocatedAtMs: undefined,
    releasedAtMs: 3_600_000,
    sequenceNumber: 7n,
  });

  it('are written beside the records, and compared with nothing', async () => {
    const draft = await draftOver([]);
    draft.fold([{ type: 'log', entry: entry('10.0.0.1') }]);
    const { transaction, writes } = draft.build();
    expect(draft.isEmpty).toBe(false);
    expect(transaction.comparisons).toEqual([]);
    expect(transaction.puts.map(({ key }) => key)).toEqual([keys.historyEntry(entry('10.0.0.1'))]);
    expect(writes).toEqual([]);
  });

  it('count as operations once they outnumber the comparisons', async () => {
    const draft = await draftOver([block('10.0.0.0/30')]);
    const log = (address: string): Change => ({ type: 'log', entry: entry(address) });
    draft.fold([change('put', block('10.0.0.0/30')), log('10.0.0.1')]);
    expect(draft.operationsWith([])).toBe(2);
    expect(draft.operationsWith([put(handle('c1', 1))])).toBe(3);
    expect(draft.operationsWith([log('10.0.0.2'), put(handle('c1', 1))])).toBe(4);
  });
});

describe('a lock of the datastore', () => {
  const lockKeys = new RecordKeys('/calico', { hasLock: true });
  const comparison = { type: 'record', key: lockKeys.clusterInformation, modRevision: 0 };

  it('is compared once by a transaction that changes a holder, and by no other', async () => {
    const { mirror } = await startReplica(new MemoryStore());
    const comparisonsOf = (changes: readonly Change[]) => {
      const draft = new Draft(mirror, lockKeys, { marksReleases: false });
      expect(draft.operationsWith(changes)).toBe(changes.length + (changes.some(({ type }) => type === 'put') ? 1 : 0));
      draft.fold(changes);
      return draft.build().transaction.comparisons;
    };
    expect(comparisonsOf([change('put', block('10.0.0.0/30')), put(handle('c1', 1))])[2]).toEqual(comparison);
    expect(comparisonsOf([change('expect', block('10.0.0.0/30'))])).toHaveLength(1);
    const draft = new Draft(mirror, lockKeys, { marksReleases: false });
    draft.fold([change('put', { kind: 'pool', value: pool('p') })]);
    expect(draft.build().transaction.comparisons).not.toContainEqual(comparison);
  });
});

describe('the size of a transaction', () => {
  const puts = [put(handle('c1', 1)), change('put', endpoint('c1'))];
  const named = fc.constantFrom(
    ...[block('10.0.0.0/30'), block('10.0.0.4/30'), endpoint('c1'), endpoint('c2')],
    ...['p', 'q'].map((name): RecordValue => ({ kind: 'pool', value: pool(name) })),
  );
  const changes = fc.array(
    fc.oneof(
      fc.tuple(fc.constantFrom('put', 'expect'), named).map(([type, record]) => change(type, record)),
      fc.constant<Change>({ type: 'expectPools' }),
      fc.constantFrom('net.c1', 'net.c2').map((handleId): Change => ({ type: 'expectUnreleased', handleId })),
    ),
    { maxLength: 6 },
  );

  it('property: is as many operations as estimated, or fewer where a mark is compared twice', async () => {
    const { mirror } = await startReplica(new MemoryStore());
    fc.assert(
      fc.property(changes, changes, fc.boolean(), fc.boolean(), (first, second, marksReleases, hasLock) => {
        const changeLog = { nextMs: () => 0, newId: () => '0' };
        const draft = new Draft(mirror, new RecordKeys('/calico', { hasLock }), { marksReleases, changeLog });
        draft.fold(first);
        const said = draft.operationsWith(second);
        draft.fold(second);
        const { comparisons, puts, deletes } = draft.build().transaction;
        const marks = [...first, ...second].flatMap((each) => (each.type === 'expectUnreleased' ? each.handleId : []));
        const twice = marksReleases ? marks.length - new Set(marks).size : 0;
        const operations = Math.max(comparisons.length, puts.length + deletes.length);
        expect(said).toBeGreaterThanOrEqual(operations);
        expect(said).toBeLessThanOrEqual(operations + twice);
      }),
    );
  });

  it('is estimated again after changes are folded', async () => {
    const draft = await draftOver([]);
    expect(draft.bytesWith(puts)).toBe(3000);
    draft.fold(puts);
    // The written records already grow by an allocation each.
    expect(draft.bytesWith(puts)).toBe(4000);
    expect(draft.bytesWith([])).toBe(3000);
  });
});

describe('lists of records by name', () => {
  it('show the draft’s changes', async () => {
    const named = (name: string, prefixes = ['10.0.0.1/32']): RecordValue => ({
      kind: 'reservation',
      value: { name, uid: '', createTimeMs: 0, prefixes: prefixes.map(prefix) },
    });
    const draft = await draftOver([named('a'), named('c'), named('d')]);
    draft.fold([change('put', named('b')), change('delete', named('d')), change('put', named('c', []))]);
    expect(draft.view.reservations().map(({ name, prefixes }) => [name, prefixes.length])).toEqual([
      ['a', 1],
      ['b', 1],
      ['c', 0],
    ]);
    expect(draft.view.reservation('d')).toBeUndefined();
    expect(draft.view.reservation('a')?.name).toBe('a');
  });
});

describe('marks of releases', () => {
  const release: Change = { type: 'release', handleId: 'net.c1', nowMs: 0 };
  const allocate: Change = { type: 'expectUnreleased', handleId: 'net.c1' };
  const key = '/podwire/calico/releases/net.c1';

  it('are written by a release, and compared by an allocation', async () => {
    const { mirror } = await startReplica(new MemoryStore());
    const draft = new Draft(mirror, keys, { marksReleases: true });
    expect(draft.operationsWith([release, allocate])).toBe(2);
    draft.fold([release]);
    expect(draft.isEmpty).toBe(false);
    draft.fold([allocate]);
    const { transaction, doubtful } = draft.build();
    expect(transaction.puts).toEqual([{ key, value: Buffer.from('{"releasedAt":"1970-01-01T00:00:00.000Z"}') }]);
    // A release depends on its knowledge of the handle, also on its absence.
    expect(transaction.comparisons).toEqual([
      { type: 'record', key: '/calico/ipam/v2/handle/net.c1', modRevision: 0 },
      { type: 'record', key, modRevision: 0 },
    ]);
    expect(doubtful.keys).toEqual(['/calico/ipam/v2/handle/net.c1', key]);
  });

  it('are left out where no transaction can be late', async () => {
    const { mirror } = await startReplica(new MemoryStore());
    const draft = new Draft(mirror, keys, { marksReleases: false });
    draft.fold([release, allocate]);
    expect(draft.isEmpty).toBe(true);
    expect(draft.operationsWith([release, allocate])).toBe(0);
  });
});
