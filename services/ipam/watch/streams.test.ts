import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { MemoryStore } from '../engine/testing/memory-store.js';
import type { RecordValue } from '../records/view.js';
import { block, claimedBlock, pool, poolRecord } from '../testing/records.js';
import {
  forever,
  freshList,
  keys,
  query,
  readMessage,
  remove,
  setLock,
  sorted,
  startWatching,
  until,
  WatchingClient,
  write,
  type WatchingOptions,
  type WatchingReplica,
} from '../testing/watch-client.js';

const POOL = poolRecord('p', '10.65.0.0/16');
const LIMIT_MS = 5_000;

let store: MemoryStore;
let replica: WatchingReplica;
let started: WatchingReplica | undefined;

beforeEach(async () => {
  store = new MemoryStore();
  await restart();
});

afterEach(() => replica.close());

async function restart(rest: WatchingOptions = {}): Promise<void> {
  await started?.close();
  started = await startWatching(store, { bookmarkAfterMs: 20, ...rest });
  replica = started;
}

const blockRecord = (cidr: string, node: string): RecordValue => ({ kind: 'block', value: block(cidr, node) });
const blockKey = (cidr: string, node: string): string => keys.of(blockRecord(cidr, node));

/** Writes, and waits until the replica knows. */
async function put(...records: readonly RecordValue[]): Promise<number> {
  const revision = await write(store, ...records);
  await until(() => replica.hub.revision >= revision);
  return revision;
}

async function removed(...names: readonly string[]): Promise<void> {
  const revision = await remove(store, ...names);
  await until(() => replica.hub.revision >= revision);
}

/** A stream that is read one message at a time, without bookmarks. */
class Reader {
  readonly client = new WatchingClient();
  readonly #controller = new AbortController();
  readonly #stream: AsyncGenerator<Uint8Array, void, void>;

  constructor(wanted = query(), token = '', from = replica) {
    this.client.token = token;
    this.#stream = from.hub.watch(this.client.request(wanted), this.#controller.signal);
  }

  async next() {
    for (;;) {
      const { value } = await this.#stream.next();
      if (!value) return undefined;
      const message = readMessage(value);
      this.client.apply(message);
      if (message.phase !== 'bookmark') return message;
    }
  }

  /** Reads to the end of the snapshot. */
  async whole(): Promise<this> {
    while ((await this.next())?.phase !== 'snapshotComplete');
    return this;
  }

  async cancel(): Promise<void> {
    this.#controller.abort();
    await this.#stream.return();
  }
}

const names = (message: Awaited<ReturnType<Reader['next']>>): string[] =>
  (message?.changes ?? []).map(({ kind, name, object }) => `${object === undefined ? '-' : ''}${kind} ${name}`);

