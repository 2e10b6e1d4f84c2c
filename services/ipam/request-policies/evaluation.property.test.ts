import fc from 'fast-check';
import { expect, test } from 'vitest';

import { prefix } from '../testing/records.js';
import { address, policyInput, policy, viewWith, type PolicyTexts } from '../testing/request-policies.js';
import { evaluateRequests, type PolicyInput } from './evaluation.js';

/**
 * Policies against an oracle without prefixes, selectors and an order of rules: it writes out the addresses of every range one
 * by one, tries every value of an unknown label, and asks of each item whether a line allows it.
 */

const ADDRESSES = Array.from({ length: 16 }, (_, index) => `10.0.0.${index}`);
/** The addresses of each range; the pools are `a` 10.0.0.0/30 and `b` 10.0.0.4/30, and no other pool has these addresses. */
const RANGES: Readonly<Record<string, readonly string[]>> = {
  '10.0.0.0/28': ADDRESSES,
  '10.0.0.0/29': ADDRESSES.slice(0, 8),
  '10.0.0.8/29': ADDRESSES.slice(8),
  '10.0.0.0/30': ADDRESSES.slice(0, 4),
  '10.0.0.4/30': ADDRESSES.slice(4, 8),
  '10.0.0.4/31': ADDRESSES.slice(4, 6),
  '10.0.0.5/32': ADDRESSES.slice(5, 6),
  '10.0.0.9/32': ADDRESSES.slice(9, 10),
};
const POOLS: Readonly<Record<string, readonly string[]>> = { a: ADDRESSES.slice(0, 4), b: ADDRESSES.slice(4, 8) };
const TIERS = [undefined, 'front', 'back'] as const;

/** The meaning of selectors, by the namespace's name and its tier. */
const SELECTORS: Readonly<Record<string, (name: string, tier: string | undefined) => boolean>> = {
  'all()': () => true,
  "tier == 'front'": (_, tier) => tier === 'front',
  "tier != 'front'": (_, tier) => tier !== 'front',
  '!has(tier)': (_, tier) => tier === undefined,
  "kubernetes.io/metadata.name == 'red'": (name) => name === 'red',
  "kubernetes.io/metadata.name not in {'red'} && has(tier)": (name, tier) => name !== 'red' && tier !== undefined,
};

/** Whether labels besides the name are known. */
interface Told {
  readonly name: string;
  readonly tier: (typeof TIERS)[number];
  readonly isTold: boolean;
}

const range = fc.subarray(Object.keys(RANGES), { maxLength: 3 });
const rule = fc.option(range, { nil: undefined });
const texts: fc.Arbitrary<PolicyTexts> = fc.record({
  namespaces: fc.subarray(['red', 'blue']),
  namespaceSelector: fc.constantFrom('', ...Object.keys(SELECTORS)),
  pools: fc.option(
    fc.record({
      names: fc.subarray(['a', 'b', 'none']),
      cidrs: range,
      selector: fc.constantFrom('', "team == 'blue'"),
    }),
    { nil: undefined },
  ),
  addresses: rule,
  addressesWithoutIpam: rule,
  sourcePrefixes: rule,
  families: fc.option(fc.subarray([4, 6] as const), { nil: undefined }),
});

interface Asked {
  readonly pools: readonly string[];
  readonly addresses: readonly string[];
  readonly without: readonly string[];
  readonly prefixes: readonly string[];
  readonly families: readonly (4 | 6)[];
}

const asked: fc.Arbitrary<Asked> = fc.record({
  pools: fc.subarray(['a', 'b']),
  addresses: fc.subarray(ADDRESSES, { maxLength: 2 }),
  without: fc.subarray(ADDRESSES, { maxLength: 2 }),
  prefixes: fc.subarray(Object.keys(RANGES), { maxLength: 3 }),
  families: fc.subarray([4, 6] as const),
});

const told: fc.Arbitrary<Told> = fc.record({
  name: fc.constantFrom('red', 'blue'),
  tier: fc.constantFrom(...TIERS),
  isTold: fc.boolean(),
});

function policyInputOf(
  { pools, addresses, without, prefixes, families }: Asked,
  { name, tier, isTold }: Told,
): PolicyInput {
  const labels = isTold ? { ...(tier === undefined ? {} : { tier }), other: '' } : {};
  return policyInput({
    namespace: { name, labels },
    pools,
    addresses: addresses.map(address),
    requests: {
      addressesWithoutIpam: without.map(address),
      sourcePrefixes: prefixes.map(prefix),
      families,
    },
  });
}

/** Whether a policy applies to the namespace: for all, no, or some values of the unknown labels. */
function concern({ namespaces = [], namespaceSelector = '' }: PolicyTexts, { name, tier, isTold }: Told): string {
  const ways = (isTold ? [tier] : TIERS).map((each) => {
    if (namespaceSelector === '' && namespaces.length === 0) return true;
    return namespaces.includes(name) || (SELECTORS[namespaceSelector]?.(name, each) ?? false);
  });
  if (ways.every(Boolean)) return 'yes';
  return ways.some(Boolean) ? 'unknown' : 'no';
}

