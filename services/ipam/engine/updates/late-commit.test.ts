import { describe, expect, it } from 'vitest';

import type { Decision } from '../../records/view.js';
import { MemoryStore } from '../testing/memory-store.js';
import { forever, handle, keys, put, settleEvents, startReplica } from '../testing/stores.js';

const MARKS = { marksReleases: true };

/** Changes a handle like an allocation. */
const give = (): Decision<string> => ({
  changes: [put(handle('net.c1', 1)), { type: 'expectUnreleased', handleId: 'net.c1' }],
  outcome: 'given',
});

/** Like a release that finds nothing. */
const release = (): Decision<string> => ({
  changes: [{ type: 'release', handleId: 'net.c1', nowMs: 0 }],
  outcome: 'released',
});

/** Commits to it are delayed while it is slow, until they are released. */
class SlowStore extends MemoryStore {
  isSlow = true;
  readonly #waiting: (() => void)[] = [];

  override async commit(...args: Parameters<MemoryStore['commit']>): ReturnType<MemoryStore['commit']> {
    if (this.isSlow) await new Promise<void>((resolve) => this.#waiting.push(resolve));
    return await super.commit(...args);
  }

  releaseNext(): void {
    this.#waiting.shift()?.();
  }
}

async function twoReplicas() {
  const store = new SlowStore();
  return { store, first: await startReplica(store, MARKS), second: await startReplica(store, MARKS) };
}

async function storedHandles(store: MemoryStore): Promise<number> {
  return (await store.read([keys.handle('net.c1')], forever)).records.length;
}

describe('a transaction that arrives late', () => {
  it('allocates nothing once the release of its handle was acknowledged elsewhere', async () => {
    const { store, first, second } = await twoReplicas();
    const caller = new AbortController();
    const allocation = first.updater.update('n', give, { signal: caller.signal });
    await settleEvents();
    caller.abort();
    store.isSlow = false;
    await expect(allocation).rejects.toMatchObject({ code: 'CANCELLED' });
    expect(await second.updater.update('n', release, { signal: forever })).toBe('released');
    store.releaseNext();
    await settleEvents();
    expect(await storedHandles(store)).toBe(0);
  });

  it('is decided again, and allocates, for a caller that still waits', async () => {
    const { store, first, second } = await twoReplicas();
    const allocation = first.updater.update('n', give, { signal: forever });
    await settleEvents();
    store.isSlow = false;
    await second.updater.update('n', release, { signal: forever });
    store.releaseNext();
    expect(await allocation).toBe('given');
    expect(await storedHandles(store)).toBe(1);
  });

  it('does not hinder a later allocation for the same handle', async () => {
    const { store, second } = await twoReplicas();
    store.isSlow = false;
    for (let round = 0; round < 3; round++) {
      await second.updater.update('n', release, { signal: forever });
      expect(await second.updater.update('n', give, { signal: forever })).toBe('given');
    }
    expect(await storedHandles(store)).toBe(1);
  });
});

it('a release by a replica that has not received the allocation finds it nevertheless', async () => {
  const { store, first, second } = await twoReplicas();
  store.isSlow = false;
  await first.updater.update('n', give, { signal: forever });
  // In the same iteration of the event loop: the second replica's watch has delivered nothing yet.
  const seen: boolean[] = [];
  await second.updater.update(
    'n',
    (view) => {
      const found = view.handle('net.c1');
      seen.push(found !== undefined);
      const changes = found ? [{ type: 'delete', record: { kind: 'handle', value: found } } as const] : [];
      return { changes: [...changes, ...release().changes], outcome: 'released' };
    },
    { signal: forever },
  );
  expect(seen.at(-1)).toBe(true);
  expect(await storedHandles(store)).toBe(0);
});
