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
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import type { RunningService } from './service.js';
import { Caller, Place } from './service.fixture.js';
import { EmbeddedStore } from './store/embedded/embedded-store.js';

let place: Place;
let service: RunningService;
let caller: Caller;

beforeEach(async () => {
  place = new Place();
  service = await place.start();
  caller = new Caller(place.address);
});

afterEach(async () => {
  caller.close();
  await service.stop();
  place.remove();
});

async function failureOf(call: Promise<unknown>): Promise<Failure> {
  const [result] = await Promise.allSettled([call]);
  if (result.status === 'rejected' && result.reason instanceof Failure) return result.reason;
  throw new Error('it did not fail');
}

const violationsOf = async (call: Promise<unknown>) => {
  const failure = await failureOf(call);
  expect(failure.code).toBe('INVALID_REQUEST');
  return failure.violations.map(({ field, reason }) => `${field} ${reason}`);
};

const WISH = {
  name: 'second',
  cidr: '10.66.0.0/24',
  blockSize: 28,
  vxlanMode: EncapsulationMode.ENCAPSULATION_MODE_CROSS_SUBNET,
  natOutgoing: true,
  disableBgpExport: true,
  nodeSelector: 'zone == "a"',
  namespaceSelector: 'has(team)',
  allowedUses: [AddressUse.ADDRESS_USE_WORKLOAD],
  assignmentMode: AssignmentMode.ASSIGNMENT_MODE_MANUAL,
};

/** What the pool's key holds in the stopped service's datastore. */
async function storedPool(name: string): Promise<unknown> {
  await service.stop();
  const store = await EmbeddedStore.open({ directory: place.storeDirectory, pid: 1 });
  const key = `/calico/resources/v3/projectcalico.org/ippools/${name}`;
  const { records } = await store.read([key], new AbortController().signal);
  await store.close();
  service = await place.start();
  return records[0] && JSON.parse(Buffer.from(records[0].value).toString());
}

