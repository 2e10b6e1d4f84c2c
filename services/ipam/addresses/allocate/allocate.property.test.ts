import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';
import { addressAt, formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import type { PodIdentity } from '../../records/attributes.js';
import { attributesAt, validateBlock } from '../../records/block.js';
import { endpointKey } from '../../records/endpoint.js';
import { NOW_MS, poolRecord, request as requestOf } from '../../testing/records.js';
import { TestView } from '../../testing/test-view.js';
import { release } from '../release.js';
import { allocate, type AllocationRequest } from './allocate.js';

/**
 * Random operations, and beside them an oracle that records only the holders: a map from address to attachment, a queue
 * of free addresses for each block, and for each endpoint's key the attachments that hold addresses, the latest first.
 */
class Oracle {
  readonly owners = new Map<string, string>();
  readonly queues = new Map<string, string[]>();
  readonly endpoints = new Map<string, readonly string[]>();

  heldBy(attachment: string): string[] {
    return [...this.owners].filter(([, owner]) => owner === attachment).map(([address]) => address);
  }
}

const NODES = ['n1', 'n2', 'n3'];
const PODS: readonly (PodIdentity | undefined)[] = [
  undefined,
  { namespace: 'default', name: 'web', uid: '' },
  { namespace: 'other', name: 'web', uid: '' },
];
/** Attachments with two pairs that share a handle: two interfaces of a container, and two readings of `a.b.c`; and one interface on two networks. */
const ATTACHMENTS: readonly Attachment[] = [
  { network: 'net', containerId: 'c1', interfaceName: 'eth0' },
  { network: 'net', containerId: 'c1', interfaceName: 'eth1' },
  { network: 'net', containerId: 'c2', interfaceName: 'eth0' },
  { network: 'other', containerId: 'c2', interfaceName: 'eth0' },
  { network: 'net', containerId: 'c3', interfaceName: 'eth0' },
  { network: 'net', containerId: 'c4', interfaceName: 'eth0' },
  { network: 'a.b', containerId: 'c', interfaceName: 'eth0' },
  { network: 'a', containerId: 'b.c', interfaceName: 'eth0' },
];

const allocation = fc.record({
  type: fc.constant('allocate' as const),
  attachment: fc.constantFrom(...ATTACHMENTS),
  nodeName: fc.constantFrom(...NODES),
  pod: fc.constantFrom(...PODS),
  families: fc.constantFrom<readonly Family[]>([4], [6], [4, 6], [6, 4]),
});
const releasing = fc.record({ type: fc.constant('release' as const), attachment: fc.constantFrom(...ATTACHMENTS) });
const operations = fc.array(fc.oneof(allocation, releasing), { maxLength: 60 });

type Operation = {
  readonly type: 'allocate' | 'release';
  readonly attachment: Attachment;
} & Partial<AllocationRequest>;

/** Small enough that nodes run out of blocks, and blocks out of addresses. */
const start = () =>
  new TestView([
    poolRecord('four', '10.0.0.0/29', { blockSizeBits: 31 }),
    poolRecord('six', 'fd00::/125', { blockSizeBits: 126 }),
  ]);

function allocateBoth(view: TestView, oracle: Oracle, operation: Operation): void {
  const { attachment, nodeName = 'n1', pod, families = [4] } = operation;
  const me = formatAttachment(attachment);
  const before = view.snapshot();
  const had = oracle.heldBy(me);
  try {
    const request = requestOf('', { attachment, nodeName, pod, families });
    const { endpoint, added } = view.apply(allocate(view, { request, nowMs: NOW_MS }));
    const got = endpoint.addresses.map(({ address }) => formatPrefix(address));
    expect(got).toEqual(expect.arrayContaining(had));
    expect(got.length).toBe(had.length + added.length);
    expect(families.every((family) => endpoint.addresses.some(({ address }) => address.family === family))).toBe(true);
    for (const { address, block } of endpoint.addresses)
      take(oracle, { me, had, address: formatPrefix(address), block: formatPrefix(block) });
    const key = nameOf(endpoint);
    if (had.length === 0) oracle.endpoints.set(key, [me, ...(oracle.endpoints.get(key) ?? [])]);
  } catch (failure) {
    if (!(failure instanceof Failure)) throw failure;
    expect(failure.code).toBe('POOLS_EXHAUSTED');
    expect(view.snapshot()).toEqual(before);
  }
}

const nameOf = (subject: Parameters<typeof endpointKey>[0]): string => Object.values(endpointKey(subject)).join('/');

interface Taking {
  readonly me: string;
  readonly had: readonly string[];
  readonly address: string;
  readonly block: string;
}

/** A new address was not held, and has been free longest in its block. */
function take(oracle: Oracle, { me, had, address, block }: Taking): void {
  if (had.includes(address)) return;
  expect(oracle.owners.has(address), `${address} is held`).toBe(false);
  const queue = oracle.queues.get(block) ?? addressesOf(block);
  expect(address).toBe(queue.shift());
  oracle.queues.set(block, queue);
  oracle.owners.set(address, me);
}

function addressesOf(cidr: string): string[] {
  const [base = '', length] = cidr.split('/');
  const separator = base.includes(':') ? ':' : '.';
  const at = base.lastIndexOf(separator);
  const first = Number.parseInt(base.slice(at + 1) || '0', 16);
  const bits = separator === ':' ? 128 : 32;
  const text = (value: number) => (separator === ':' ? (value === 0 ? '' : value.toString(16)) : String(value));
  const size = 2 ** (bits - Number(length));
  return Array.from({ length: size }, (_, i) => `${base.slice(0, at)}${separator}${text(first + i)}/${bits}`);
}

function releaseBoth(view: TestView, oracle: Oracle, attachment: Attachment): void {
  const me = formatAttachment(attachment);
  const { addresses } = view.apply(release(view, attachment, NOW_MS));
  const freed = addresses.map(formatPrefix);
  expect([...freed].sort()).toEqual(oracle.heldBy(me).sort());
  for (const address of freed) {
    oracle.owners.delete(address);
    const [cidr] = [...oracle.queues.keys()].filter((block) => addressesOf(block).includes(address));
    oracle.queues.get(cidr!)!.push(address);
  }
  for (const [key, holders] of oracle.endpoints) {
    const left = holders.filter((holder) => holder !== me);
    if (left.length === 0) oracle.endpoints.delete(key);
    else oracle.endpoints.set(key, left);
  }
}

/** Blocks, handles, endpoints and affinities agree with one another and with the oracle. */
function checkState(view: TestView, oracle: Oracle): void {
  const held = view.blocks().flatMap((block) => {
    expect(validateBlock(block, NOW_MS)).toEqual([]);
    expect(view.affinity(block.owner!, block.prefix)?.state).toBe('confirmed');
    expect(block.sequenceNumbers.map((number) => number === null)).toEqual(
      block.allocations.map((index) => index === null),
    );
    return block.allocations.flatMap((_, ordinal) => {
      const attributes = attributesAt(block, ordinal);
      const address = formatPrefix(hostPrefix(addressAt(block.prefix, ordinal)));
      return attributes ? [{ address, cidr: formatPrefix(block.prefix), handle: attributes.handleId ?? '' }] : [];
    });
  });
  expect(held.map(({ address }) => address).sort()).toEqual([...oracle.owners.keys()].sort());
  const counts: Record<string, Record<string, number>> = {};
  for (const { handle, cidr } of held) {
    const blocks = (counts[handle] ??= {});
    blocks[cidr] = (blocks[cidr] ?? 0) + 1;
  }
  expect(
    Object.fromEntries(view.all('handle').map(({ value: { id, blocks } }) => [id, Object.fromEntries(blocks)])),
  ).toEqual(counts);
  const recorded = view.all('endpoint').map(({ key, value }) => {
    const replaced = (value.replaced ?? []).flatMap((one) => (one.kind === 'endpoint' ? [one.value] : []));
    return [Object.values(key).join('/'), [value, ...replaced]] as const;
  });
  const endpoints = recorded.map(([key, values]) => [
    key,
    values.map(({ attachment }) => formatAttachment(attachment)),
  ]);
  expect(Object.fromEntries(endpoints)).toEqual(Object.fromEntries(oracle.endpoints));
  for (const value of recorded.flatMap(([, values]) => values)) {
    const mine = oracle.heldBy(formatAttachment(value.attachment)).sort();
    expect(value.addresses.map(({ address }) => formatPrefix(address)).sort()).toEqual(mine);
  }
  for (const { value } of view.all('affinity')) expect(view.block(value.block)?.owner).toEqual(value.owner);
}

test('the oracle lists the addresses of a block in the obvious order', () => {
  expect(addressesOf('10.0.0.6/31')).toEqual(['10.0.0.6/32', '10.0.0.7/32']);
  expect(addressesOf('fd00::/126')).toEqual(['fd00::/128', 'fd00::1/128', 'fd00::2/128', 'fd00::3/128']);
  expect(addressesOf('fd00::4/126')).toEqual(['fd00::4/128', 'fd00::5/128', 'fd00::6/128', 'fd00::7/128']);
});

test('property: after any operations the holders equal the oracle’s, and all records agree', () => {
  fc.assert(
    fc.property(operations, (sequence) => {
      const view = start();
      const oracle = new Oracle();
      for (const operation of sequence) {
        if (operation.type === 'allocate') allocateBoth(view, oracle, operation);
        else releaseBoth(view, oracle, operation.attachment);
        checkState(view, oracle);
      }
    }),
    { numRuns: 300, verbose: fc.VerbosityLevel.Verbose },
  );
});

test('property: releasing everything leaves nothing but empty blocks, and every address can be had again', () => {
  fc.assert(
    fc.property(operations, (sequence) => {
      const view = start();
      const oracle = new Oracle();
      for (const operation of sequence) if (operation.type === 'allocate') allocateBoth(view, oracle, operation);
      for (const attachment of ATTACHMENTS) releaseBoth(view, oracle, attachment);
      expect([...view.all('handle'), ...view.all('endpoint')]).toEqual([]);
      expect(view.blocks().every(({ allocations, unallocated }) => unallocated.length === allocations.length)).toBe(
        true,
      );
      expect(view.blocks().every(({ attributes }) => attributes.length === 0)).toBe(true);
    }),
    { numRuns: 100, verbose: fc.VerbosityLevel.Verbose },
  );
});

test('the attachments of the property share handles', () => {
  expect(new Set(ATTACHMENTS.map(handleId)).size).toBe(ATTACHMENTS.length - 2);
});
