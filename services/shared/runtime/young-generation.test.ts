import { execFileSync } from 'node:child_process';
import process from 'node:process';

import { expect, test } from 'vitest';

/** The same as the module says to V8; the process of the tests has grown by then, so another is asked. */
const MODULE = new URL('../dist/runtime/young-generation.js', import.meta.url).href;

const GARBAGE = `
  let kept = [];
  for (let i = 0; i < 100_000; i++) kept = i % 10_000 === 0 ? [] : [...kept.slice(-20), { text: 'x' + i }];
  const { getHeapSpaceStatistics } = await import('node:v8');
  console.log(getHeapSpaceStatistics().find(({ space_name: name }) => name === 'new_space').space_size / 2 ** 20);
`;

test('the young generation stays small, whatever comes and goes', () => {
  const grown = execFileSync(process.execPath, ['--input-type=module', '-e', GARBAGE], { encoding: 'utf8' });
  const code = `await import(${JSON.stringify(MODULE)});${GARBAGE}`;
  const kept = execFileSync(process.execPath, ['--input-type=module', '-e', code], { encoding: 'utf8' });
  expect(Number(kept)).toBeLessThanOrEqual(2);
  expect(Number(grown)).toBeGreaterThan(Number(kept));
});
