import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { NodeServiceService } from '@podwire/proto/podwire/dataplane/v1/node';
import { PodNetwork, PodServiceService } from '@podwire/proto/podwire/dataplane/v1/pod';
import type { Pool } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { Peer } from '@podwire/shared/rpc/client';
import { systemClock, type Clock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { POLICY_TABLE } from '../network-policy/rules.js';
import { replacement } from '../nft/table.js';
import { SYSCTL_CHECK_INTERVAL_MS } from '../node/sysctls.js';
import { serve, type RunningService } from '../service.js';
import { FakeIpam, FakeNodeNetwork, nodeMessage, poolMessage, routeMessage, vxlanPool } from '../testing/ipam.js';
import { MemoryKernel } from '../testing/memory-kernel.js';
import { MemoryLinks } from '../testing/memory-links.js';
import { MemoryNft } from '../testing/memory-nft.js';
import { NO_CONNECTIONS } from '../testing/network-policy/policy-node.js';
import { runNodeCommand } from '../testing/memory-node-commands.js';
import { MemoryNodeKernel } from '../testing/memory-node-kernel.js';
import { BOOT, recordingLog } from '../testing/pods.js';
import { configOf, HEALTH, openAddresses } from '../testing/service.js';

/** The health and the conditions of the whole service, with failing kernels. */

const AT_ONCE = { timeout: 20_000, interval: 20 };

/** The system's clock with shorter pauses. */
const impatientClock: Clock = {
  ...systemClock,
  sleep: (durationMs, signal) => systemClock.sleep(Math.min(durationMs, 200), signal),
};

/** The system's clock with shorter pauses between two checks of the node's settings. */
const fastCheckClock: Clock = {
  ...systemClock,
  sleep: (durationMs, signal) => systemClock.sleep(durationMs === SYSCTL_CHECK_INTERVAL_MS ? 50 : durationMs, signal),
};

let folder: string;
let peer: Peer;
let ipamPeer: Peer | undefined;
let kernel: MemoryKernel;
let nodeKernel: MemoryNodeKernel;
let links: MemoryLinks;
let nft: MemoryNft;
let service: RunningService | undefined;
let ipam: FakeIpam | undefined;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-service-health-'));
  peer = new Peer('podwire-node', `unix:${join(folder, 'dataplane.sock')}`);
  kernel = new MemoryKernel();
  nodeKernel = new MemoryNodeKernel();
  links = new MemoryLinks();
  nft = new MemoryNft();
});

afterEach(async () => {
  await service?.stop();
  ipamPeer?.close();
  ipamPeer = undefined;
  await ipam?.dispose();
  ipam = undefined;
  peer.close();
  rmSync(folder, { recursive: true });
});

async function start({
  clock = impatientClock,
  ipamAddress = `unix:${join(folder, 'no-ipam.sock')}`,
} = {}): Promise<void> {
  const env = {
    PODWIRE_NODE_LISTEN: `unix:${join(folder, 'dataplane.sock')}`,
    PODWIRE_NODE_RECORDS_DIRECTORY: join(folder, 'attachments'),
  };
  ipamPeer?.close();
  const peer = new Peer('podwire-ipam', ipamAddress);
  ipamPeer = peer;
  const network = new FakeNodeNetwork({ eth0: ['192.0.2.7/24'] });
  const packets = { watch: () => Promise.resolve({ close: () => undefined }) };
  const nodeSide = {
    network,
    kernel: nodeKernel,
    links,
    nft,
    connections: NO_CONNECTIONS,
    packets,
    peerPlan: undefined,
  };
  const deps = {
    log: recordingLog().log,
    clock,
    random: Math.random,
    boot: BOOT,
    ipam: peer,
    connectIpam: () => peer,
    openAddresses,
  };
  service = await serve(kernel, { config: configOf(env), deps, nodeSide });
}

