import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { policy } from '../../testing/request-policies.js';
import type { Selector } from '../selector/ast.js';
import { evaluate } from '../selector/evaluate.js';
import { byNameAlone, concernOf, knownLabels, NAME_LABEL } from './namespace.js';

describe('a policy is about a namespace', () => {
  const labels = { tier: 'front' };
  test.each([
    [{}, {}, 'yes'],
    [{ namespaces: ['red'] }, {}, 'yes'],
    [{ namespaces: ['blue'] }, {}, 'no'],
    [{ namespaceSelector: 'all()' }, {}, 'yes'],
    [{ namespaces: ['blue'], namespaceSelector: "tier == 'front'" }, labels, 'yes'],
    [{ namespaces: ['red'], namespaceSelector: "tier == 'back'" }, labels, 'yes'],
    [{ namespaceSelector: "tier == 'back'" }, labels, 'no'],
    [{ namespaceSelector: `${NAME_LABEL} == 'red'` }, labels, 'yes'],
    // Labels that nobody told: by name as ever, by others nobody knows.
    [{ namespaceSelector: `${NAME_LABEL} == 'red'` }, {}, 'yes'],
    [{ namespaceSelector: `${NAME_LABEL} != 'red'` }, {}, 'no'],
    [{ namespaceSelector: `${NAME_LABEL} starts with 'r'` }, { [NAME_LABEL]: 'red' }, 'yes'],
    [{ namespaceSelector: "tier == 'front'" }, {}, 'unknown'],
    [{ namespaceSelector: '!has(tier)' }, { [NAME_LABEL]: 'red' }, 'unknown'],
    [{ namespaceSelector: `has(tier) && ${NAME_LABEL} == 'blue'` }, {}, 'no'],
    [{ namespaceSelector: `has(tier) || ${NAME_LABEL} == 'red'` }, {}, 'yes'],
    [{ namespaces: ['red'], namespaceSelector: 'has(tier)' }, {}, 'yes'],
    [{ namespaceSelector: 'no selector' }, {}, 'unknown'],
  ] as const)('%j, with the labels %j: %s', (texts, given, expected) => {
    expect(concernOf(policy('p', { pools: {}, ...texts }), { name: 'red', labels: given })).toBe(expected);
  });
});

describe('of a namespace whose name alone is known', () => {
  const key = fc.constantFrom(NAME_LABEL, 'tier', 'team');
  const value = fc.constantFrom('red', 'blue', '');
  const { selector } = fc.letrec<{ selector: Selector }>((tie) => ({
    selector: fc.oneof(
      { maxDepth: 4 },
      fc.constant<Selector>({ type: 'all' }),
      fc.record({ type: fc.constant('has' as const), key }),
      fc.record({ type: fc.constantFrom('equals' as const, 'notEquals' as const, 'startsWith' as const), key, value }),
      fc.record({ type: fc.constantFrom('in' as const, 'notIn' as const), key, values: fc.array(value) }),
      fc.record({ type: fc.constant('not' as const), operand: tie('selector') }),
      fc.record({
        type: fc.constantFrom('and' as const, 'or' as const),
        operands: fc.array(tie('selector'), { minLength: 2, maxLength: 3 }),
      }),
    ),
  }));
  const labels = fc.dictionary(fc.constantFrom('tier', 'team'), value);

  test('property: what is said holds whatever its other labels are', () => {
    fc.assert(
      fc.property(selector, labels, (asked, others) => {
        const concern = byNameAlone(asked, 'red');
        const known = evaluate(asked, knownLabels({ name: 'red', labels: others })) ? 'yes' : 'no';
        expect([known, 'unknown']).toContain(concern);
      }),
    );
  });

  test('property: nothing is unknown that depends on the name alone', () => {
    const byName = fc.record({
      type: fc.constantFrom('equals' as const, 'notEquals' as const),
      key: fc.constant(NAME_LABEL),
      value,
    });
    fc.assert(
      fc.property(byName, byName, fc.constantFrom('and' as const, 'or' as const), (a, b, type) => {
        expect(byNameAlone({ type, operands: [a, { type: 'not', operand: b }] }, 'red')).not.toBe('unknown');
      }),
    );
  });
});