describe('a stream', () => {
  test('begins with a snapshot, continues with changes, and frees everything when it is cancelled', async () => {
    await put(POOL, ...claimedBlock(block('10.65.0.0/26', 'n1')));
    const reader = new Reader();
    const first = await reader.next();
    expect(first).toMatchObject({ phase: 'snapshot', reset: true, resumeToken: '' });
    expect(names(first)).toEqual(['pool p', 'route 10.65.0.0/26']);
    expect(await reader.next()).toMatchObject({ phase: 'snapshotComplete', reset: false, changes: [] });
    await put(...claimedBlock(block('10.65.0.64/26', 'n2')));
    const change = await reader.next();
    expect(change).toMatchObject({ phase: 'changes', reset: false });
    expect(names(change)).toEqual(['route 10.65.0.64/26']);
    await removed(blockKey('10.65.0.0/26', 'n1'));
    expect(names(await reader.next())).toEqual(['-route 10.65.0.0/26']);
    expect([replica.hub.streamsCount, replica.hub.waitersCount]).toEqual([1, 0]);
    await reader.cancel();
    expect([replica.hub.streamsCount, replica.hub.waitersCount]).toEqual([0, 0]);
  });

  test('of an empty datastore is complete at once', async () => {
    expect(await new Reader().next()).toMatchObject({ phase: 'snapshotComplete', reset: true, changes: [] });
  });

  test('ends when its signal aborts, also while it waits', async () => {
    const controller = new AbortController();
    const read = (async () => {
      const messages: Uint8Array[] = [];
      for await (const message of replica.hub.watch({ query: query(), from: undefined }, controller.signal))
        messages.push(message);
      return messages.length;
    })();
    await until(() => replica.hub.waitersCount === 1);
    controller.abort();
    expect(await read).toBeGreaterThan(0);
    expect([replica.hub.streamsCount, replica.hub.waitersCount]).toEqual([0, 0]);
  });

  test('has several messages where one would be too long, and tokens that do not claim the rest', async () => {
    await restart({ messageBytes: 150 });
    for (let index = 0; index < 8; index++) await put(blockRecord(`10.65.${index}.0/26`, 'n1'));
    const reader = await new Reader().whole();
    expect(reader.client.phases.length).toBeGreaterThan(4);
    const cidrs = Array.from({ length: 8 }, (_, index) => `10.65.${index}.0/26`);
    const revision = await put(...cidrs.map((cidr) => blockRecord(cidr, 'n9')));
    const cut = await reader.next();
    expect(cut?.changes.length).toBeLessThan(8);
    expect(reader.client.revision).toBeLessThan(revision);
    const resumed = new Reader(query(), reader.client.token);
    for (const [name, object] of reader.client.objects) resumed.client.objects.set(name, object);
    while (resumed.client.revision < revision) await resumed.next();
    expect(sorted(resumed.client.objects)).toEqual(sorted(await freshList(store, query())));
    expect(resumed.client.resets).toBe(0);
  });

  test('gets bookmarks while nothing changes, with the token after irrelevant changes', async () => {
    const reader = await new Reader(query('pool')).whole();
    const revision = await put(blockRecord('10.65.0.0/26', 'n1'));
    const waiting = reader.next();
    await until(() => reader.client.revision === revision);
    expect(reader.client.phases).toContain('bookmark');
    await reader.cancel();
    await waiting;
  });
});

describe('a route', () => {
  test('is sent again when its pool changes', async () => {
    await put(blockRecord('10.65.0.0/26', 'n1'));
    const reader = await new Reader(query('route')).whole();
    await put(POOL);
    expect((await reader.next())?.changes[0]?.object).toContain('"poolName":"p"');
    await removed(keys.pool('p'));
    expect((await reader.next())?.changes[0]?.object).not.toContain('poolName');
  });

  test('is not sent for an irrelevant change', async () => {
    await put(POOL, blockRecord('10.65.0.0/26', 'n1'));
    const reader = await new Reader(query('route')).whole();
    await put({ kind: 'pool', value: pool('p', '10.65.0.0/16', { disabled: true }) });
    await put(blockRecord('10.65.0.64/26', 'n1'));
    expect(names(await reader.next())).toEqual(['route 10.65.0.64/26']);
  });
});

