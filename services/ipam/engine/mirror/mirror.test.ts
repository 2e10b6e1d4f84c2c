import { Failure } from '@podwire/shared/failure/failure';
import fc from 'fast-check';
import { beforeEach, describe, expect, it } from 'vitest';

import { session } from '../../testing/records.js';
import { decodeRecord, encodeRecord, serialize } from '../../records/json/registry.js';
import { MemoryStore, type Operation } from '../testing/memory-store.js';
import {
  BLOCK,
  emptyBlock,
  forever,
  handle,
  increment,
  instantClock,
  keys,
  prefix,
  settleEvents,
  startReplica,
  writeHandle,
} from '../testing/stores.js';
import { Mirror, type Observed } from './mirror.js';
import { REPEAT_MS } from './reachable-clock.js';

const KEY = keys.handle('a');

function count(mirror: Mirror, id = 'a'): number | undefined {
  return mirror.view.handle(id)?.blocks.get(BLOCK);
}

function own(id: string, value: number) {
  const record = { kind: 'handle', value: handle(id, value) } as const;
  const raw = encodeRecord(record, undefined);
  return { key: keys.handle(id), decoded: { record, raw }, value: serialize(raw) };
}

async function putText(store: MemoryStore, key: string, text: string | Uint8Array): Promise<void> {
  await store.commit({ comparisons: [], puts: [{ key, value: Buffer.from(text) }], deletes: [] }, forever);
}

async function remove(store: MemoryStore, key: string): Promise<void> {
  await store.commit({ comparisons: [], puts: [], deletes: [key] }, forever);
}

const NOT_POOLS = { poolsCompared: false };

