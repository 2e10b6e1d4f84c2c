import { describe, expect, test } from 'vitest';

import { Failure } from '../failure/failure.js';
import { ManualClock } from '../testing/manual-clock.js';
import type { NetworkCaller } from '../tls/caller.js';
import { QUEUE_LIMITS, RequestQueue, type Leave, type QueueLimits } from './request-queue.js';

const LIMITS: QueueLimits = { maxExecutingCount: 6, maxExecutingPerCallerCount: 4, maxCallersPerTurn: 8 };

const node = (name: string): NetworkCaller => ({ kind: 'network', role: 'node', name });
const nameOf = ({ name }: NetworkCaller): string => name;
const [FLOODER, OTHER, THIRD] = [node('flooder'), node('other'), node('third')];

/** A queue with turns of the event loop that a test makes, and what it reported. */
class Place {
  readonly clock = new ManualClock();
  /** Names of the callers, in the order in which their requests started. */
  readonly starts: string[] = [];
  readonly waitsMs: number[] = [];
  readonly refusals: string[] = [];
  readonly #queue: RequestQueue;
  readonly #leaves: { readonly name: string; readonly leave: Leave }[] = [];
  #nextTurn: (() => void)[] = [];

  constructor(limits: Partial<QueueLimits> = {}) {
    this.#queue = new RequestQueue({
      clock: this.clock,
      limits: { ...LIMITS, ...limits },
      nextTurn: (act) => void this.#nextTurn.push(act),
      events: {
        started: (caller, waitedMs) => {
          this.starts.push(nameOf(caller));
          this.waitsMs.push(waitedMs);
        },
        refused: (name, _, limit) => void this.refusals.push(`${name}: ${limit}`),
      },
    });
  }

  /** Sends requests. @returns the failure of each; undefined for one that starts */
  send(caller: NetworkCaller, count: number, signal?: AbortSignal): { readonly outcomes: Promise<unknown>[] } {
    const outcomes = Array.from({ length: count }, async () => {
      try {
        const leave = await this.#queue.enter(caller, signal ?? new AbortController().signal);
        this.#leaves.push({ name: caller.name, leave });
        return undefined;
      } catch (error) {
        return error;
      }
    });
    return { outcomes };
  }

  /** Lets turns of the event loop pass. */
  async turns(count: number): Promise<void> {
    for (let turn = 0; turn < count; turn++) {
      for (const act of this.#nextTurn.splice(0)) act();
      await this.settled();
    }
  }

  /** Ends the oldest executing request of a caller. */
  async end({ name }: NetworkCaller): Promise<void> {
    const index = this.#leaves.findIndex((each) => each.name === name);
    for (const { leave } of this.#leaves.splice(index, 1)) {
      leave();
      // Twice, as by a request that fails while it is cancelled.
      leave();
    }
    await this.settled();
  }

  /** Lets the promises of the requests run. */
  settled(): Promise<void> {
    return new Promise((resolve) => setImmediate(resolve));
  }
}

test('a request of an idle service starts at once, without a turn', () => {
  const place = new Place();
  place.send(OTHER, 1);
  expect(place.starts).toEqual(['other']);
  expect(place.waitsMs).toEqual([0]);
});

test('one request of a caller starts in each turn', async () => {
  const place = new Place();
  place.send(FLOODER, 3);
  expect(place.starts).toHaveLength(1);
  await place.turns(1);
  expect(place.starts).toHaveLength(2);
  await place.turns(1);
  expect(place.starts).toHaveLength(3);
});

test('a caller waits for at most one request of a caller that floods, whatever number waits', async () => {
  const place = new Place({ maxExecutingCount: 1000, maxExecutingPerCallerCount: 500 });
  place.send(FLOODER, 100);
  await place.turns(10);
  for (let request = 0; request < 5; request++) {
    const before = place.starts.length;
    place.send(OTHER, 1);
    await place.turns(2);
    expect(place.starts.slice(before)).toContain('other');
    await place.turns(3);
  }
});

test('callers with waiting requests take turns, each in the order of its requests', async () => {
  const place = new Place({ maxExecutingCount: 1000, maxExecutingPerCallerCount: 500 });
  place.send(FLOODER, 6);
  place.send(OTHER, 3);
  place.send(THIRD, 2);
  await place.turns(20);
  expect(place.starts.join(' ')).toBe('flooder other third flooder other third flooder other flooder flooder flooder');
});

