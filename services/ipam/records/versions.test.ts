import { expect, test } from 'vitest';

import { versionOf } from './versions.js';

test('is the same for equal records, whatever the order of their keys', () => {
  const a = {
    name: 'n',
    labels: { a: '1', b: '2' },
    at: new Map([
      ['x', 1n],
      ['y', 2n],
    ] as const),
    none: undefined,
  };
  const b = {
    at: new Map([
      ['y', 2n],
      ['x', 1n],
    ] as const),
    labels: { b: '2', a: '1' },
    name: 'n',
  };
  expect(versionOf(a)).toBe(versionOf(b));
  expect(versionOf(a)).toMatch(/^[0-9a-f]{16}$/);
});

test('differs for records that differ anywhere', () => {
  const records = [
    { name: 'n', list: ['a', 'b'] },
    { name: 'n', list: ['b', 'a'] },
    { name: 'n', list: ['ab'] },
    { name: 'n', list: [] },
    { name: 'n', list: [['a', 'b']] },
    { name: 'n' },
    { name: 'n', list: ['a', 'b'], value: 1n },
    { name: 'n', list: ['a', 'b'], value: 2n },
    { name: 'n', list: ['a', 'b'], map: new Map([['k', { mac: 'x' }]]) },
    { name: 'n', list: ['a', 'b'], map: new Map([['k', { mac: 'y' }]]) },
  ];
  expect(new Set(records.map(versionOf)).size).toBe(records.length);
});
