import { systemClock } from '@podwire/shared/runtime/clock';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import type { ObservedRecord } from '../engine/mirror/mirror.js';
import { StreamHub } from '../engine/streams/hub.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import type { RecordValue } from '../records/view.js';
import { block, claimedBlock, host, poolRecord } from '../testing/records.js';
import { freshList, keys, LineCodec, query, sorted, WatchingClient, write } from '../testing/watch-client.js';
import { Catalog } from './catalog.js';

function makeHub() {
  const currentRevision = (): Promise<number> => Promise.resolve(1);
  const codec = new LineCodec();
  const objects = new Catalog({ keys, encode: codec.change });
  const options = { objects, encode: codec.message, clock: systemClock, datastore: 'd', currentRevision };
  return { hub: new StreamHub(options), observe: objects.observe };
}

test('a large datastore is loaded at the start with other work in between, and equals a fresh list then', async () => {
  const cidrs = Array.from({ length: 2_100 }, (_, index) => `10.${70 + (index >> 8)}.${index & 255}.0/26`);
  // Pools come last, as in the order of the keys.
  const records = [...cidrs.flatMap((cidr) => claimedBlock(block(cidr, 'n1'))), poolRecord('q', '10.64.0.0/10')];
  const store = new MemoryStore();
  await write(store, ...records);
  let iterations = 0;
  let ticking = true;
  const tick = (): void => {
    iterations++;
    if (ticking) setImmediate(tick);
  };
  const { hub, observe } = makeHub();
  const listed = records.map((record) => ({ key: keys.of(record), record }));
  tick();
  await observe({ type: 'listed', revision: 1, records: listed });
  ticking = false;
  expect(iterations).toBeGreaterThanOrEqual(3);
  const client = new WatchingClient();
  const wanted = query('route');
  await client.readUntil(hub, wanted, 1);
  hub.close();
  expect(sorted(client.objects)).toEqual(sorted(await freshList(store, wanted)));
  expect(client.objects.size).toBe(cidrs.length);
});

// Like the records of one process: blocks share unchanged owners and attributes.
const CIDRS = ['10.65.0.0/26', '10.65.0.64/26'];
const OWNERS = [host('n1'), host('n2'), { kind: 'virtual', name: 'n1' } as const, undefined];
const USERS = ['n1', 'n2', undefined].flatMap((name) =>
  [undefined, 1].map((releasedAtMs) => ({
    handleId: 'h',
    owner: name === undefined ? {} : { node: name },
    releasedAtMs,
  })),
);
const BLOCKS = CIDRS.map((cidr) => block(cidr, 'n1'));

const blockRecord: fc.Arbitrary<RecordValue> = fc
  .record({
    before: fc.constantFrom(...BLOCKS),
    owner: fc.constantFrom(...OWNERS),
    attributes: fc.array(fc.constantFrom(...USERS), { maxLength: 3 }),
    used: fc.array(fc.nat(2), { maxLength: 4 }),
  })
  .map(({ before, owner, attributes, used }) => {
    const allocations = before.allocations.map((_, ordinal) => {
      const index = used[ordinal] ?? attributes.length;
      return index < attributes.length ? index : null;
    });
    return { kind: 'block', value: { ...before, owner, attributes, allocations } };
  });

const change: fc.Arbitrary<ObservedRecord> = fc
  .tuple(
    fc.oneof(
      { weight: 6, arbitrary: blockRecord },
      { weight: 1, arbitrary: fc.constantFrom(poolRecord('a', '10.65.0.0/26'), poolRecord('b', '10.65.0.0/16')) },
    ),
    fc.integer({ min: 0, max: 5 }),
  )
  .map(([record, chance]) => ({ key: keys.of(record), record: chance === 0 ? undefined : record }));

const QUERIES = [query(), query('route'), query('pool', 'route')];

test('a watcher of changes of records with shared parts ends with the objects of a list', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(fc.array(change, { minLength: 1, maxLength: 3 }), { maxLength: 25 }), async (steps) => {
      const [{ hub, observe }, fresh] = [makeHub(), makeHub()];
      await observe({ type: 'listed', revision: 1, records: [] });
      const clients = QUERIES.map(() => new WatchingClient());
      const known = new Map<string, RecordValue>();
      for (const [index, step] of steps.entries()) {
        const changes = [...new Map(step.map((one) => [one.key, one])).values()];
        for (const { key, record } of changes) {
          if (record) known.set(key, record);
          else known.delete(key);
        }
        void observe({ type: 'changed', revision: index + 2, changes });
        // One reads with each change, one sometimes, and one at the end only.
        for (const [each, client] of clients.entries())
          if (each < 2 && index % (1 + 4 * each) === 0) await client.readUntil(hub, QUERIES[each]!, index + 2);
      }
      const records = [...known].map(([key, record]) => ({ key, record }));
      await fresh.observe({ type: 'listed', revision: steps.length + 1, records });
      for (const [each, client] of clients.entries()) {
        const listing = new WatchingClient();
        await client.readUntil(hub, QUERIES[each]!, steps.length + 1);
        await listing.readUntil(fresh.hub, QUERIES[each]!, steps.length + 1);
        expect(sorted(client.objects)).toEqual(sorted(listing.objects));
      }
      for (const one of [hub, fresh.hub]) one.close();
    }),
    { numRuns: 200 },
  );
});
