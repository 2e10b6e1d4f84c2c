import { expect, test } from 'vitest';

import { choosePlaces, type Place } from '../addresses/choice.js';
import { block, pool } from '../testing/records.js';
import type { Block } from './records.js';

const inPool = pool('p', '10.0.0.0/8', { blockSizeBits: 22 });

/** A block that takes about so much in the datastore. */
function blockOf(kibibytes: number): Block {
  const owner = { note: 'x'.repeat((kibibytes - 16) * 1024) };
  return { ...block('10.0.0.0/22', 'n1'), attributes: [{ handleId: undefined, owner, releasedAtMs: undefined }] };
}

const placesOf = (...sizes: number[]): Place[] =>
  sizes.map((size) => ({ offer: { block: blockOf(size), pool: inPool, origin: 'own', changes: [] }, ordinal: size }));
const chosen = (...parameters: Parameters<typeof choosePlaces>) =>
  choosePlaces(...parameters).map((place) => place?.ordinal);

test.each([
  [
    'the best, where they fit',
    [
      [700, 100],
      [700, 100],
    ],
    [700, 700],
  ],
  [
    'a smaller one of the later demand',
    [
      [900, 100],
      [900, 600, 500],
    ],
    [900, 500],
  ],
  ['a smaller one of the first, where the later has none', [[900, 800, 500], [900]], [500, 900]],
  [
    'the best, where none fit',
    [
      [1000, 900],
      [1000, 800],
    ],
    [1000, 1000],
  ],
  ['nothing for a demand that has no place', [[900], []], [900, undefined]],
])('%s', (_, sizes, expected) => {
  expect(chosen(sizes.map((each) => placesOf(...each)))).toEqual(expected);
});

test('what else is written counts', () => {
  expect(chosen([placesOf(900, 500)], [blockOf(900)])).toEqual([500]);
});

test('blocks without end that are all too large are not all looked at', () => {
  const [place] = placesOf(900);
  const endless = {
    *[Symbol.iterator]() {
      for (;;) yield place!;
    },
  };
  expect(chosen([endless], [blockOf(900)])).toEqual([900]);
});

test('no further place is asked for than the one that is taken: the next may be a walk over a pool away', () => {
  const [place] = placesOf(100);
  const one = {
    *[Symbol.iterator]() {
      yield place!;
      throw new Error('asked for another');
    },
  };
  expect(chosen([one])).toEqual([100]);
});
