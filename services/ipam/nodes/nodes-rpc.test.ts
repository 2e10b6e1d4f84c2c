import { randomUUID } from 'node:crypto';
import process from 'node:process';

import {
  LeaseServiceService,
  OpenSessionRequest,
  type InventoryAttachment,
  type NodeSession,
} from '@podwire/proto/podwire/ipam/v1/lease';
import {
  NodeServiceService,
  RegisterNodeRequest,
  TunnelKind,
  type Node,
  type RegisterNodeRequest as RegisterMessage,
} from '@podwire/proto/podwire/ipam/v1/node';
import { EncapsulationMode } from '@podwire/proto/podwire/ipam/v1/pool';
import { tunnelMac } from '@podwire/shared/attachment/names';
import { beforeEach, describe, expect, test } from 'vitest';

import { EmbeddedStore } from '../engine/embedded/embedded-store.js';
import { RecordKeys } from '../records/json/keys.js';
import { attachment, clientLimits, failureOf, faultsOf, servedForEachTest } from '../testing/service.js';

const {
  TUNNEL_KIND_UNSPECIFIED: UNSPECIFIED,
  TUNNEL_KIND_IPIP: IPIP,
  TUNNEL_KIND_VXLAN_IPV4: VXLAN,
  TUNNEL_KIND_VXLAN_IPV6: VXLAN6,
} = TunnelKind;

const MACHINE_ID = randomUUID();
const NEVER = new AbortController().signal;

const NO_USE = { blocks: 0n, capacity: 0n, allocated: 0n, cooling: 0n, reserved: 0n, available: 0n, leased: 0n };

const served = servedForEachTest({ PODWIRE_IPAM_UNKNOWN_NODES: 'refuse' });

function register(name: string, rest: Partial<RegisterMessage> = {}) {
  const message = { ...RegisterNodeRequest.fromPartial({}), name, ipv4Address: '192.0.2.7/24', ...rest };
  return served.caller.peer.call(NodeServiceService.registerNode, message, clientLimits());
}

async function getNode(name: string): Promise<Node | undefined> {
  const { node } = await served.caller.peer.call(NodeServiceService.getNode, { name }, clientLimits());
  return node;
}

function listNodes(pageSize = 0, pageToken = '') {
  return served.caller.peer.call(NodeServiceService.listNodes, { pageSize, pageToken }, clientLimits());
}

function updateNode(name: string, labels: Record<string, string>, resourceVersion = '') {
  return served.caller.peer.call(NodeServiceService.updateNode, { name, labels, resourceVersion }, clientLimits());
}

function deleteNode(name: string, resourceVersion = '') {
  return served.caller.peer.call(NodeServiceService.deleteNode, { name, resourceVersion }, clientLimits());
}

/** The MAC addresses follow from the name. */
const VXLAN_ENDS = [
  { kind: VXLAN, address: '', macAddress: tunnelMac('node-1', 4) },
  { kind: VXLAN6, address: '', macAddress: tunnelMac('node-1', 6) },
];

function allocateTunnel(nodeName: string, kind: TunnelKind) {
  return served.caller.peer.call(NodeServiceService.allocateTunnelAddress, { nodeName, kind }, clientLimits());
}

function releaseTunnel(nodeName: string, kind: TunnelKind) {
  return served.caller.peer.call(NodeServiceService.releaseTunnelAddress, { nodeName, kind }, clientLimits());
}

