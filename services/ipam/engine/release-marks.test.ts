import { describe, expect, it } from 'vitest';

import { MarkExpiry } from './release-marks.js';
import { MemoryStore } from './testing/memory-store.js';
import { forever, instantClock, keys } from './testing/stores.js';

/** This number of runs, at least a quarter of a minute apart, takes a quarter of an hour. */
const KEPT_RUNS = 60;
const RUNS_PER_LOOK = 10;
const RUN_MS = 30_000;
const HOUR_MS = 3_600_000;

const mark = (id: string, atMs: number) => ({
  key: keys.release(id),
  value: Buffer.from(JSON.stringify({ releasedAt: new Date(atMs).toISOString() })),
});

class EtcdFixture {
  readonly store = new MemoryStore();
  readonly differences: number[] = [];
  nowMs = Date.parse('2026-08-22T12:00:00Z');
  readonly #expiry = new MarkExpiry({
    store: this.store,
    keys,
    clock: { ...instantClock, nowMs: () => this.nowMs },
    clocksDiffer: (aheadMs) => this.differences.push(aheadMs),
  });

  async put(...puts: readonly { readonly key: string; readonly value: Uint8Array }[]): Promise<void> {
    for (let start = 0; start < puts.length; start += 50)
      await this.store.commit({ comparisons: [], puts: puts.slice(start, start + 50), deletes: [] }, forever);
  }

  async run(count: number): Promise<void> {
    for (let run = 0; run < count; run++) {
      await this.#expiry.run(forever);
      this.nowMs += RUN_MS;
    }
  }

  async marks(): Promise<string[]> {
    return (await this.store.list(keys.releases, forever)).records.map(({ key }) => key.slice(keys.releases.length));
  }
}

describe('marks of releases', () => {
  it('are removed after a quarter of an hour, also unreadable ones', async () => {
    const scene = new EtcdFixture();
    await scene.put(mark('c1', scene.nowMs), { key: keys.release('broken'), value: Buffer.from('{') });
    await scene.run(KEPT_RUNS);
    expect(await scene.marks()).toEqual(['broken', 'c1']);
    await scene.put(mark('c2', scene.nowMs));
    await scene.run(RUNS_PER_LOOK);
    expect(await scene.marks()).toEqual(['c2']);
  });

  it.each([
    ['ahead', 2],
    ['behind', -2],
  ])('of a replica whose clock is hours %s are kept as long as other marks', async (_, hours) => {
    const scene = new EtcdFixture();
    await scene.put(mark('c1', scene.nowMs + hours * HOUR_MS));
    await scene.run(KEPT_RUNS);
    expect(await scene.marks()).toEqual(['c1']);
    await scene.run(RUNS_PER_LOOK);
    expect(await scene.marks()).toEqual([]);
  });

  it('are removed at their time though the clock was set back meanwhile', async () => {
    const scene = new EtcdFixture();
    await scene.put(mark('c1', scene.nowMs));
    await scene.run(RUNS_PER_LOOK);
    scene.nowMs -= 2 * HOUR_MS;
    await scene.run(KEPT_RUNS);
    expect(await scene.marks()).toEqual([]);
  });

  it('are removed in any number', async () => {
    const scene = new EtcdFixture();
    await scene.put(...Array.from({ length: 1001 }, (_, index) => mark(`c${index}`, 0)));
    await scene.run(KEPT_RUNS + RUNS_PER_LOOK);
    expect(await scene.marks()).toEqual([]);
  });

  it('stay when they are renewed concurrently', async () => {
    const scene = new EtcdFixture();
    await scene.put(mark('c1', 0));
    const scan = scene.store.scan.bind(scene.store);
    scene.store.scan = async (request, signal) => {
      const page = await scan(request, signal);
      await scene.put(mark('c1', scene.nowMs));
      return page;
    };
    await scene.run(KEPT_RUNS + RUNS_PER_LOOK);
    expect(await scene.marks()).toEqual(['c1']);
  });
});

describe('clocks that differ', () => {
  it.each([
    ['ahead', 7_200_000, 7_170_000],
    ['behind', -7_200_000, -7_200_000],
  ])('by hours are reported once, with the minimum difference: another is %s', async (_, skewMs, told) => {
    const scene = new EtcdFixture();
    await scene.run(2);
    scene.nowMs -= RUN_MS;
    await scene.put(mark('c1', scene.nowMs + skewMs), mark('c2', scene.nowMs));
    scene.nowMs += RUN_MS;
    await scene.run(2 * RUNS_PER_LOOK);
    expect(scene.differences).toEqual([told]);
  });

  it('are not reported when a mark was made between two runs, or before the first, or the own clock was set', async () => {
    const scene = new EtcdFixture();
    await scene.put(mark('before', 0));
    await scene.run(3);
    await scene.put(mark('between', scene.nowMs - RUN_MS / 2));
    await scene.run(RUNS_PER_LOOK);
    for (const hours of [-2, 2]) {
      await scene.put(mark(`set ${hours}`, scene.nowMs));
      scene.nowMs += hours * HOUR_MS;
      await scene.run(RUNS_PER_LOOK);
    }
    expect(scene.differences).toEqual([]);
  });
});
