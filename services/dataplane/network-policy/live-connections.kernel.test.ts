import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { NetlinkConnections } from '../kernel/connections.js';
import type { NetlinkNft } from '../kernel/netlink-nft.js';
import { cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { connectEnds, LiveEnds, NODE } from '../testing/network-policy/live-ends.js';
import { kernelNft, until } from '../testing/nft.js';
import { accept, denied, member, message, podMessage, profile, wholeSet } from '../testing/network-policy/policies.js';
import { PolicyNode, policyPod } from '../testing/network-policy/policy-node.js';
import { NODE_ADDRESSES, OUTSIDE, PODS, wireEnds } from '../testing/network-policy/policy-pods.js';

/** Open connections of sockets through the table and translations, while policies change. */

const [A, B, C] = [PODS[0]!, PODS[1]!, PODS[2]!];
const ENDS = [A, B, C, OUTSIDE];
const VIP = { 4: '10.96.0.1', 6: 'fd00:96::1' } as const;
const SERVICE_PORT = 80;

/** Time in which an open connection transfers dozens of numbers. */
const PAUSE_MS = 400;

let ends: LiveEnds;
let nft: NetlinkNft;
let nodes: PolicyNode[];
let connections: NetlinkConnections;

beforeEach(() => {
  requireThrowawayNamespace();
  // Entries of the tests before.
  run('conntrack', '-F');
  wireEnds(ENDS);
  connectEnds(ENDS);
  ends = new LiveEnds();
  nft = kernelNft();
  connections = new NetlinkConnections();
  nodes = [];
});

afterEach(async () => {
  for (const node of nodes) await node.filter.stop();
  await Promise.all([nft.close(), connections.close(), ends.stop()]);
  cleanUp();
});

async function start(recordsDirectory?: string): Promise<PolicyNode> {
  const node = new PolicyNode({ nft, connections, ...(recordsDirectory !== undefined && { recordsDirectory }) });
  nodes.push(node);
  const pods = [A, B, C].map(({ name, device, addresses }) => policyPod(name, device, Object.values(addresses)));
  await node.filter.start(recordsDirectory === undefined ? [] : pods);
  for (const pod of pods) await node.filter.install(pod);
  return node;
}

/** No pod has a policy. */
const OPEN = message({
  isComplete: true,
  pods: [A, B, C].map(({ name }) => podMessage(name, {})),
  namespaces: ['default'],
});

/** Pod a receives from pod b alone, at one port; the other pods have these profiles. */
function onlyB(port: number, rest: { readonly ingress?: string; readonly egress?: string } = {}) {
  const peers = { sets: ['a-b'], networks: [] };
  const ports = { ranges: [6, 17].map((protocol) => ({ protocol, first: port, last: port })), sets: [] };
  const rules = [accept({ peers, ports })];
  return message({
    isComplete: true,
    profiles: [
      profile({ id: 'from-b', direction: 'ingress', isolatedBy: ['NetworkPolicy default/from-b'], rules }),
      denied('out', 'egress'),
      denied('in', 'ingress'),
    ],
    sets: [wholeSet('a-b', Object.values(B.addresses))],
    pods: [podMessage(A.name, { ingress: 'from-b' }), podMessage(B.name, {}), podMessage(C.name, rest)],
    namespaces: ['default'],
  });
}

/** Translates the service's address and port to pod a, also for the node itself. */
function translate(family: 4 | 6, port: number): void {
  const ip = family === 4 ? 'ip' : 'ip6';
  for (const hook of ['prerouting', 'output']) {
    run('nft', `add table ${ip} svc; add chain ${ip} svc ${hook} { type nat hook ${hook} priority -100; }`);
    for (const protocol of ['tcp', 'udp']) {
      const matches = `${ip} daddr ${VIP[family]} ${protocol} dport ${SERVICE_PORT}`;
      run(
        'nft',
        `add rule ${ip} svc ${hook} ${matches} dnat to ${A.addresses[family]}:${port}`.replace(
          /(fd\S+):(\d+)$/,
          '[$1]:$2',
        ),
      );
    }
  }
  run('ip', 'route', 'replace', VIP[family], 'dev', OUTSIDE.device);
}

const pause = () => new Promise((resolve) => setTimeout(resolve, PAUSE_MS));

/** The connections over which something arrives. */
async function live(): Promise<string[]> {
  const before = await ends.counts();
  await pause();
  const after = await ends.counts();
  const received = (counts: typeof after, name: string) => counts[name]!.map(([, count]) => count);
  return Object.keys(after).filter((name) => String(received(before, name)) !== String(received(after, name)));
}

/** Waits until these connections alone are live. */
const untilLive = (...names: readonly string[]) => expect.poll(live, { timeout: 20_000 }).toEqual([...names]);

/** Entries of connection tracking with these clients' ports, with their IDs. */
function entries(family: 4 | 6, ports: readonly number[]): string[] {
  const lines = run('conntrack', '-L', '-o', 'id', '-f', family === 4 ? 'ipv4' : 'ipv6').split('\n');
  const ofPorts = lines.filter((line) => ports.some((port) => line.includes(` sport=${port} dport=`)));
  return ofPorts.map((line) => `${/src=\S+ dst=\S+ sport=\d+/.exec(line)?.[0]} ${/id=\d+/.exec(line)?.[0]}`).toSorted();
}

/** Numbers that did not arrive over connections of datagrams. */
async function lost(...names: readonly string[]): Promise<number> {
  await ends.quiet();
  await pause();
  const counts = await ends.counts();
  return names
    .map((name) => counts[name]!)
    .reduce((sum, [[sent, received], [back, arrived]]) => sum + sent - arrived + back - received, 0);
}

describe.each([4, 6] as const)('IPv%i', (family) => {
  const port = 8080;
  const via = { address: VIP[family], port: SERVICE_PORT };

  test('a policy ends forbidden connections, whichever end sends, and the allowed ones go on without loss', async () => {
    translate(family, port);
    const node = await start();
    await node.receiveSnapshot(OPEN);
    const common = { family, server: A, port } as const;
    const allowed = [
      await ends.connect('allowed tcp', { ...common, kind: 'tcp', client: B }),
      await ends.connect('allowed tcp of the service', { ...common, kind: 'tcp', client: B, via, port }),
      await ends.connect('allowed udp of the service', { ...common, kind: 'udp', client: B, via }),
    ];
    for (const [name, client] of [
      ['pod', C],
      ['outside', OUTSIDE],
    ] as const) {
      await ends.connect(`${name}, server sends`, { ...common, kind: 'tcp', client, senders: ['server'] });
      await ends.connect(`${name}, client sends`, { ...common, kind: 'tcp', client, senders: ['client'] });
      await ends.connect(`${name}, service`, { ...common, kind: 'tcp', client, via, senders: ['server'] });
    }
    await ends.connect('forbidden port', { ...common, kind: 'tcp', client: B, port: 9000 });
    await ends.connect('forbidden udp', { ...common, kind: 'udp', client: C, port: 9001, senders: ['client'] });
    await ends.connect('another pod', { ...common, kind: 'tcp', client: C, server: B });
    expect(await live()).toHaveLength(12);
    const before = entries(family, allowed);
    expect(before).toHaveLength(3);
    await node.receiveSnapshot(onlyB(port));
    await untilLive('allowed tcp', 'allowed tcp of the service', 'allowed udp of the service', 'another pod');
    expect(node.events.lines.filter((line) => line.endsWith('ended'))).toEqual(['8 connections ended']);
    expect(entries(family, allowed)).toEqual(before);
    expect(await lost('allowed udp of the service')).toBe(0);
  });

  test('an egress policy of the client ends connections that only the server uses', async () => {
    const node = await start();
    await node.receiveSnapshot(OPEN);
    const common = { family, kind: 'tcp', port, client: C, senders: ['server'] } as const;
    await ends.connect('outside', { ...common, server: OUTSIDE });
    await ends.connect('pod', { ...common, server: B });
    await ends.connect('from outside', { ...common, client: OUTSIDE, server: C });
    await node.receiveSnapshot(onlyB(port, { egress: 'out' }));
    await untilLive('from outside');
  });

  test('a member that leaves a set loses its connections, and no other one', async () => {
    const node = await start();
    const common = { family, kind: 'tcp', server: A, port } as const;
    const both = {
      ...onlyB(port),
      sets: [
        wholeSet(
          'a-b',
          [B, C].map(({ addresses }) => addresses[family]),
        ),
      ],
    };
    await node.receiveSnapshot(both);
    await ends.connect('b', { ...common, client: B });
    await ends.connect('c', { ...common, client: C });
    const set = { id: 'a-b', isWhole: false, added: [], removed: [member(C.addresses[family])] };
    await node.receive(message({ sets: [set] }));
    await untilLive('b');
  });

  test('connections of the node itself and of a pod with itself go on, with their translation', async () => {
    translate(family, port);
    const node = await start();
    await node.receiveSnapshot(OPEN);
    run('nft', 'add table inet hairpin; add chain inet hairpin post { type nat hook postrouting priority 100; }');
    run('nft', 'add rule inet hairpin post ct status dnat iifname podwa oifname podwa masquerade');
    const common = { family, kind: 'tcp', server: A, port } as const;
    const clients = [
      await ends.connect('node', { ...common, client: NODE }),
      await ends.connect('node, service', { ...common, client: NODE, via }),
      await ends.connect('self', { ...common, client: A, via }),
      await ends.connect('to node', {
        ...common,
        client: A,
        server: NODE,
        via: { address: NODE_ADDRESSES[family], port },
      }),
    ];
    await ends.connect('forbidden', { ...common, client: B });
    const before = entries(family, clients);
    const isolated = { profiles: [denied('in', 'ingress'), denied('out', 'egress')], namespaces: ['default'] };
    const pods = [podMessage(A.name, { ingress: 'in', egress: 'out' }), podMessage(B.name, {}), podMessage(C.name, {})];
    await node.receiveSnapshot(message({ isComplete: true, ...isolated, pods }));
    await untilLive('node', 'node, service', 'self', 'to node');
    expect(entries(family, clients)).toEqual(before);
  });

  test('datagrams go on in the opposite direction if that is allowed', async () => {
    const node = await start();
    await node.receiveSnapshot(OPEN);
    await ends.connect('udp', { family, kind: 'udp', client: C, server: A, port, senders: ['server'] });
    await node.receiveSnapshot(onlyB(port));
    await until(() => node.events.lines.includes('1 connections ended'));
    expect(await live()).toEqual(['udp']);
    await node.receiveSnapshot(onlyB(port, { ingress: 'in' }));
    await untilLive();
  });
});

test('after a restart the first snapshot ends connections that are forbidden since, and nothing ends before', async () => {
  const first = await start();
  await first.receiveSnapshot(OPEN);
  const common = { family: 4, kind: 'tcp', server: A, port: 8080 } as const;
  await ends.connect('b', { ...common, client: B });
  await ends.connect('c', { ...common, client: C });
  await first.filter.stop();
  const lost = await start();
  await pause();
  expect(await live()).toEqual(['b', 'c']);
  await lost.filter.stop();
  const node = await start(first.recordsDirectory);
  await pause();
  expect(await live()).toEqual(['b', 'c']);
  await node.receiveSnapshot(onlyB(8080));
  await untilLive('b');
});

test('connections that began while the table was lost end when it is back', async () => {
  const node = await start();
  await node.receiveSnapshot(onlyB(8080));
  await nft.apply([{ delete: { table: { family: 'inet', name: 'podwire_policy' } } }]);
  // The entry exists when the table is back, as if a packet had passed in between.
  const flow = ['-s', C.addresses[4], '-d', A.addresses[4], '-p', 'tcp', '--sport', '999', '--dport', '8080'];
  run('conntrack', '-I', ...flow, '--state', 'ESTABLISHED', '-t', '100', '-u', 'ASSURED,SEEN_REPLY');
  await until(() => node.events.lines.includes('1 connections ended'));
});

test('a pod that gets the address of an earlier pod receives nothing over its connections', async () => {
  const node = await start();
  await node.receiveSnapshot(onlyB(8080, { ingress: 'in', egress: 'out' }));
  const common = { family: 4, kind: 'udp', client: OUTSIDE, port: 8080, senders: ['client'] } as const;
  await ends.connect('earlier', { ...common, server: B });
  await node.filter.forget(B.device);
  await until(() => node.events.lines.includes('1 connections ended'));
  await node.filter.install(policyPod(C.name, B.device, Object.values(B.addresses)));
  const received = async () => (await ends.counts()).earlier?.[1][1];
  const before = await received();
  await pause();
  expect(await received()).toBe(before);
});
