import { expect, test } from 'vitest';

import type { DecodedRecord } from '../../records/json/registry.js';
import { OwnWrites, type OwnWrite } from './own-writes.js';

const decodedAs = (text: string): DecodedRecord => ({ record: { kind: 'requestPolicies', value: [] }, raw: { text } });
const put = (key: string, text: string): OwnWrite => ({ key, decoded: decodedAs(text), value: Buffer.from(text) });
const removal = (key: string): OwnWrite => ({ key, decoded: undefined, value: undefined });

test('a sent transaction is known by its bytes until it is answered', () => {
  const own = new OwnWrites();
  const first = [put('a', 'one'), removal('b')];
  own.markSent(first);
  expect(own.decoded('a', Buffer.from('one'))).toEqual(decodedAs('one'));
  expect(own.decoded('a', Buffer.from('onf'))).toBeUndefined();
  expect(own.decoded('a', Buffer.from('one '))).toBeUndefined();
  expect(own.decoded('b', Buffer.from(''))).toBeUndefined();
  own.markAnswered(first);
  expect(own.decoded('a', Buffer.from('one'))).toBeUndefined();
});

test('the answer of an earlier transaction does not end a later one', () => {
  const own = new OwnWrites();
  const [earlier, later] = [[put('a', 'one')], [put('a', 'two')]];
  own.markSent(earlier);
  own.markSent(later);
  own.markAnswered(earlier);
  expect(own.decoded('a', Buffer.from('two'))).toEqual(decodedAs('two'));
});

test('a commit is known at its revision until the watch has reported it', () => {
  const own = new OwnWrites();
  own.addCommit(8, [put('a', 'eight')]);
  own.addCommit(7, [put('a', 'seven'), removal('b')]);
  expect([7, 8, 9].map((revision) => own.findCommitted(revision, 'a'))).toEqual([
    decodedAs('seven'),
    decodedAs('eight'),
    undefined,
  ]);
  expect(own.findCommitted(7, 'b')).toBeUndefined();
  own.dropUpTo(7);
  expect([7, 8].map((revision) => own.findCommitted(revision, 'a'))).toEqual([undefined, decodedAs('eight')]);
});

test('only the last 256 commits that the watch has not reported are kept', () => {
  const own = new OwnWrites();
  for (let revision = 1; revision <= 1000; revision++) own.addCommit(revision, [put('a', String(revision))]);
  expect([744, 745, 1000].map((revision) => own.findCommitted(revision, 'a') !== undefined)).toEqual([
    false,
    true,
    true,
  ]);
});
