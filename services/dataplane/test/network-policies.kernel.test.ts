import { rmSync } from 'node:fs';

import { Peer } from '@podwire/shared/rpc/client';
import { afterEach, beforeEach, expect, test } from 'vitest';

import type { RunningService } from '../service.js';
import { addPod, cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { until } from '../testing/nft.js';
import { podNetwork } from '../testing/pods.js';
import { denied, FakePolicies, message, podMessage } from '../testing/network-policy/policies.js';
import { configOf, ServiceFixture, startOn } from '../testing/service.js';

/** Network policies in the node's service: podwire-ipam's stream, a pod's wiring, restarts, and the setting. */

let bench: ServiceFixture;
let ipam: FakePolicies;
let peer: Peer;
let service: RunningService | undefined;

beforeEach(() => {
  requireThrowawayNamespace();
  bench = new ServiceFixture();
  ipam = new FakePolicies();
  peer = new Peer('podwire-ipam', ipam.address);
});

afterEach(async () => {
  await service?.stop();
  service = undefined;
  peer.close();
  await ipam.dispose();
  bench.clear();
  cleanUp();
});

async function start(isOn = true): Promise<RunningService> {
  const config = configOf({ ...bench.env, PODWIRE_NODE_NETWORK_POLICIES: String(isOn) });
  const connectIpam = () => new Peer('podwire-ipam', ipam.address);
  service = await startOn(config, { ...bench.deps(), ipam: peer, connectIpam });
  return service;
}

async function restart(isOn = true): Promise<RunningService> {
  await service?.stop();
  bench.reconnect();
  return start(isOn);
}

const never = () => new AbortController().signal;

/** Wires a pod of the namespace `default`. @returns its interface of the node */
async function attach(name: string, address: string): Promise<string> {
  const network = podNetwork(name);
  addPod(name);
  const pod = { namespace: 'default', name, uid: `uid-${name}` };
  const addresses = [{ address, sequenceNumber: 1n }];
  await service?.dataplane.attach(network, never(), { addresses, nodeName: 'node-1', pod, isBound: true });
  return network.hostInterfaceName;
}

const jumps = (map: 'ingress' | 'egress') => run('nft', 'list', 'map', 'inet', 'podwire_policy', map);
const hasTable = () => run('nft', 'list', 'tables').includes('podwire_policy');
const reasons = async () => (await bench.nodeStatus()).conditions.map(({ reason }) => reason);

test('a pod is wired with its profile, and a pod of an unknown node state is isolated until podwire-ipam answers', async () => {
  const { dataplane } = await start();
  const device = await attach('web', '10.65.0.7');
  expect(jumps('ingress')).toContain(`"${device}" : jump isolated`);
  expect(await reasons()).toContain('PodPolicyUnknown');
  ipam.snapshot = [
    message({
      isComplete: true,
      profiles: [denied('in', 'ingress')],
      pods: [podMessage('web', { ingress: 'in' })],
      namespaces: ['default'],
    }),
  ];
  const [open, ports] = [
    ['-s', '198.51.100.9', '-d', '10.65.0.7'],
    ['--sport', '999', '--dport', '80'],
  ];
  run(
    'conntrack',
    '-I',
    ...open,
    '-p',
    'tcp',
    ...ports,
    '--state',
    'ESTABLISHED',
    '-t',
    '100',
    '-u',
    'ASSURED,SEEN_REPLY',
  );
  await ipam.start();
  await until(() => ipam.acknowledged.length > 0);
  await until(() => !run('conntrack', '-L').includes('dst=10.65.0.7'));
  expect(ipam.acknowledged).toEqual(['node-1 stream-1 1']);
  expect(jumps('ingress')).toContain(`"${device}" : jump i-in`);
  expect(jumps('egress')).not.toContain(device);
  expect(await reasons()).not.toContain('PodPolicyUnknown');

  // Without podwire-ipam, a restart and a repair change nothing.
  await ipam.stop();
  const before = jumps('ingress');
  const again = await restart();
  await again.dataplane.repair(podNetwork('web'), never());
  expect(jumps('ingress')).toBe(before);
  expect(dataplane).not.toBe(again.dataplane);

  const { attachment, hostInterfaceName } = podNetwork('web');
  await again.dataplane.detach({ attachment, hostInterfaceName }, never());
  expect(jumps('ingress')).not.toContain(device);
});

test('dropped packets are reported with their pod, and a node without policies says so', async () => {
  await start();
  await attach('web', '10.65.0.7');
  run('ip', 'link', 'add', 'uplink', 'type', 'bridge');
  run('ip', 'link', 'set', 'uplink', 'up');
  run('ip', 'route', 'add', '198.51.100.0/24', 'dev', 'uplink');
  const send = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('198.51.100.1', 53))";
  run('ip', 'netns', 'exec', 'web', 'python3', '-c', send);
  await until(async () => (await bench.policyDrops()).drops.length > 0);
  const { drops, unavailable } = await bench.policyDrops();
  expect([drops.length, unavailable]).toEqual([1, '']);
  const ends = { sourceAddress: '10.65.0.7', destinationAddress: '198.51.100.1', destinationPort: 53 };
  expect(drops).toMatchObject([
    { ...ends, direction: 'egress', sourcePod: { namespace: 'default', name: 'web' }, reason: 'policies-unknown' },
  ]);
  await restart(false);
  expect((await bench.policyDrops()).unavailable).toContain('PODWIRE_NODE_NETWORK_POLICIES');
});

test('a node whose policies are turned off removes the table, and wires pods without it', async () => {
  await start();
  await attach('web', '10.65.0.7');
  expect(hasTable()).toBe(true);
  await restart(false);
  await until(() => !hasTable());
  expect(await reasons()).not.toContain('PodPolicyUnknown');
});

test('a pod whose record is lost keeps its network after a restart if no policy may concern it', async () => {
  ipam.snapshot = [message({ isComplete: true, namespaces: [] })];
  await ipam.start();
  await start();
  const device = await attach('web', '10.65.0.7');
  await service?.stop();
  rmSync(bench.records, { recursive: true });
  await restart();
  await until(() => ipam.acknowledged.length === 2);
  const known = () => run('nft', 'list', 'set', 'inet', 'podwire_policy', 'known');
  await until(() => known().includes(device));
  ipam.send(message({ namespaces: ['default'] }));
  await until(() => jumps('ingress').includes(`"${device}" : jump isolated`));
});
