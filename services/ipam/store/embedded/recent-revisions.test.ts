import { expect, test } from 'vitest';

import { RecentRevisions } from './recent-revisions.js';

test('what was written last is known, and what was deleted', () => {
  const recent = new RecentRevisions();
  recent.set('/a', 2);
  recent.set('/b', 3);
  recent.set('/a', 4);
  recent.set('/b', 0);
  expect(['/a', '/b', '/c'].map((key) => recent.get(key))).toEqual([4, 0, undefined]);
});

test('what was not written for long is forgotten', () => {
  const recent = new RecentRevisions();
  recent.set('/kept', 1);
  recent.set('/forgotten', 1);
  for (let at = 0; at < 1023; at++) {
    recent.set(`/${at}`, 2);
    recent.set('/kept', 3);
  }
  expect(['/kept', '/forgotten', '/0', '/1022'].map((key) => recent.get(key))).toEqual([3, undefined, 2, 2]);
});
