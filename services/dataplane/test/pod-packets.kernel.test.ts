import { spawn } from 'node:child_process';
import { createSocket, type Socket } from 'node:dgram';
import { once } from 'node:events';

import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { VXLAN_PORT } from '../cluster/cluster.js';
import { SourceGuard } from '../filters/source-guard.js';
import { NetlinkKernel } from '../kernel/pod-kernel.js';
import { Events } from '../pods/events.js';
import { PodWiring } from '../pods/pods.js';
import { VXLAN_DEVICE, VXLAN_VNI } from '../routes/wanted.js';
import { IPIP, ipPacket, ipv4Fragments, send, udpPacket, vxlanData } from '../testing/frames.js';
import { addPod, cleanUp, setNodeForwarding, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { reconcilerOptions, until, kernelNft } from '../testing/nft.js';
import { address, BY_FAMILY, podNetwork, recordingLog, testRegistry } from '../testing/pods.js';
import { GATEWAY } from '../wiring/network.js';

/** Packets to the node that a pod must not send, and that its own kernel would not. */

const NODE = { 4: '198.18.0.1', 6: 'fd99::1' } as const;
const POD = { 4: '10.65.0.7', 6: 'fd65::7' } as const;
const LOOPBACK = { 4: '127.0.0.1', 6: '::1' } as const;
const FAMILIES = [4, 6] as const;

/** MAC address of a tunnel device, which routes derive from the node's name. */
const TUNNEL_MAC = '66:11:22:33:44:55';

/** The source of another pod's packets. */
const OTHER_POD = { 4: '10.65.9.9', 6: 'fd65::9:9' } as const;

const never = () => new AbortController().signal;

let kernel: NetlinkKernel;
let guard: SourceGuard;
let dataplane: PodWiring;
const services: Socket[] = [];

beforeEach(async () => {
  requireThrowawayNamespace();
  for (const family of FAMILIES) run('ip', 'address', 'replace', NODE[family], 'dev', 'lo');
  kernel = await NetlinkKernel.open();
  guard = new SourceGuard(reconcilerOptions(kernelNft()).options);
  await guard.start(new Map());
  dataplane = new PodWiring({
    kernel,
    registry: testRegistry(),
    events: new Events(recordingLog().log),
    filters: [guard],
  });
});

afterEach(async () => {
  for (const service of services.splice(0)) service.close();
  setNodeForwarding('off');
  await guard.stop();
  await kernel.close();
  cleanUp();
});

/** A UDP service of the node. */
async function serve(family: 4 | 6, bound: string) {
  const received: string[] = [];
  const socket = createSocket(`udp${family}`).on('message', (data) => received.push(data.toString()));
  services.push(socket);
  socket.bind(0, bound);
  await once(socket, 'listening');
  return { port: socket.address().port, received };
}

describe.each(FAMILIES)('IPv%i: a service on the node’s loopback address', (family) => {
  const [own, loopback, node] = [POD[family], LOOPBACK[family], NODE[family]];

  test('gets nothing from a pod that sends to it or with its address', async () => {
    addPod('a');
    await dataplane.attach(podNetwork('a', BY_FAMILY['both families']), never());
    const [inside, outside] = [await serve(family, loopback), await serve(family, node)];
    send('a', [
      udpPacket({ source: own, destination: loopback, port: inside.port, data: 'to loopback' }),
      udpPacket({ source: loopback, destination: loopback, port: inside.port, data: 'from loopback to loopback' }),
      udpPacket({ source: loopback, destination: node, port: outside.port, data: 'from loopback' }),
      udpPacket({ source: own, destination: node, port: outside.port, data: 'as a pod may' }),
    ]);
    await until(() => outside.received.includes('as a pod may'));
    expect([inside.received, outside.received]).toEqual([[], ['as a pod may']]);
  });
});

test('a fragment with another pod’s source does not spoil that pod’s fragmented packets', async () => {
  for (const name of ['a', 'b']) addPod(name);
  await dataplane.attach(podNetwork('a', BY_FAMILY.IPv4), never());
  await dataplane.attach(podNetwork('b', { ...BY_FAMILY.IPv4, addresses: [address('10.65.0.8')] }), never());
  // Connection tracking reassembles packets early, before it looks at them.
  run('nft', 'table inet tracking { chain seen { type filter hook prerouting priority 0; ct state new counter; }; }');
  const { port, received } = await serve(4, NODE[4]);
  const packet = udpPacket({ source: POD[4], destination: NODE[4], port, data: 'a packet in two fragments' });
  const [first, last] = ipv4Fragments(packet, 7, 16);
  const forged = ipv4Fragments(Buffer.concat([packet.subarray(0, 28), Buffer.alloc(100, 0x78)]), 7, 24)[0];
  send('b', [forged]);
  send('a', [first, last]);
  send('a', [udpPacket({ source: POD[4], destination: NODE[4], port, data: 'end' })]);
  await until(() => received.includes('end'));
  expect(received).toEqual(['a packet in two fragments', 'end']);
});

/** The node's end of a tunnel over a family, which accepts packets from everywhere. */
function addTunnel(family: 4 | 6): void {
  const device = VXLAN_DEVICE[family];
  const options = ['id', String(VXLAN_VNI), 'dstport', String(VXLAN_PORT), 'local', NODE[family], 'nolearning'];
  run('ip', 'link', 'add', device, 'address', TUNNEL_MAC, 'type', 'vxlan', ...options);
  run('ip', 'link', 'set', device, 'up');
}

/** Counts encapsulated packets that are received or forwarded, after all filters. */
function witness(): (hook: 'input' | 'forward') => number {
  const counted = `udp dport ${VXLAN_PORT} counter; meta l4proto ${IPIP} counter;`;
  const chain = (hook: string) => `chain ${hook} { type filter hook ${hook} priority 10; ${counted} };`;
  run('nft', `table inet witness { ${chain('input')} ${chain('forward')} }`);
  return (hook) => {
    const shown = run('nft', 'list', 'chain', 'inet', 'witness', hook);
    return [...shown.matchAll(/counter packets (\d+)/g)].reduce((sum, [, packets]) => sum + Number(packets), 0);
  };
}

describe.each(FAMILIES)('IPv%i: the overlay', (family) => {
  const [own, node, other] = [POD[family], NODE[family], OTHER_POD[family]];
  const inner = (port: number) =>
    vxlanData(VXLAN_VNI, TUNNEL_MAC, udpPacket({ source: other, destination: node, port, data: 'from another pod' }));

  afterEach(() => run('ip', 'link', 'delete', VXLAN_DEVICE[family]));

  test('gets no packet that a pod sends to the node in VXLAN', async () => {
    addTunnel(family);
    addPod('a');
    await dataplane.attach(podNetwork('a', BY_FAMILY['both families']), never());
    const { port, received } = await serve(family, node);
    send('a', [
      udpPacket({ source: own, destination: node, port: VXLAN_PORT, data: inner(port) }),
      udpPacket({ source: own, destination: node, port, data: 'as a pod may' }),
    ]);
    await until(() => received.includes('as a pod may'));
    expect(received).toEqual(['as a pod may']);
  });
});

describe.each(FAMILIES)('IPv%i: packets in VXLAN or IPIP from a pod', (family) => {
  test('reach neither the node nor hosts behind it', async () => {
    setNodeForwarding();
    for (const name of ['a', 'b']) addPod(name);
    await dataplane.attach(podNetwork('a', BY_FAMILY['both families']), never());
    const [source, behind] = [POD[family], family === 4 ? '10.65.0.8' : 'fd65::8'];
    const addresses = [address(family === 4 ? behind : '10.65.0.8'), address(family === 6 ? behind : 'fd65::8')];
    await dataplane.attach(podNetwork('b', { ...BY_FAMILY['both families'], addresses }), never());
    const { port, received } = await serve(family, NODE[family]);
    const seen = witness();
    const packets = [NODE[family], behind].flatMap((destination) => [
      udpPacket({ source, destination, port: VXLAN_PORT, data: vxlanData(1, TUNNEL_MAC, Buffer.alloc(40, 0x45)) }),
      ipPacket({ source, destination, protocol: IPIP, payload: Buffer.alloc(40, 0x45) }),
    ]);
    send('a', [...packets, udpPacket({ source, destination: NODE[family], port, data: 'as a pod may' })]);
    await until(() => received.includes('as a pod may'));
    expect([seen('input'), seen('forward')]).toEqual([0, 0]);
    await guard.stop();
    run('nft', 'delete', 'table', 'inet', 'podwire');
    send('a', packets);
    // Each packet arrives without the guard, so that the test counts the right packets.
    await until(() => seen('input') === 2 && seen('forward') === 2);
  });
});

describe('a service of the node, by IPv6 over the pod’s interface alone', () => {
  /** The packets that arrive at each of the node's addresses, and at all nodes of the link. */
  async function arrivals(): Promise<readonly string[]> {
    const [four, six] = [await serve(4, NODE[4]), await serve(6, '::')];
    const destinations = [NODE[6], GATEWAY[6], 'ff02::1'];
    const packets = destinations.map((destination) =>
      udpPacket({ source: 'fe80::a:b', destination, port: six.port, data: `to ${destination}` }),
    );
    send('a', [...packets, udpPacket({ source: POD[4], destination: NODE[4], port: four.port, data: 'last' })]);
    await until(() => four.received.includes('last'));
    return six.received;
  }

  test('gets nothing from a pod without IPv6', async () => {
    addPod('a');
    const network = podNetwork('a', BY_FAMILY.IPv4);
    await dataplane.attach(network, never());
    expect(await arrivals()).toEqual([]);
    expect(run('ip', '-6', 'address', 'show', 'dev', network.hostInterfaceName)).toBe('');
  });

  test('is reachable from a pod that has IPv6', async () => {
    addPod('a');
    await dataplane.attach(podNetwork('a', BY_FAMILY['both families']), never());
    expect(await arrivals()).toContain(`to ${NODE[6]}`);
  });

  test('gets nothing once a pod that got IPv6 is repaired, whose IPv4 is unchanged', async () => {
    addPod('a');
    const network = podNetwork('a', BY_FAMILY.IPv4);
    await dataplane.attach(network, never());
    const key = `net.ipv6.conf.${network.hostInterfaceName}.disable_ipv6`;
    run('sysctl', '-qw', `${key}=0`);
    expect(await arrivals()).toContain(`to ${NODE[6]}`);
    const changes = spawn('ip', ['-4', 'monitor', 'link', 'address', 'route'], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const reported: string[] = [];
    changes.stdout.on('data', (bytes: Buffer) => reported.push(bytes.toString()));
    expect(await dataplane.repair(network, never())).toEqual([
      { object: `host sysctl ${key}`, wanted: '1', actual: '0' },
    ]);
    expect(await arrivals()).toEqual([]);
    changes.kill('SIGKILL');
    await once(changes, 'close');
    expect(reported).toEqual([]);
    expect(await dataplane.check(network, never())).toEqual([]);
  });

  test('gets nothing from a pod that has released its IPv6 address, and something once it has one again', async () => {
    addPod('a');
    const [both, one] = [podNetwork('a', BY_FAMILY['both families']), podNetwork('a', BY_FAMILY.IPv4)];
    await dataplane.attach(both, never());
    await dataplane.attach(one, never());
    expect(await arrivals()).toEqual([]);
    expect(await dataplane.check(one, never())).toEqual([]);
    await dataplane.attach(both, never());
    expect(await dataplane.check(both, never())).toEqual([]);
    expect(await arrivals()).toContain(`to ${NODE[6]}`);
  });
});