describe('a token', () => {
  test('continues without a snapshot, also on another replica and after nothing has changed', async () => {
    await put(POOL);
    const other = await startWatching(store, { bookmarkAfterMs: 20 });
    const reader = await new Reader().whole();
    await reader.cancel();
    await put(blockRecord('10.65.0.0/26', 'n1'));
    const resumed = new Reader(query(), reader.client.token, other);
    const message = await resumed.next();
    expect(message).toMatchObject({ phase: 'changes', reset: false });
    expect(names(message)).toEqual(['route 10.65.0.0/26']);
    await resumed.cancel();
    await other.close();
  });

  test('after which nothing changed is answered at once, with a bookmark', async () => {
    await restart({ bookmarkAfterMs: 60_000 });
    const reader = await new Reader().whole();
    await reader.cancel();
    const stream = replica.hub.watch(reader.client.request(query()), forever);
    expect(readMessage((await stream.next()).value!)).toMatchObject({ phase: 'bookmark', reset: false });
    const next = stream.next();
    await put(POOL);
    expect(readMessage((await next).value!)).toMatchObject({ phase: 'changes' });
    await stream.return();
  });

  test('of a replica that is ahead waits for this one to catch up', async () => {
    let hold = false;
    const gates: (() => void)[] = [];
    const slow = new MemoryStore({
      before: (operation) =>
        hold && operation === 'watch' ? new Promise((resolve) => gates.push(resolve)) : Promise.resolve(),
    });
    const behind = await startWatching(slow, { bookmarkAfterMs: 20 });
    await write(slow, blockRecord('10.65.0.0/26', 'n1'));
    await until(() => behind.mirror.modRevision(blockKey('10.65.0.0/26', 'n1')) > 0);
    hold = true;
    await write(slow, blockRecord('10.65.0.0/26', 'n2'));
    const ahead = await startWatching(slow, { bookmarkAfterMs: 20 });
    const reader = await new Reader(query(), '', ahead).whole();
    const resumed = new Reader(query(), reader.client.token, behind);
    const message = resumed.next();
    await until(() => gates.length > 0);
    // It receives now what the other one has sent already.
    gates.shift()?.();
    await until(() => behind.hub.revision >= reader.client.revision);
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(resumed.client.objects.size).toBe(0);
    await write(slow, blockRecord('10.65.0.0/26', 'n3'));
    await until(() => {
      for (const open of gates.splice(0)) open();
      return resumed.client.objects.size > 0;
    });
    expect((await message)?.changes.map(({ object }) => object)).toEqual([expect.stringContaining('"nodeName":"n3"')]);
    hold = false;
    await behind.close();
    await ahead.close();
  });

  test.each([
    ['of another datastore', { datastore: 'other' }, {}],
    ['of a revision that was never reached', {}, { revision: 1000 }],
  ])('%s leads to a snapshot', async (_, hub, position) => {
    await put(POOL);
    const reader = await new Reader().whole();
    await restart(hub);
    const from = { ...reader.client.request(query()).from!, ...position };
    const stream = replica.hub.watch({ query: query(), from }, forever);
    expect(readMessage((await stream.next()).value!)).toMatchObject({ phase: 'snapshot', reset: true });
    await stream.return();
  });

  test('of other kinds leads to a snapshot', async () => {
    const reader = await new Reader().whole();
    expect(await new Reader(query('route'), reader.client.token).next()).toMatchObject({ reset: true });
  });

  test('of changes that are no longer kept leads to a snapshot, and one of changes that are does not', async () => {
    await restart({ recentCapacity: 4 });
    const old = await new Reader().whole();
    for (let index = 0; index < 20; index++) await put(blockRecord(`10.65.${index}.0/26`, 'n1'));
    const fresh = await new Reader().whole();
    await put(blockRecord('10.65.99.0/26', 'n1'));
    expect(await new Reader(query(), old.client.token).next()).toMatchObject({ phase: 'snapshot', reset: true });
    expect(await new Reader(query(), fresh.client.token).next()).toMatchObject({ phase: 'changes', reset: false });
  });

  test('survives a compaction of the store: the difference to the new list is sent as changes', async () => {
    await put(POOL, blockRecord('10.65.0.0/26', 'n1'), blockRecord('10.65.1.0/26', 'n1'));
    const reader = await new Reader().whole();
    store.injectFault('watch', { type: 'fails', failure: new Error('cut') });
    await write(store, blockRecord('10.65.2.0/26', 'n1'));
    await remove(store, blockKey('10.65.1.0/26', 'n1'));
    store.compact();
    const message = await reader.next();
    expect(message).toMatchObject({ phase: 'changes', reset: false });
    expect(names(message).sort()).toEqual(['-route 10.65.1.0/26', 'route 10.65.2.0/26']);
  });
});