describe('a node', () => {
  test('registers, and is shown with its addresses', async () => {
    const told = {
      ipv6Address: '2001:db8::7/64',
      labels: { 'topology.kubernetes.io/zone': 'a', empty: '' },
      interfaces: [{ name: 'eth0', addresses: ['192.0.2.7/24', '2001:db8::7/64'] }],
    };
    const { node, created } = await register('node-1', told);
    expect(created).toBe(true);
    expect(node).toEqual({
      name: 'node-1',
      leaseRecallCount: 0n,
      inventoryRequestCount: 0n,
      uid: expect.stringMatching(/^[0-9a-f-]{36}$/),
      createTime: expect.any(Date),
      deleteTime: undefined,
      labels: told.labels,
      ipv4Address: '192.0.2.7/24',
      ipv6Address: '2001:db8::7/64',
      tunnels: VXLAN_ENDS,
      interfaces: told.interfaces,
      asNumber: undefined,
      resourceVersion: expect.stringMatching(/./),
      utilization: NO_USE,
    });
    expect(await register('node-1', told)).toEqual({ node, created: false });
    await served.caller.allocate('c1', { nodeName: 'node-1' });
    expect(await getNode('node-1')).toEqual({
      ...node,
      utilization: { ...NO_USE, blocks: 1n, capacity: 64n, allocated: 1n, available: 63n },
    });
  });

  test('has to be registered before it gets addresses', async () => {
    expect((await failureOf(served.caller.allocate('c1', { nodeName: 'node-1' }))).code).toBe('NODE_NOT_FOUND');
    await register('node-1');
    await served.caller.allocate('c1', { nodeName: 'node-1' });
  });

  test('keeps the labels of operators across its registrations', async () => {
    await register('node-1', { labels: { rack: 'r1' } });
    await updateNode('node-1', { rack: 'r2', owner: 'x' });
    const { node } = await register('node-1', { labels: { rack: 'r1' } });
    expect(node?.labels).toEqual({ rack: 'r2', owner: 'x' });
  });

  test('is known after a restart', async () => {
    const { node } = await register('node-1', { labels: { rack: 'r1' } });
    await served.restart();
    expect(await getNode('node-1')).toEqual(node);
  });

  test('is changed by the version that was read', async () => {
    const { node } = await register('node-1');
    const version = node?.resourceVersion ?? '';
    const updated = await updateNode('node-1', { a: '1' }, version);
    expect((await failureOf(updateNode('node-1', { a: '2' }, version))).code).toBe('STALE_VERSION');
    expect((await failureOf(deleteNode('node-1', version))).code).toBe('STALE_VERSION');
    expect(await getNode('node-1')).toEqual(updated.node);
    await deleteNode('node-1', updated.node?.resourceVersion);
    expect((await failureOf(getNode('node-1'))).code).toBe('NODE_NOT_FOUND');
  });
});

test('nodes are listed in pages', async () => {
  for (const name of ['n3', 'n1', 'n2']) await register(name, { ipv4Address: `192.0.2.${name.slice(1)}/24` });
  const first = await listNodes(2);
  expect(first.nodes.map(({ name }) => name)).toEqual(['n1', 'n2']);
  const second = await listNodes(2, first.nextPageToken);
  expect([second.nodes.map(({ name }) => name), second.nextPageToken]).toEqual([['n3'], '']);
  expect(await faultsOf(listNodes(-1, 'x'))).toEqual([
    'page_size is -1; it must be 0 or more',
    expect.stringMatching(/^page_token /),
  ]);
});

describe('a tunnel', () => {
  beforeEach(async () => {
    await served.caller.createPool({
      name: 'overlay',
      cidr: '10.66.0.0/24',
      ipipMode: EncapsulationMode.ENCAPSULATION_MODE_ALWAYS,
    });
    await register('node-1');
  });

  test('gets an address of a pool with its encapsulation, and releases it', async () => {
    const given = await allocateTunnel('node-1', IPIP);
    expect(given).toEqual({
      address: expect.stringMatching(/^10\.66\.0\.\d+\/32$/),
      alreadyAllocated: false,
      releasedAddresses: [],
    });
    expect(await allocateTunnel('node-1', IPIP)).toEqual({ ...given, alreadyAllocated: true });
    const bare = given.address.replace('/32', '');
    expect((await getNode('node-1'))?.tunnels).toEqual([{ kind: IPIP, address: bare, macAddress: '' }, ...VXLAN_ENDS]);
    expect(await releaseTunnel('node-1', IPIP)).toEqual({ addresses: [given.address] });
    expect(await releaseTunnel('node-1', IPIP)).toEqual({ addresses: [] });
    expect((await getNode('node-1'))?.tunnels).toEqual(VXLAN_ENDS);
  });

  test('is refused for unregistered nodes, and without a pool for it', async () => {
    expect((await failureOf(allocateTunnel('node-9', IPIP))).code).toBe('NODE_NOT_FOUND');
    expect((await failureOf(allocateTunnel('node-1', VXLAN6))).code).toBe('NO_POOL');
    expect(await releaseTunnel('node-9', IPIP)).toEqual({ addresses: [] });
  });

  test('of no kind, or of a node without a name, is refused', async () => {
    const faults = [expect.stringMatching(/^node_name is no RFC 1123/), 'kind is 0; unknown kind'];
    expect(await faultsOf(allocateTunnel('Node', UNSPECIFIED))).toEqual(faults);
    expect(await faultsOf(releaseTunnel('Node', UNSPECIFIED))).toEqual(faults);
  });
});

