import type { Direction, PolicyRule, Profile, RuleAction } from '@podwire/shared/network-policy/policy';
import { cut, merge, type AddressRange } from '@podwire/shared/network-policy/ranges';
import fc from 'fast-check';

import { SCTP, TCP, UDP } from '../frames.js';
import { prefix } from '../nft.js';
import { accept, network } from './policies.js';
import { OUTSIDE, PODS } from './policy-pods.js';

/** Random policies of the wired pods. */

export const PORTS = [53, 80, 8080];

export const ADDRESS_SETS = ['a-one', 'a-two', 'a-three'];
export const PORT_SETS = ['p-http', 'p-dns'];

const nothing = prefix('10.0.0.0/8');
const RANGES: readonly (readonly AddressRange[])[] = [
  [network('0.0.0.0/0')],
  [network('::/0')],
  [network('10.65.0.2/31')],
  [network('fd00:65::4/126'), network('10.65.0.1/32')],
  merge([...cut(prefix('0.0.0.0/0'), [nothing]), network('2001:db8::/32')]),
  cut(prefix('10.65.0.0/28'), [prefix('10.65.0.2/32'), prefix('10.65.0.4/31')]),
  [],
];

const some = <Value>(values: readonly Value[], maxLength: number) => fc.subarray([...values], { maxLength });

const peers = fc.option(fc.record({ sets: some(ADDRESS_SETS, 2), networks: fc.constantFrom(...RANGES).map(merge) }), {
  nil: undefined,
  freq: 4,
});

const portRange = fc
  .tuple(fc.constantFrom(TCP, UDP, SCTP), fc.constantFrom([53, 53], [80, 80], [0, 65_535], [60, 8079], [79, 81]))
  .map(([protocol, [first = 0, last = 0]]) => ({ protocol, first, last }));

const ports = fc.option(fc.record({ ranges: fc.array(portRange, { maxLength: 3 }), sets: some(PORT_SETS, 1) }), {
  nil: undefined,
  freq: 3,
});

const ruleOf = (...actions: readonly RuleAction[]): fc.Arbitrary<PolicyRule> =>
  fc.record({ action: fc.constantFrom(...actions), peers, ports }).map((rule) => accept(rule));

const ADMIN = ruleOf('accept', 'deny', 'pass');

const randomProfile = (direction: Direction, round: number, at: number): fc.Arbitrary<Profile> =>
  fc.record({
    id: fc.constant(`${round}-${at}`),
    direction: fc.constant(direction),
    admin: fc.oneof(fc.constant([]), fc.array(ADMIN, { maxLength: 3 })),
    isolatedBy: fc.constantFrom([], ['NetworkPolicy default/a'], ['NetworkPolicy default/a']),
    rules: fc.array(ruleOf('accept'), { maxLength: 3 }),
    baseline: fc.oneof(fc.constant([]), fc.array(ADMIN, { maxLength: 2 })),
  });

/** Profiles for each pod and direction, or none; and the members of the sets. */
export const policyState = (round: number) =>
  fc.record({
    pods: fc.tuple(
      ...PODS.map((_, at) =>
        fc.record({
          ingress: fc.option(randomProfile('ingress', round, 2 * at), { nil: undefined, freq: 5 }),
          egress: fc.option(randomProfile('egress', round, 2 * at + 1), { nil: undefined, freq: 5 }),
        }),
      ),
    ),
    addresses: fc.tuple(
      ...ADDRESS_SETS.map(() =>
        some(
          [...PODS, OUTSIDE].flatMap(({ addresses }) => Object.values(addresses)),
          6,
        ),
      ),
    ),
    ports: fc.tuple(
      ...PORT_SETS.map(() =>
        fc.uniqueArray(
          fc
            .tuple(
              fc.constantFrom(...PODS.flatMap(({ addresses }) => Object.values(addresses))),
              fc.constantFrom(TCP, UDP, SCTP),
              fc.constantFrom(...PORTS),
            )
            .map((fields) => fields.join(' ')),
          { maxLength: 8 },
        ),
      ),
    ),
  });
