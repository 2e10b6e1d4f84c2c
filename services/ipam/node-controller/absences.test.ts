import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { decideNodeDeletions, observedMs, overdue, trackMissing, type MissingTimes } from './absences.js';

const NAMES = ['a', 'b', 'c', 'd', 'e', 'f'];
const someNames = fc.subarray(NAMES).map((names) => new Set(names));

interface Step {
  readonly missing: ReadonlySet<string>;
  readonly returned: ReadonlySet<string>;
  readonly elapsedMs: number;
}

const step: fc.Arbitrary<Step> = fc.record({
  missing: someNames,
  returned: someNames,
  elapsedMs: fc.integer({ min: 0, max: 20 }),
});

/** The time since the step in which a name was first missing without a break; that step itself does not count. */
function missingMs(name: string, steps: readonly Step[]): number | undefined {
  if (steps.at(-1)?.missing.has(name) !== true) return undefined;
  const begin = steps.findLastIndex(
    ({ returned }, index) => returned.has(name) || steps[index - 1]?.missing.has(name) !== true,
  );
  return steps.slice(begin + 1).reduce((sum, { elapsedMs }) => sum + elapsedMs, 0);
}

test('property: the time of each missing thing is the time of the unbroken run of steps', () => {
  fc.assert(
    fc.property(fc.array(step, { minLength: 1, maxLength: 12 }), fc.integer({ min: 0, max: 60 }), (steps, graceMs) => {
      let times: MissingTimes = new Map();
      for (const [index, observation] of steps.entries()) {
        times = trackMissing(times, observation);
        const seen = steps.slice(0, index + 1);
        const expected = NAMES.flatMap((name) => {
          const ms = missingMs(name, seen);
          return ms === undefined ? [] : [[name, ms] as const];
        });
        expect(new Map([...times].sort())).toEqual(new Map(expected));
        expect(overdue(times, graceMs).sort()).toEqual(expected.flatMap(([name, ms]) => (ms >= graceMs ? [name] : [])));
      }
    }),
  );
});

test.each([
  [100, undefined, 50, 0],
  [100, 70, 50, 30],
  [100, 10, 50, 50],
])('at %d after %j, with %d at most, %d ms were observed', (nowMs, lastMs, longestMs, expected) => {
  expect(observedMs(nowMs, lastMs, longestMs)).toBe(expected);
});

const census = fc.record({ registered: someNames, present: someNames, deleted: someNames, due: someNames });

describe('the nodes to delete', () => {
  test('property: are missing, and were seen to be deleted unless at most half of the nodes is lost', () => {
    fc.assert(
      fc.property(census, ({ registered, present, deleted, due }) => {
        const { names, refused, reason } = decideNodeDeletions([...due], {
          registered: [...registered],
          present,
          deleted,
        });
        const lost = [...registered].filter((name) => !present.has(name) && !deleted.has(name));
        const isPlausible = present.size > 0 && lost.length <= registered.size / 2;
        for (const name of NAMES) {
          const isMissing = due.has(name) && !present.has(name);
          const isDeletable = isMissing && present.size > 0 && (isPlausible || deleted.has(name));
          expect(names.includes(name)).toBe(isDeletable);
          expect(refused.includes(name)).toBe(isMissing && !isDeletable);
        }
        expect(reason !== '').toBe(refused.length > 0);
      }),
      { numRuns: 500 },
    );
  });

  test('are none while the API server has no Node', () => {
    const decision = decideNodeDeletions(['a'], { registered: ['a'], present: new Set(), deleted: new Set(['a']) });
    expect(decision).toEqual({ names: [], refused: ['a'], reason: 'the API server has no Node at all' });
  });

  test('are all nodes of a large scale-down whose deletions were seen', () => {
    const registered = Array.from({ length: 10 }, (_, index) => `n${index}`);
    const [kept, ...gone] = registered;
    const present = new Set([kept!]);
    const seen = { registered, present, deleted: new Set(gone) };
    expect(decideNodeDeletions(gone, seen).names).toEqual(gone);
    const unseen = decideNodeDeletions(gone, { ...seen, deleted: new Set(['n9']) });
    expect(unseen.names).toEqual(['n9']);
    expect(unseen.reason).toBe('8 of 10 nodes are missing, and their deletion was not seen');
  });
});