describe('the lock of the datastore', () => {
  async function lock(isLocked: boolean | undefined): Promise<void> {
    const revision = await setLock(store, isLocked);
    await until(() => replica.hub.revision >= revision);
  }

  /** The next message of a stream, bookmarks included. */
  async function messageOf(stream: AsyncGenerator<Uint8Array, void, void>) {
    const { value } = await stream.next();
    return value && readMessage(value);
  }

  /** A stream that has received its snapshot. */
  async function waiting(wanted = query(), from = replica) {
    const stream = from.hub.watch({ query: wanted, from: undefined }, forever);
    while ((await messageOf(stream))?.phase !== 'snapshotComplete');
    return stream;
  }

  beforeEach(() => restart({ bookmarkAfterMs: 60_000 }));

  test('wakes every stream at once, whatever its query, and messages stay shared', { timeout: LIMIT_MS }, async () => {
    const queries = [query(), query('route'), query('pool'), query('node', 'pool')];
    const streams = await Promise.all([...queries, ...queries].map((wanted) => waiting(wanted)));
    for (const isLocked of [true, false]) {
      const next = Promise.all(streams.map(messageOf));
      await until(() => replica.hub.waitersCount === streams.length);
      const before = replica.codec.messages;
      await lock(isLocked);
      const bookmark = expect.objectContaining({ phase: 'bookmark', reset: false, isLocked, changes: [] });
      expect(await next).toEqual(streams.map(() => bookmark));
      expect(replica.codec.messages - before).toBe(queries.length);
    }
    expect(replica.hub.sharedCount).toBe(0);
    await Promise.all(streams.map((stream) => stream.return()));
  });

  test('is in every message: of a snapshot, of changes, and of the first bookmark after a resume', async () => {
    await put(POOL);
    await lock(true);
    const reader = new Reader();
    expect(await reader.next()).toMatchObject({ phase: 'snapshot', isLocked: true });
    expect(await reader.next()).toMatchObject({ phase: 'snapshotComplete', isLocked: true });
    await put(blockRecord('10.65.0.0/26', 'n1'));
    expect(await reader.next()).toMatchObject({ phase: 'changes', isLocked: true });
    await reader.cancel();
    const resumed = replica.hub.watch(reader.client.request(query()), forever);
    expect(await messageOf(resumed)).toMatchObject({ phase: 'bookmark', isLocked: true });
    await resumed.return();
  });

  test('that changed while the client was away is in its first message', { timeout: LIMIT_MS }, async () => {
    const reader = await new Reader().whole();
    await reader.cancel();
    await lock(true);
    const resumed = replica.hub.watch(reader.client.request(query()), forever);
    expect(await messageOf(resumed)).toMatchObject({ phase: 'bookmark', reset: false, isLocked: true });
    const next = messageOf(resumed);
    await put(blockRecord('10.65.0.0/26', 'n1'));
    expect(await next).toMatchObject({ phase: 'changes', isLocked: true });
    await resumed.return();
  });

  test('ends when its record is removed, also while changes were missed', { timeout: LIMIT_MS }, async () => {
    const stream = await waiting();
    const locked = messageOf(stream);
    await lock(true);
    expect(await locked).toMatchObject({ isLocked: true });
    const unlocked = messageOf(stream);
    store.injectFault('watch', { type: 'fails', failure: new Error('cut') });
    await setLock(store, undefined);
    store.compact();
    expect(await unlocked).toMatchObject({ phase: 'bookmark', isLocked: false });
    await stream.return();
  });

  test('is not told in a message that was made before it changed', async () => {
    const [fast, slow] = [await waiting(), await waiting()];
    await put(blockRecord('10.65.0.0/26', 'n1'));
    expect(await messageOf(fast)).toMatchObject({ phase: 'changes', isLocked: false });
    await lock(true);
    expect(await messageOf(slow)).toMatchObject({ phase: 'changes', isLocked: true });
    expect(await messageOf(fast)).toMatchObject({ phase: 'bookmark', isLocked: true });
    await Promise.all([fast.return(), slow.return()]);
  });

  test('wakes no stream when the record changes otherwise', async () => {
    const stream = await waiting();
    const next = messageOf(stream);
    await until(() => replica.hub.waitersCount === 1);
    await lock(false);
    await put(blockRecord('10.65.0.0/26', 'n1'));
    expect(await next).toMatchObject({ phase: 'changes', isLocked: false });
    await stream.return();
  });
});

