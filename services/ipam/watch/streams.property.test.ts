import fc from 'fast-check';
import { expect, test } from 'vitest';

import { MemoryStore } from '../engine/testing/memory-store.js';
import type { AllocationAttributes } from '../records/attributes.js';
import { decodeRecord } from '../records/json/registry.js';
import type { RecordValue } from '../records/view.js';
import { block, pool } from '../testing/records.js';
import {
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
  type WatchingReplica,
} from '../testing/watch-client.js';

const CIDRS = ['10.65.0.0/26', '10.65.0.64/26', '10.65.1.0/26', '10.66.0.0/26'];
const NODES = ['n1', 'n2', 'n3'];
const POOLS = [pool('a', '10.65.0.0/24'), pool('b', '10.65.0.0/16'), pool('c', '10.66.0.0/16')];

function node(name: string, zone: string): RecordValue {
  const stored = JSON.stringify({ metadata: { name, uid: 'u', labels: { zone } }, spec: {} });
  return decodeRecord(keys.node(name), { kind: 'node', name }, Buffer.from(stored)).record;
}

/** The user of the first addresses of a block: a node, or none. */
const users: fc.Arbitrary<readonly AllocationAttributes[]> = fc.array(
  fc.record({
    handleId: fc.constant('h'),
    owner: fc.oneof(
      fc.constantFrom(...NODES).map((name) => ({ node: name })),
      fc.constant({}),
    ),
    releasedAtMs: fc.constantFrom(undefined, 1),
  }),
  { maxLength: 3 },
);

const record: fc.Arbitrary<RecordValue> = fc.oneof(
  fc
    .tuple(fc.constantFrom(...CIDRS), fc.constantFrom(...NODES, undefined), users, fc.bigInt(1n, 9n))
    .map(([cidr, owner, attributes, sequenceNumber]): RecordValue => {
      const value = block(cidr, owner ?? 'n1', { sequenceNumber, attributes });
      const allocations = value.allocations.map((_, ordinal) => (ordinal < attributes.length ? ordinal : null));
      return { kind: 'block', value: { ...value, allocations, owner: owner === undefined ? undefined : value.owner } };
    }),
  fc
    .tuple(fc.constantFrom(...POOLS), fc.boolean())
    .map(([value, disabled]): RecordValue => ({ kind: 'pool', value: { ...value, disabled } })),
  fc.tuple(fc.constantFrom(...NODES), fc.constantFrom('x', 'y')).map(([name, zone]) => node(name, zone)),
);

const QUERIES = [query(), query('route'), query('pool', 'node')];

type Step =
  /** Transactions one after the other; the replicas learn of them when they do. */
  | { readonly type: 'write'; readonly records: readonly RecordValue[] }
  | { readonly type: 'remove'; readonly records: readonly RecordValue[] }
  /** A client reads some messages, on one of the replicas, and is cut off; the last one may have been lost. */
  | {
      readonly type: 'read';
      readonly client: number;
      readonly replica: number;
      readonly count: number;
      readonly lost: boolean;
    }
  /** Calico's tools lock or unlock the datastore, or remove the record. */
  | { readonly type: 'lock'; readonly isLocked: boolean | undefined }
  /** The mirrors' watches break, and missed changes are no longer kept. */
  | { readonly type: 'compact' }
  /** The replicas receive all changes. */
  | { readonly type: 'settle' };

const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 5,
    arbitrary: fc.record({
      type: fc.constant('write' as const),
      records: fc.array(record, { maxLength: 4, minLength: 1 }),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      type: fc.constant('remove' as const),
      records: fc.array(record, { maxLength: 3, minLength: 1 }),
    }),
  },
  {
    weight: 5,
    arbitrary: fc.record({
      type: fc.constant('read' as const),
      client: fc.nat(QUERIES.length - 1),
      replica: fc.nat(1),
      count: fc.integer({ min: 1, max: 4 }),
      lost: fc.boolean(),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      type: fc.constant('lock' as const),
      isLocked: fc.constantFrom(true, true, false, undefined),
    }),
  },
  { weight: 1, arbitrary: fc.record({ type: fc.constant('compact' as const) }) },
  { weight: 2, arbitrary: fc.record({ type: fc.constant('settle' as const) }) },
);

class Model {
  readonly store = new MemoryStore();
  readonly clients = QUERIES.map(() => new WatchingClient());
  replicas: readonly WatchingReplica[] = [];
  isLocked = false;

  async start(recentCapacity: number): Promise<void> {
    const options = { recentCapacity, messageBytes: 300, bookmarkAfterMs: 2 };
    this.replicas = [await startWatching(this.store, options), await startWatching(this.store, options)];
  }

  async run(one: Step): Promise<void> {
    switch (one.type) {
      case 'write':
        await write(this.store, ...newest(one.records));
        break;
      case 'remove':
        await remove(this.store, ...newest(one.records).map((value) => keys.of(value)));
        break;
      case 'read':
        await this.#read(one);
        break;
      case 'lock':
        await setLock(this.store, one.isLocked);
        this.isLocked = one.isLocked === true;
        break;
      case 'compact':
        this.replicas.forEach(() => this.store.injectFault('watch', { type: 'fails', failure: new Error('cut') }));
        this.store.compact();
        break;
      case 'settle':
        await this.settle();
    }
  }

  async settle(): Promise<void> {
    const revision = await write(this.store, { kind: 'pool', value: POOLS[2]! });
    await until(() => this.replicas.every(({ hub }) => hub.revision >= revision));
  }

  /** Whether each client, read to the end, equals a fresh list and knows the lock; and nothing is left open. */
  async check(): Promise<void> {
    await this.settle();
    const revision = await this.store.revision(new AbortController().signal);
    for (const [index, client] of this.clients.entries()) {
      const wanted = QUERIES[index]!;
      await client.readUntil(this.replicas[index % 2]!.hub, wanted, revision);
      expect(client.isLocked).toBe(this.isLocked);
      expect(sorted(client.objects)).toEqual(sorted(await freshList(this.store, wanted)));
    }
    expect(this.replicas.map(({ hub }) => [hub.streamsCount, hub.waitersCount])).toEqual([
      [0, 0],
      [0, 0],
    ]);
  }

  async #read({ client: index, replica, count, lost }: Extract<Step, { type: 'read' }>): Promise<void> {
    const client = this.clients[index]!;
    const controller = new AbortController();
    const stream = this.replicas[replica]!.hub.watch(client.request(QUERIES[index]!), controller.signal);
    let read = 0;
    for await (const bytes of stream) {
      if (++read < count || !lost) client.apply(readMessage(bytes));
      if (read >= count) break;
    }
    controller.abort();
  }
}

/** No key twice, as in a transaction. */
function newest(records: readonly RecordValue[]): RecordValue[] {
  return [...new Map(records.map((value) => [keys.of(value), value])).values()];
}

test('after any changes, cuts and resumes on either replica, each client equals a fresh list', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 30 }), fc.constantFrom(2, 8, 1000), async (steps, capacity) => {
      const model = new Model();
      await model.start(capacity);
      try {
        for (const one of steps) await model.run(one);
        await model.check();
      } finally {
        await Promise.all(model.replicas.map((replica) => replica.close()));
      }
    }),
    { numRuns: 60 },
  );
}, 120_000);
