import { execFileSync } from 'node:child_process';
import process from 'node:process';

import { expect, test } from 'vitest';

/** The module sets V8 flags; the process of the tests has grown by then, so a separate one is measured. */
const MODULE = new URL('../dist/runtime/young-generation.js', import.meta.url).href;

/** Objects that survive a collection and die soon after it, like those of concurrent commands. */
const WORK = `
  const { getHeapSpaceStatistics } = await import('node:v8');
  const { setImmediate: turn } = await import('node:timers/promises');
  const youngMib = () =>
    getHeapSpaceStatistics().find(({ space_name: name }) => name === 'new_space').space_size / 2 ** 20;
  const kept = [];
  let largest = 0;
  for (let round = 0; round < 2000; round++) {
    kept.push(Array.from({ length: 500 }, (_, i) => ({ text: 'x' + i })));
    if (kept.length > 40) kept.shift();
    largest = Math.max(largest, youngMib());
    await turn();
  }
  console.log(largest);
`;

function largestMib(code: string): number {
  return Number(execFileSync(process.execPath, ['--input-type=module', '-e', code], { encoding: 'utf8' }));
}

test('the young generation grows to the need of commands, and no further', () => {
  expect(largestMib(`await import(${JSON.stringify(MODULE)});${WORK}`)).toBe(8);
  expect(largestMib(WORK)).toBeGreaterThan(8);
});
