import { formatAddress } from '@podwire/shared/net/address';
import { Failure } from '@podwire/shared/failure/failure';
import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { NetlinkPacketLog } from '../kernel/packet-log.js';
import type { Nft } from '../nft/nft.js';
import { firstPacket, ICMP, ICMPV6, TCP, UDP } from '../testing/frames.js';
import { cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { kernelNft, until } from '../testing/nft.js';
import { accept, denied, message, network, podMessage, profile } from '../testing/network-policy/policies.js';
import { PolicyNode, policyPod } from '../testing/network-policy/policy-node.js';
import { OUTSIDE, PODS, Prober, wireEnds, type ProbedEnd } from '../testing/network-policy/policy-pods.js';
import { messageOfDrop, PolicyDrops, type PolicyDrop } from './drops.js';

/** Packets that the real table drops, as the node reports them. */

const [A, B, C] = [PODS[0]!, PODS[1]!, PODS[2]!];
const ENDS = [A, B, C, OUTSIDE];

let prober: Prober;
let node: PolicyNode;
let drops: PolicyDrops;
let lines: string[];

function start(nft: Nft): void {
  node = new PolicyNode({ nft });
  lines = [];
  const events = {
    packetDropped: (_: object, text: string) => lines.push(text),
    dropsNotFollowed: (error: unknown) => lines.push(String(error)),
  };
  const { filter, view } = node;
  const packets = new NetlinkPacketLog(systemClock);
  drops = new PolicyDrops({ packets, filter, view, events, clock: systemClock, random: () => 0.5 });
  drops.start();
}

beforeEach(() => {
  requireThrowawayNamespace();
  wireEnds(ENDS);
  prober = new Prober(ENDS.map(({ name }) => name));
  start(kernelNft());
});

afterEach(async () => {
  await drops.stop();
  await node.filter.stop();
  await prober.stop();
  cleanUp();
});

async function installPods(): Promise<void> {
  await node.filter.start([]);
  for (const { name, device } of [A, B]) await node.filter.install(policyPod(name, device));
}

interface Sent {
  readonly from: ProbedEnd;
  readonly to: ProbedEnd;
  readonly family?: 4 | 6;
  readonly protocol?: number;
  readonly port?: number;
  readonly isLater?: boolean;
}

let sourcePort = 3000;

function probe({ from, to, family = 4, protocol = UDP, port = 80, isLater = false }: Sent) {
  const ends = { source: from.addresses[family], destination: to.addresses[family] };
  const packet = firstPacket({ ...ends, protocol, sourcePort: sourcePort++, port, isLater });
  return { from: from.name, to: to.name, packet };
}

/** Sends packets, and waits until all are reported. None may arrive. */
async function dropped(...sent: readonly Sent[]): Promise<readonly PolicyDrop[]> {
  const before = drops.latestNumber;
  expect(await prober.send(sent.map(probe))).toEqual(sent.map(() => false));
  await until(() => drops.latestNumber >= before + sent.length);
  return drops.list(before);
}

function textOf(drop: PolicyDrop): string {
  const { direction, source, destination, protocol, ports, sourcePod, destinationPod } = drop;
  const port = ports ? ` port ${ports.destination}` : '';
  const pods = `${sourcePod?.name ?? 'outside'} > ${destinationPod?.name ?? 'outside'}`;
  const ends = `${formatAddress(source)} > ${formatAddress(destination)}`;
  return `${direction} ${pods} ${ends} protocol ${protocol}${port}: ${messageOfDrop(drop)}`;
}

/** Pod a sends only to 10.65.0.9, and receives nothing from pod c; pod b receives nothing from the administrator's networks. */
const POLICIES = message({
  isComplete: true,
  profiles: [
    profile({
      id: 'a-out',
      direction: 'egress',
      isolatedBy: ['NetworkPolicy default/a', 'NetworkPolicy default/all'],
      rules: [accept({ peers: { sets: [], networks: [network('10.65.0.9/32')] } })],
    }),
    profile({
      id: 'b-in',
      direction: 'ingress',
      admin: [
        accept({ peers: { sets: [], networks: [network('10.65.0.0/24')] } }),
        accept({
          policy: 'ClusterNetworkPolicy closed',
          action: 'deny',
          ports: { ranges: [{ protocol: UDP, first: 80, last: 80 }], sets: [] },
        }),
      ],
      baseline: [accept({ policy: 'ClusterNetworkPolicy last', action: 'deny' })],
    }),
  ],
  pods: [podMessage(A.name, { egress: 'a-out' }), podMessage(B.name, { ingress: 'b-in' })],
  namespaces: ['default'],
});

describe.each([4, 6] as const)('IPv%i', (family) => {
  const [a, b, outside] = [A, B, OUTSIDE].map(({ addresses }) => addresses[family]);
  const icmp = family === 4 ? ICMP : ICMPV6;

  test('egress: the pod, the destination, and the policies that isolate the pod', async () => {
    await installPods();
    await node.receiveSnapshot(POLICIES);
    const found = await dropped(
      { from: A, to: OUTSIDE, family, protocol: TCP, port: 443 },
      { from: A, to: B, family, port: 53 },
      { from: A, to: OUTSIDE, family, protocol: icmp },
    );
    const reason = 'no rule allows it; isolated by NetworkPolicy default/a, NetworkPolicy default/all';
    expect(found.map(textOf)).toEqual([
      `egress pod-a > outside ${a} > ${outside} protocol 6 port 443: ${reason}`,
      `egress pod-a > pod-b ${a} > ${b} protocol 17 port 53: ${reason}`,
      `egress pod-a > outside ${a} > ${outside} protocol ${icmp}: ${reason}`,
    ]);
  });

  test('ingress: the policy whose rule denies', async () => {
    await installPods();
    await node.receiveSnapshot(POLICIES);
    const found = await dropped(
      { from: OUTSIDE, to: B, family },
      { from: OUTSIDE, to: B, family, protocol: TCP },
      { from: OUTSIDE, to: B, family, protocol: TCP, port: 81, isLater: true },
    );
    expect(found.map(textOf)).toEqual([
      `ingress outside > pod-b ${outside} > ${b} protocol 17 port 80: denied by ClusterNetworkPolicy closed`,
      `ingress outside > pod-b ${outside} > ${b} protocol 6 port 80: denied by ClusterNetworkPolicy last`,
      `ingress outside > pod-b ${outside} > ${b} protocol 6 port 81: ${messageOfDrop({ reason: 'connection-not-tracked', policies: [], isFollowed: true })}`,
    ]);
    expect(lines.slice(0, 2)).toEqual([
      `default/pod-b: ingress from ${outside} to ${b}, protocol 17 port 80 dropped: denied by ClusterNetworkPolicy closed`,
      `default/pod-b: ingress from ${outside} to ${b}, protocol 6 port 80 dropped: denied by ClusterNetworkPolicy last`,
    ]);
  });

  test('pods whose policies are not known, and interfaces that are not wired', async () => {
    await installPods();
    const found = await dropped(
      { from: A, to: OUTSIDE, family, protocol: TCP },
      { from: OUTSIDE, to: A, family },
      { from: C, to: OUTSIDE, family },
      { from: OUTSIDE, to: C, family },
    );
    const c = C.addresses[family];
    expect(found.map(textOf)).toEqual([
      `egress pod-a > outside ${a} > ${outside} protocol 6 port 80: its policies are not known yet`,
      `ingress outside > pod-a ${outside} > ${a} protocol 17 port 80: its policies are not known yet`,
      `egress outside > outside ${c} > ${outside} protocol 17 port 80: its interface is not wired`,
      `ingress outside > outside ${outside} > ${c} protocol 17 port 80: its interface is not wired`,
    ]);
  });
});

test('a flood is counted by the rule, and reported as a sample of each pod', async () => {
  await installPods();
  await node.receiveSnapshot(
    message({
      isComplete: true,
      profiles: [denied('out', 'egress')],
      pods: [podMessage(A.name, { egress: 'out' }), podMessage(B.name, { egress: 'out' })],
      namespaces: ['default'],
    }),
  );
  const flood = Array.from({ length: 10_000 }, () => probe({ from: A, to: OUTSIDE }));
  for (let at = 0; at < flood.length; at += 1000) await prober.send(flood.slice(at, at + 1000));
  expect(run('nft', 'list', 'chain', 'inet', 'podwire_policy', 'e-out')).toContain('packets 10000');
  expect(drops.list(0).length).toBeGreaterThanOrEqual(20);
  expect(drops.list(0).length).toBeLessThan(1000);
  // The flood of one pod does not hide a packet of another pod with the same policies.
  await dropped({ from: B, to: OUTSIDE, protocol: TCP });
  await until(() => drops.list(0).some(({ sourcePod }) => sourcePod?.name === B.name));
  expect([drops.lostCount, drops.fault]).toEqual([0, undefined]);
});

test('a kernel without nfnetlink_log enforces the same policies', async () => {
  await drops.stop();
  const own = kernelNft();
  const withoutLog: Nft = {
    read: (name) => own.read(name),
    forwardChains: () => own.forwardChains(),
    apply: (commands) =>
      JSON.stringify(commands).includes('"log":')
        ? Promise.reject(new Failure('KERNEL_REFUSED', 'No such file or directory'))
        : own.apply(commands),
    changeElements: (name, changes) => own.changeElements(name, changes),
    latestTransaction: () => own.latestTransaction(),
    watch: (name, watcher) => own.watch(name, watcher),
  };
  start(withoutLog);
  await installPods();
  await node.receiveSnapshot(POLICIES);
  const sent = [
    { from: A, to: OUTSIDE },
    { from: OUTSIDE, to: B },
    { from: OUTSIDE, to: C },
    { from: B, to: A },
  ];
  expect(await prober.send(sent.map(probe))).toEqual([false, false, false, true]);
  expect(node.events.lines.filter((line) => line.includes('failed'))).toEqual([]);
  expect(drops.fault).toContain('nfnetlink_log');
  expect(drops.list(0)).toEqual([]);
});
