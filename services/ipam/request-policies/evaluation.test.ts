import { Failure } from '@podwire/shared/failure/failure';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { NAME_LABEL } from '../records/names.js';
import type { Selector } from '../selectors/parser.js';
import { evaluate } from '../selectors/selector.js';
import { prefix } from '../testing/records.js';
import { address, policyInput, policy, viewWith, type PolicyTexts } from '../testing/request-policies.js';
import {
  evaluateByName,
  applicabilityOf,
  evaluateRequests,
  labelsWithName,
  authorizeRequests,
  type PolicyInput,
} from './evaluation.js';

const MAC = '02:00:00:00:00:07';

/** The denied items of a policyInput, each by its value. */
function denied(asked: PolicyInput, ...policies: readonly PolicyTexts[]): string[] {
  const view = viewWith(...policies.map((texts, index) => policy(`p${index}`, texts)));
  return evaluateRequests(view, asked).flatMap(({ value, isAllowed }) => (isAllowed ? [] : [value]));
}

function refusal(asked: PolicyInput, ...policies: readonly PolicyTexts[]): Failure {
  const view = viewWith(...policies.map((texts, index) => policy(`p${index}`, texts)));
  try {
    authorizeRequests(view, asked);
  } catch (failure) {
    if (failure instanceof Failure) return failure;
    throw failure;
  }
  throw new Error('it was permitted');
}

const EVERYTHING = policyInput({
  pools: ['a', 'fd00::/64'],
  addresses: [address('10.0.0.5')],
  requests: {
    addressesWithoutIpam: [address('10.9.0.1')],
    sourcePrefixes: [prefix('10.8.0.0/24')],
    mac: MAC,
    families: [4, 6],
  },
});

const ALL_BOUND: PolicyTexts = {
  pools: {},
  addresses: [],
  addressesWithoutIpam: [],
  sourcePrefixes: [],
  macAddresses: [],
  families: [],
};

const BY_NAME: PolicyTexts = { namespaceSelector: `${NAME_LABEL} == 'blue'` };

