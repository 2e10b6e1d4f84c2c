import { expect, test } from 'vitest';

import type { Level, Status, Verdict } from '../case.js';
import { tableText } from './table.js';

function verdict(id: string, level: Level, status: Status): Verdict {
  return { id, level, status, section: '', title: '', reasons: [], evidence: [], durationMs: 0 };
}

test('counts failures level by level, and lists each once for all its versions', () => {
  const good = [verdict('a', 'MUST', 'pass'), verdict('b', 'SHOULD', 'not applicable')];
  const bad = [
    ...good,
    verdict('chain.1.0.0', 'SHOULD', 'fail'),
    verdict('chain.1.1.0', 'SHOULD', 'fail'),
    verdict('del', 'MUST', 'error'),
    verdict('gc', 'ADVICE', 'fail'),
  ];
  const entries = [
    { name: 'good', verdicts: good },
    { name: 'bad', verdicts: bad },
  ];
  expect(tableText(entries).split('\n')).toEqual([
    '| Plugin | passed | MUST failed | SHOULD failed | ADVICE failed | Failed rules                        |',
    '| ------ | ------ | ----------- | ------------- | ------------- | ----------------------------------- |',
    '| good   | 1      | 0           | 0             | 0             | nothing                             |',
    '| bad    | 1      | 1           | 2             | 1             | `del`, `chain` (1.0.0, 1.1.0), `gc` |',
    '',
  ]);
});
