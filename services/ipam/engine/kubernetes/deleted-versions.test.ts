import { expect, test } from 'vitest';

import { DeletedVersions } from './deleted-versions.js';

test('the latest deletions are known, and no more than the limit', () => {
  const deleted = new DeletedVersions(2);
  for (const [id, version] of [
    ['a', '1'],
    ['b', '2'],
    ['a', '3'],
    ['c', '4'],
  ] as const)
    deleted.add(id, version);
  expect(['a', 'b', 'c'].map((id) => deleted.of(id))).toEqual(['3', undefined, '4']);
});
