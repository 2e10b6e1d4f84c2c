import { expect, test } from 'vitest';

import { joinChanges, type ClusterChange } from './cluster.js';

const some = (...blocks: readonly string[]): ClusterChange => ({ blocks: new Set(blocks), hasOtherChanges: false });

test.each<readonly [string, ClusterChange, ClusterChange, ClusterChange]>([
  ['blocks', some('a', 'b'), some('b', 'c'), some('a', 'b', 'c')],
  [
    'a snapshot before',
    { blocks: 'all', hasOtherChanges: false },
    some('a'),
    { blocks: 'all', hasOtherChanges: false },
  ],
  ['a snapshot behind', some('a'), { blocks: 'all', hasOtherChanges: true }, { blocks: 'all', hasOtherChanges: true }],
  ['the lock behind', some('a'), { ...some('b'), hasLockChanged: true }, { ...some('a', 'b'), hasLockChanged: true }],
  [
    'the lock before a snapshot',
    { ...some('a'), hasLockChanged: true },
    { blocks: 'all', hasOtherChanges: true },
    { blocks: 'all', hasOtherChanges: true, hasLockChanged: true },
  ],
  ['a flag before', { ...some('a'), hasOtherChanges: true }, some('b'), { ...some('a', 'b'), hasOtherChanges: true }],
])('merging keeps all of %s', (_, earlier, later, joined) => {
  expect(joinChanges(earlier, later)).toEqual(joined);
});
