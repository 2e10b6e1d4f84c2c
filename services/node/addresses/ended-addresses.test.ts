import { parseAddress } from '@podwire/shared/net/address';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { AttachmentRegistry } from '@podwire/dataplane/records/registry';
import { MemoryRecordStore } from '@podwire/dataplane/testing/memory-record-store';
import { podNetwork } from '@podwire/dataplane/testing/pods';
import { expect, test } from 'vitest';

import { EndedAddresses } from './ended-addresses.js';
import type { StoredLeases } from './lease-file.js';

const IDENTITY = { device: 4n, inode: 4_026_532_178n, cookie: 7n };
const COOL_DOWN_MS = 30_000;

/** Processes of one boot, with a pod that ends in the former one. */
async function scene() {
  const times = { bootMs: 100_000 };
  const file: { ended: StoredLeases['ended'] } = { ended: [] };
  const onStoreFailure = () => undefined;
  const registry = new AttachmentRegistry({
    ...{ store: new MemoryRecordStore(), bootId: 'boot', clock: new ManualClock(), onStoreFailure },
  });
  const address = parseAddress('10.65.0.1')!;
  const allocated = [{ address: '10.65.0.1', sequenceNumber: 5n }];
  const allocation = { addresses: allocated, nodeName: 'node-1', pod: undefined, isBound: true };
  const network = { ...podNetwork('a'), addresses: [address] };
  await registry.record(network, IDENTITY, allocation);
  const start = () => {
    const taken = new Set<string>();
    const stock = {
      ...{ coolDownMs: COOL_DOWN_MS, isValid: false },
      isTaken: (address: string) => taken.has(address),
      takeReused: ({ address }: { readonly address: string }) => taken.add(address),
      ended: file.ended,
      noteEnded: (ended: StoredLeases['ended']) => (stock.ended = file.ended = ended),
    };
    return new EndedAddresses({ registry, stock, isOccupied: () => false, bootMs: () => times.bootMs });
  };
  const former = start();
  const record = (await registry.setState(network.attachment, 'dead'))!;
  former.markEnded(record);
  return { former, start, record, times };
}

test('the next process uses an address after the cool-down since the end in the former one', async () => {
  const { former, start, times } = await scene();
  former.flush();
  times.bootMs += COOL_DOWN_MS - 1;
  const next = start();
  expect(next.has(4)).toBe(false);
  times.bootMs += 1;
  expect(await next.take(4)).toMatchObject({ address: '10.65.0.1', sequenceNumber: 5n });
});

test('two ADDs at the same time do not get the same address', async () => {
  const { former, times } = await scene();
  times.bootMs += COOL_DOWN_MS;
  const taken = await Promise.all([former.take(4), former.take(4)]);
  expect(taken.flatMap((lease) => lease?.address ?? [])).toEqual(['10.65.0.1']);
});

test.each([
  ['a return was sent', true],
  ['nothing is stored', false],
])('the next process never uses an address of which %s, also after a further DEL', async (_, isSent) => {
  const { former, start, record, times } = await scene();
  if (isSent) former.flush();
  if (isSent) former.markSent([record]);
  const next = start();
  next.markEnded(record);
  times.bootMs += 2 * COOL_DOWN_MS;
  expect([next.has(4), await next.take(4)]).toEqual([false, undefined]);
});
