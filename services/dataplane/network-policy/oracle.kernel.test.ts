import { FAMILIES } from '@podwire/shared/net/address';
import { isAllowed, type Connection } from '@podwire/shared/network-policy/evaluate';
import type { Direction, Profile } from '@podwire/shared/network-policy/policy';
import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';

import { firstPacket, ICMP, ICMPV6, SCTP, TCP, UDP } from '../testing/frames.js';
import { cleanUp, requireThrowawayNamespace } from '../testing/kernels.js';
import { kernelNft } from '../testing/nft.js';
import { address, message, podMessage, wholeSet } from '../testing/network-policy/policies.js';
import { PolicyNode, policyPod } from '../testing/network-policy/policy-node.js';
import { OUTSIDE, PODS, Prober, wireEnds, type ProbedEnd } from '../testing/network-policy/policy-pods.js';
import { ADDRESS_SETS, policyState, PORT_SETS, PORTS } from '../testing/network-policy/random-policies.js';

/** Random policies: the kernel's verdict about every connection is the evaluator's. */

const seed = Number(process.env.POLICY_SEED ?? Math.floor(Math.random() * 2 ** 31));
const ROUNDS = Number(process.env.POLICY_ROUNDS ?? 12);

const ENDS = [...PODS, OUTSIDE];

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
    const [drawn] = fc.sample(policyState(round), { seed: seed + round, numRuns: 1 });
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
      isAllowed({ egress: profileAt(from, 'egress'), ingress: profileAt(to, 'ingress') }, connection, node.view),
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
