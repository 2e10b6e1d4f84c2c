import { expect, test } from 'vitest';

import { joinChanges, type ClusterChange } from './cluster.js';

const some = (...blocks: readonly string[]): ClusterChange => ({ blocks: new Set(blocks), others: false });

test.each<readonly [string, ClusterChange, ClusterChange, ClusterChange]>([
  ['blocks', some('a', 'b'), some('b', 'c'), some('a', 'b', 'c')],
  ['a snapshot before', { blocks: 'all', others: false }, some('a'), { blocks: 'all', others: false }],
  ['a snapshot behind', some('a'), { blocks: 'all', others: true }, { blocks: 'all', others: true }],
  ['others before', { ...some('a'), others: true }, some('b'), { ...some('a', 'b'), others: true }],
])('nothing is lost of %s', (_, earlier, later, joined) => {
  expect(joinChanges(earlier, later)).toEqual(joined);
});
