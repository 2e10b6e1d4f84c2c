import {
  AddressUse,
  AssignmentMode,
  CreatePoolRequest,
  DeletePoolRequest,
  EncapsulationMode,
  Pool,
  PoolDeletionMode,
  PoolState,
} from '@podwire/proto/podwire/ipam/v1/pool';
import { describe, expect, test } from 'vitest';

import { EmbeddedStore } from '../engine/embedded/embedded-store.js';
import { failureOf, faultsOf, servedForEachTest } from '../testing/service.js';

const served = servedForEachTest();

/** Every field that a client sets. */
const WISH: Omit<Pool, 'createTime' | 'resourceVersion' | 'utilization' | 'state' | 'stateReason' | 'deleteTime'> = {
  name: 'second',
  cidr: '10.66.0.0/24',
  blockSize: 28,
  disabled: false,
  ipipMode: EncapsulationMode.ENCAPSULATION_MODE_NEVER,
  vxlanMode: EncapsulationMode.ENCAPSULATION_MODE_CROSS_SUBNET,
  natOutgoing: true,
  disableBgpExport: true,
  nodeSelector: 'zone == "a"',
  namespaceSelector: 'has(team)',
  allowedUses: [AddressUse.ADDRESS_USE_WORKLOAD],
  assignmentMode: AssignmentMode.ASSIGNMENT_MODE_MANUAL,
};

/** The stored value of the pool in the stopped service's datastore. */
async function storedPool(name: string): Promise<unknown> {
  await served.stop();
  const store = await EmbeddedStore.open({ directory: served.place.storeDirectory, pid: 1 });
  const key = `/calico/resources/v3/projectcalico.org/ippools/${name}`;
  const { records } = await store.read([key], new AbortController().signal);
  await store.close();
  await served.start();
  return records[0] && JSON.parse(Buffer.from(records[0].value).toString());
}

describe('CreatePool', () => {
  test('stores every field like Calico, and returns all of them', async () => {
    const { pool } = await served.caller.createPool(WISH);
    expect(pool).toMatchObject({
      ...WISH,
      state: PoolState.POOL_STATE_ACTIVE,
      stateReason: '',
      deleteTime: undefined,
    });
    expect(await served.caller.getPool('second')).toEqual({ pool });
    expect(await storedPool('second')).toMatchObject({
      kind: 'IPPool',
      apiVersion: 'projectcalico.org/v3',
      metadata: { name: 'second' },
      spec: {
        cidr: '10.66.0.0/24',
        blockSize: 28,
        ipipMode: 'Never',
        vxlanMode: 'CrossSubnet',
        natOutgoing: true,
        disableBGPExport: true,
        nodeSelector: 'zone == "a"',
        namespaceSelector: 'has(team)',
        allowedUses: ['Workload'],
        assignmentMode: 'Manual',
      },
    });
  });

  test('names every error by its field, also unknown enum values', async () => {
    // A client of another release may send them: fields 8, 14 and 15 with values that are unknown to this one.
    const bytes = Uint8Array.of(0x40, 9, 0x72, 2, 0, 7, 0x78, 9);
    const { ipipMode, allowedUses, assignmentMode } = Pool.decode(bytes);
    const call = served.caller.createPool({
      name: 'x',
      cidr: '10.66.0.1/24',
      ipipMode,
      allowedUses,
      assignmentMode,
      nodeSelector: '(',
    });
    expect(await faultsOf(call)).toEqual([
      'pool.ipip_mode is 9, which is not a valid value of this field',
      'pool.allowed_uses is 0, which is not a valid value of this field',
      'pool.allowed_uses is 7, which is not a valid value of this field',
      'pool.assignment_mode is 9, which is not a valid value of this field',
      expect.stringMatching(/^pool\.cidr has host bits set/),
      expect.stringMatching(
        /^pool\.node_selector is not a valid selector: at character 2: the end of the selector found/,
      ),
    ]);
    expect(await faultsOf(served.caller.createPool(CreatePoolRequest.fromPartial({}).pool ?? {}))).toHaveLength(2);
    expect((await served.caller.listPools()).pools).toHaveLength(1);
  });
});