describe('a slow reader', () => {
  test('gets only the last state of frequent changes', async () => {
    const reader = await new Reader().whole();
    for (let index = 1; index <= 50; index++) await put(blockRecord('10.65.0.0/26', `n${index}`));
    await until(() => replica.hub.waitersCount === 0 && replica.codec.encoded === 0);
    await reader.next();
    const rest = reader.client.phases.filter((phase) => phase === 'changes').length;
    expect(rest).toBe(1);
    expect([...reader.client.objects.values()][0]).toContain('"nodeName":"n50"');
  });

  test('gets a snapshot when the changes are no longer kept, also in the middle of one', async () => {
    await restart({ recentCapacity: 4, messageBytes: 1 });
    for (let index = 0; index < 6; index++) await put(blockRecord(`10.65.${index}.0/26`, 'n1'));
    const reader = new Reader();
    await reader.next();
    for (let index = 10; index < 40; index++) await put(blockRecord(`10.65.${index}.0/26`, 'n1'));
    await reader.whole();
    expect(reader.client.resets).toBe(2);
    expect(sorted(reader.client.objects)).toEqual(sorted(await freshList(store, query())));
  });
});

describe('a stream that waits', () => {
  test('gets a snapshot when more changes come at once than are kept, also if only a dropped one concerns it', async () => {
    await restart({ recentCapacity: 2 });
    const reader = new Reader(query('pool'));
    await reader.next();
    const waiting = reader.next();
    await until(() => replica.hub.waitersCount === 1);
    await put(
      blockRecord('10.65.0.0/26', 'n1'),
      POOL,
      ...Array.from({ length: 6 }, (_, i) => blockRecord(`10.65.1.${i * 16}/28`, 'n2')),
    );
    expect(await waiting).toMatchObject({ reset: true });
    await until(() => reader.client.objects.has('pool p'));
    await reader.cancel();
  });
});

describe('a client that does not read', () => {
  test('a snapshot that must restart keeps none of its objects', async () => {
    await restart({ recentCapacity: 16, messageBytes: 1 });
    for (let index = 0; index < 3; index++) await put(blockRecord(`10.65.${index}.0/26`, 'n1'));
    const readers = [new Reader(), new Reader()];
    for (const reader of readers) await reader.next();
    expect(replica.hub.snapshotsCount).toBe(2);
    for (let index = 10; index < 30; index++) await put(blockRecord(`10.65.${index}.0/26`, 'n1'));
    expect(replica.hub.snapshotsCount).toBe(0);
    await readers[0]?.whole();
    expect(sorted(readers[0]?.client.objects ?? new Map())).toEqual(sorted(await freshList(store, query())));
  });

  test('a snapshot and is cut off leaves no snapshot behind', async () => {
    await restart({ messageBytes: 1 });
    for (let index = 0; index < 3; index++) await put(blockRecord(`10.65.${index}.0/26`, 'n1'));
    const reader = new Reader();
    await reader.next();
    await reader.cancel();
    expect(replica.hub.snapshotsCount).toBe(0);
  });
});