describe('a node that is deleted', () => {
  test('releases its addresses, and may register again', async () => {
    await register('node-1');
    await register('node-2', { ipv4Address: '192.0.2.8/24' });
    const address = await served.caller.allocateAddress('c1', { nodeName: 'node-1' });
    await served.caller.allocate('c2', { nodeName: 'node-1' });
    await served.caller.allocate('c3', { nodeName: 'node-2' });
    expect(await deleteNode('node-1')).toMatchObject({ releasedAddresses: 2n, releasedBlocks: 1n });
    expect((await failureOf(served.caller.getEndpoint('c1'))).code).toBe('ENDPOINT_NOT_FOUND');
    expect((await served.caller.allBlocks()).map(({ nodeName }) => nodeName)).toEqual(['node-2']);
    expect(await served.caller.getEndpoint('c3')).toMatchObject({ endpoint: { nodeName: 'node-2' } });
    expect((await failureOf(deleteNode('node-1'))).code).toBe('NODE_NOT_FOUND');
    const { node, created } = await register('node-1');
    expect([created, node?.deleteTime]).toEqual([true, undefined]);
    expect(await served.caller.release('c1')).toEqual({ addresses: [] });
    expect(address).toMatch(/^10\.65/);
  });

  test('gets nothing while other nodes allocate on it, and leaves nothing', async () => {
    await register('node-1');
    const allocations = Array.from({ length: 60 }, (_, i) => served.caller.allocate(`c${i}`, { nodeName: 'node-1' }));
    const [deleted, ...given] = await Promise.allSettled([deleteNode('node-1'), ...allocations]);
    expect(deleted.status).toBe('fulfilled');
    for (const result of given)
      if (result.status === 'rejected')
        expect(result.reason).toMatchObject({ code: expect.stringMatching(/^NODE_(BEING_DELETED|NOT_FOUND)$/) });
    expect(await served.caller.allBlocks()).toEqual([]);
    expect((await failureOf(getNode('node-1'))).code).toBe('NODE_NOT_FOUND');
  });

  test('whose deletion a former process did not complete is deleted in the background', async () => {
    await register('node-1');
    await served.caller.allocate('c1', { nodeName: 'node-1' });
    await interruptDeletion('2026-08-22T06:33:25Z');
    await expect
      .poll(async () => (await listNodes()).nodes.length, { timeout: 10_000, message: 'the node goes' })
      .toBe(0);
    expect(await served.caller.allBlocks()).toEqual([]);
  });

  test('stays if it runs and has pods when another process continues, whatever the clock of the first one said', async () => {
    await register('node-1');
    const bootId = randomUUID();
    await openSession(bootId, undefined);
    const { endpoint } = await served.caller.allocate('c1', { nodeName: 'node-1' });
    const { address: cidr, sequenceNumber } = endpoint!.addresses[0]!;
    await interruptDeletion('2099-01-01T00:00:00Z');
    await expect.poll(async () => (await getNode('node-1'))?.inventoryRequestCount).toBe(1n);
    const session = await openSession(bootId, { bootId, generation: 1n, revision: 1n });
    const addresses = [{ address: cidr.replace('/32', ''), sequenceNumber }];
    const attachments = [{ attachment: attachment('c1'), pod: undefined, addresses, ended: false }];
    await report({ bootId, ...session }, attachments);
    await expect
      .poll(async () => (await getNode('node-1'))?.deleteTime, { timeout: 10_000, message: 'the mark goes' })
      .toBeUndefined();
    expect((await served.caller.allocate('c1', { nodeName: 'node-1' })).endpoint).toEqual(endpoint);
  });
});

/** Opens a session of node-1. */
async function openSession(bootId: string, last: NodeSession | undefined) {
  const request = {
    nodeName: 'node-1',
    machineId: MACHINE_ID,
    bootId,
    last,
    expectedGeneration: last?.generation ?? 0n,
  };
  const message = OpenSessionRequest.fromPartial(request);
  const opened = await served.caller.peer.call(LeaseServiceService.openSession, message, clientLimits());
  return { generation: opened.generation, revision: opened.revision };
}