describe('a requested item', () => {
  test('is allowed without policies, and where no policy applies to it or to the namespace', () => {
    expect(denied(EVERYTHING)).toEqual([]);
    expect(denied(EVERYTHING, { ...ALL_BOUND, namespaces: ['blue'] })).toEqual([]);
    expect(denied(policyInput({ requests: { mac: MAC } }), { ...ALL_BOUND, macAddresses: undefined })).toEqual([]);
  });

  test('is denied without a pod by a policy of any namespace, unless one of all namespaces allows it', () => {
    const asked = policyInput({ pools: ['b'], namespace: { name: '', labels: {} } });
    expect(denied(asked)).toEqual([]);
    for (const scope of [{}, { namespaces: ['blue'] }, { namespaceSelector: "team == 'blue'" }, BY_NAME])
      expect(denied(asked, { ...scope, pools: {} }), JSON.stringify(scope)).toEqual(['b']);
    const allows = { pools: { names: ['b'] } };
    expect(denied(asked, { namespaces: ['blue'], ...allows })).toEqual(['b']);
    expect(denied(asked, { ...BY_NAME, ...allows })).toEqual(['b']);
    for (const scope of [{}, { namespaceSelector: 'all()' }])
      expect(denied(asked, { namespaces: ['blue'], pools: {} }, { ...scope, ...allows })).toEqual([]);
    expect(refusal(asked, { pools: {} }).message).toContain('a request without a pod may not request pool "b"');
  });

  test('is completely denied by rules that allow nothing', () => {
    const values = ['a', 'six', '10.0.0.5', '10.9.0.1', '10.8.0.0/24', MAC, 'IPv4', 'IPv6'];
    expect(denied(EVERYTHING, ALL_BOUND)).toEqual(values);
  });

  test('is allowed where one of the policies allows it', () => {
    const asked = policyInput({ pools: ['a', 'b'] });
    expect(denied(asked, { pools: {} }, { namespaces: ['red'], pools: { names: ['b'] } })).toEqual(['a']);
    expect(denied(asked, { pools: {} }, { namespaces: ['blue'], pools: { names: ['b'] } })).toEqual(['a', 'b']);
  });

  const cases: readonly (readonly [string, PolicyInput, PolicyTexts, readonly string[]])[] = [
    ['pools by name', policyInput({ pools: ['a', '10.0.0.4/30'] }), { pools: { names: ['b'] } }, ['a']],
    ['pools in a range', policyInput({ pools: ['a', 'six'] }), { pools: { cidrs: ['10.0.0.0/8'] } }, ['six']],
    ['pools by labels', policyInput({ pools: ['a', 'b'] }), { pools: { selector: "team == 'blue'" } }, ['b']],
    ['all pools', policyInput({ pools: ['a', 'six'] }), { pools: { selector: 'all()' } }, []],
    [
      'addresses in a range',
      policyInput({ addresses: [address('10.0.0.5'), address('fd00::1')] }),
      { addresses: ['10.0.0.4/31'] },
      ['fd00::1'],
    ],
    // An address is no way around rules for pools, unless a rule for addresses says so.
    [
      'addresses of pools',
      policyInput({ addresses: [address('10.0.0.5')] }),
      { pools: { names: ['a'] } },
      ['10.0.0.5'],
    ],
    [
      'addresses of no pool',
      policyInput({ addresses: [address('10.9.0.1')] }),
      { pools: { cidrs: ['10.0.0.0/8'] } },
      ['10.9.0.1'],
    ],
    [
      'addresses of an allowed pool',
      policyInput({ addresses: [address('10.0.0.1')] }),
      { pools: { names: ['a'] } },
      [],
    ],
    [
      'addresses before pools',
      policyInput({ addresses: [address('10.0.0.5')] }),
      { pools: { names: ['a'] }, addresses: ['10.0.0.4/30'] },
      [],
    ],
    [
      'addresses without IPAM by their own rule',
      policyInput({ requests: { addressesWithoutIpam: [address('10.9.0.1'), address('10.0.0.1')] } }),
      { pools: {}, addresses: [], addressesWithoutIpam: ['10.9.0.0/24'] },
      ['10.0.0.1'],
    ],
    [
      'addresses without IPAM by rules for addresses',
      policyInput({ requests: { addressesWithoutIpam: [address('10.9.0.1')] } }),
      { addresses: ['10.0.0.0/24'] },
      ['10.9.0.1'],
    ],
    [
      'addresses without IPAM by rules for pools',
      policyInput({ requests: { addressesWithoutIpam: [address('10.0.0.1'), address('10.0.0.5')] } }),
      { pools: { names: ['a'] } },
      ['10.0.0.5'],
    ],
    [
      'source prefixes that a range covers',
      policyInput({ requests: { sourcePrefixes: [prefix('10.8.0.0/24'), prefix('10.8.0.0/16')] } }),
      { sourcePrefixes: ['10.8.0.0/17'] },
      ['10.8.0.0/16'],
    ],
    [
      'MAC addresses of a range',
      policyInput({ requests: { mac: MAC } }),
      { macAddresses: ['02:42:00:00:00:00/16'] },
      [MAC],
    ],
    ['families', policyInput({ requests: { families: [4, 6] } }), { families: [4] }, ['IPv6']],
  ];
  test.each(cases)('is evaluated: %s', (_, asked, texts, expected) => expect(denied(asked, texts)).toEqual(expected));

  test('is the pod’s and not the network configuration’s', () => {
    const choice = (pool: string, isConfigured: boolean) => ({ pool, family: undefined, isConfigured });
    const asked = (...poolChoices: PolicyInput['poolChoices']) => policyInput({ pools: ['a', 'b'], poolChoices });
    expect(denied(asked(choice('a', true)), { pools: {} })).toEqual(['b']);
    expect(denied(asked(choice('a', true), choice('a', false), choice('b', true)), { pools: {} })).toEqual(['a']);
  });
});

describe('where labels of the namespace are not known', () => {
  const asked = policyInput({ requests: { mac: MAC } });
  const byLabel = { namespaceSelector: "tier == 'lab'", macAddresses: ['00:00:00:00:00:00/0'] };

  test('a policy that depends on them restricts, and allows nothing', () => {
    expect(denied(asked, byLabel)).toEqual([MAC]);
    expect(refusal(asked, byLabel).message).toBe(
      `namespace "red" may not request MAC address ${MAC}: whether request policy "p0" applies depends on the namespace or its labels, which the runtime did not pass; name the namespace in a policy that allows it`,
    );
  });

  test('a policy that names the namespace still allows', () => {
    expect(denied(asked, byLabel, { namespaces: ['red'], macAddresses: ['02:00:00:00:00:00/24'] })).toEqual([]);
  });

  test('it does not apply to other namespaces', () => {
    const known = policyInput({ ...asked, namespace: { name: 'red', labels: { tier: 'prod' } } });
    expect(denied(known, byLabel)).toEqual([]);
  });
});

