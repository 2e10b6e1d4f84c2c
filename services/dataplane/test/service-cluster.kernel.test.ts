import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { NodeServiceService } from '@podwire/proto/podwire/dataplane/v1/node';
import { PodServiceService, type PodNetwork } from '@podwire/proto/podwire/dataplane/v1/pod';
import { EncapsulationMode } from '@podwire/proto/podwire/ipam/v1/pool';
import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { Peer } from '@podwire/shared/rpc/client';
import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import type { RunningService } from '../service.js';
import { FakeIpam, nodeMessage, poolMessage, routeMessage, vxlanPool } from '../testing/ipam.js';
import { addPod, cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { BOOT, recordingLog } from '../testing/pods.js';
import { configOf, openAddresses, startOn } from '../testing/service.js';

/** The whole service as a part of a cluster, on the real kernel, with a fake podwire-ipam. */

vi.setConfig({ testTimeout: 120_000, hookTimeout: 60_000 });

/** Much less than the 90 seconds of the full check. */
const AT_ONCE = { timeout: 20_000, interval: 50 };

const SELF = 'node-1';

let folder: string;
let logged: ReturnType<typeof recordingLog>;
let ipam: FakeIpam;
let service: RunningService;
let peer: Peer;
let ipamPeer: Peer;
let startAgain: () => Promise<RunningService>;

beforeEach(async () => {
  requireThrowawayNamespace();
  folder = mkdtempSync(join(tmpdir(), 'podwire-service-cluster-'));
  const socket = join(folder, 'run', 'dataplane.sock');
  run('ip', 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', 'outside');
  run('ip', 'address', 'add', '192.0.2.7/24', 'dev', 'eth0');
  for (const end of ['eth0', 'outside']) run('ip', 'link', 'set', end, 'up');
  ipam = new FakeIpam();
  await ipam.start();
  ipam.putPool(poolMessage('p', '10.65.0.0/16'));
  peer = new Peer('podwire-node', `unix:${socket}`);
  const env = {
    PODWIRE_NODE_LISTEN: `unix:${socket}`,
    PODWIRE_NODE_RECORDS_DIRECTORY: join(folder, 'attachments'),
  };
  ipamPeer = new Peer('podwire-ipam', ipam.address);
  logged = recordingLog();
  const deps = {
    log: logged.log,
    clock: systemClock,
    random: Math.random,
    boot: BOOT,
    openAddresses,
    ipam: ipamPeer,
    connectIpam: () => ipamPeer,
  };
  startAgain = () => startOn(configOf(env, SELF), deps);
  service = await startAgain();
});

afterEach(async () => {
  await service.stop();
  peer.close();
  ipamPeer.close();
  await ipam.dispose();
  // Its far end and a tunnel over it are deleted with it.
  run('ip', 'link', 'delete', 'eth0');
  if (run('ip', '-br', 'link').includes('ipip.podwire')) run('ip', 'link', 'delete', 'ipip.podwire');
  cleanUp();
  run('ip', 'route', 'flush', 'proto', '87');
  rmSync(folder, { recursive: true });
});

const limits = () => ({ deadlineMs: Date.now() + 30_000 });
const status = () => peer.call(NodeServiceService.getNodeStatus, {}, limits());

/** A pod without a requested MTU. */
async function attach(name: string, address: string): Promise<PodNetwork> {
  addPod(name);
  const attachment = { network: 'net', containerId: name, interfaceName: 'eth0' };
  const pod: PodNetwork = {
    attachment,
    netns: `/run/netns/${name}`,
    hostInterfaceName: hostInterfaceName(attachment),
    macAddress: podMac(attachment),
    addresses: [`${address}/32`],
    routes: ['0.0.0.0/0'],
    mtuBytes: 0,
    ipForwarding: false,
    sourcePrefixes: [],
    hostPorts: [],
    txQueueLength: 0,
    queueCount: 0,
  };
  await peer.call(PodServiceService.attachPod, { pod }, limits());
  return pod;
}

/** Podwire's routes of the node, one a line of `ip route`. */
const routes = (): string[] => {
  const lines = run('ip', 'route', 'show', 'proto', '87')
    .split('\n')
    .map((line) => line.trim());
  return lines.filter((line) => line !== '').sort();
};

const mtuOf = (text: string): number => Number(/ mtu (\d+) /.exec(text)?.[1]);

/** MTUs of both ends of a pod's wire. */
const mtusOf = ({ netns, hostInterfaceName: name }: PodNetwork): number[] => [
  mtuOf(run('ip', 'link', 'show', name)),
  mtuOf(run('nsenter', `--net=${netns}`, 'ip', 'link', 'show', 'eth0')),
];

test('running pods get another MTU as soon as the node’s network or the pools’ encapsulation requires it', async () => {
  const pod = await attach('a', '10.65.0.7');
  expect(mtusOf(pod)).toEqual([1500, 1500]);

  run('ip', 'link', 'set', 'eth0', 'mtu', '1400');
  await expect.poll(() => mtusOf(pod), AT_ONCE).toEqual([1400, 1400]);
  ipam.putPool(vxlanPool('p', '10.65.0.0/16'));
  await expect.poll(() => mtusOf(pod), AT_ONCE).toEqual([1350, 1350]);
  expect((await status()).podMtuBytes).toBe(1350);
  expect(mtusOf(await attach('b', '10.65.0.8'))).toEqual([1350, 1350]);

  run('ip', 'link', 'set', 'eth0', 'mtu', '1500');
  await expect.poll(() => mtusOf(pod), AT_ONCE).toEqual([1450, 1450]);
});

test('pods keep their MTU over a restart while podwire-ipam, which knows the encapsulation, is down', async () => {
  const pod = await attach('a', '10.65.0.7');
  ipam.putPool(vxlanPool('p', '10.65.0.0/16'));
  // A stop would revert a repair in flight.
  await expect.poll(() => logged.lines.some(({ msg }) => String(msg).includes('drift of ')), AT_ONCE).toBe(true);
  expect(mtusOf(pod)).toEqual([1450, 1450]);
  await service.stop();
  await ipam.stop();
  service = await startAgain();

  expect((await status()).podMtuBytes).toBe(1450);
  expect(await peer.call(PodServiceService.checkPod, { pod }, limits())).toMatchObject({ differences: [] });
  expect(await peer.call(PodServiceService.repairPod, { pod }, limits())).toMatchObject({ differences: [] });
  expect(mtusOf(pod)).toEqual([1450, 1450]);
});

test('changes to a pod’s route, its end on the node and the wire itself are repaired at once', async () => {
  const pod = await attach('a', '10.65.0.7');
  await expect.poll(async () => (await status()).wanted, AT_ONCE).toBeDefined();
  // The kernel's events right after an attach come from the wiring.
  await sleep(2500);
  const route = () => run('ip', 'route', 'show', '10.65.0.7').trim();
  const wired = `10.65.0.7 dev ${pod.hostInterfaceName} proto 87 scope link`;
  const reached = () => run('nsenter', `--net=${pod.netns}`, 'ip', 'route', 'show', 'default').trim();
  expect(reached()).not.toBe('');

  run('ip', 'route', 'delete', '10.65.0.7');
  await expect.poll(route, AT_ONCE).toBe(wired);
  run('ip', 'link', 'set', pod.hostInterfaceName, 'down');
  await expect.poll(route, AT_ONCE).toBe(wired);
  run('ip', 'link', 'delete', pod.hostInterfaceName);
  await expect.poll(() => run('ip', '-br', 'link', 'show'), AT_ONCE).toContain(pod.hostInterfaceName);
  await expect.poll(route, AT_ONCE).toBe(wired);
  await expect.poll(reached, AT_ONCE).not.toBe('');
});

/** Asks the kernel itself, in a temporary namespace. */
function kernelHasIpip(): boolean {
  const command = ['ip', 'link', 'add', 'dev', 'probe', 'type', 'ipip', 'remote', '192.0.2.1'];
  return spawnSync('unshare', ['--net', ...command]).status === 0;
}

test('a pool of IPIP has its tunnel; without IPIP in the kernel there is a condition, and other pools work', async () => {
  const hasIpip = kernelHasIpip();
  ipam.putNode(nodeMessage('node-2', '198.51.100.8/24'));
  ipam.putPool(poolMessage('p', '10.65.0.0/16', { ipipMode: EncapsulationMode.ENCAPSULATION_MODE_ALWAYS }));
  ipam.putRoute(routeMessage('10.65.1.0/26', 'node-2'));
  ipam.putPool(poolMessage('plain', '10.66.0.0/16'));
  ipam.putNode(nodeMessage('node-3', '192.0.2.9/24'));
  ipam.putRoute(routeMessage('10.66.1.0/26', 'node-3', { poolName: 'plain' }));
  const tunnelled = ['10.65.1.0/26 via 198.51.100.8 dev ipip.podwire onlink'];
  const plain = '10.66.1.0/26 via 192.0.2.9 dev eth0 onlink';
  await expect.poll(routes, AT_ONCE).toEqual([...(hasIpip ? tunnelled : []), plain]);
  const unsupported = async () => (await status()).conditions.filter(({ reason }) => reason === 'IpipUnsupported');
  const message =
    'the kernel of node node-1 has no IPIP, which pools p use; load the module ipip, or use VXLAN for the pools';
  await expect.poll(unsupported, AT_ONCE).toEqual(hasIpip ? [] : [{ reason: 'IpipUnsupported', message }]);
});

/** The output of `ip monitor` for Podwire's routes. */
class RouteMonitor {
  readonly #child: ChildProcess;
  #text = '';

  private constructor() {
    this.#child = spawn('ip', ['-o', 'monitor', 'route'], { stdio: ['ignore', 'pipe', 'inherit'] });
    this.#child.stdout?.setEncoding('utf8').on('data', (part: string) => (this.#text += part));
  }

  /** Resolves once it receives events. */
  static async start(): Promise<RouteMonitor> {
    const monitor = new RouteMonitor();
    for (let marker = 1; !monitor.#text.includes('198.51.100.'); marker++) {
      run('ip', 'route', 'add', 'blackhole', `198.51.100.${marker}`);
      run('ip', 'route', 'delete', 'blackhole', `198.51.100.${marker}`);
      await sleep(50);
    }
    return monitor;
  }

  get lines(): string[] {
    return this.#text
      .split('\n')
      .filter((line) => line.includes('proto 87'))
      .map((line) => line.replace(/ proto 87.*/, '').trim());
  }

  stop(): void {
    this.#child.kill();
  }
}

test('while podwire-ipam is down the node keeps its routes; after its return the difference is applied', async () => {
  ipam.putNode(nodeMessage('node-2', '192.0.2.8/24'));
  const blocks = Array.from({ length: 30 }, (_, at) => `10.65.${at + 1}.0/26`);
  for (const cidr of blocks) ipam.putRoute(routeMessage(cidr, 'node-2'));
  ipam.putRoute(routeMessage('10.65.200.0/26', SELF));
  await expect.poll(() => routes().length, AT_ONCE).toBe(31);
  const before = routes();

  const monitor = await RouteMonitor.start();
  try {
    await ipam.stop();
    await expect
      .poll(async () => (await status()).conditions.map(({ reason }) => reason), AT_ONCE)
      .toContain('IpamUnreachable');
    expect(routes()).toEqual(before);
    // It sends everything from the beginning after its return.
    ipam.remove('route', '10.65.1.0/26');
    ipam.putRoute(routeMessage('10.65.99.0/26', 'node-2'));
    ipam.forgetChanges();
    await ipam.start();
    await expect
      .poll(routes, { ...AT_ONCE, timeout: 60_000 })
      .not.toContain(before.find((line) => line.startsWith('10.65.1.0')));
    await expect.poll(() => run('ip', 'route', 'show', '10.65.99.0/26'), AT_ONCE).not.toBe('');
    await expect.poll(() => monitor.lines.length, AT_ONCE).toBe(2);
    expect(monitor.lines.sort()).toEqual([
      '10.65.99.0/26 via 192.0.2.8 dev eth0',
      'Deleted 10.65.1.0/26 via 192.0.2.8 dev eth0',
    ]);
  } finally {
    monitor.stop();
  }
});

test('the node’s own firewall: packets of pods pass iptables, and a chain that drops them is in the status', async () => {
  await service.stop();
  for (const policy of ['DROP', 'ACCEPT']) run('iptables', '-P', 'FORWARD', policy);
  run('nft', 'table inet wall { chain way { type filter hook forward priority 0; policy drop; }; }');
  try {
    service = await startAgain();
    await expect
      .poll(() => run('iptables', '-S', 'FORWARD'), AT_ONCE)
      .toContain('-i podw+ -m comment --comment podwire');
    const reasons = async () => (await status()).conditions.map(({ reason }) => reason);
    await expect.poll(reasons, AT_ONCE).toContain('ForwardDropped');
    const neighbours = () => run('nft', 'list', 'table', 'inet', 'podwire_neighbours');
    await expect.poll(neighbours, AT_ONCE).toContain('elements = { 192.0.2.0/24 }');
  } finally {
    run('nft', 'flush', 'ruleset');
  }
});