describe('the mirror', () => {
  it('has the existing records, and later changes', async () => {
    const store = new MemoryStore();
    await writeHandle(store, handle('a', 1));
    const { mirror } = await startReplica(store);
    expect(count(mirror)).toBe(1);
    await writeHandle(store, handle('a', 2));
    await writeHandle(store, handle('b', 1));
    await remove(store, keys.handle('b'));
    await settleEvents();
    expect([count(mirror), count(mirror, 'b')]).toEqual([2, undefined]);
    expect([mirror.modRevision(KEY), mirror.modRevision(keys.handle('b'))]).toEqual([3, 0]);
  });

  it('is not set back by older changes that the watch delivers after an own commit', async () => {
    const store = new MemoryStore();
    const { mirror } = await startReplica(store);
    mirror.applyOwn(9, [own('a', 9), { key: keys.handle('b'), decoded: undefined, value: undefined }], NOT_POOLS);
    await writeHandle(store, handle('a', 1));
    await writeHandle(store, handle('b', 1));
    await settleEvents();
    expect([count(mirror), count(mirror, 'b')]).toEqual([9, undefined]);
  });

  it('takes newer changes after an own deletion', async () => {
    const store = new MemoryStore();
    await writeHandle(store, handle('a', 1));
    const { mirror } = await startReplica(store);
    mirror.applyOwn(3, [{ key: KEY, decoded: undefined, value: undefined }], NOT_POOLS);
    await remove(store, KEY);
    await writeHandle(store, handle('a', 5));
    await settleEvents();
    expect(count(mirror)).toBe(5);
  });

  it('applies the conflict of a lost comparison like a change of the watch, and is not set back by it', async () => {
    const never = new Promise<void>(() => undefined);
    const store = new MemoryStore({ before: (operation) => (operation === 'watch' ? never : Promise.resolve()) });
    await writeHandle(store, handle('a', 1));
    await writeHandle(store, handle('gone', 1));
    const { mirror } = await startReplica(store);
    const meet = async () => {
      const comparisons = ['a', 'gone', 'made'].map((id) => {
        const key = keys.handle(id);
        return { type: 'record', key, modRevision: mirror.modRevision(key) } as const;
      });
      const result = await store.commit({ comparisons, puts: [], deletes: [] }, forever);
      if (result.committed) throw new Error('the comparison was not lost');
      return result;
    };
    await writeHandle(store, handle('a', 2));
    await remove(store, keys.handle('gone'));
    const older = await meet();
    await writeHandle(store, handle('a', 3));
    await writeHandle(store, handle('gone', 3));
    await writeHandle(store, handle('made', 3));
    const newer = await meet();
    const shown = () => [count(mirror), count(mirror, 'gone'), count(mirror, 'made')];
    mirror.applyConflict(older, NOT_POOLS);
    expect(shown()).toEqual([2, undefined, undefined]);
    for (const met of [newer, older]) {
      mirror.applyConflict(met, NOT_POOLS);
      expect(shown()).toEqual([3, 3, 3]);
    }
    expect(mirror.modRevision(keys.handle('gone'))).toBe(
      newer.changed.find(({ key }) => key.includes('gone'))?.modRevision,
    );
  });

  it('is not set back by a read that the watch has overtaken', async () => {
    const store = new MemoryStore();
    await writeHandle(store, handle('a', 1));
    let releaseNext = (): void => undefined;
    const slowRead = new Promise<void>((resolve) => (releaseNext = resolve));
    const { mirror } = await startReplica(store);
    const snapshot = await store.read([KEY], forever);
    store.read = () => slowRead.then(() => snapshot);
    const refreshed = mirror.refresh({ keys: [KEY], pools: false }, forever);
    await remove(store, KEY);
    await settleEvents();
    releaseNext();
    await refreshed;
    expect(count(mirror)).toBeUndefined();
  });

  it('lists again when the watch has fallen too far behind', async () => {
    const store = new MemoryStore();
    await writeHandle(store, handle('gone', 1));
    await writeHandle(store, handle('a', 1));
    const { mirror, events } = await startReplica(store);
    await settleEvents();
    store.injectFault('watch', { type: 'fails', failure: new Failure('STORE_UNAVAILABLE', 'planned') });
    await writeHandle(store, handle('a', 2));
    await Promise.resolve();
    await remove(store, keys.handle('gone'));
    store.compact();
    await settleEvents();
    await settleEvents();
    expect(events.map(({ type }) => type)).toEqual(['watchFailed', 'listedAgain']);
    expect([count(mirror), count(mirror, 'gone')]).toEqual([2, undefined]);
    expect(store.unusedFaults()).toEqual([]);
    await writeHandle(store, handle('a', 3));
    await settleEvents();
    expect(count(mirror)).toBe(3);
  });

  describe('of a node that was not heard of', () => {
    let nowMs = 0;
    let failing: Operation | undefined;
    let failure: Failure;
    let replica: Awaited<ReturnType<typeof startReplica>>;

    beforeEach(async () => {
      [nowMs, failing] = [0, undefined];
      const check = (operation: Operation) => (operation === failing ? Promise.reject(failure) : Promise.resolve());
      const store = new MemoryStore({ before: check });
      const record = { kind: 'nodeSession', value: session('n1') } as const;
      await putText(
        store,
        keys.ofName({ kind: 'nodeSession', name: 'n1' }),
        serialize(encodeRecord(record, undefined)),
      );
      replica = await startReplica(store, { clock: { ...instantClock, monotonicMs: () => nowMs } });
      await settleEvents();
    });

    /** Calls fail from the start to 15 s before the end. @returns what counts of the time as the node's silence, in milliseconds */
    const silenceAfter = async (durationMs: number): Promise<number> => {
      const { updater, mirror } = replica;
      const before = mirror.view.sessionAgeMs('n1');
      for (const endMs = nowMs + durationMs; nowMs < endMs; nowMs += 15_000) {
        await updater.update('test', increment('a'), { signal: forever }).catch(() => undefined);
        await settleEvents();
      }
      return mirror.view.sessionAgeMs('n1') - before;
    };

    it.each([
      ['watch', 'STORE_UNAVAILABLE'],
      ['commit', 'STORE_UNAVAILABLE'],
      ['commit', 'STORE_FULL'],
    ] as const)('counts no failure of a %s with %s as its silence', async (operation, code) => {
      expect(await silenceAfter(60_000)).toBe(60_000);
      failure = new Failure(code, 'planned');
      failing = operation;
      expect(await silenceAfter(600_000)).toBe(0);
      failing = undefined;
      expect(await silenceAfter(60_000)).toBe(60_000 - (REPEAT_MS - 15_000));
      failing = operation;
      expect(await silenceAfter(600_000)).toBe(0);
    });

    it('counts the time in which transactions are refused because of their contents', async () => {
      failure = new Failure('STORE_LIMIT', 'planned');
      failing = 'commit';
      expect(await silenceAfter(60_000)).toBe(60_000);
    });
  });

  it('sets a record aside that cannot be read, reports it once, and serves the rest', async () => {
    const store = new MemoryStore();
    await putText(store, KEY, '{"block":7}');
    await writeHandle(store, handle('b', 1));
    const { mirror, events } = await startReplica(store);
    expect(events).toEqual([expect.objectContaining({ type: 'unreadable', key: KEY })]);
    expect([count(mirror), count(mirror, 'b')]).toEqual([undefined, 1]);
    expect(() => mirror.stored(KEY)).toThrow(/record .*handle\/a cannot be read/);
    await writeHandle(store, handle('a', 4));
    await settleEvents();
    expect(count(mirror)).toBe(4);
  });

  it('shows records set aside, and other writers’ endpoints, apart from the records', async () => {
    const store = new MemoryStore();
    const foreign = keys.endpoint({ namespace: 'default', name: 'n1-k8s-web-eth0' });
    const networks = '["10.0.0.7/32","fd00::7",7,"10.0.0.0/24"]';
    await putText(store, KEY, '{"block":7}');
    await putText(store, foreign, `{"spec":{"node":"n1","containerID":"c","pod":"web","ipNetworks":${networks}}}`);
    const { mirror, updater } = await startReplica(store);
    const shown = async () =>
      updater.update(
        'reads',
        (view) => ({ changes: [], outcome: [...view.foreignEndpoints(), ...view.unreadable()] }),
        {
          signal: forever,
        },
      );
    const addresses = [prefix('10.0.0.7/32'), prefix('fd00::7/128')];
    expect(await shown()).toMatchObject([
      {
        key: { namespace: 'default', name: 'n1-k8s-web-eth0' },
        value: { nodeName: 'n1', containerId: 'c', podName: 'web', addresses },
      },
      { key: KEY, name: { kind: 'handle', id: 'a' }, reason: expect.stringContaining('block is 7') },
    ]);
    expect([...mirror.view.endpoints()]).toEqual([]);
    await writeHandle(store, handle('a', 4));
    await remove(store, foreign);
    await settleEvents();
    expect(await shown()).toEqual([]);
  });

  it('ends its watch when it is closed', async () => {
    const store = new MemoryStore();
    const { mirror } = await startReplica(store);
    await mirror.close();
    await writeHandle(store, handle('a', 1));
    await settleEvents();
    expect(count(mirror)).toBeUndefined();
  });

  it('fails an aborted wait for doubtful records with the signal’s reason', async () => {
    const { mirror } = await startReplica(new MemoryStore());
    mirror.markDoubtful({ keys: [KEY], pools: true });
    await expect(mirror.resolveDoubts(AbortSignal.abort())).rejects.toMatchObject({ code: 'CANCELLED' });
    await mirror.resolveDoubts(forever);
    expect(mirror.hasDoubts).toBe(false);
  });

  it('recognizes an own transaction that the watch reports before its answer, and only that', async () => {
    const store = new MemoryStore();
    const { mirror } = await startReplica(store);
    const sent = [own('a', 1), own('b', 1), own('c', 1)];
    mirror.own.markSent(sent);
    await writeHandle(store, handle('a', 1));
    await writeHandle(store, handle('b', 2));
    await settleEvents();
    expect(mirror.stored(KEY)).toBe(sent[0]?.decoded);
    expect(count(mirror, 'b')).toBe(2);
    mirror.own.markAnswered(sent);
    await writeHandle(store, handle('c', 1));
    await settleEvents();
    expect(count(mirror, 'c')).toBe(1);
    expect(mirror.stored(keys.handle('c'))).not.toBe(sent[2]?.decoded);
  });

  it('reports an own commit to observers as committed, also when the watch reports it after the next one', async () => {
    let goOn = (): void => undefined;
    const held = new Promise<void>((resolve) => (goOn = resolve));
    const store = new MemoryStore({ before: (operation) => (operation === 'watch' ? held : Promise.resolve()) });
    const observed: Observed[] = [];
    const observe = (each: Observed): undefined => void observed.push(each);
    const options = { store, keys, clock: instantClock, random: () => 0.5, report: () => undefined, observe };
    const mirror = await Mirror.start(options, forever);
    const writes = [own('a', 1), own('a', 2)];
    for (const write of writes) {
      const result = await store.commit({ comparisons: [], puts: [write], deletes: [] }, forever);
      mirror.applyOwn(result.revision, [write], NOT_POOLS);
    }
    await writeHandle(store, handle('a', 3));
    goOn();
    await settleEvents();
    const records = observed
      .flatMap((each) => (each.type === 'changed' ? each.changes : []))
      .map(({ record }) => record);
    expect(records.map((record) => record?.value)).toEqual([1, 2, 3].map((value) => handle('a', value)));
    expect(records.slice(0, 2)).toEqual(writes.map(({ decoded }) => decoded.record));
    expect(records[0]).toBe(writes[0]?.decoded.record);
    await mirror.close();
  });

  it('shows, after any changes, the same as a new list', async () => {
    const command = fc.record({
      id: fc.constantFrom('a', 'b', 'c'),
      count: fc.option(fc.nat(9)),
      settles: fc.boolean(),
      own: fc.boolean(),
      sent: fc.option(fc.nat(9), { nil: undefined }),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(command, { maxLength: 20 }), async (commands) => {
        const store = new MemoryStore();
        const { mirror } = await startReplica(store);
        for (const { id, count: value, settles, own: isOwn, sent } of commands) {
          if (sent !== undefined) mirror.own.markSent([own(id, sent)]);
          if (value === null) await remove(store, keys.handle(id));
          else await writeHandle(store, handle(id, value));
          const { revision, records } = await store.read([keys.handle(id)], forever);
          const write =
            records.length > 0 && value !== null
              ? own(id, value)
              : { key: keys.handle(id), decoded: undefined, value: undefined };
          if (isOwn) mirror.applyOwn(revision, [write], NOT_POOLS);
          if (settles) await settleEvents();
        }
        await settleEvents();
        const { records } = await store.list('', forever);
        const fresh = new Map(records.map(({ key, value }) => [key, value]));
        for (const id of ['a', 'b', 'c']) {
          const value = fresh.get(keys.handle(id));
          const expected = value && decodeRecord(keys.handle(id), { kind: 'handle', id }, value).record.value;
          expect(mirror.view.handle(id)).toEqual(expected);
        }
      }),
      { seed: 20261121, numRuns: 100 },
    );
  });
});

