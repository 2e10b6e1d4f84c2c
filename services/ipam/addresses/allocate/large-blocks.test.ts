import { addressAt, formatPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { absent, encodeTransaction } from '../../engine/etcd/request.js';
import type { CommitResult, Transaction } from '../../engine/store.js';
import { inconsistencies, readAll } from '../../engine/testing/consistency.js';
import { MemoryStore } from '../../engine/testing/memory-store.js';
import { forever, keys } from '../../engine/testing/stores.js';
import type { AllocationAttributes } from '../../records/attributes.js';
import type { Block } from '../../records/block.js';
import { encodeRecord, serialize } from '../../records/json/registry.js';
import type { RecordValue } from '../../records/view.js';
import { assignment } from '../../testing/allocations.js';
import { startIpam } from '../../testing/ipam.js';
import {
  affinity,
  block,
  config,
  host,
  nodeRecord,
  NOW_MS,
  poolRecord,
  prefix,
  request,
} from '../../testing/records.js';

/** A block is written whole: a full one of /22 or /118 is 400 KB, and etcd takes 1.5 MiB in one request. */

const LIMITS = { maxOperationsCount: 128, maxRequestBytes: 1.5 * 2 ** 20 };
const BLOCKS = Array.from({ length: 8 }, (_, index) => index);
const ADDRESSES = 1024;
const cidrOf = (index: number): string => `10.0.${index * 4}.0/22`;
const sixOf = (index: number): string => `fd00::${(index * ADDRESSES).toString(16)}/118`;

/** Refuses transactions beyond etcd's limits. */
class LimitedStore extends MemoryStore {
  override commit(transaction: Transaction, signal: AbortSignal): Promise<CommitResult> {
    encodeTransaction(transaction, { guard: absent('/guard'), limits: LIMITS });
    return super.commit(transaction, signal);
  }

  /** Writes records in transactions of one record each. */
  async fill(records: readonly RecordValue[]): Promise<void> {
    for (const record of records) {
      const puts = [{ key: keys.of(record), value: serialize(encodeRecord(record, undefined)) }];
      await super.commit({ comparisons: [], puts, deletes: [] }, forever);
    }
  }
}

/** The attributes of Calico's plugin for a container, with names of a usual length. */
function pod(serial: string, nodeName: string): AllocationAttributes {
  const owner = {
    namespace: 'production',
    node: `${nodeName}.eu-central-1.compute.internal`,
    pod: `web-frontend-7d9f8b6c5d-${serial}`,
    timestamp: '2026-08-22 06:33:25.1 +0000 UTC',
  };
  return { handleId: `k8s-pod-network.${serial.padStart(64, '0')}`, owner, releasedAtMs: undefined };
}

interface Filling {
  readonly freeCount: number;
  /** The holder of the first address instead of a pod. */
  readonly first: AllocationAttributes | undefined;
  readonly isOwned: boolean;
}

function filled(cidr: string, nodeName: string, { freeCount, first, isOwned }: Filling): Block {
  const empty = block(cidr, nodeName);
  const count = empty.allocations.length - freeCount;
  const pods = Array.from({ length: count }, (_, ordinal) => pod(`${cidr.replaceAll(/\W/g, '')}${ordinal}`, nodeName));
  return {
    ...empty,
    ...(isOwned ? {} : { owner: undefined, claimTimeMs: undefined }),
    allocations: empty.allocations.map((_, ordinal) => (ordinal < count ? ordinal : null)),
    unallocated: empty.unallocated.slice(count),
    attributes: first ? [first, ...pods.slice(1)] : pods,
    sequenceNumber: empty.sequenceNumber + 1n,
    sequenceNumbers: empty.allocations.map((_, ordinal) => (ordinal < count ? empty.sequenceNumber : null)),
  };
}

function handlesOf(blocks: readonly Block[]): RecordValue[] {
  const handles = new Map<string, Map<string, number>>();
  for (const { prefix: range, attributes } of blocks)
    for (const { handleId = '' } of attributes)
      handles.set(handleId, (handles.get(handleId) ?? new Map<string, number>()).set(formatPrefix(range), 1));
  return [...handles].map(([id, counts]) => ({ kind: 'handle', value: { id, blocks: counts } }));
}

/** IPAM on pools whose blocks are full, each of another node. */
function start(rest: Partial<Filling> = {}, cidrs = BLOCKS.map(cidrOf)) {
  const filling = { freeCount: 0, first: undefined, isOwned: true, ...rest };
  return startOn(cidrs.map((cidr, index) => filled(cidr, `n${index}`, filling)));
}

/** IPAM on pools of 2^16 addresses, IPv4 and IPv6, whose blocks all have the size of these. */
async function startOn(blocks: readonly Block[]) {
  const hostBits = Math.log2(blocks[0]!.allocations.length);
  const store = new LimitedStore();
  await store.fill([
    poolRecord('four', '10.0.0.0/16', { blockSizeBits: 32 - hostBits }),
    poolRecord('six', 'fd00::/112', { blockSizeBits: 128 - hostBits }),
    nodeRecord('gone'),
    ...blocks.map((value): RecordValue => ({ kind: 'block', value })),
    ...blocks.flatMap(({ owner, prefix: range }): RecordValue[] =>
      owner ? [{ kind: 'affinity', value: affinity(formatPrefix(range), owner.name) }] : [],
    ),
    ...handlesOf(blocks),
  ]);
  const { ipam } = await startIpam(store);
  return { ipam, store, faults: async () => inconsistencies(await readAll(store, keys), NOW_MS) };
}

const shared: AllocationAttributes = { handleId: 'shared', owner: { node: 'gone' }, releasedAtMs: undefined };

describe('work on many large blocks takes as many transactions as etcd requires', () => {
  test('releases by address', async () => {
    const { ipam, faults } = await start({ isOwned: false });
    const releases = BLOCKS.map((index) => ({
      address: addressAt(prefix(cidrOf(index)), 1),
      ...{ handleId: undefined, sequenceNumber: undefined },
    }));
    const results = await ipam.addresses.releaseEach(releases, forever);
    expect(results.map(({ state }) => state)).toEqual(BLOCKS.map(() => 'released'));
    expect(await faults()).toEqual([]);
  });

  test('releases by handle', async () => {
    const { ipam, faults } = await start({ first: shared });
    const released = await ipam.handles.release({ handleId: 'shared', searchesAllBlocks: false }, forever);
    expect(released.addresses).toHaveLength(BLOCKS.length);
    expect(await faults()).toEqual([]);
  });

  test('the deletion of a node with borrowed addresses', async () => {
    const { ipam, faults } = await start({ first: shared });
    const deleted = await ipam.nodes.delete({ name: 'gone', resourceVersion: '' }, forever);
    expect(deleted).toMatchObject({ addressesCount: BLOCKS.length });
    expect(await faults()).toEqual([]);
  });

  test('the end of all claims of a pool', async () => {
    const { ipam, faults } = await start();
    const scope = { kind: 'pool', poolName: 'four' } as const;
    const results = await ipam.affinities.release({ scope, mustBeEmpty: false }, forever);
    expect(results.map(({ result }) => result)).toEqual(BLOCKS.map(() => 'disowned'));
    expect(await faults()).toEqual([]);
  });

  test('a claim of many', async () => {
    const store = new LimitedStore();
    await store.fill([poolRecord('p', '10.0.0.0/8', { blockSizeBits: 20 })]);
    const { ipam } = await startIpam(store);
    const { claimed } = await ipam.affinities.claim({ cidr: prefix('10.0.0.0/14'), nodeName: 'n1' }, forever);
    expect(claimed.map(formatPrefix)).toEqual(
      Array.from({ length: 64 }, (_, index) => `10.${index >> 4}.${(index & 15) * 16}.0/20`),
    );
  });

  test('an assignment of both families', async () => {
    const cidrs = BLOCKS.slice(0, 3).flatMap((index) => [cidrOf(index), sixOf(index)]);
    const { ipam, store, faults } = await start({ freeCount: 20 }, cidrs);
    await store.fill([config({ autoAllocateBlocks: false })]);
    const asked = { owner: host('n0'), counts: { 4: 50, 6: 60 } };
    const { newAddresses, shortages } = await ipam.assignments.assign(assignment('h', asked), forever);
    expect(shortages.size).toBe(0);
    expect(newAddresses).toHaveLength(110);
    expect(await faults()).toEqual([]);
  });
});

describe('a pod of both families writes two blocks at once, within etcd’s limits', () => {
  const [four, six] = ['10.0.0.0/20', 'fd00::/116'];
  const both = (id: string) => request(id, { nodeName: 'n0', families: [4, 6] });
  const startHalfFull = (freeCount: number) =>
    startOn([four, six].map((cidr) => filled(cidr, 'n0', { freeCount, first: undefined, isOwned: true })));

  test.each([
    { freeCount: 1800, sixth: six },
    { freeCount: 1300, sixth: 'another' },
    { freeCount: 20, sixth: 'another' },
  ])('with $freeCount of 4096 addresses free in both of the node’s blocks', async ({ freeCount, sixth }) => {
    const { ipam, faults } = await startHalfFull(freeCount);
    const { endpoint, claimed } = await ipam.addresses.allocate(both('c1'), forever);
    const blocks = endpoint.addresses.map(({ block }) => formatPrefix(block));
    expect(blocks).toEqual([four, sixth === six ? six : formatPrefix(claimed[0]!)]);
    expect(claimed).toHaveLength(sixth === six ? 0 : 1);
    expect(await faults()).toEqual([]);
  });

  test('when it has one of a large block already', async () => {
    const { ipam, faults } = await startHalfFull(1300);
    await ipam.addresses.allocate(request('c1', { nodeName: 'n0' }), forever);
    const { endpoint, claimed } = await ipam.addresses.allocate(both('c1'), forever);
    expect(endpoint.addresses.map(({ block }) => formatPrefix(block))).toEqual([four, ...claimed.map(formatPrefix)]);
    expect(claimed).toHaveLength(1);
    expect(await faults()).toEqual([]);
  });

  test('when the address of the later family is requested', async () => {
    const { ipam, faults } = await startHalfFull(1300);
    const addresses = [addressAt(prefix(six), 4000)];
    const { endpoint, claimed } = await ipam.addresses.allocate({ ...both('c1'), addresses }, forever);
    expect(endpoint.addresses.map(({ block }) => formatPrefix(block))).toEqual([...claimed.map(formatPrefix), six]);
    expect(await faults()).toEqual([]);
  });

  test('and is refused where there is no other pool', async () => {
    const { ipam, store, faults } = await startHalfFull(1300);
    await store.fill([config({ autoAllocateBlocks: false })]);
    await expect(ipam.addresses.allocate(both('c1'), forever)).rejects.toMatchObject({ code: 'STORE_LIMIT' });
    expect(await faults()).toEqual([]);
  });
});
