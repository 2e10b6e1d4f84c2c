import { lstatSync } from 'node:fs';
import process from 'node:process';

import { AddressServiceService, AllocateRequest, IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import { AffinityState } from '@podwire/proto/podwire/ipam/v1/block';
import { DeletePoolResponse, PoolDeletionMode } from '@podwire/proto/podwire/ipam/v1/pool';
import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { describe, expect, test } from 'vitest';

import { EmbeddedStore } from './engine/embedded/embedded-store.js';
import { attachment, failureOf, servedForEachTest } from './testing/service.js';

const { IP_FAMILY_UNSPECIFIED: UNSPECIFIED, IP_FAMILY_IPV4: IPV4, IP_FAMILY_IPV6: IPV6 } = IpFamily;

/** Families as an older or invalid client may send them: field 4, packed, with the value 5. */
const NO_FAMILY = AllocateRequest.decode(Uint8Array.of(0x22, 1, 5)).families;

const { POOL_DELETION_MODE_REFUSE_IF_IN_USE: REFUSE } = PoolDeletionMode;

/** The answer to a deletion that found only the pool. */
const GONE = DeletePoolResponse.fromPartial({});

const served = servedForEachTest();

describe('an attachment', () => {
  test('gets an endpoint, gets it again, is found by it, and releases it', async () => {
    const rest = {
      pod: { namespace: 'default', name: 'web-0', uid: 'f5a1' },
      netns: { bootId: '0f8fad5b-d9cb-469f-a165-70867728950e', inode: 4026532198n },
    };
    const { endpoint, alreadyAllocated } = await served.caller.allocate('c1', rest);
    expect(alreadyAllocated).toBe(false);
    const [address] = endpoint!.addresses;
    expect(endpoint).toEqual({
      attachment: attachment('c1'),
      namespace: 'default',
      name: 'node--1-k8s-web--0-eth0',
      uid: expect.stringMatching(/^[0-9a-f]{8}-[0-9a-f-]{27}$/),
      createTime: expect.any(Date),
      nodeName: 'node-1',
      ...rest,
      addresses: [address],
      macAddress: podMac(attachment('c1')),
      hostInterfaceName: hostInterfaceName(attachment('c1')),
    });
    expect(address).toMatchObject({
      address: expect.stringMatching(/^10\.65\.0\.\d+\/32$/),
      blockCidr: expect.stringMatching(/^10\.65\.0\.\d+\/26$/),
      poolName: 'default',
    });
    expect(await served.caller.allocate('c1', rest)).toEqual({ endpoint, alreadyAllocated: true });
    expect(await served.caller.getEndpoint('c1')).toEqual({ endpoint });
    expect(await served.caller.release('c1')).toEqual({ addresses: [address!.address] });
    expect(await served.caller.release('c1')).toEqual({ addresses: [] });
    expect(await failureOf(served.caller.getEndpoint('c1'))).toMatchObject({ code: 'ENDPOINT_NOT_FOUND' });
  });

  test('gets both families, in the requested order', async () => {
    await served.caller.createPool({ name: 'six', cidr: 'fd65::/48' });
    const { endpoint } = await served.caller.allocate('c1', { families: [IPV6, IPV4] });
    const families = endpoint!.addresses.map(({ address }) => (address.includes(':') ? 6 : 4));
    expect(families).toEqual([6, 4]);
    expect((await served.caller.release('c1')).addresses).toHaveLength(2);
  });

  test('is refused when there is no pool of a family, and when the pools are exhausted', async () => {
    expect(await failureOf(served.caller.allocate('c1', { families: [IPV4, IPV6] }))).toMatchObject({
      code: 'NO_POOL',
    });
    await Promise.all(Array.from({ length: 256 }, (_, i) => served.caller.allocate(`c${i}`)));
    const failure = await failureOf(served.caller.allocate('one-more'));
    expect(failure.code).toBe('POOLS_EXHAUSTED');
    expect(failure.message).toContain(
      'pool "default" 10.65.0.0/24: all 4 blocks are full (256 of 256 addresses in use)',
    );
    await served.caller.release('c17');
    expect((await served.caller.allocate('one-more')).alreadyAllocated).toBe(false);
  });

  test('whose caller has no time left is not served', async () => {
    const message = AllocateRequest.fromPartial({ attachment: attachment('c1'), nodeName: 'node-1' });
    const call = served.caller.peer.call(AddressServiceService.allocate, message, { deadlineMs: Date.now() - 1 });
    expect(await failureOf(call)).toMatchObject({ code: 'DEADLINE_EXCEEDED' });
    expect(await served.caller.allBlocks()).toEqual([]);
  });
});

describe('invalid requests are refused, with all errors, and nothing changes', () => {
  const pod = { namespace: 'Bad', name: '-', uid: 'x'.repeat(129) };
  const netns = { bootId: 'boot', inode: 0n };
  const allocations: readonly (readonly [string, Partial<AllocateRequest>, readonly string[]])[] = [
    ['no attachment', { attachment: undefined }, ['attachment']],
    [
      'a bad attachment',
      { attachment: { network: '', containerId: '../x', interfaceName: 'a/b' } },
      ['attachment.network', 'attachment.container_id', 'attachment.interface_name'],
    ],
    ['no node', { nodeName: '' }, ['node_name']],
    ['a bad node', { nodeName: 'Node_1' }, ['node_name']],
    ['a bad pod', { pod }, ['pod.namespace', 'pod.name', 'pod.uid']],
    ['a bad netns', { netns }, ['netns.boot_id', 'netns.inode']],
    ['a family twice', { families: [IPV4, IPV6, IPV4] }, ['families[2]']],
    ['the usual family twice', { families: [UNSPECIFIED, IPV4] }, ['families[1]']],
    ['no family', { families: NO_FAMILY }, ['families[0]']],
    [
      'everything wrong',
      { nodeName: 'N', pod, netns, families: NO_FAMILY },
      ['node_name', 'pod.namespace', 'pod.name', 'pod.uid', 'netns.boot_id', 'netns.inode', 'families[0]'],
    ],
  ];

  test.each(allocations)('Allocate with %s', async (_, rest, fields) => {
    const failure = await failureOf(served.caller.allocate('c1', rest));
    expect(failure.code).toBe('INVALID_REQUEST');
    expect(failure.violations.map(({ field }) => field)).toEqual(fields);
    for (const field of fields) expect(failure.message).toContain(field);
    expect(await served.caller.allBlocks()).toEqual([]);
  });

  const failures: readonly (readonly [string, () => Promise<unknown>, string, readonly string[]])[] = [
    [
      'Release of a bad attachment',
      () => served.caller.release('', 'lo'),
      'INVALID_REQUEST',
      ['attachment.container_id', 'attachment.interface_name'],
    ],
    [
      'GetEndpoint of a bad attachment',
      () => served.caller.getEndpoint('-'),
      'INVALID_REQUEST',
      ['attachment.container_id'],
    ],
    [
      'CreatePool without a CIDR or a name',
      () => served.caller.createPool({}),
      'INVALID_REQUEST',
      ['pool.name', 'pool.cidr'],
    ],
    [
      'CreatePool with host bits',
      () => served.caller.createPool({ name: 'a', cidr: '10.0.0.1/16' }),
      'INVALID_REQUEST',
      ['pool.cidr'],
    ],
    [
      'CreatePool with a block size of zero',
      () => served.caller.createPool({ name: 'a', cidr: '10.0.0.0/16', blockSize: 33 }),
      'INVALID_REQUEST',
      ['pool.block_size'],
    ],
    [
      'CreatePool in 169.254.0.0/16',
      () => served.caller.createPool({ name: 'a', cidr: '169.254.0.0/20' }),
      'INVALID_REQUEST',
      ['pool.cidr'],
    ],
    [
      'CreatePool smaller than a block',
      () => served.caller.createPool({ name: 'a', cidr: '10.0.0.0/28' }),
      'INVALID_REQUEST',
      ['pool.cidr'],
    ],
    ['CreatePool over another', () => served.caller.createPool({ name: 'a', cidr: '10.0.0.0/8' }), 'POOL_OVERLAP', []],
    [
      'CreatePool of a used name',
      () => served.caller.createPool({ name: 'default', cidr: '10.1.0.0/16' }),
      'POOL_EXISTS',
      [],
    ],
    ['GetPool without a name', () => served.caller.getPool(''), 'INVALID_REQUEST', ['name']],
    ['GetPool of an unknown one', () => served.caller.getPool('unknown'), 'POOL_NOT_FOUND', []],
    ['DeletePool without a name', () => served.caller.deletePool(''), 'INVALID_REQUEST', ['name']],
    ['DeletePool of an unknown one', () => served.caller.deletePool('unknown'), 'POOL_NOT_FOUND', []],
    [
      'DeletePool of a stale version',
      () => served.caller.deletePool('default', { resourceVersion: '0' }),
      'STALE_VERSION',
      [],
    ],
    [
      'ListPools with a bad page',
      () => served.caller.listPools(-1, 'x'),
      'INVALID_REQUEST',
      ['page_size', 'page_token'],
    ],
    [
      'ListBlocks with bad filters',
      () => served.caller.listBlocks({ poolName: 'A', nodeName: 'B', pageSize: -1 }),
      'INVALID_REQUEST',
      ['pool_name', 'node_name', 'page_size'],
    ],
  ];

  test.each(failures)('%s', async (_, call, code, fields) => {
    const before = await served.caller.listPools();
    const failure = await failureOf(call());
    expect(failure.code).toBe(code);
    expect(failure.violations.map(({ field }) => field)).toEqual(fields);
    expect(await served.caller.listPools()).toEqual(before);
  });
});

describe('pools and blocks', () => {
  test('a pool is created, read, counted and deleted', async () => {
    const { pool } = await served.caller.createPool({
      name: 'second',
      cidr: '10.66.0.0/26',
      blockSize: 28,
      disabled: true,
    });
    expect(pool).toMatchObject({ cidr: '10.66.0.0/26', blockSize: 28, disabled: true });
    expect(pool!.utilization).toEqual({
      capacity: '64',
      allocated: 0n,
      free: '64',
      blocks: 0n,
      cooling: 0n,
      reserved: '0',
      available: '64',
      leased: 0n,
    });
    expect(Math.abs(pool!.createTime!.getTime() - Date.now())).toBeLessThan(60_000);
    expect(await served.caller.getPool('second')).toEqual({ pool });
    expect((await served.caller.listPools()).pools.map(({ name }) => name)).toEqual(['default', 'second']);
    expect(await served.caller.deletePool('second', { resourceVersion: pool!.resourceVersion })).toEqual(GONE);
    expect(await failureOf(served.caller.getPool('second'))).toMatchObject({ code: 'POOL_NOT_FOUND' });
  });

  test('a pool counts its allocations, is kept while it has some, and is deleted with its blocks after', async () => {
    await served.caller.allocate('c1');
    await served.caller.allocate('c2');
    expect((await served.caller.getPool('default')).pool!.utilization).toEqual({
      capacity: '256',
      allocated: 2n,
      free: '254',
      blocks: 1n,
      cooling: 0n,
      reserved: '0',
      available: '254',
      leased: 0n,
    });
    const failure = await failureOf(served.caller.deletePool('default', { mode: REFUSE }));
    expect(failure).toMatchObject({ code: 'POOL_IN_USE', message: expect.stringContaining('2 on node node-1') });
    await served.caller.release('c1');
    await served.caller.release('c2');
    expect(await served.caller.deletePool('default', { mode: REFUSE })).toEqual({ ...GONE, deletedBlocks: 1n });
    expect(await served.caller.allBlocks()).toEqual([]);
  });

  test('blocks show their node, their affinity and the holders of their addresses', async () => {
    const before = Date.now();
    const { endpoint } = await served.caller.allocate('c1', { pod: { namespace: 'default', name: 'web', uid: '' } });
    const [address] = endpoint!.addresses;
    const [block] = await served.caller.allBlocks();
    expect(block).toMatchObject({
      cidr: address!.blockCidr,
      poolName: 'default',
      nodeName: 'node-1',
      affinityState: AffinityState.AFFINITY_STATE_CONFIRMED,
      capacity: 64,
      sequenceNumber: address!.sequenceNumber + 1n,
    });
    expect(Math.abs(block!.claimTime!.getTime() - before)).toBeLessThan(60_000);
    expect(block!.allocations).toEqual([
      {
        address: address!.address.replace('/32', ''),
        handleId: 'net.c1',
        attributes: {
          node: 'node-1',
          namespace: 'default',
          pod: 'web',
          network: 'net',
          interface: 'eth0',
          timestamp: expect.stringMatching(/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? \+0000 UTC$/),
        },
        sequenceNumber: address!.sequenceNumber,
      },
    ]);
  });

  test('lists are read page by page, with tokens that are valid for their filters only', async () => {
    for (const nodeName of ['node-1', 'node-2', 'node-3']) await served.caller.allocate(`c-${nodeName}`, { nodeName });
    const all = await served.caller.listBlocks();
    expect(all).toMatchObject({ blocks: { length: 3 }, nextPageToken: '' });
    const first = await served.caller.listBlocks({ pageSize: 2 });
    const second = await served.caller.listBlocks({ pageSize: 2, pageToken: first.nextPageToken });
    expect([...first.blocks, ...second.blocks]).toEqual(all.blocks);
    expect(second.nextPageToken).toBe('');
    const misused = served.caller.listBlocks({ pageToken: first.nextPageToken, nodeName: 'node-1' });
    expect((await failureOf(misused)).violations).toMatchObject([{ field: 'page_token' }]);
    expect((await served.caller.listBlocks({ nodeName: 'node-2' })).blocks.map(({ nodeName }) => nodeName)).toEqual([
      'node-2',
    ]);

    await served.caller.createPool({ name: 'second', cidr: '10.66.0.0/24' });
    const { pools, nextPageToken } = await served.caller.listPools(1);
    expect(pools.map(({ name }) => name)).toEqual(['default']);
    expect((await served.caller.listPools(1, nextPageToken)).pools.map(({ name }) => name)).toEqual(['second']);
  });
});

describe('the service', () => {
  test('keeps everything over a restart', async () => {
    await served.caller.createPool({ name: 'six', cidr: 'fd65::/48' });
    const endpoints = await Promise.all(
      ['c1', 'c2', 'c3'].map((id) =>
        served.caller.allocate(id, { families: [IPV4, IPV6] }).then(({ endpoint }) => endpoint),
      ),
    );
    const [blocks, pools] = [await served.caller.allBlocks(), await served.caller.listPools()];
    await served.restart();
    expect(await served.caller.allBlocks()).toEqual(blocks);
    expect(await served.caller.listPools()).toEqual(pools);
    for (const endpoint of endpoints)
      expect(await served.caller.getEndpoint(endpoint!.attachment!.containerId)).toEqual({ endpoint });
  });

  test('does not bring back a default pool that was deleted', async () => {
    await served.caller.deletePool('default');
    await served.restart();
    expect((await served.caller.listPools()).pools).toEqual([]);
  });

  test('does not add a default pool that was set later', async () => {
    await served.restart({ PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.77.0.0/16', PODWIRE_IPAM_DEFAULT_POOL_NAME: 'late' });
    expect((await served.caller.listPools()).pools.map(({ name }) => name)).toEqual(['default']);
  });

  test('refuses a datastore that another process has open', async () => {
    const second = served.place.start({ PODWIRE_IPAM_LISTEN: '127.0.0.1:0', PODWIRE_IPAM_PLAINTEXT_LOOPBACK: 'true' });
    expect(await failureOf(second)).toMatchObject({ code: 'STORE_IN_USE' });
  });

  test('refuses an address where another process answers, and releases the datastore', async () => {
    const elsewhere = { PODWIRE_IPAM_STORE_DIRECTORY: `${served.place.directory}/other` };
    expect(await failureOf(served.place.start(elsewhere))).toMatchObject({ code: 'INVALID_SETTINGS' });
    const third = await served.place.start({
      ...elsewhere,
      PODWIRE_IPAM_LISTEN: '127.0.0.1:0',
      PODWIRE_IPAM_PLAINTEXT_LOOPBACK: 'true',
    });
    expect(third.addresses).toEqual([expect.stringMatching(/^127\.0\.0\.1:[1-9]\d*$/)]);
    await third.stop();
  });

  test('reports that it serves, and its socket is accessible to its owner only', async () => {
    expect(await served.caller.health()).toBe(1);
    expect(lstatSync(served.place.address.slice('unix:'.length)).mode & 0o777).toBe(0o600);
  });

  test('keeps acknowledged allocations when it is stopped in the middle', async () => {
    await served.caller.health();
    const calls = Array.from({ length: 50 }, (_, i) => served.caller.allocate(`c${i}`));
    await Promise.any(calls);
    await served.stop();
    const results = await Promise.allSettled(calls);
    const given = results.flatMap((result) => (result.status === 'fulfilled' ? [result.value.endpoint!] : []));
    expect(given.length).toBeGreaterThan(0);
    await served.start();
    for (const endpoint of given)
      expect(await served.caller.getEndpoint(endpoint.attachment!.containerId)).toEqual({ endpoint });
  });

  test('writes Calico’s keys', async () => {
    await served.caller.allocate('c1');
    await served.stop();
    const store = await EmbeddedStore.open({ directory: served.place.storeDirectory, pid: process.pid });
    const { records } = await store.list('/calico/', new AbortController().signal);
    await store.close();
    expect(records.map(({ key }) => key.replace(/10\.65\.0\.\d+-26$/, 'BLOCK'))).toEqual([
      '/calico/ipam/v2/assignment/ipv4/block/BLOCK',
      '/calico/ipam/v2/handle/net.c1',
      '/calico/ipam/v2/host/node-1/ipv4/block/BLOCK',
      '/calico/podwire/epoch',
      '/calico/resources/v3/projectcalico.org/clusterinformations/default',
      '/calico/resources/v3/projectcalico.org/ippools/default',
      '/calico/resources/v3/projectcalico.org/nodes/node-1',
      '/calico/resources/v3/projectcalico.org/workloadendpoints/default/node--1-cni-c1-eth0',
    ]);
    await served.start();
  });
});