describe('UpdatePool', () => {
  test('changes the fields of the mask only, and survives a restart', async () => {
    await served.caller.createPool(WISH);
    const { pool } = await served.caller.updatePool(
      { name: 'second', disabled: true, nodeSelector: 'all()' },
      'disabled',
    );
    expect(pool).toMatchObject({
      ...WISH,
      disabled: true,
      state: PoolState.POOL_STATE_DISABLED,
      stateReason: 'disabled',
    });
    const stored = await storedPool('second');
    expect(stored).toMatchObject({ spec: { disabled: true, nodeSelector: 'zone == "a"' } });
    expect(await served.caller.getPool('second')).toEqual({ pool });
  });

  test('without a mask sets every field, omitted ones to their default', async () => {
    const { pool: made } = await served.caller.createPool(WISH);
    const { pool } = await served.caller.updatePool({ name: 'second', natOutgoing: true });
    expect(pool).toMatchObject({
      cidr: WISH.cidr,
      blockSize: WISH.blockSize,
      natOutgoing: true,
      vxlanMode: EncapsulationMode.ENCAPSULATION_MODE_NEVER,
      nodeSelector: 'all()',
      namespaceSelector: '',
      allowedUses: [AddressUse.ADDRESS_USE_WORKLOAD, AddressUse.ADDRESS_USE_TUNNEL],
      assignmentMode: AssignmentMode.ASSIGNMENT_MODE_AUTOMATIC,
    });
    expect(pool!.resourceVersion).not.toBe(made!.resourceVersion);
  });

  test('accepts its own answer, and nothing changes', async () => {
    const { pool } = await served.caller.createPool(WISH);
    expect(await served.caller.updatePool(pool!)).toEqual({ pool });
  });

  test('refuses a version that is not the newest', async () => {
    const { pool } = await served.caller.createPool(WISH);
    await served.caller.updatePool({ ...pool!, natOutgoing: false });
    const failure = await failureOf(served.caller.updatePool({ ...pool!, disabled: true }));
    expect(failure.code).toBe('STALE_VERSION');
    expect((await served.caller.getPool('second')).pool).toMatchObject({ natOutgoing: false, disabled: false });
  });

  test('names immutable fields, broken rules and unknown values, all at once', async () => {
    await served.caller.createPool(WISH);
    const { ipipMode } = Pool.decode(Uint8Array.of(0x40, 9));
    expect(await faultsOf(served.caller.updatePool({ name: 'A', ipipMode }, 'ipip_mode', 'uid'))).toEqual([
      expect.stringMatching(/^pool\.name is no RFC 1123 subdomain/),
      expect.stringMatching(/^update_mask has unknown field "uid"; use cidr, block_size, disabled, ipip_mode/),
      'pool.ipip_mode is 9, which is not a valid value of this field',
    ]);
    const change = { name: 'second', cidr: '10.66.0.0/25', blockSize: 29, nodeSelector: 'global()', disabled: true };
    expect(await faultsOf(served.caller.updatePool(change, 'node_selector', 'disabled'))).toEqual([
      'pool.cidr is immutable and 10.66.0.0/24 here, not 10.66.0.0/25',
      'pool.block_size is immutable and 28 here, not 29',
      expect.stringMatching(/^pool\.node_selector uses global\(\)/),
    ]);
    expect((await served.caller.getPool('second')).pool).toMatchObject(WISH);
    expect((await failureOf(served.caller.updatePool({ name: 'unknown' }))).code).toBe('POOL_NOT_FOUND');
  });
});

describe('DeletePool', () => {
  test('drains a pool in use, which is deleted with the release of its last address', async () => {
    await served.caller.allocate('c1');
    await served.caller.allocate('c2', { nodeName: 'node-2' });
    expect(await served.caller.deletePool('default')).toEqual({
      kept: [],
      keptAddresses: 0n,
      deletedBlocks: 0n,
      state: PoolState.POOL_STATE_DRAINING,
      heldAddresses: 2n,
      coolingAddresses: 0n,
      leasedAddresses: 0n,
      releasedAddresses: 0n,
      unreadableRecord: '',
      holders: [
        { nodeName: 'node-1', addresses: 1n },
        { nodeName: 'node-2', addresses: 1n },
      ],
    });
    const { pool } = await served.caller.getPool('default');
    expect(pool).toMatchObject({ state: PoolState.POOL_STATE_DRAINING, stateReason: 'being deleted', disabled: false });
    expect(Math.abs(pool!.deleteTime!.getTime() - Date.now())).toBeLessThan(60_000);
    expect((await failureOf(served.caller.allocate('c3'))).message).toContain('being deleted');
    expect((await failureOf(served.caller.updatePool({ name: 'default' }))).code).toBe('POOL_BEING_DELETED');
    expect((await failureOf(served.caller.createPool({ name: 'x', cidr: '10.65.0.0/25' }))).code).toBe('POOL_OVERLAP');

    await served.caller.release('c1');
    expect(await served.caller.deletePool('default'), 'repeated').toMatchObject({ heldAddresses: 1n });
    await served.caller.release('c2');
    expect((await failureOf(served.caller.getPool('default'))).code).toBe('POOL_NOT_FOUND');
    expect(await served.caller.allBlocks()).toEqual([]);
  });

  test('releases all addresses if requested', async () => {
    await served.caller.allocate('c1');
    const mode = PoolDeletionMode.POOL_DELETION_MODE_RELEASE_ADDRESSES;
    expect(await served.caller.deletePool('default', { mode })).toMatchObject({
      state: PoolState.POOL_STATE_UNSPECIFIED,
      releasedAddresses: 1n,
      heldAddresses: 0n,
    });
    expect((await failureOf(served.caller.getEndpoint('c1'))).code).toBe('ENDPOINT_NOT_FOUND');
  });

  test('refuses an unknown mode', async () => {
    const { mode } = DeletePoolRequest.decode(Uint8Array.of(0x18, 9));
    expect(await faultsOf(served.caller.deletePool('default', { mode }))).toEqual([
      'mode is 9, which is not a valid PoolDeletionMode',
    ]);
    expect((await served.caller.getPool('default')).pool).toMatchObject({ state: PoolState.POOL_STATE_ACTIVE });
  });

  test('is finished after a start, where a process ended in the middle of it', async () => {
    await served.caller.allocate('c1');
    await served.caller.release('c1');
    await served.stop();
    const store = await EmbeddedStore.open({ directory: served.place.storeDirectory, pid: 1 });
    const key = '/calico/resources/v3/projectcalico.org/ippools/default';
    const { records } = await store.read([key], new AbortController().signal);
    const pool = JSON.parse(Buffer.from(records[0]!.value).toString());
    pool.metadata.deletionTimestamp = '2026-08-22T06:00:00Z';
    const puts = [{ key, value: Buffer.from(JSON.stringify(pool)) }];
    await store.commit({ comparisons: [], puts, deletes: [] }, new AbortController().signal);
    await store.close();
    await served.start();
    await expect.poll(async () => (await served.caller.listPools()).pools, { timeout: 10_000 }).toEqual([]);
    expect(await served.caller.allBlocks()).toEqual([]);
  });
});

