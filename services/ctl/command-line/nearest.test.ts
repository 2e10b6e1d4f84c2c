import { expect, test } from 'vitest';

import { nearest } from './nearest.js';

const KNOWN = ['pools', 'pods', 'nodes', 'node', 'journal', 'reservations', 'who'];

test.each([
  ['polls', 'pools'],
  ['pool', 'pools'],
  ['pod', 'pods'],
  ['jorunal', 'journal'],
  ['reservation', 'reservations'],
  ['res', 'reservations'],
  ['wo', 'who'],
])('"%s" is meant as "%s"', (word, meant) => {
  expect(nearest(word, KNOWN)).toBe(meant);
});

test.each(['kubectl', 'x', '', 'delete'])('"%s" is meant as none', (word) => {
  expect(nearest(word, KNOWN)).toBeUndefined();
});