test.each([
  [8, [8, 8, 4, 4, 0]],
  [5, [5, 5, 5, 5, 4]],
])('a turn starts at most %i requests, each of another caller', async (maxCallersPerTurn, expected) => {
  const place = new Place({ maxExecutingCount: 1000, maxCallersPerTurn });
  const callers = Array.from({ length: 12 }, (_, index) => node(String(index)));
  for (const caller of callers) place.send(caller, 2);
  const turns: string[][] = [place.starts.splice(0)];
  for (let turn = 0; turn < 4; turn++) {
    await place.turns(1);
    turns.push(place.starts.splice(0));
  }
  expect(turns.map(({ length }) => length)).toEqual(expected);
  for (const turn of turns) expect(new Set(turn).size).toBe(turn.length);
  expect(turns.flat().sort()).toEqual(callers.flatMap(({ name }) => [name, name]).sort());
});

describe('limits', () => {
  test('of executing requests leave places to other callers while a slow datastore holds requests of one caller', async () => {
    const place = new Place();
    place.send(FLOODER, 50);
    await place.turns(50);
    expect(place.starts).toHaveLength(LIMITS.maxExecutingPerCallerCount);
    place.send(OTHER, 1);
    await place.turns(1);
    expect(place.starts.at(-1)).toBe('other');
    await place.end(FLOODER);
    await place.turns(2);
    expect(place.starts.slice(LIMITS.maxExecutingPerCallerCount + 1)).toEqual(['flooder']);
  });

  test('of all callers together make them share the places that become free', async () => {
    const place = new Place();
    place.send(FLOODER, 20);
    place.send(THIRD, 20);
    await place.turns(20);
    place.send(OTHER, 1);
    expect(place.starts).toHaveLength(LIMITS.maxExecutingCount);
    for (let ended = 0; ended < 3; ended++) {
      await place.end(FLOODER);
      await place.turns(1);
    }
    expect(place.starts.slice(LIMITS.maxExecutingCount)).toContain('other');
  });

  test('of this release leave the places of seven callers to other callers', () => {
    const { maxExecutingCount, maxExecutingPerCallerCount } = QUEUE_LIMITS;
    expect(maxExecutingCount).toBeGreaterThanOrEqual(8 * maxExecutingPerCallerCount);
  });
});

describe('a request that waits', () => {
  test('leaves when it is cancelled, and the next one takes its place', async () => {
    const place = new Place({ maxExecutingPerCallerCount: 1 });
    const cancelled = new AbortController();
    place.send(FLOODER, 1);
    const [waiting] = place.send(FLOODER, 1, cancelled.signal).outcomes;
    place.send(FLOODER, 1);
    const reason = new Failure('DEADLINE_EXCEEDED', 'no answer within 10 ms');
    cancelled.abort(reason);
    expect(await waiting).toBe(reason);
    expect(place.refusals).toEqual(['node "flooder": deadline']);
    place.clock.advance(50);
    await place.end(FLOODER);
    await place.turns(1);
    expect(place.starts).toHaveLength(2);
    expect(place.waitsMs).toEqual([0, 50]);
  });

  test('takes no turn once it has left', async () => {
    const place = new Place();
    const cancelled = new AbortController();
    place.send(OTHER, 1);
    const [waiting] = place.send(OTHER, 1, cancelled.signal).outcomes;
    cancelled.abort();
    await place.turns(2);
    expect(place.starts).toEqual(['other']);
    expect(await waiting).toMatchObject({ code: 'CANCELLED' });
  });

  test('is not admitted when it was cancelled before', async () => {
    const place = new Place();
    const [refused] = place.send(OTHER, 1, AbortSignal.abort()).outcomes;
    expect(await refused).toMatchObject({ code: 'CANCELLED' });
    expect(place.starts).toEqual([]);
  });
});

test('callers of another role are other callers, even with the same name', async () => {
  const place = new Place({ maxExecutingPerCallerCount: 1 });
  place.send(FLOODER, 5);
  place.send({ ...FLOODER, role: 'operator' }, 1);
  await place.turns(5);
  expect(place.starts).toHaveLength(2);
});