/** Reports the whole inventory of node-1, without leases. */
function report(session: NodeSession, attachments: InventoryAttachment[]) {
  const request = { nodeName: 'node-1', session, digest: Buffer.alloc(32), whole: true, attachments, leases: [] };
  return served.caller.peer.call(LeaseServiceService.reportInventory, request, clientLimits());
}

/** Marks node-1 as a process does that is killed then, and starts the next one. */
async function interruptDeletion(deletionTimestamp: string): Promise<void> {
  await served.stop();
  const store = await EmbeddedStore.open({ directory: served.place.storeDirectory, pid: process.pid });
  const keys = new RecordKeys('/calico');
  const [stored] = (await store.read([keys.node('node-1')], NEVER)).records;
  const node: unknown = JSON.parse(Buffer.from(stored!.value).toString());
  expect(node).toHaveProperty('metadata');
  const marked = JSON.stringify(node, (name, value) => (name === 'metadata' ? { ...value, deletionTimestamp } : value));
  const puts = [{ key: keys.node('node-1'), value: Buffer.from(marked) }];
  await store.commit({ comparisons: [], puts, deletes: [] }, NEVER);
  await store.close();
  await served.start();
}

test('a node that runs keeps its pods, whether the deletion is forced or not, and shows when it was heard of', async () => {
  const { peer } = served.caller;
  const bootId = randomUUID();
  await register('node-1');
  const session = await openSession(bootId, undefined);
  const { endpoint } = await served.caller.allocate('c1');
  const { address: cidr, sequenceNumber } = endpoint!.addresses[0]!;
  const address = cidr.replace('/32', '');
  const { code, message } = await failureOf(deleteNode('node-1'));
  expect([code, message]).toEqual(['NODE_IN_USE', expect.stringContaining(`net/c1/eth0 on node-1 (${address})`)]);
  const forced = peer.call(
    NodeServiceService.deleteNode,
    { name: 'node-1', resourceVersion: '', force: true },
    clientLimits(),
  );
  await expect.poll(async () => (await getNode('node-1'))?.inventoryRequestCount).toBe(1n);
  const addresses = [{ address, sequenceNumber }];
  const attachments = [{ attachment: attachment('c1'), pod: undefined, addresses, ended: false }];
  expect(await report({ bootId, ...session }, attachments)).toMatchObject({ equal: true });
  expect(await forced).toEqual({
    releasedAddresses: 0n,
    releasedBlocks: 0n,
    kept: [{ address, nodeName: 'node-1', attachment: attachment('c1'), pod: undefined }],
    keptAddresses: 1n,
  });
  expect(await getNode('node-1')).toMatchObject({ heardTime: expect.any(Date), reportTime: expect.any(Date) });
});