describe('CreatePool', () => {
  test('stores every field as Calico does, and answers with all of them', async () => {
    const { pool } = await caller.createPool(WISH);
    expect(pool).toMatchObject({
      ...WISH,
      ipipMode: EncapsulationMode.ENCAPSULATION_MODE_NEVER,
      state: PoolState.POOL_STATE_ACTIVE,
      stateReason: '',
      deleteTime: undefined,
    });
    expect(await caller.getPool('second')).toEqual({ pool });
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

  test('names every fault by its field, those of numbers that mean nothing too', async () => {
    // As a client of another release may send them: fields 8, 14 and 15 with values of which this one knows nothing.
    const bytes = Uint8Array.of(0x40, 9, 0x72, 2, 0, 7, 0x78, 9);
    const { ipipMode, allowedUses, assignmentMode } = Pool.decode(bytes);
    const call = caller.createPool({
      name: 'x',
      cidr: '10.66.0.1/24',
      ipipMode,
      allowedUses,
      assignmentMode,
      nodeSelector: '(',
    });
    expect(await violationsOf(call)).toEqual([
      'pool.ipip_mode is 9, which is no value of its kind',
      'pool.allowed_uses is 0, which is no value of its kind',
      'pool.allowed_uses is 7, which is no value of its kind',
      'pool.assignment_mode is 9, which is no value of its kind',
      expect.stringMatching(/^pool\.cidr has host bits set/),
      expect.stringMatching(/^pool\.node_selector is no selector: at character 2: the end of the selector found/),
    ]);
    expect(await violationsOf(caller.createPool(CreatePoolRequest.fromPartial({}).pool ?? {}))).toHaveLength(2);
    expect((await caller.listPools()).pools).toHaveLength(1);
  });
});

describe('UpdatePool', () => {
  test('changes the fields of the mask alone, and survives a restart', async () => {
    await caller.createPool(WISH);
    const { pool } = await caller.updatePool({ name: 'second', disabled: true, nodeSelector: 'all()' }, 'disabled');
    expect(pool).toMatchObject({
      ...WISH,
      disabled: true,
      state: PoolState.POOL_STATE_DISABLED,
      stateReason: 'disabled',
    });
    const stored = await storedPool('second');
    expect(stored).toMatchObject({ spec: { disabled: true, nodeSelector: 'zone == "a"' } });
    expect(await caller.getPool('second')).toEqual({ pool });
  });

  test('without a mask sets every field, to its default where it is left out', async () => {
    const { pool: made } = await caller.createPool(WISH);
    const { pool } = await caller.updatePool({ name: 'second', natOutgoing: true });
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

  test('takes back what it answered with, and nothing changes', async () => {
    const { pool } = await caller.createPool(WISH);
    expect(await caller.updatePool(pool!)).toEqual({ pool });
  });

  test('refuses a version that is not the newest', async () => {
    const { pool } = await caller.createPool(WISH);
    await caller.updatePool({ ...pool!, natOutgoing: false });
    const failure = await failureOf(caller.updatePool({ ...pool!, disabled: true }));
    expect(failure.code).toBe('STALE_VERSION');
    expect((await caller.getPool('second')).pool).toMatchObject({ natOutgoing: false, disabled: false });
  });

  test('names what is immutable, what breaks a rule and what it does not know, all at once', async () => {
    await caller.createPool(WISH);
    const { ipipMode } = Pool.decode(Uint8Array.of(0x40, 9));
    expect(await violationsOf(caller.updatePool({ name: 'A', ipipMode }, 'ipip_mode', 'uid'))).toEqual([
      expect.stringMatching(/^pool\.name is no RFC 1123 subdomain/),
      expect.stringMatching(/^update_mask has "uid"; known are cidr, block_size, disabled, ipip_mode/),
      'pool.ipip_mode is 9, which is no value of its kind',
    ]);
    const change = { name: 'second', cidr: '10.66.0.0/25', blockSize: 29, nodeSelector: 'global()', disabled: true };
    expect(await violationsOf(caller.updatePool(change, 'node_selector', 'disabled'))).toEqual([
      'pool.cidr is immutable and 10.66.0.0/24 here, not 10.66.0.0/25',
      'pool.block_size is immutable and 28 here, not 29',
      expect.stringMatching(/^pool\.node_selector uses global\(\)/),
    ]);
    expect((await caller.getPool('second')).pool).toMatchObject(WISH);
    expect((await failureOf(caller.updatePool({ name: 'unknown' }))).code).toBe('POOL_NOT_FOUND');
  });
});

describe('DeletePool', () => {
  test('drains a pool in use, which goes with the release of its last address', async () => {
    await caller.allocate('c1');
    await caller.allocate('c2', { nodeName: 'node-2' });
    expect(await caller.deletePool('default')).toEqual({
      deletedBlocks: 0n,
      state: PoolState.POOL_STATE_DRAINING,
      heldAddresses: 2n,
      coolingAddresses: 0n,
      releasedAddresses: 0n,
      unreadableRecord: '',
      holders: [
        { nodeName: 'node-1', addresses: 1n },
        { nodeName: 'node-2', addresses: 1n },
      ],
    });
    const { pool } = await caller.getPool('default');
    expect(pool).toMatchObject({ state: PoolState.POOL_STATE_DRAINING, stateReason: 'being deleted', disabled: false });
    expect(Math.abs(pool!.deleteTime!.getTime() - Date.now())).toBeLessThan(60_000);
    expect((await failureOf(caller.allocate('c3'))).message).toContain('being deleted');
    expect((await failureOf(caller.updatePool({ name: 'default' }))).code).toBe('POOL_BEING_DELETED');
    expect((await failureOf(caller.createPool({ name: 'x', cidr: '10.65.0.0/25' }))).code).toBe('POOL_OVERLAP');

    await caller.release('c1');
    expect(await caller.deletePool('default'), 'repeated').toMatchObject({ heldAddresses: 1n });
    await caller.release('c2');
    expect((await failureOf(caller.getPool('default'))).code).toBe('POOL_NOT_FOUND');
    expect(await caller.allBlocks()).toEqual([]);
  });

  test('gives back all addresses where that is asked for', async () => {
    await caller.allocate('c1');
    const mode = PoolDeletionMode.POOL_DELETION_MODE_RELEASE_ADDRESSES;
    expect(await caller.deletePool('default', { mode })).toMatchObject({
      state: PoolState.POOL_STATE_UNSPECIFIED,
      releasedAddresses: 1n,
      heldAddresses: 0n,
    });
    expect((await failureOf(caller.getEndpoint('c1'))).code).toBe('ENDPOINT_NOT_FOUND');
  });

  test('refuses a mode that it does not know', async () => {
    const { mode } = DeletePoolRequest.decode(Uint8Array.of(0x18, 9));
    expect(await violationsOf(caller.deletePool('default', { mode }))).toEqual([
      'mode is 9, which is no mode of deletion',
    ]);
    expect((await caller.getPool('default')).pool).toMatchObject({ state: PoolState.POOL_STATE_ACTIVE });
  });

  test('is finished after a start, where a process ended in the middle of it', async () => {
    await caller.allocate('c1');
    await caller.release('c1');
    await service.stop();
    const store = await EmbeddedStore.open({ directory: place.storeDirectory, pid: 1 });
    const key = '/calico/resources/v3/projectcalico.org/ippools/default';
    const { records } = await store.read([key], new AbortController().signal);
    const pool = JSON.parse(Buffer.from(records[0]!.value).toString());
    pool.metadata.deletionTimestamp = '2026-08-22T06:00:00Z';
    const puts = [{ key, value: Buffer.from(JSON.stringify(pool)) }];
    await store.commit({ comparisons: [], puts, deletes: [] }, new AbortController().signal);
    await store.close();
    service = await place.start();
    await expect.poll(async () => (await caller.listPools()).pools, { timeout: 10_000 }).toEqual([]);
    expect(await caller.allBlocks()).toEqual([]);
  });
});

describe('SplitPool', () => {
  test('puts pools with every field in its place, which hold what it held, and survives a restart', async () => {
    await caller.createPool({ ...WISH, assignmentMode: AssignmentMode.ASSIGNMENT_MODE_AUTOMATIC });
    await caller.allocate('c1');
    const { pools } = await caller.splitPool('default', { number: 4 });
    expect(pools.map(({ name, cidr }) => `${name} ${cidr}`)).toEqual([
      'split-default-0 10.65.0.0/26',
      'split-default-1 10.65.0.64/26',
      'split-default-2 10.65.0.128/26',
      'split-default-3 10.65.0.192/26',
    ]);
    const used = pools.filter(({ utilization }) => utilization?.allocated === 1n).map(({ name }) => name);
    expect(used).toHaveLength(1);
    await service.stop();
    service = await place.start();
    expect((await caller.listPools()).pools.map(({ name }) => name)).toEqual([
      'second',
      ...pools.map(({ name }) => name),
    ]);
    expect((await caller.getEndpoint('c1')).endpoint?.addresses.map(({ poolName }) => poolName)).toEqual(used);
    expect((await caller.allBlocks()).map(({ poolName }) => poolName)).toEqual(used);
  });

  test('takes a pool by its range, and keeps its fields', async () => {
    await caller.createPool(WISH);
    const pool = { $case: 'cidr', value: WISH.cidr } as const;
    const { pools } = await caller.splitPool('', { pool, number: 2 });
    for (const part of pools) expect(part).toMatchObject({ ...WISH, name: part.name, cidr: part.cidr });
    expect(pools.map(({ cidr }) => cidr)).toEqual(['10.66.0.0/25', '10.66.0.128/25']);
  });

  test.each([0, 1, 3, 6, 63, 65, 128, 2 ** 31])('refuses to make %s parts, before anything changes', async (number) => {
    const before = await caller.listPools();
    expect(await violationsOf(caller.splitPool('default', { number }))).toEqual([
      expect.stringContaining(`number is ${number}; it has to be a power of two from 2 to 64`),
    ]);
    expect(await caller.listPools()).toEqual(before);
  });

  test('names every fault, and refuses what only the pool tells without disabling it', async () => {
    expect(await violationsOf(caller.splitPool('', { pool: undefined }))).toEqual([
      'pool is missing: set one of name and cidr',
      expect.stringMatching(/^number is 0/),
    ]);
    const wrong = { $case: 'cidr', value: '10.65.0.1/24' } as const;
    expect(await violationsOf(caller.splitPool('', { pool: wrong, number: 2 }))).toEqual(['cidr has host bits set']);
    expect(await violationsOf(caller.splitPool('default', { number: 8 }))).toEqual([
      'number is 8, and pool "default" 10.65.0.0/24 has room for 4 blocks of /26; each part needs one',
    ]);
    expect((await caller.getPool('default')).pool).toMatchObject({ state: PoolState.POOL_STATE_ACTIVE });
  });

  test('refuses a version that is not the newest, and a pool that is gone', async () => {
    const { pool } = await caller.getPool('default');
    await caller.updatePool({ name: 'default', natOutgoing: !pool!.natOutgoing }, 'nat_outgoing');
    const stale = caller.splitPool('default', { number: 2, resourceVersion: pool!.resourceVersion });
    expect((await failureOf(stale)).code).toBe('STALE_VERSION');
    await caller.splitPool('default', { number: 2 });
    expect((await failureOf(caller.splitPool('default', { number: 2 }))).code).toBe('POOL_NOT_FOUND');
  });
});