const limits = () => ({ deadlineMs: Date.now() + 30_000 });
const health = () => peer.call(HEALTH, null, limits());
const reasons = async () => {
  const { conditions } = await peer.call(NodeServiceService.getNodeStatus, {}, limits());
  return conditions.map(({ reason }) => reason);
};

/** A node of a cluster of two, whose other node has a block of the pool. */
async function startInCluster(pool: Pool): Promise<void> {
  for (const command of ['link add eth0 type veth', 'link set eth0 up', 'address add 192.0.2.7/24 dev eth0'])
    runNodeCommand(nodeKernel.node, `ip ${command}`);
  links.sysctls.set('net/ipv4/conf/all/rp_filter', '0');
  links.sysctls.set('net/ipv4/ip_forward', '1');
  ipam = new FakeIpam();
  ipam.putPool(pool);
  ipam.putNode(nodeMessage('node-2', '192.0.2.8/24'));
  ipam.putRoute(routeMessage('10.65.1.0/26', 'node-2'));
  await ipam.start();
  await start({ clock: fastCheckClock, ipamAddress: ipam.address });
}

async function attach(name: string, rest: Partial<PodNetwork>): Promise<void> {
  const netns = `/run/netns/${name}`;
  kernel.addNamespace(netns);
  const attachment = { network: 'net', containerId: name, interfaceName: 'eth0' };
  const names = { attachment, netns, hostInterfaceName: `podw${name}`, macAddress: '02:00:00:00:00:07' };
  await peer.call(PodServiceService.attachPod, { pod: PodNetwork.fromPartial({ ...names, ...rest }) }, limits());
}

test('a kernel that can wire no pod is a condition, and unhealthy, until it can again', async () => {
  // The first probe belongs to the start.
  for (let look = 0; look < 8; look++) kernel.failNext('probe', { errno: 'EMFILE', after: look === 0 ? 1 : 0 });
  await start();
  await expect.poll(health, AT_ONCE).toBe(2);
  expect(await reasons()).toContain('KernelUnusable');
  await expect.poll(health, AT_ONCE).toBe(1);
  await expect.poll(reasons, AT_ONCE).not.toContain('KernelUnusable');
  expect(kernel.unusedFaults).toBe(0);
});

test('a missing source guard is a condition until it works; pods of IPv4 are served meanwhile', async () => {
  for (let attempt = 0; attempt < 10; attempt++) {
    nft.failNext('apply', new Failure('KERNEL_UNSUPPORTED', 'nft cannot be run: install it'));
  }
  await start();
  await expect.poll(reasons, AT_ONCE).toContain('SourceGuardUnavailable');
  expect(await health()).toBe(1);
  await expect.poll(reasons, AT_ONCE).not.toContain('SourceGuardUnavailable');
  expect(nft.unusedFaults).toBe(0);
});

test('the table of network policies that were turned off is deleted, however often nft fails', async () => {
  await nft.apply(
    replacement({ ...POLICY_TABLE, sets: [], chains: [{ name: 'earlier', hook: undefined, rules: [] }] }),
  );
  for (let attempt = 0; attempt < 6; attempt++)
    nft.failNext('read', new Failure('KERNEL_REFUSED', 'nft list was killed: it exceeded 10000 ms'));
  await start();
  await expect.poll(() => nft.print(), AT_ONCE).not.toContain('earlier');
  expect(nft.unusedFaults).toBe(0);
});

test('the source prefixes of a pod are allowed again from the next start', async () => {
  await start();
  await attach('a', { addresses: ['10.65.0.7/32'], sourcePrefixes: ['10.99.0.0/24'] });
  const before = nft.print();
  expect(before).toContain('10.99.0.0');
  await service?.stop();
  // The next process has an empty kernel, and knows the pod by its record only.
  nft = new MemoryNft();
  nodeKernel = new MemoryNodeKernel();
  links = new MemoryLinks();
  kernel = new MemoryKernel();
  await start();
  await expect.poll(() => nft.print(), AT_ONCE).toBe(before);
});