describe('many streams', () => {
  test('of different kinds share no message', async () => {
    const readers = await Promise.all(
      [query('pool'), query('route'), query()].map((wanted) => new Reader(wanted).whole()),
    );
    await put(POOL, blockRecord('10.65.0.0/26', 'n1'));
    const messages = await Promise.all(readers.map((reader) => reader.next()));
    expect(messages.map((message) => message?.changes.length)).toEqual([1, 1, 2]);
    expect(replica.hub.sharedCount).toBe(0);
  });

  test.each<[string, (last: Reader) => Promise<unknown>]>([
    ['has it', (last) => last.next()],
    ['has ended', (last) => last.cancel()],
  ])('of equal kinds keep a message until the last of them %s', async (_, end) => {
    await restart({ bookmarkAfterMs: 60_000 });
    const readers = [await new Reader().whole(), await new Reader().whole()] as const;
    await put(blockRecord('10.65.0.0/26', 'n1'));
    await readers[0].next();
    expect(replica.hub.sharedCount).toBe(1);
    await end(readers[1]);
    expect(replica.hub.sharedCount).toBe(0);
  });

  test('share encoded objects and messages', { timeout: LIMIT_MS }, async () => {
    await restart({ bookmarkAfterMs: 60_000 });
    await put(POOL, blockRecord('10.65.0.0/26', 'n1'));
    const readers = await Promise.all(Array.from({ length: 50 }, () => new Reader().whole()));
    expect(replica.codec.encoded).toBe(2);
    const next = Promise.all(readers.map((reader) => reader.next()));
    await until(() => replica.hub.waitersCount === 50);
    const before = replica.codec.messages;
    await put(blockRecord('10.65.1.0/26', 'n1'));
    expect((await next).map(names)).toEqual(readers.map(() => ['route 10.65.1.0/26']));
    expect(replica.codec.encoded).toBe(3);
    expect(replica.codec.messages - before).toBe(1);
    await Promise.all(readers.map((reader) => reader.cancel()));
    expect(replica.hub.waitersCount).toBe(0);
  });

  test('are woken for their own kinds only', { timeout: LIMIT_MS }, async () => {
    await restart({ bookmarkAfterMs: 60_000 });
    const kinds = ['pool', 'route', 'node'] as const;
    const readers = await Promise.all(kinds.map((kind) => new Reader(query(kind)).whole()));
    const nexts = readers.map((reader) => reader.next());
    await until(() => replica.hub.waitersCount === 3);
    await put(blockRecord('10.65.1.0/26', 'n7'));
    expect(names(await nexts[1])).toEqual(['route 10.65.1.0/26']);
    expect(replica.hub.waitersCount).toBe(2);
    await Promise.all(readers.map((reader) => reader.cancel()));
  });

  test('without readers use a bounded number of bytes', async () => {
    const waitingBytes = 200_000;
    await restart({ waitingBytes });
    await put(...Array.from({ length: 256 }, (_, index) => blockRecord(`10.65.${index}.0/26`, 'n1')));
    const controller = new AbortController();
    const streams = Array.from({ length: 100 }, () =>
      replica.hub.watch({ query: query(), from: undefined }, controller.signal),
    );
    const lengths: number[] = [];
    // A client that reads only one message.
    for (const stream of streams) lengths.push((await stream.next()).value?.length ?? 0);
    expect(lengths[0]).toBeGreaterThan(2 * 4096);
    expect(lengths.at(-1)).toBeLessThan(1.2 * 4096);
    // gRPC has a copy of each.
    const longer = lengths.filter((length) => length > 1.2 * 4096);
    expect(2 * longer.reduce((sum, length) => sum + length, 0)).toBeLessThan(waitingBytes);
    controller.abort();
    await Promise.all(streams.map((stream) => stream.return()));
    const [again] = [replica.hub.watch({ query: query(), from: undefined }, new AbortController().signal)];
    expect((await again.next()).value?.length).toBe(lengths[0]);
    await again.return();
  });

  test('leave nothing encoded behind, some time after the last one', async () => {
    const clock = new ManualClock();
    await restart({ cacheIdleMs: 20, clock });
    await put(POOL);
    const encodedBy = async (): Promise<number> => {
      const reader = await new Reader().whole();
      await reader.cancel();
      return replica.codec.encoded;
    };
    expect([await encodedBy(), await encodedBy()]).toEqual([1, 1]);
    clock.advance(20);
    await expect.poll(encodedBy).toBe(2);
  });

  test('beyond the limit of encoded objects are served nevertheless', async () => {
    await restart({ cacheBytes: 0 });
    await put(POOL);
    const readers = await Promise.all([1, 2].map(() => new Reader().whole()));
    expect(readers.map(({ client }) => client.objects.size)).toEqual([1, 1]);
    expect(replica.codec.encoded).toBe(2);
  });
});
