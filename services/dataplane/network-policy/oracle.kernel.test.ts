import type { Family } from '@podwire/shared/net/address';
import { isAllowed, type Connection, type SetLookup } from '@podwire/shared/network-policy/evaluate';
import type { Direction, PolicyRule, Profile, RuleAction } from '@podwire/shared/network-policy/policy';
import { cut, merge, type AddressRange } from '@podwire/shared/network-policy/ranges';
import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';

import { firstPacket, ICMP, ICMPV6, SCTP, TCP, UDP } from '../testing/frames.js';
import { cleanUp, requireThrowawayNamespace } from '../testing/kernels.js';
import { kernelNft, prefix } from '../testing/nft.js';
import { accept, address, message, network, podMessage, wholeSet } from '../testing/policies.js';
import { PolicyNode, policyPod } from '../testing/policy-node.js';
import { OUTSIDE, PODS, Prober, wireEnds, type ProbedEnd } from '../testing/policy-pods.js';
import { keyOf } from './members.js';

/** Random policies: the kernel's verdict about every connection is the evaluator's. */

const seed = Number(process.env.POLICY_SEED ?? Math.floor(Math.random() * 2 ** 31));
const ROUNDS = Number(process.env.POLICY_ROUNDS ?? 12);

const ENDS = [...PODS, OUTSIDE];
const FAMILIES: readonly Family[] = [4, 6];
const PORTS = [53, 80, 8080];

const ADDRESS_SETS = ['a-one', 'a-two', 'a-three'];
const PORT_SETS = ['p-http', 'p-dns'];

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

const profileOf = (direction: Direction, round: number, at: number): fc.Arbitrary<Profile> =>
  fc.record({
    id: fc.constant(`${round}-${at}`),
    direction: fc.constant(direction),
    admin: fc.oneof(fc.constant([]), fc.array(ADMIN, { maxLength: 3 })),
    isolatedBy: fc.constantFrom([], ['NetworkPolicy default/a'], ['NetworkPolicy default/a']),
    rules: fc.array(ruleOf('accept'), { maxLength: 3 }),
    baseline: fc.oneof(fc.constant([]), fc.array(ADMIN, { maxLength: 2 })),
  });

/** Profiles for each pod and direction, or none; and the members of the sets. */
const state = (round: number) =>
  fc.record({
    pods: fc.tuple(
      ...PODS.map((_, at) =>
        fc.record({
          ingress: fc.option(profileOf('ingress', round, 2 * at), { nil: undefined, freq: 5 }),
          egress: fc.option(profileOf('egress', round, 2 * at + 1), { nil: undefined, freq: 5 }),
        }),
      ),
    ),
    addresses: fc.tuple(
      ...ADDRESS_SETS.map(() =>
        some(
          ENDS.flatMap(({ addresses }) => Object.values(addresses)),
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

interface Case {
  readonly from: ProbedEnd;
  readonly to: ProbedEnd;
  readonly connection: Connection;
  readonly packet: Buffer;
}

let sourcePort = 1024;

/** One new connection of every protocol and port between all ends, in both families. */
function allCases(): Case[] {
  const pairs = ENDS.flatMap((from) => ENDS.filter((to) => to !== from).map((to) => ({ from, to })));
  return pairs.flatMap(({ from, to }) =>
    FAMILIES.flatMap((family) => {
      const kinds = [TCP, UDP, SCTP].flatMap((protocol) => PORTS.map((port) => [protocol, port] as const));
      return [...kinds, [family === 4 ? ICMP : ICMPV6, undefined] as const].map(([protocol, port]) => {
        const [source, destination] = [from.addresses[family], to.addresses[family]];
        const ports = { sourcePort: sourcePort++, port: port ?? 0 };
        const packet = firstPacket({ source, destination, protocol, ...ports });
        const ends = { source: address(source), destination: address(destination) };
        return { from, to, connection: { ...ends, protocol, destinationPort: port }, packet };
      });
    }),
  );
}

let prober: Prober;
let node: PolicyNode;

beforeAll(async () => {
  requireThrowawayNamespace();
  wireEnds();
  prober = new Prober();
  node = new PolicyNode({ nft: kernelNft() });
  await node.filter.start([]);
  for (const { name, device } of PODS) await node.filter.install(policyPod(name, device));
});

afterAll(async () => {
  await node.filter.stop();
  await prober.stop();
  cleanUp();
});

test(`random policies with the seed ${seed}: the kernel decides like the evaluator about every connection`, async () => {
  const counts = { allowed: 0, denied: 0 };
  for (let round = 0; round < ROUNDS; round++) {
    const [drawn] = fc.sample(state(round), { seed: seed + round, numRuns: 1 });
    if (!drawn) throw new Error('a sample has one value');
    const profiles = drawn.pods
      .flatMap(({ ingress, egress }) => [ingress, egress])
      .filter((each) => each !== undefined);
    await node.receiveSnapshot(
      message({
        isComplete: true,
        profiles,
        sets: [
          ...ADDRESS_SETS.map((id, at) => wholeSet(id, drawn.addresses[at] ?? [])),
          ...PORT_SETS.map((id, at) => wholeSet(id, drawn.ports[at] ?? [])),
        ],
        pods: PODS.map(({ name }, at) => podMessage(name, idsOf(drawn.pods[at]))),
        namespaces: ['default'],
      }),
    );
    expect(node.events.takeLines().filter((line) => line.includes('failed'))).toEqual([]);
    const profileAt = ({ name }: ProbedEnd, direction: Direction) =>
      drawn.pods[PODS.findIndex((pod) => pod.name === name)]?.[direction];
    const cases = allCases();
    const wanted = cases.map(({ from, to, connection }) =>
      isAllowed({ egress: profileAt(from, 'egress'), ingress: profileAt(to, 'ingress') }, connection, SETS),
    );
    const probes = cases.map(({ from, to, packet }) => ({ from: from.name, to: to.name, packet }));
    const arrived = await prober.send(probes, wanted.filter(Boolean).length);
    const text = ({ from, to, connection }: Case, isArrived: boolean | undefined) =>
      `round ${round}: ${from.name} to ${to.name}, IPv${connection.source.family}, protocol ${connection.protocol}, port ${connection.destinationPort}: ${isArrived ? 'passes' : 'is dropped'}`;
    const wrong = cases.filter((_, at) => arrived[at] !== wanted[at]);
    expect(wrong.map((each) => text(each, arrived[cases.indexOf(each)]))).toEqual([]);
    for (const isWanted of wanted) counts[isWanted ? 'allowed' : 'denied']++;
  }
  expect(Math.min(counts.allowed, counts.denied)).toBeGreaterThan(50 * ROUNDS);
});

function idsOf(
  profiles: { readonly ingress?: Profile | undefined; readonly egress?: Profile | undefined } | undefined,
) {
  const { ingress, egress } = profiles ?? {};
  return { ...(ingress && { ingress: ingress.id }), ...(egress && { egress: egress.id }) };
}

const SETS: SetLookup = {
  hasAddress: (set, at) => node.view.sets.get(set)?.has(keyOf({ address: at, sequenceNumber: 0n })) ?? false,
  hasPort: (set, at, protocol, port) =>
    node.view.sets.get(set)?.has(keyOf({ address: at, sequenceNumber: 0n, protocol, port })) ?? false,
};