test('source prefixes of dead pods and of an interface’s earlier pods are not allowed after a restart', async () => {
  await start();
  const sandboxes = ['a', 'b', 'c', 'd'];
  for (const [at, name] of sandboxes.entries()) {
    const sourcePrefixes = [`10.99.${at}.0/24`];
    await attach(name, { hostInterfaceName: 'cali1', addresses: ['10.65.0.7/32'], sourcePrefixes });
    if (name !== 'd') kernel.removeNamespace(`/run/netns/${name}`);
  }
  await attach('dead', { addresses: ['10.65.0.8/32'], sourcePrefixes: ['10.98.0.0/24'] });
  await service?.stop();
  const records = join(folder, 'attachments');
  for (const path of readdirSync(records).map((name) => join(records, name))) {
    const text = readFileSync(path, 'utf8');
    if (text.includes('"dead"')) writeFileSync(path, text.replace('"state":"attached"', '"state":"dead"'));
  }
  kernel = new MemoryKernel();
  nodeKernel = new MemoryNodeKernel();
  links = new MemoryLinks();
  nft = new MemoryNft();
  await start();
  await expect.poll(() => nft.print(), AT_ONCE).toContain('10.99.3.0');
  expect(nft.print()).not.toMatch(/10\.99\.[012]\.|10\.98\./);
});

test('the node’s settings are evaluated with its pods, interfaces and tunnels', async () => {
  await startInCluster(vxlanPool('p', '10.65.0.0/16'));
  links.sysctls.set('net/ipv4/conf/all/rp_filter', '1');
  links.sysctls.set('net/ipv4/conf/eth0/forwarding', '0');
  links.sysctls.set('net/ipv4/conf/vxlan4.podwire/forwarding', '0');
  links.sysctls.set('net/ipv6/conf/all/disable_ipv6', '0');
  links.sysctls.set('net/ipv6/conf/all/forwarding', '1');
  await attach('a', { addresses: ['fd65::7/128'], sourcePrefixes: ['fd99::/64'] });
  await expect.poll(reasons, AT_ONCE).toContain('InterfaceNotForwarding');
  await expect.poll(() => links.sysctls.get('net/ipv4/conf/vxlan4.podwire/forwarding'), AT_ONCE).toBe('1');
  expect(await reasons()).not.toContain('StrictReversePathFilter');
  await attach('b', { addresses: ['10.65.0.8/32'], sourcePrefixes: ['10.99.0.0/24'] });
  await expect.poll(reasons, AT_ONCE).toContain('StrictReversePathFilter');
});

test('a filter that another program enables for a pod with IPv4 prefixes is disabled at the next check', async () => {
  await startInCluster(poolMessage('p', '10.65.0.0/16'));
  await attach('b', { addresses: ['10.65.0.8/32'], sourcePrefixes: ['10.99.0.0/24'] });
  const [host] = kernel.host.links.filter(({ name }) => name.startsWith('podw'));
  const key = `net/ipv4/conf/${host!.name}/rp_filter`;
  for (const { sysctls } of [links, kernel.host]) sysctls.set(key, '2');
  await expect.poll(() => kernel.host.sysctls.get(key), AT_ONCE).toBe('0');
});

test('a repaired setting causes a reading of the routes, which may have vanished silently', async () => {
  await startInCluster(poolMessage('p', '10.65.0.0/16'));
  const routes = () => nodeKernel.node.routes.map(({ destination }) => destination);
  await expect.poll(routes, AT_ONCE).toContain('10.65.1.0/26');
  nodeKernel.lostNotificationCount = 1;
  runNodeCommand(nodeKernel.node, 'ip route delete 10.65.1.0/26');
  links.sysctls.set('net/ipv4/ip_forward', '0');
  // The next periodic reading is after 90 seconds.
  await expect.poll(routes, AT_ONCE).toContain('10.65.1.0/26');
});