describe('SplitPool', () => {
  test('replaces the pool by pools with every field, which have its addresses, and survives a restart', async () => {
    await served.caller.createPool({ ...WISH, assignmentMode: AssignmentMode.ASSIGNMENT_MODE_AUTOMATIC });
    await served.caller.allocate('c1');
    const { pools } = await served.caller.splitPool('default', { number: 4 });
    expect(pools.map(({ name, cidr }) => `${name} ${cidr}`)).toEqual([
      'split-default-0 10.65.0.0/26',
      'split-default-1 10.65.0.64/26',
      'split-default-2 10.65.0.128/26',
      'split-default-3 10.65.0.192/26',
    ]);
    const used = pools.filter(({ utilization }) => utilization?.allocated === 1n).map(({ name }) => name);
    expect(used).toHaveLength(1);
    await served.restart();
    expect((await served.caller.listPools()).pools.map(({ name }) => name)).toEqual([
      'second',
      ...pools.map(({ name }) => name),
    ]);
    expect((await served.caller.getEndpoint('c1')).endpoint?.addresses.map(({ poolName }) => poolName)).toEqual(used);
    expect((await served.caller.allBlocks()).map(({ poolName }) => poolName)).toEqual(used);
  });

  test('accepts a pool by its range, and keeps its fields', async () => {
    await served.caller.createPool(WISH);
    const pool = { $case: 'cidr', value: WISH.cidr } as const;
    const { pools } = await served.caller.splitPool('', { pool, number: 2 });
    for (const part of pools) expect(part).toMatchObject({ ...WISH, name: part.name, cidr: part.cidr });
    expect(pools.map(({ cidr }) => cidr)).toEqual(['10.66.0.0/25', '10.66.0.128/25']);
  });

  test.each([0, 1, 3, 6, 63, 65, 128, 2 ** 31])('refuses to make %s parts, before anything changes', async (number) => {
    const before = await served.caller.listPools();
    expect(await faultsOf(served.caller.splitPool('default', { number }))).toEqual([
      expect.stringContaining(`number is ${number}; it must be a power of two from 2 to 64`),
    ]);
    expect(await served.caller.listPools()).toEqual(before);
  });

  test('names every fault, and refuses faults that depend on the pool without disabling it', async () => {
    expect(await faultsOf(served.caller.splitPool('', { pool: undefined }))).toEqual([
      'pool is missing: set one of name and cidr',
      expect.stringMatching(/^number is 0/),
    ]);
    const wrong = { $case: 'cidr', value: '10.65.0.1/24' } as const;
    expect(await faultsOf(served.caller.splitPool('', { pool: wrong, number: 2 }))).toEqual(['cidr has host bits set']);
    expect(await faultsOf(served.caller.splitPool('default', { number: 8 }))).toEqual([
      'number is 8, and pool "default" 10.65.0.0/24 has room for 4 blocks of /26; each part needs at least one',
    ]);
    expect((await served.caller.getPool('default')).pool).toMatchObject({ state: PoolState.POOL_STATE_ACTIVE });
  });

  test('refuses a version that is not the newest, and a pool that is gone', async () => {
    const { pool } = await served.caller.getPool('default');
    await served.caller.updatePool({ name: 'default', natOutgoing: !pool!.natOutgoing }, 'nat_outgoing');
    const stale = served.caller.splitPool('default', { number: 2, resourceVersion: pool!.resourceVersion });
    expect((await failureOf(stale)).code).toBe('STALE_VERSION');
    await served.caller.splitPool('default', { number: 2 });
    expect((await failureOf(served.caller.splitPool('default', { number: 2 }))).code).toBe('POOL_NOT_FOUND');
  });
});