describe('malformed requests are refused, with all errors at once', () => {
  test('in a registration', async () => {
    const many = Object.fromEntries(Array.from({ length: 257 }, (_, i) => [`l${i}`, '']));
    expect(
      await faultsOf(
        register('Node_1', {
          ipv4Address: '2001:db8::7/64',
          ipv6Address: 'fd00::1',
          labels: { '-a': 'ok', 'x/y/z': 'not ok!', [`a/${'b'.repeat(64)}`]: '' },
          interfaces: [
            { name: 'eth0', addresses: ['192.0.2.7', '192.0.2.7/33'] },
            { name: 'eth0', addresses: [] },
            { name: 'a name', addresses: Array.from({ length: 65 }, () => '192.0.2.7/24') },
          ],
        }),
      ),
    ).toEqual([
      expect.stringMatching(/^name is no RFC 1123 subdomain/),
      expect.stringMatching(/^ipv4_address must be an IPv4 address with its subnet length/),
      expect.stringMatching(/^ipv6_address must be an IPv6 address with its subnet length/),
      expect.stringMatching(/^labels\["-a"\] has a key that has other characters/),
      expect.stringMatching(/^labels\["x\/y\/z"\] has a key that has a prefix before "\/" that is no RFC 1123/),
      expect.stringMatching(/^labels\["x\/y\/z"\] has a value that has other characters/),
      expect.stringMatching(/^labels\["a\/bbb.*"\] has a key that is longer than 63 bytes/),
      expect.stringMatching(/^interfaces\[0\].addresses\[0\] must be an address/),
      expect.stringMatching(/^interfaces\[0\].addresses\[1\] must be an address/),
      'interfaces[1].name is "eth0" a second time',
      expect.stringMatching(/^interfaces\[2\].name contains/),
      'interfaces[2].addresses has 65 entries; at most 64 are allowed',
    ]);
    expect(await faultsOf(register('n', { ipv4Address: '', labels: many }))).toEqual([
      'ipv4_address is empty; set it or ipv6_address',
      'labels has 257 entries; at most 256 are allowed',
    ]);
    const interfaces = Array.from({ length: 65 }, (_, i) => ({ name: `e${i}`, addresses: [] }));
    expect(await faultsOf(register('n', { interfaces }))).toEqual([
      'interfaces has 65 entries; at most 64 are allowed',
    ]);
    expect((await listNodes()).nodes).toEqual([]);
  });

  test.each([
    ['127.0.0.1/8', /^ipv4_address is a loopback address; register an address/],
    ['0.0.0.0/24', /^ipv4_address is unspecified/],
    ['192.0.2.7/7', /^ipv4_address has a subnet of length 7, shorter than 8/],
    ['192.0.2.0/24', /^ipv4_address is the first address of its subnet/],
    ['192.0.2.255/24', /^ipv4_address is the broadcast address of its subnet/],
    ['224.0.0.5/24', /^ipv4_address is a multicast address/],
    ['255.255.255.255/24', /^ipv4_address is reserved or the broadcast address/],
    ['169.254.1.1/16', /^ipv4_address is a link-local address/],
    ['::/64', /^ipv6_address is unspecified/],
    ['::1/128', /^ipv6_address is a loopback address/],
    ['fe80::1/64', /^ipv6_address is a link-local address/],
    ['ff02::1/64', /^ipv6_address is a multicast address/],
    ['fec0::1/64', /^ipv6_address is a site-local address/],
    ['64:ff9b::c000:207/96', /^ipv6_address is an IPv4 address/],
    ['::c000:207/128', /^ipv6_address is an IPv4 address/],
    ['100::1/64', /^ipv6_address is for discarded packets/],
    ['2001:db8::7/31', /^ipv6_address has a subnet of length 31, shorter than 32/],
    ['2001:db8::/64', /^ipv6_address is the first address of its subnet/],
  ])('in the address %s of a node or one of its interfaces', async (address, fault) => {
    const own = address.includes(':') ? { ipv6Address: address } : { ipv4Address: address };
    expect(await faultsOf(register('n', own))).toEqual([expect.stringMatching(fault)]);
    const interfaces = [{ name: 'eth0', addresses: [address] }];
    const ofInterface = new RegExp(
      fault.source.replace(/^\^ipv._address/, String.raw`^interfaces\[0\].addresses\[0\]`),
    );
    expect(await faultsOf(register('n', { interfaces }))).toEqual([expect.stringMatching(ofInterface)]);
  });

  test('in the address of a pod', async () => {
    await register('node-1');
    const { endpoint } = await served.caller.allocate('c1', { nodeName: 'node-1' });
    const ipv4Address = endpoint!.addresses[0]!.address.replace('/32', '/24');
    const failure = await failureOf(register('node-2', { ipv4Address }));
    expect(failure).toMatchObject({
      code: 'ADDRESS_IN_USE',
      message: expect.stringContaining('net/c1/eth0 on node node-1'),
    });
  });

  test('in the address of another node', async () => {
    await register('node-1');
    expect(await failureOf(register('node-2'))).toMatchObject({
      code: 'ADDRESS_IN_USE',
      message: expect.stringContaining('which node "node-1" has'),
    });
    expect(await getNode('node-2').catch(() => undefined)).toBeUndefined();
  });

  test('of nodes that register one address at the same time, except for one', async () => {
    const results = await Promise.allSettled(['n1', 'n2', 'n3', 'n4'].map((name) => register(name)));
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
  });

  test('in names and labels', async () => {
    const fault = expect.stringMatching(/^name is no RFC 1123 subdomain/);
    expect(await faultsOf(getNode('a_b'))).toEqual([fault]);
    expect(await faultsOf(deleteNode('a_b'))).toEqual([fault]);
    expect(await faultsOf(updateNode('a_b', { a: '-' }))).toEqual([
      fault,
      expect.stringMatching(/^labels\["a"\] has a value/),
    ]);
  });
});
