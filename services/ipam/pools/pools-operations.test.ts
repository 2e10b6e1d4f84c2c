import { expect, test } from 'vitest';

import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, settleEvents } from '../engine/testing/stores.js';
import { startIpam } from '../testing/ipam.js';
import { attachment, request } from '../testing/records.js';
import { checkPool } from './rules.js';

/** What a replica has logged of pools since. */
function told(lines: string[]): string[] {
  return lines.splice(0).flatMap((line) => {
    const message = /"msg":"((?:[^"\\]|\\.)*)"/.exec(line)?.[1]?.replaceAll('\\"', '"') ?? '';
    return message.includes('pool') ? [message] : [];
  });
}

async function startDraining() {
  const store = new MemoryStore();
  const [first, second] = [await startIpam(store), await startIpam(store)];
  const checked = checkPool({ name: 'p', cidr: '10.0.0.0/24', blockSizeBits: 26, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  await first.ipam.pools.create(checked.spec, forever);
  for (const id of ['c1', 'c2']) await first.ipam.addresses.allocate(request(id), forever);
  await first.ipam.pools.delete({ name: 'p', resourceVersion: '', whenInUse: 'drain' }, forever);
  await settleEvents();
  for (const { lines } of [first, second]) told(lines);
  return { store, first, second };
}

const GONE = 'deleted pool "p" 10.0.0.0/24 with the release of its last address';

test('who releases the last address of a pool that is being deleted tells of its end, once', async () => {
  const { first, second } = await startDraining();
  await second.ipam.addresses.release(attachment('c1'), forever);
  expect(told(second.lines)).toEqual([]);
  await second.ipam.handles.release({ handleId: 'net.c2', searchesAllBlocks: false }, forever);
  expect(told(second.lines)).toEqual([GONE]);
  await second.ipam.addresses.release(attachment('c2'), forever);
  await second.ipam.pools.finishDeletions(forever);
  expect([told(first.lines), told(second.lines)]).toEqual([[], []]);
});

test('a pool whose last address could not be released is told of only when it is', async () => {
  const { store, second } = await startDraining();
  await second.ipam.addresses.release(attachment('c1'), forever);
  store.injectFault('commit', { type: 'losesRace' });
  store.injectFault('commit', { type: 'fails', failure: new Error('planned') });
  await expect(second.ipam.addresses.release(attachment('c2'), forever)).rejects.toThrow('planned');
  expect([store.unusedFaults(), told(second.lines)]).toEqual([[], []]);
  await second.ipam.nodes.delete({ name: 'n1', resourceVersion: '' }, forever);
  expect(told(second.lines)).toEqual([GONE]);
});