describe('its indexes', () => {
  it('list the blocks in a prefix in the order of their addresses, per family', async () => {
    const store = new MemoryStore();
    const cidrs = ['10.0.2.0/30', '10.0.0.0/29', '10.1.0.0/30', '10.0.1.4/30', '10.0.1.0/30'];
    for (const cidr of cidrs) {
      const value = serialize(encodeRecord({ kind: 'block', value: emptyBlock(cidr) }, undefined));
      await store.commit({ comparisons: [], puts: [{ key: keys.block(prefix(cidr)), value }], deletes: [] }, forever);
    }
    await remove(store, keys.block(prefix('10.0.2.0/30')));
    const { mirror } = await startReplica(store);
    const shown = (cidr: string) => [...mirror.view.blocksIn(prefix(cidr))].map((block) => block.prefix);
    expect(shown('10.0.0.0/16')).toEqual(['10.0.0.0/29', '10.0.1.0/30', '10.0.1.4/30'].map(prefix));
    expect(shown('10.0.1.4/30')).toEqual([prefix('10.0.1.4/30')]);
    expect(shown('10.0.0.0/30')).toEqual([]);
    expect(shown('::/0')).toEqual([]);
  });

  it('distinguish the affinities of two owners', async () => {
    const store = new MemoryStore();
    const names = ['node1', 'node10'];
    for (const name of names)
      for (const cidr of ['10.0.0.64/26', '10.0.0.0/26'])
        await putText(store, keys.affinity({ kind: 'host', name }, prefix(cidr)), '{"state":"confirmed"}');
    const { mirror } = await startReplica(store);
    const affinities = mirror.view.affinitiesOf({ kind: 'host', name: 'node1' });
    expect(affinities.map(({ owner, block }) => [owner.name, block])).toEqual([
      ['node1', prefix('10.0.0.0/26')],
      ['node1', prefix('10.0.0.64/26')],
    ]);
    expect(mirror.view.affinitiesOf({ kind: 'virtual', name: 'node1' })).toEqual([]);
  });
});
