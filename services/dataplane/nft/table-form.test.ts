import { describe, expect, test } from 'vitest';

import type { Json, JsonObject } from './table.js';
import { formOf } from './table-form.js';

const set = (...elem: readonly Json[]): JsonObject => ({
  set: { family: 'ip', table: 'podwire', name: 's', type: 'ipv4_addr', flags: ['interval'], elem },
});
const prefix = (addr: string, len: number): Json => ({ prefix: { addr, len } });
const rule = (chain: string, ...expr: readonly JsonObject[]): JsonObject => ({
  rule: { family: 'ip', table: 'podwire', chain, expr },
});

describe('two tables have the same form', () => {
  test.each<readonly [string, readonly JsonObject[], readonly JsonObject[]]>([
    ['whatever the handles and counters', [{ table: { name: 'a', handle: 1 } }], [{ table: { name: 'a', handle: 2 } }]],
    [
      'whatever was counted',
      [rule('c', { counter: { packets: 0, bytes: 0 } })],
      [rule('c', { counter: { packets: 7, bytes: 9 } })],
    ],
    ['in any order of keys', [{ table: { name: 'a', family: 'ip' } }], [{ table: { family: 'ip', name: 'a' } }]],
    ['in any order of elements', [set('10.0.0.1', '10.0.0.3')], [set('10.0.0.3', '10.0.0.1')]],
    ['with one address as a prefix', [set('10.0.0.1')], [set(prefix('10.0.0.1', 32))]],
    [
      'with the same addresses cut in another way',
      [set(prefix('10.0.0.0', 25), prefix('10.0.0.128', 25))],
      [set({ range: ['10.0.0.0', '10.0.0.255'] })],
    ],
    [
      'with an address in a concatenation as a prefix',
      [set({ concat: ['eth0', 'fd00::1'] })],
      [set({ concat: ['eth0', prefix('fd00::1', 128)] })],
    ],
    ['in any order of chains', [rule('a', { drop: null }), rule('b')], [rule('b'), rule('a', { drop: null })]],
    ['with a set that says of no elements that there are none', [set()], [{ set: withoutElements() }]],
  ])('%s', (_, one, other) => {
    expect(formOf(one)).toEqual(formOf(other));
  });

  function withoutElements(): JsonObject {
    return { family: 'ip', table: 'podwire', name: 's', type: 'ipv4_addr', flags: ['interval'] };
  }
});

describe('two tables have different forms', () => {
  test.each<readonly [string, readonly JsonObject[], readonly JsonObject[]]>([
    ['when one lies dormant', [{ table: { name: 'a' } }], [{ table: { name: 'a', flags: ['dormant'] } }]],
    [
      'when rules of a chain change places',
      [rule('c', { drop: null }), rule('c')],
      [rule('c'), rule('c', { drop: null })],
    ],
    ['when a rule is missing', [rule('c', { drop: null })], []],
    ['when a rule is another', [rule('c', { drop: null })], [rule('c', { accept: null })]],
    ['when an address is missing', [set('10.0.0.1', '10.0.0.3')], [set('10.0.0.1')]],
    ['when an address more is there', [set(prefix('10.0.0.0', 24))], [set({ range: ['10.0.0.0', '10.0.1.0'] })]],
    ['when an element is of another link', [set({ concat: ['a', '10.0.0.1'] })], [set({ concat: ['b', '10.0.0.1'] })]],
    ['when an object of another kind is there', [], [{ map: { name: 'm' } }]],
  ])('%s', (_, one, other) => {
    expect(formOf(one)).not.toEqual(formOf(other));
  });
});
