import { systemClock } from '@podwire/shared/runtime/clock';
import { expect, test } from 'vitest';

import { block, claimedBlock, poolRecord } from '../allocator/records.fixture.js';
import { MemoryStore } from '../store/memory/memory-store.js';
import { WatchHub } from './hub.js';
import { freshList, keys, LineCodec, query, sorted, WatchingClient, write } from './watching.fixture.js';

test('a large datastore is taken over at the start with other work in between, and then is as a fresh list has it', async () => {
  const cidrs = Array.from({ length: 2_100 }, (_, index) => `10.${70 + (index >> 8)}.${index & 255}.0/26`);
  // Pools come last, as in the order of the keys.
  const records = [...cidrs.flatMap((cidr) => claimedBlock(block(cidr, 'n1'))), poolRecord('q', '10.64.0.0/10')];
  const store = new MemoryStore();
  await write(store, ...records);
  let turns = 0;
  let ticking = true;
  const tick = (): void => {
    turns++;
    if (ticking) setImmediate(tick);
  };
  const codec = new LineCodec();
  const currentRevision = (): Promise<number> => Promise.resolve(1);
  const hub = new WatchHub({ keys, codec, clock: systemClock, datastore: 'd', currentRevision });
  const listed = records.map((record) => ({ key: keys.of(record), record }));
  tick();
  await hub.observe({ type: 'listed', revision: 1, records: listed });
  ticking = false;
  expect(turns).toBeGreaterThanOrEqual(3);
  const client = new WatchingClient();
  const wanted = query({ kinds: ['block', 'route'] });
  await client.readUntil(hub, wanted, 1);
  hub.close();
  expect(sorted(client.objects)).toEqual(sorted(await freshList(store, wanted)));
  expect(client.objects.size).toBe(2 * cidrs.length);
});
