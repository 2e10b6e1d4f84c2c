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

test('the last 1,024 are known, and what was not written for twice as long is forgotten', () => {
  const recent = new RecentRevisions();
  recent.set('/kept', 1);
  recent.set('/forgotten', 1);
  for (let at = 0; at < 5_000; at++) {
    recent.set(`/${at}`, 2);
    recent.set('/kept', 3);
    if (at > 2_048) expect(recent.get('/forgotten')).toBeUndefined();
    expect(recent.get(`/${Math.max(0, at - 1_022)}`)).toBe(2);
    expect(recent.get(`/${at - 2_048}`)).toBeUndefined();
  }
  expect(recent.get('/kept')).toBe(3);
});
