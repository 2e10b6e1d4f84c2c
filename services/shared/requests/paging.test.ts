import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { readChecked } from './checks.js';
import { formatPageToken, readPageSize, readPageToken, type ListScope } from './paging.js';

const size = (pageSize: number) => readChecked('List', (checks) => readPageSize({ pageSize, pageToken: '' }, checks));
const token = (pageToken: string, scope: ListScope) =>
  readChecked('List', (checks) => readPageToken({ pageSize: 0, pageToken }, scope, checks));

const name = fc.string({ unit: 'grapheme', minLength: 1, maxLength: 20 });
const scope = fc.tuple(fc.constantFrom('blocks', 'pools'), name, name);

describe('page size', () => {
  test.each([
    [0, 100],
    [1, 1],
    [1000, 1000],
    [1001, 1000],
    [2 ** 31 - 1, 1000],
  ])('%i means %i', (asked, given) => {
    expect(size(asked)).toBe(given);
  });

  test('below 0 is refused', () => {
    expect(() => size(-1)).toThrow('page_size is -1');
  });
});

describe('page token', () => {
  test('of the same list with the same filters is read back', () => {
    fc.assert(
      fc.property(scope, name, (of, last) => {
        expect(token(formatPageToken(of, last), of)).toBe(last);
      }),
    );
  });

  test('of another list or other filters is refused', () => {
    fc.assert(
      fc.property(scope, scope, name, (of, other, last) => {
        fc.pre(JSON.stringify(of) !== JSON.stringify(other));
        expect(() => token(formatPageToken(of, last), other)).toThrow('page_token is not a token of this method');
      }),
    );
  });

  test('that is empty begins at the first page', () => {
    expect(token('', ['pools'])).toBe('');
  });

  test('that is invalid is refused', () => {
    const strange = ['x', '!', 'null', '[]', '{}', '["pools"]', '["pools",1]', '["pools",""]', '["pools","a"] '];
    const encoded = strange.map((text) => Buffer.from(text).toString('base64url'));
    for (const each of [...strange, ...encoded, `${formatPageToken(['pools'], 'a')}=`]) {
      expect(() => token(each, ['pools']), each).toThrow('page_token is not a token of this method');
    }
  });
});