/** The verdict of each policy on an item by one kind of rule; undefined when it has none of that kind. */
type Line = (policy: PolicyTexts) => boolean | undefined;

const someRange = (ranges: readonly string[] | undefined, wanted: readonly string[]): boolean | undefined =>
  ranges?.some((each) => wanted.every((one) => RANGES[each]?.includes(one)));

function poolLine(names: readonly string[]): Line {
  return ({ pools }) =>
    pools &&
    names.length > 0 &&
    names.every(
      (name) =>
        (pools.names ?? []).includes(name) ||
        someRange(pools.cidrs, POOLS[name] ?? ['']) === true ||
        (pools.selector !== '' && name === 'a'),
    );
}

const poolsWith = (one: string) => Object.keys(POOLS).filter((name) => POOLS[name]?.includes(one));

/** Each item, and the kinds of rules that apply to it, the first that exists. */
function things({ pools, addresses, without, prefixes, families }: Asked): (readonly [string, readonly Line[]])[] {
  return [
    ...pools.map((name) => [name, [poolLine([name])]] as const),
    ...addresses.map(
      (one) => [one, [(p: PolicyTexts) => someRange(p.addresses, [one]), poolLine(poolsWith(one))]] as const,
    ),
    ...without.map(
      (one) =>
        [
          one,
          [
            (p: PolicyTexts) => someRange(p.addressesWithoutIpam, [one]),
            (p: PolicyTexts) => someRange(p.addresses, [one]),
            poolLine(poolsWith(one)),
          ],
        ] as const,
    ),
    ...prefixes.map((each) => [each, [(p: PolicyTexts) => someRange(p.sourcePrefixes, RANGES[each] ?? [])]] as const),
    ...families.map((family) => [`IPv${family}`, [(p: PolicyTexts) => p.families?.includes(family)]] as const),
  ];
}

function mayHave(lines: readonly Line[], policies: readonly PolicyTexts[], namespace: Told): boolean {
  const about = policies.filter((each) => concern(each, namespace) !== 'no');
  const line = lines.find((each) => about.some((one) => each(one) !== undefined));
  return !line || about.some((one) => concern(one, namespace) === 'yes' && line(one) === true);
}

const judged = (policies: readonly PolicyTexts[], wanted: PolicyInput) =>
  evaluateRequests(viewWith(...policies.map((each, index) => policy(`p${index}`, each))), wanted);

test('property: the verdicts equal the oracle’s', () => {
  fc.assert(
    fc.property(fc.array(texts, { maxLength: 4 }), asked, told, (policies, wanted, namespace) => {
      const expected = things(wanted).map(([value, lines]) => [value, mayHave(lines, policies, namespace)]);
      const actual = judged(policies, policyInputOf(wanted, namespace));
      expect(actual.map(({ value, isAllowed }) => [value, isAllowed])).toEqual(expected);
      // Each verdict has its reason: the restricting policies, the allowing one, or the alternatives.
      for (const { isAllowed, policyNames, allowedBy, reason } of actual) {
        expect(policyNames.length > 0 || (isAllowed && allowedBy === undefined)).toBe(true);
        expect(reason !== '').toBe(!isAllowed);
        expect(allowedBy === undefined || policyNames.includes(allowedBy)).toBe(true);
      }
    }),
    { numRuns: 300 },
  );
});

test('property: the order of policies does not matter, and the same one twice changes nothing', () => {
  fc.assert(
    fc.property(fc.array(texts, { maxLength: 4 }), asked, told, (policies, wanted, namespace) => {
      const allowed = (list: readonly PolicyTexts[]) =>
        judged(list, policyInputOf(wanted, namespace)).map(({ isAllowed }) => isAllowed);
      expect(allowed([...policies].reverse())).toEqual(allowed(policies));
      expect(allowed([...policies, ...policies])).toEqual(allowed(policies));
    }),
  );
});

test('property: more known labels of a namespace never deny an allowed request', () => {
  fc.assert(
    fc.property(fc.array(texts, { maxLength: 3 }), asked, told, (policies, wanted, namespace) => {
      // A policy may restrict by one kind where it does not apply without labels: items of kinds with substitutes may change sides.
      const plain = { ...wanted, addresses: [], without: [] };
      const allowed = (isTold: boolean) =>
        judged(policies, policyInputOf(plain, { ...namespace, isTold })).map(({ isAllowed }) => isAllowed);
      const [known, unknown] = [allowed(true), allowed(false)];
      unknown.forEach((isAllowed, index) => expect(!isAllowed || known[index]).toBe(true));
    }),
  );
});
