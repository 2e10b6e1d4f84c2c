import { createSocket, type Socket } from 'node:dgram';
import { once } from 'node:events';

import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import {
  VXLAN_PORT,
  type ClusterNode,
  type ClusterPool,
  type ClusterView,
  type Encapsulation,
} from '../cluster/cluster.js';
import { TunnelGuard } from '../filters/tunnel-guard.js';
import { VXLAN_DEVICE, VXLAN_VNI } from '../routes/wanted.js';
import { IPIP, ipPacket, send, udpPacket, vxlanData } from '../testing/frames.js';
import { addPod, cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { reconcilerOptions, prefix, RecordedEvents, until, kernelNft } from '../testing/nft.js';
import { address } from '../testing/pods.js';

/** The node and its subnet: another node, `node-b`, and an unknown host. Both are one namespace that sends the test's packets. */

const NODE = { 4: '192.0.2.1', 6: '2001:db8::1' } as const;
const NODE_B = { 4: '192.0.2.2', 6: '2001:db8::2' } as const;
const STRANGER = { 4: '192.0.2.9', 6: '2001:db8::9' } as const;
const POOLS = { 4: '10.65.0.0/16', 6: 'fd65::/48' } as const;
const FAMILIES = [4, 6] as const;
const MAC = '66:11:22:33:44:55';
const ALL = { blocks: 'all', hasOtherChanges: true } as const;

function clusterNode(name: string, addresses: Readonly<Record<4 | 6, string>>): [string, ClusterNode] {
  const of = (family: 4 | 6) => {
    const own = address(addresses[family]);
    return { address: own, subnet: { ...own, length: family === 4 ? 24 : 64 } };
  };
  const none = { vxlanIpv4: undefined, vxlanIpv6: undefined, ipip: undefined, asNumber: undefined };
  return [name, { name, ipv4: of(4), ipv6: of(6), ...none }];
}

/** Node `a`, whose pods of both families are encapsulated, among these. */
function view(nodes: readonly string[], encapsulation: Encapsulation = 'vxlan'): ClusterView {
  const addresses: Readonly<Record<string, Readonly<Record<4 | 6, string>>>> = { a: NODE, b: NODE_B };
  const pools = FAMILIES.map((family): [string, ClusterPool] => {
    const rest = { natOutgoing: false, loadBalancerOnly: false };
    return [`pods-${family}`, { name: `pods-${family}`, cidr: prefix(POOLS[family]), encapsulation, ...rest }];
  });
  const known = nodes.map((name) => clusterNode(name, addresses[name] ?? STRANGER));
  return {
    self: 'a',
    isDatastoreLocked: false,
    cluster: { nodes: new Map(known), pools: new Map(pools), blocks: new Map() },
  };
}

const services: Socket[] = [];
let received: string[];
let nodeMac: string;
let guard: TunnelGuard;
let events: RecordedEvents;

const written = (count: number) =>
  until(() => events.lines.filter((line) => line.includes('written')).length === count);

beforeEach(() => {
  requireThrowawayNamespace();
  addPod('subnet');
  run('ip', 'link', 'add', 'uplink', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', 'subnet');
  run('ip', 'link', 'set', 'uplink', 'up');
  run('ip', '-n', 'subnet', 'link', 'set', 'eth0', 'up');
  nodeMac = /link\/ether (\S+)/.exec(run('ip', 'link', 'show', 'uplink'))?.[1] ?? '';
  for (const family of FAMILIES) {
    const nodad = family === 6 ? ['nodad'] : [];
    run('ip', 'address', 'add', `${NODE[family]}/${family === 4 ? 24 : 64}`, 'dev', 'uplink', ...nodad);
    const device = VXLAN_DEVICE[family];
    const options = ['id', String(VXLAN_VNI), 'dstport', String(VXLAN_PORT), 'local', NODE[family], 'nolearning'];
    run('ip', 'link', 'add', device, 'address', MAC, 'type', 'vxlan', ...options);
    run('ip', 'link', 'set', device, 'up');
  }
  events = new RecordedEvents();
  guard = new TunnelGuard({ nft: kernelNft(), events, clock: systemClock, random: () => 0.5 });
});

afterEach(async () => {
  for (const service of services.splice(0)) service.close();
  await guard.stop();
  for (const family of FAMILIES) run('ip', 'link', 'delete', VXLAN_DEVICE[family]);
  cleanUp();
});

async function serve(family: 4 | 6): Promise<number> {
  received = [];
  const service = createSocket(`udp${family}`).on('message', (data) => received.push(data.toString()));
  services.push(service);
  service.bind(0, NODE[family]);
  await once(service, 'listening');
  return service.address().port;
}

/** The tunnel packets of both that arrive, in order: marker packets are sent after them. */
async function arrivals(family: 4 | 6, port: number): Promise<string[]> {
  received.splice(0);
  const destination = NODE[family];
  const inside = { source: family === 4 ? '10.65.9.9' : 'fd65::9:9', destination, port };
  const packets = [NODE_B, STRANGER].map((from) =>
    udpPacket({
      source: from[family],
      destination,
      port: VXLAN_PORT,
      data: vxlanData(VXLAN_VNI, MAC, udpPacket({ ...inside, data: from[family] })),
    }),
  );
  send('subnet', [...packets, udpPacket({ source: STRANGER[family], destination, port, data: 'last' })], nodeMac);
  await until(() => received.includes('last'));
  return received.filter((data) => data !== 'last');
}

describe.each(FAMILIES)('IPv%i: packets in VXLAN', (family) => {
  test('are accepted from known nodes only, as nodes come and go', async () => {
    const port = await serve(family);
    const both = [NODE_B[family], STRANGER[family]];
    expect(await arrivals(family, port)).toEqual(both);
    guard.follow(view(['a']), ALL);
    await written(1);
    expect(await arrivals(family, port)).toEqual([]);
    guard.follow(view(['a', 'b']), ALL);
    await written(2);
    expect(await arrivals(family, port)).toEqual([NODE_B[family]]);
    guard.follow(view(['a', 'b', 'c']), ALL);
    await written(3);
    expect(await arrivals(family, port)).toEqual(both);
    guard.follow(view(['a', 'c']), ALL);
    await written(4);
    expect(await arrivals(family, port)).toEqual([STRANGER[family]]);
    expect(events.lines.map((line) => line.replace(/^.*: /, ''))).toEqual(['found', 'wanted', 'wanted', 'wanted']);
  });

  test('are left to other programs where no pool is encapsulated', async () => {
    const port = await serve(family);
    guard.follow(view(['a']), ALL);
    await written(1);
    guard.follow(view(['a'], 'none'), ALL);
    await written(2);
    expect(run('nft', 'list', 'ruleset')).toBe('');
    expect(await arrivals(family, port)).toEqual([NODE_B[family], STRANGER[family]]);
  });
});

test('packets in IPIP are accepted from known nodes only', async () => {
  const port = await serve(4);
  guard.follow(view(['a', 'b'], 'ipip-cross-subnet'), ALL);
  await written(1);
  run(
    'nft',
    'table inet witness { chain in { type filter hook input priority 10; meta l4proto 4 ip saddr 192.0.2.0/24 counter; }; }',
  );
  const destination = NODE[4];
  const packets = [NODE_B[4], STRANGER[4]].map((source) =>
    ipPacket({ source, destination, protocol: IPIP, payload: Buffer.alloc(40, 0x45) }),
  );
  send('subnet', [...packets, udpPacket({ source: STRANGER[4], destination, port, data: 'last' })], nodeMac);
  await until(() => received.includes('last'));
  expect(run('nft', 'list', 'table', 'inet', 'witness')).toContain('counter packets 1 ');
  expect(run('nft', '-n', 'list', 'table', 'inet', 'podwire_tunnels')).toContain('meta l4proto 4 counter packets 1 ');
});

test('the earlier rules stay until the cluster is known, and the next start keeps them', async () => {
  guard.follow(view(['a', 'b']), ALL);
  await written(1);
  await guard.stop();
  const before = run('nft', '-a', 'list', 'ruleset');
  const next = reconcilerOptions(kernelNft());
  const another = new TunnelGuard(next.options);
  expect(run('nft', '-a', 'list', 'ruleset')).toBe(before);
  another.follow(view(['a', 'b']), ALL);
  await another.stop();
  expect(run('nft', '-a', 'list', 'ruleset')).toBe(before);
  expect(next.events.takeLines()).toEqual([]);
});