describe('a refusal', () => {
  test('names the namespace, the item, the policies, what they allow, and the next step', () => {
    const asked = policyInput({ pools: ['b'], addresses: [address('10.0.0.5')] });
    const failure = refusal(
      asked,
      { pools: { names: ['a'], cidrs: ['10.64.0.0/12'], selector: 'has(open)' } },
      { pools: {} },
    );
    expect(failure.message.split('. ')).toEqual([
      'namespace "red" may not request pool "b" 10.0.0.4/30: request policies "p0", "p1" allow it only pools "a", in 10.64.0.0/12, with has(open); request less, or change a policy',
      'namespace "red" may not request address 10.0.0.5, which is of pool "b" 10.0.0.4/30: request policies "p0", "p1" allow it only pools "a", in 10.64.0.0/12, with has(open); request less, or change a policy',
    ]);
    expect(failure).toMatchObject({
      code: 'REQUEST_DENIED',
      details: { namespace: 'red', policies: 'p0, p1', requests: 'b, 10.0.0.5' },
    });
  });

  test('has a bounded length', () => {
    const many = Array.from({ length: 300 }, (_, index) => `10.${index >> 8}.${index & 255}.0/24`);
    const sourcePrefixes = many.map(prefix);
    const policies = Array.from({ length: 50 }, (): PolicyTexts => ({ sourcePrefixes: ['192.0.2.0/24'] }));
    const { message } = refusal(policyInput({ requests: { sourcePrefixes } }), ...policies);
    expect(message).toContain('and 296 more requests are denied');
    expect(message).toContain('and 46 more');
    expect(message.length).toBeLessThan(2048);
  });

  test('is also returned when the policies cannot be read, but only for requests with an item', () => {
    const view = viewWith();
    view.setAside({ kind: 'requestPolicies' }, 'torn');
    expect(() => authorizeRequests(view, policyInput({ pools: ['a'] }))).toThrow(
      expect.objectContaining({ code: 'STORE_CORRUPT' }),
    );
    expect(authorizeRequests(view, policyInput())).toEqual([]);
  });
});

test('an authorization compares the policies, even if there are none; without a requested item it compares nothing', () => {
  const asked = policyInput({ pools: ['a'] });
  expect(authorizeRequests(viewWith(), asked)).toEqual([
    { type: 'expect', record: { kind: 'requestPolicies', value: [] } },
  ]);
  const policies = [policy('p', { pools: { names: ['a'] } })];
  expect(authorizeRequests(viewWith(...policies), asked)).toEqual([
    { type: 'expect', record: { kind: 'requestPolicies', value: policies } },
  ]);
  expect(authorizeRequests(viewWith(...policies), policyInput())).toEqual([]);
});

describe('a policy applies to a namespace', () => {
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
    // Unknown labels: the name decides as always, other labels are unknown.
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
    expect(applicabilityOf(policy('p', { pools: {}, ...texts }), { name: 'red', labels: given })).toBe(expected);
  });
});

describe('a namespace whose name alone is known', () => {
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

  test('property: a decided result holds for any other labels', () => {
    fc.assert(
      fc.property(selector, labels, (asked, redLabels) => {
        const concern = evaluateByName(asked, 'red');
        const known = evaluate(asked, labelsWithName({ name: 'red', labels: redLabels })) ? 'yes' : 'no';
        expect([known, 'unknown']).toContain(concern);
      }),
    );
  });

  test('property: conditions on the name alone are never unknown', () => {
    const byName = fc.record({
      type: fc.constantFrom('equals' as const, 'notEquals' as const),
      key: fc.constant(NAME_LABEL),
      value,
    });
    fc.assert(
      fc.property(byName, byName, fc.constantFrom('and' as const, 'or' as const), (a, b, type) => {
        expect(evaluateByName({ type, operands: [a, { type: 'not', operand: b }] }, 'red')).not.toBe('unknown');
      }),
    );
  });
});
