import { expect, it } from 'vitest';

import type { Decision, View } from '../../records/view.js';
import { forever, handle, blockingStore, put, settleEvents, startReplica } from '../testing/stores.js';

const give = (): Decision<string> => ({ changes: [put(handle('net.c1', 1))], outcome: 'given' });

/** Like a release: it changes a handle that it finds. */
const release = (view: View): Decision<string> => ({
  changes: [{ type: 'release', handleId: 'net.c1', nowMs: 0 }],
  outcome: view.handle('net.c1') ? 'found' : 'nothing to release',
});

it('finds the commit of a caller that gave up, in flight to the only writer’s store', async () => {
  const { store, releaseNext } = blockingStore();
  const { updater } = await startReplica(store, { isExclusiveWriter: true });
  const caller = new AbortController();
  const allocation = updater.update('node', give, { signal: caller.signal });
  await settleEvents();
  caller.abort();
  await expect(allocation).rejects.toMatchObject({ code: 'CANCELLED' });
  const released = updater.update('block', release, { signal: forever });
  await settleEvents();
  releaseNext();
  expect(await released).toBe('found');
});

it('does not wait for transactions whose callers wait', async () => {
  const { store, releaseNext } = blockingStore();
  const { updater } = await startReplica(store, { isExclusiveWriter: true });
  const allocation = updater.update('node', give, { signal: forever });
  await settleEvents();
  expect(await updater.update('block', release, { signal: forever })).toBe('nothing to release');
  releaseNext();
  expect(await allocation).toBe('given');
});
