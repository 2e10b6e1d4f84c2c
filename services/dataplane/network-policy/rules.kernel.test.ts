import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { firstPacket, ICMP, ICMPV6, SCTP, TCP, UDP, unreachable } from '../testing/frames.js';
import { cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { kernelNft, until } from '../testing/nft.js';
import { accept, denied, message, network, podMessage, profile } from '../testing/network-policy/policies.js';
import { PolicyNode, policyPod } from '../testing/network-policy/policy-node.js';
import {
  NODE_ADDRESSES,
  OUTSIDE,
  PODS,
  Prober,
  wireEnds,
  type ProbedEnd,
} from '../testing/network-policy/policy-pods.js';

/** Packets that the table lets pass besides the rules of policies, in both families; the oracle's test compares the rules. */

const FAMILIES = [4, 6] as const;
const [A, B, C] = [PODS[0]!, PODS[1]!, PODS[2]!];
const ENDS = [A, B, C, OUTSIDE];

let prober: Prober;
let node: PolicyNode;

/** Connection tracking outlives a test, so no test uses the ports of another. */
let port = 2000;

/** A new connection, with ports that no other one has. */
function packetOf(from: ProbedEnd, to: ProbedEnd, family: 4 | 6, protocol: number = UDP): Buffer {
  const ends = { source: from.addresses[family], destination: to.addresses[family] };
  return firstPacket({ ...ends, protocol, sourcePort: port++, port: 80 });
}

async function passes(from: ProbedEnd, to: ProbedEnd, packet: Buffer): Promise<boolean> {
  const [isArrived = false] = await prober.send([{ from: from.name, to: to.name, packet }]);
  return isArrived;
}

/** Whether new connections pass, by protocol. */
const connects = (from: ProbedEnd, to: ProbedEnd, family: 4 | 6, ...protocols: readonly number[]) =>
  prober.send(protocols.map((each) => ({ from: from.name, to: to.name, packet: packetOf(from, to, family, each) })));

/** The reply to the first packet of a connection with ports. */
function reply(from: ProbedEnd, to: ProbedEnd, family: 4 | 6, packet: Buffer, protocol = UDP): Buffer {
  const payload = packet.subarray(family === 4 ? 20 : 40);
  const [sourcePort, destinationPort] = [payload.readUInt16BE(2), payload.readUInt16BE(0)];
  const ends = { source: from.addresses[family], destination: to.addresses[family] };
  return firstPacket({ ...ends, protocol, sourcePort, port: destinationPort });
}

beforeEach(async () => {
  requireThrowawayNamespace();
  wireEnds(ENDS);
  prober = new Prober(ENDS.map(({ name }) => name));
  node = new PolicyNode({ nft: kernelNft() });
  await node.filter.start([]);
  for (const { name, device, addresses } of [A, B])
    await node.filter.install(policyPod(name, device, Object.values(addresses)));
});

afterEach(async () => {
  await node.filter.stop();
  await prober.stop();
  cleanUp();
});

/** Pod a may send, and receives nothing; pod b has no policy. */
const receiveNothing = () =>
  node.receiveSnapshot(
    message({
      isComplete: true,
      profiles: [denied('in', 'ingress')],
      pods: [podMessage(A.name, { ingress: 'in' }), podMessage(B.name, {})],
      namespaces: ['default'],
    }),
  );

/** Pods a and b may neither receive nor send. */
const isolateBoth = () =>
  node.receiveSnapshot(
    message({
      isComplete: true,
      profiles: [denied('in', 'ingress'), denied('out', 'egress')],
      pods: [A, B].map(({ name }) => podMessage(name, { ingress: 'in', egress: 'out' })),
      namespaces: ['default'],
    }),
  );

describe.each(FAMILIES)('IPv%i', (family) => {
  const icmp = family === 4 ? ICMP : ICMPV6;

  test('rule 2: a pod is isolated by direction, and both ends must allow a connection', async () => {
    await receiveNothing();
    expect(await connects(A, B, family, TCP, UDP, SCTP, icmp)).toEqual([true, true, true, true]);
    expect(await connects(B, A, family, TCP, UDP, SCTP, icmp)).toEqual([false, false, false, false]);
    expect(await connects(OUTSIDE, A, family, TCP)).toEqual([false]);
  });

  test('rule 9: replies of an allowed connection pass, and other packets of that end do not', async () => {
    await receiveNothing();
    const packet = packetOf(A, B, family);
    expect(await passes(A, B, packet)).toBe(true);
    expect(await passes(B, A, reply(B, A, family, packet))).toBe(true);
    expect(await connects(B, A, family, UDP)).toEqual([false]);
  });

  test('rule 9: related ICMP passes', async () => {
    const errorAbout = (about: Buffer) =>
      unreachable({ source: B.addresses[family], destination: A.addresses[family], about });
    await receiveNothing();
    const packet = packetOf(A, B, family);
    expect(await passes(A, B, packet)).toBe(true);
    expect(await passes(B, A, errorAbout(packet))).toBe(true);
    expect(await passes(B, A, errorAbout(packetOf(A, B, family)))).toBe(false);
  });

  test('rule 9: an ICMP error of a pod with policies passes if it is about a connection of its own', async () => {
    const errorOfA = (to: ProbedEnd, about: Buffer) =>
      unreachable({ source: A.addresses[family], destination: to.addresses[family], about });
    await node.receiveSnapshot(
      message({
        isComplete: true,
        profiles: [denied('out', 'egress')],
        pods: [podMessage(A.name, { egress: 'out' }), podMessage(B.name, {})],
        namespaces: ['default'],
      }),
    );
    const own = packetOf(OUTSIDE, A, family);
    expect(await passes(OUTSIDE, A, own)).toBe(true);
    expect(await passes(A, OUTSIDE, errorOfA(OUTSIDE, own))).toBe(true);
    // The kernel tracks these connections too, and does not compare the error's source with them.
    const toNode = packetOf(OUTSIDE, { ...A, addresses: NODE_ADDRESSES }, family);
    await passes(OUTSIDE, OUTSIDE, toNode);
    expect(await passes(A, OUTSIDE, errorOfA(OUTSIDE, toNode))).toBe(false);
    const ofB = packetOf(B, OUTSIDE, family);
    expect(await passes(B, OUTSIDE, ofB)).toBe(true);
    expect(await passes(A, B, errorOfA(B, ofB))).toBe(false);
  });

  test('rule 10: the node reaches an isolated pod, and the pod the node; other nodes do not', async () => {
    await isolateBoth();
    const before = receivedBytes();
    run('python3', '-c', SEND_UDP, A.addresses[family]);
    await until(() => receivedBytes() > before);
    expect(await connects(OUTSIDE, A, family, UDP)).toEqual([false]);
    run(
      'nft',
      `add table inet seen; add chain inet seen input { type filter hook input priority 1; udp dport 80 counter; }`,
    );
    const self = { ...A, addresses: NODE_ADDRESSES };
    await passes(A, A, packetOf(A, self, family));
    expect(run('nft', 'list', 'table', 'inet', 'seen')).toMatch(/counter packets 1 /);
  });

  test('rule 11: an isolated pod reaches itself through a service', async () => {
    await isolateBoth();
    const service = { 4: '10.96.0.1', 6: 'fd00:96::1' } as const;
    const [ip, to] = family === 4 ? ['ip', A.addresses[4]] : ['ip6', A.addresses[6]];
    run('nft', `add table ${ip} svc; add chain ${ip} svc pre { type nat hook prerouting priority -100; }`);
    run('nft', `add rule ${ip} svc pre ${ip} daddr ${service[family]} dnat to ${to}`);
    const packet = packetOf(A, { ...A, addresses: service }, family, SCTP);
    // A router that translates sends UDP and TCP with another checksum; SCTP has none of the addresses.
    expect(await passes(A, A, packet)).toBe(true);
    expect(await passes(B, A, packetOf(B, { ...A, addresses: service }, family, SCTP))).toBe(false);
  });

  test('rule 15: a pod whose interface is not known yet neither sends nor receives', async () => {
    await receiveNothing();
    expect(await connects(C, B, family, UDP)).toEqual([false]);
    expect(await connects(B, C, family, UDP)).toEqual([false]);
    await node.filter.install({ ...policyPod(C.name, C.device), pod: { namespace: 'open', name: 'c', uid: '' } });
    expect(await connects(C, B, family, UDP)).toEqual([true]);
    expect(await connects(B, C, family, UDP)).toEqual([true]);
  });

  test('rule 16: a segment of a connection that is not tracked passes no pod with policies', async () => {
    const segment = (from: ProbedEnd, to: ProbedEnd) => {
      const packet = packetOf(from, to, family, TCP);
      const at = family === 4 ? 20 : 40;
      // ACK instead of SYN; the checksum changes with it.
      packet.writeUInt8(0x10, at + 13);
      packet.writeUInt16BE((packet.readUInt16BE(at + 16) - 0x10 + 0x02 + 0xff_ff) % 0xff_ff, at + 16);
      return packet;
    };
    await receiveNothing();
    expect(await passes(B, OUTSIDE, segment(B, OUTSIDE))).toBe(true);
    expect(await passes(A, OUTSIDE, segment(A, OUTSIDE))).toBe(false);
    expect(await passes(B, A, segment(B, A))).toBe(false);
    expect(await connects(A, OUTSIDE, family, TCP)).toEqual([true]);
  });

  test('rule 16: a connection that has replies passes until connection tracking forgets it', async () => {
    await node.receiveSnapshot(message({ isComplete: true, namespaces: [] }));
    const packet = packetOf(B, A, family);
    expect(await passes(B, A, packet)).toBe(true);
    expect(await passes(A, B, reply(A, B, family, packet))).toBe(true);
    await isolateBoth();
    expect(await passes(B, A, packet)).toBe(true);
    expect(await connects(B, A, family, UDP)).toEqual([false]);
  });

  test('invalid packets from and to pods are dropped, and SCTP is judged by its rules', async () => {
    await node.receiveSnapshot(message({ isComplete: true, namespaces: [] }));
    const invalid = (from: ProbedEnd, to: ProbedEnd, protocol: number) => {
      const packet = packetOf(from, to, family, protocol);
      // A wrong checksum.
      packet.writeUInt8(packet.readUInt8(packet.length - 1) ^ 1, packet.length - 1);
      return packet;
    };
    expect(await passes(A, B, invalid(A, B, TCP))).toBe(false);
    expect(await passes(OUTSIDE, B, invalid(OUTSIDE, B, TCP))).toBe(false);
    expect(await passes(A, OUTSIDE, invalid(A, OUTSIDE, TCP))).toBe(false);
    expect(await passes(A, B, invalid(A, B, SCTP))).toBe(true);
    await isolateBoth();
    expect(await passes(A, B, invalid(A, B, SCTP))).toBe(false);
  });
});

test('rule 19: an isolated pod and its node discover each other, and no such message passes the node', async () => {
  await isolateBoth();
  for (const type of [133, 134, 135, 136, 137]) {
    const packet = packetOf(A, OUTSIDE, 6, ICMPV6);
    // The checksum changes with the type.
    packet.writeUInt8(type, 40);
    packet.writeUInt16BE((packet.readUInt16BE(42) - ((type - 128) << 8) + 0x1_ff_fe) % 0xff_ff, 42);
    expect(await passes(A, OUTSIDE, packet)).toBe(false);
  }
  run('ip', 'netns', 'exec', A.name, 'nft', 'flush', 'ruleset');
  run('ip', 'neigh', 'delete', A.addresses[6], 'dev', A.device);
  const before = receivedBytes();
  run('python3', '-c', SEND_UDP, A.addresses[6]);
  await until(() => receivedBytes() > before);
});

test('rules are counted with the name of their policy', async () => {
  const policy = `NetworkPolicy default/${'a'.repeat(200)}`;
  const rules = [accept({ policy, peers: { sets: [], networks: [network('10.65.0.2/32')] } })];
  const profiles = [profile({ id: 'counted', direction: 'ingress', isolatedBy: [policy], rules })];
  const pods = [podMessage(A.name, { ingress: 'counted' }), podMessage(B.name, {})];
  await node.receiveSnapshot(message({ isComplete: true, profiles, pods, namespaces: ['default'] }));
  expect(await connects(B, A, 4, UDP)).toEqual([true]);
  expect(await connects(OUTSIDE, A, 4, UDP)).toEqual([false]);
  const chain = run('nft', 'list', 'chain', 'inet', 'podwire_policy', 'i-counted');
  expect(chain).toMatch(/saddr 10\.65\.0\.2 counter packets 1 .* return comment "NetworkPolicy default\/a+\.\.\."/);
  expect(chain).toMatch(/counter packets 1 .* drop comment/);
});

const SEND_UDP = `
import socket, sys
for info in socket.getaddrinfo(sys.argv[1], 80, type=socket.SOCK_DGRAM): socket.socket(info[0], socket.SOCK_DGRAM).sendto(b'x' * 900, info[4])
`;

/** Bytes that pod a has received. */
const receivedBytes = (): number =>
  Number(run('ip', 'netns', 'exec', A.name, 'cat', '/sys/class/net/eth0/statistics/rx_bytes')) >> 9;
