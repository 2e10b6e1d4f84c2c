import { Failure } from '@podwire/shared/failure/failure';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { checked } from './checks.js';
import { formatPageToken, readPageSize, readPageToken, type ListScope } from './paging.js';

const SCOPE: ListScope = ['blocks', 'pool', 'node'];

const read = (pageToken: string, scope = SCOPE): string =>
  checked('ListBlocks', (checks) => readPageToken({ pageSize: 0, pageToken }, scope, checks));

const sizeOf = (pageSize: number): number =>
  checked('ListBlocks', (checks) => readPageSize({ pageSize, pageToken: '' }, checks));

test.each([
  [0, 100],
  [1, 1],
  [1000, 1000],
  [1001, 1000],
  [2 ** 31 - 1, 1000],
])('a page size of %i means %i', (asked, size) => {
  expect(sizeOf(asked)).toBe(size);
});

test('a negative page size is refused', () => {
  expect(() => sizeOf(-1)).toThrow('ListBlocks refused: page_size is -1; it has to be 0 or more');
});

test('property: a token leads back to its item under its filters, and under no others', () => {
  const texts = fc.tuple(fc.string(), fc.string(), fc.string({ minLength: 1 }));
  fc.assert(
    fc.property(texts, texts, ([pool, node, last], [otherPool, otherNode]) => {
      const token = formatPageToken(['blocks', pool, node], last);
      expect(read(token, ['blocks', pool, node])).toBe(last);
      fc.pre(otherPool !== pool || otherNode !== node);
      expect(() => read(token, ['blocks', otherPool, otherNode])).toThrow(Failure);
    }),
  );
});

describe('a token is refused that', () => {
  test.each([
    ['is of another list', formatPageToken(['pools'], 'x')],
    ['is no base64', '!!!'],
    ['is no JSON', Buffer.from('{').toString('base64url')],
    ['is no list', Buffer.from('{}').toString('base64url')],
    ['names nothing', Buffer.from('["blocks","pool","node",""]').toString('base64url')],
    ['is one of ours with blanks', Buffer.from('["blocks", "pool", "node", "x"]').toString('base64url')],
  ])('%s', (_, token) => {
    expect(() => read(token)).toThrow(/page_token was not given by this method/);
  });
});

test('no token means the first page', () => {
  expect(read('')).toBe('');
});
