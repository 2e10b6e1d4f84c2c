import { describe, expect, it } from 'vitest';

import { absent, encodeTransaction, keyAfter, prefixRange } from './request.js';

const limits = { maxOperationsCount: 4, maxRequestBytes: 10_000 };
const guard = absent('/guard');
const put = (key: string, bytes = 1) => ({ key, value: Buffer.alloc(bytes) });
const compared = (key: string) => ({ type: 'record' as const, key, modRevision: 1 });

describe('ranges', () => {
  it.each([
    ['/a/', '/a0'],
    ['/a', '/b'],
    ['é', '\u00ea'],
  ])('of the prefix %j end before %j', (prefix, end) => {
    const range = prefixRange(prefix);
    expect(range.key.toString()).toBe(prefix);
    expect(range.range_end).toEqual(Buffer.from(end));
  });

  it('of no prefix are all keys', () => {
    expect(prefixRange('')).toEqual({ key: Buffer.from([0]), range_end: Buffer.from([0]) });
  });

  it('after a key begin with the next possible one', () => {
    expect(Buffer.compare(Buffer.from('/a'), keyAfter('/a'))).toBe(-1);
    expect(Buffer.compare(keyAfter('/a'), Buffer.from('/a\u0001'))).toBe(-1);
  });
});

describe('limits', () => {
  it.each([
    ['puts', { comparisons: [], puts: ['a', 'b', 'c', 'd', 'e'].map((key) => put(key)), deletes: [] }, 5],
    ['deletes', { comparisons: [], puts: [], deletes: ['a', 'b', 'c', 'd', 'e'] }, 5],
    ['puts and deletes', { comparisons: [], puts: [put('a'), put('b'), put('c')], deletes: ['d', 'e'] }, 5],
    ['comparisons', { comparisons: ['a', 'b', 'c', 'd'].map(compared), puts: [], deletes: [] }, 5],
  ])('refuse too many %s before they are sent', (_, transaction, count) => {
    const refuse = () => encodeTransaction(transaction, { guard, limits });
    expect(refuse).toThrow(`has ${count} operations and etcd allows 4`);
    expect(refuse).toThrow(expect.objectContaining({ code: 'STORE_LIMIT', retryable: false }));
  });

  it('refuse too many bytes before they are sent', () => {
    const transaction = { comparisons: [], puts: [put('a', 4000), put('b', 6000)], deletes: [] };
    expect(() => encodeTransaction(transaction, { guard, limits })).toThrow(/bytes and etcd allows 10000/);
  });

  it('let through what just fits', () => {
    const transaction = {
      comparisons: ['a', 'b', 'c'].map(compared),
      puts: [put('a', 8900)],
      deletes: ['b', 'c', 'd'],
    };
    const { compare, success } = encodeTransaction(transaction, { guard, limits });
    expect([compare?.length, success?.length]).toEqual([4, 4]);
  });
});

describe('a transaction that only compares', () => {
  it('reads something, as etcd answers it from what one server knows else', () => {
    const { success } = encodeTransaction({ comparisons: [compared('/a')], puts: [], deletes: [] }, { guard, limits });
    expect(success).toEqual([{ request_range: { key: Buffer.from('/guard'), count_only: true } }]);
  });
});

describe('the conflicts that a lost transaction reads', () => {
  it('are requested once for each comparison: only records that changed after it', () => {
    const comparisons = [compared('/a'), { type: 'prefix' as const, prefix: '/p/', notAfterRevision: 7 }];
    const { failure } = encodeTransaction({ comparisons, puts: [put('/a')], deletes: [] }, { guard, limits });
    expect(failure).toEqual([
      { request_range: { key: Buffer.from('/a'), min_mod_revision: 2 } },
      { request_range: { ...prefixRange('/p/'), min_mod_revision: 8 } },
    ]);
  });

  it('count against etcd’s limit of a request', () => {
    const comparisons = ['a', 'b', 'c'].map((name) => compared(`/${name.repeat(1500)}`));
    const refuse = () => encodeTransaction({ comparisons, puts: [put('a', 500)], deletes: [] }, { guard, limits });
    expect(refuse).toThrow(/bytes and etcd allows 10000/);
  });
});
