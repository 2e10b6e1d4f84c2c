import { describe, expect, test } from 'vitest';

import { address } from '../testing/pods.js';
import { Ruleset } from './ruleset.js';
import type { Json, JsonObject } from './table.js';

const PACKET = { input: 'podw1', output: 'eth0', source: address('10.65.0.1'), destination: address('10.65.0.2') };

const rule = (chain: string, handle: number, ...expr: readonly JsonObject[]): JsonObject => ({
  rule: { chain, handle, expr },
});
const matching = (left: JsonObject, right: Json, op = '==') => ({ match: { op, left, right } });
const meta = (key: string) => ({ meta: { key } });
const source = { payload: { protocol: 'ip', field: 'saddr' } };
const DROP = { drop: null };

/** Why a table with these rules in its base chain drops the packet. */
function dropOf(policy: string, ...rules: readonly JsonObject[]) {
  const chains = ['base', 'sub', 'end'].map((name) => ({ chain: name === 'base' ? { name, policy } : { name } }));
  const set = {
    set: { name: 'pods', elem: [{ prefix: { addr: '10.65.0.0', len: 16 } }, { elem: { val: '10.9.9.9' } }] },
  };
  const map = { map: { name: 'ways', elem: [['podw*', { goto: { target: 'sub' } }]] } };
  return new Ruleset([...chains, set, map, ...rules]).dropOf('base', PACKET);
}

test('the policy decides about a packet that no rule takes', () => {
  expect([dropOf('drop'), dropOf('accept')]).toEqual(['policy drop', undefined]);
});

describe.each<readonly [string, JsonObject, boolean]>([
  ['an interface', matching(meta('iifname'), 'podw1'), true],
  ['a wildcard', matching(meta('oifname'), 'eth*'), true],
  ['another interface', matching(meta('iifname'), 'docker0'), false],
  ['not another interface', matching(meta('oifname'), 'docker0', '!='), true],
  ['a set with a name', matching(source, '@pods'), true],
  ['a set without', matching(meta('iifname'), { set: ['a', 'podw*'] }), true],
  ['a range', matching(source, { range: ['10.65.0.0', '10.65.0.9'] }), true],
  ['another range', matching(source, { prefix: { addr: '10.66.0.0', len: 16 } }), false],
  ['the other family', matching({ payload: { protocol: 'ip6', field: 'saddr' } }, 'fd65::1', '!='), false],
  [
    'several fields',
    matching({ concat: [meta('iifname'), source] }, { set: [{ concat: ['podw1', '10.65.0.1'] }] }),
    true,
  ],
  [
    'several fields, one other',
    matching({ concat: [meta('iifname'), source] }, { set: [{ concat: ['podw1', '10.65.0.9'] }] }),
    false,
  ],
  ['TCP', matching(meta('l4proto'), { set: [1, 6] }), true],
  ['a flow that is known', matching({ ct: { key: 'state' } }, [2, 4], 'in'), false],
  ['a new flow', matching({ ct: { key: 'state' } }, 8, 'in'), true],
  ['a translated destination', matching({ ct: { key: 'status' } }, 32, 'in'), false],
  ['a port', matching({ payload: { protocol: 'tcp', field: 'dport' } }, 22, '!='), false],
  ['a comment of iptables', { xt: { type: 'match', name: 'comment' } }, true],
  ['another match of iptables', { xt: { type: 'match', name: 'conntrack' } }, false],
  ['a rate', { limit: { rate: 5, per: 'second' } }, false],
])('a rule with %s', (_, part, expected) => {
  test(expected ? 'matches' : 'does not match', () => {
    expect(dropOf('accept', rule('base', 7, part, { counter: {} }, DROP))).toBe(
      expected ? 'rule with handle 7' : undefined,
    );
    expect(dropOf('drop', rule('base', 7, part, { accept: null }))).toBe(expected ? undefined : 'policy drop');
  });
});

describe('chains', () => {
  const jump = { jump: { target: 'sub' } };
  const goto = { goto: { target: 'sub' } };

  test('are continued after a jump, and not after a goto', () => {
    const last = rule('base', 9, DROP);
    expect(dropOf('accept', rule('base', 1, jump), last)).toBe('rule with handle 9');
    expect(dropOf('accept', rule('base', 1, jump), rule('sub', 2, { accept: null }), last)).toBeUndefined();
    expect(dropOf('accept', rule('base', 1, goto), last)).toBeUndefined();
    expect(dropOf('drop', rule('base', 1, goto), rule('sub', 2, { return: null }))).toBe('policy drop');
    expect(dropOf('accept', rule('base', 1, jump), rule('sub', 2, { goto: { target: 'end' } }), last)).toBe(
      'rule with handle 9',
    );
  });

  test.each<readonly [string, JsonObject]>([
    ['reject', { reject: { type: 'icmpx' } }],
    ['REJECT of iptables', { xt: { type: 'target', name: 'REJECT' } }],
    ['a map', { vmap: { key: meta('iifname'), data: '@ways' } }],
  ])('drop by %s', (_, statement) => {
    const rules = [rule('base', 3, statement), rule('sub', 4, DROP)];
    expect(dropOf('accept', ...rules)).toBe('rule with handle 3');
  });

  test('ignore a map without the packet, and a target that only logs', () => {
    const data = { set: [['docker0', { drop: null }]] };
    const rules = [
      rule('base', 3, { vmap: { key: meta('iifname'), data } }),
      rule('base', 4, { xt: { type: 'target', name: 'LOG' } }),
    ];
    expect(dropOf('accept', ...rules)).toBeUndefined();
  });
});
