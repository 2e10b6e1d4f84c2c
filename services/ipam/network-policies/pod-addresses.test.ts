import { formatAddress } from '@podwire/shared/net/address';
import { addressAt } from '@podwire/shared/net/prefix';
import { beforeEach, describe, expect, test } from 'vitest';

import type { AllocationAttributes } from '../records/attributes.js';
import { coolAddresses, releaseAddresses, replaceAttributes, takeOrdinals, type Block } from '../records/block.js';
import { block, pool } from '../testing/records.js';
import { PodAddresses } from './pod-addresses.js';
import { readPod, type Pod } from './pods.js';

let addresses: PodAddresses;
let changed: string[];

beforeEach(() => {
  changed = [];
  addresses = new PodAddresses({
    changed: ({ namespace, name }) => changed.push(`${namespace}/${name}`),
    poolsChanged: () => changed.push('pools'),
  });
  addresses.setPools([pool('default', '10.65.0.0/16')]);
  changed = [];
});

function podOn(nodeName: string, ...ips: readonly string[]): Pod {
  const status = { podIPs: ips.map((ip) => ({ ip })) };
  const pod = readPod({ metadata: { name: 'web', namespace: 'default', uid: 'u' }, spec: { nodeName }, status });
  if (!pod) throw new Error('no pod');
  return pod;
}

function held(node: string, pod: string, rest: Partial<AllocationAttributes> = {}): AllocationAttributes {
  return { handleId: `net.${pod}`, owner: { node, namespace: 'default', pod }, releasedAtMs: undefined, ...rest };
}

const BLOCK = block('10.65.0.0/28', 'n1');

function texts(pod: Pod): string[] {
  return addresses.of(pod).map(({ address, sequenceNumber }) => `${formatAddress(address)} ${sequenceNumber}`);
}

const numberOf = (value: Block, ordinal: number): string => String(value.sequenceNumbers[ordinal]);

test('a pod has the addresses that IPAM has bound to it, with their sequence numbers', () => {
  const first = takeOrdinals(BLOCK, [3], held('n1', 'web'));
  const both = takeOrdinals(first, [5], held('n1', 'other'));
  addresses.setBlock('b', both);
  expect(texts(podOn('n1'))).toEqual([`10.65.0.3 ${numberOf(both, 3)}`]);
  expect(changed).toEqual(['default/web', 'default/other']);
  const again = takeOrdinals(releaseAddresses(both, [3]), [3], held('n1', 'web'));
  changed = [];
  addresses.setBlock('b', again);
  expect(texts(podOn('n1'))).toEqual([`10.65.0.3 ${numberOf(again, 3)}`]);
  expect(numberOf(again, 3)).not.toBe(numberOf(both, 3));
  expect(changed).toEqual(['default/web']);
  addresses.setBlock('b', again);
  addresses.setBlock('b', undefined);
  expect(changed).toEqual(['default/web', 'default/web', 'default/other']);
  expect(texts(podOn('n1'))).toEqual([]);
});

test('an allocation of another node gives the pod no address: a node acts for its own pods only', () => {
  addresses.setBlock('b', takeOrdinals(BLOCK, [3], held('n2', 'web')));
  expect(texts(podOn('n1'))).toEqual([]);
  expect(texts(podOn('n2'))).toHaveLength(1);
});

test('leases, cooling addresses and handles of other holders are no pod’s', () => {
  const lease = takeOrdinals(BLOCK, [1], {
    handleId: 'podwire-lease.n1',
    owner: { node: 'n1' },
    releasedAtMs: undefined,
  });
  addresses.setBlock('b', coolAddresses(takeOrdinals(lease, [3], held('n1', 'web')), [3], 1000));
  expect(texts(podOn('n1'))).toEqual([]);
  expect(changed).toEqual([]);
});

test('reported addresses count outside of all pools alone', () => {
  expect(texts(podOn('n1', '10.65.0.9', '10.66.0.9', 'fd00::9', 'none'))).toEqual(['10.66.0.9 0', 'fd00::9 0']);
  addresses.setPools([pool('default', '10.65.0.0/16'), pool('six', 'fd00::/64')]);
  expect(changed).toEqual(['pools']);
  addresses.setPools([pool('renamed', '10.65.0.0/16'), pool('six', 'fd00::/64')]);
  expect(changed).toEqual(['pools']);
  expect(texts(podOn('n1', '10.66.0.9', 'fd00::9'))).toEqual(['10.66.0.9 0']);
});

describe('an announced address', () => {
  const lease = (node: string): AllocationAttributes => ({
    ...{ handleId: `podwire-lease.${node}`, owner: { node }, releasedAtMs: undefined },
  });
  const leased = takeOrdinals(BLOCK, [3, 4], lease('n1'));

  function announce(name: string, { nodeName = 'n1', uid = 'u', block: known = leased, ordinal = 3 } = {}): void {
    const address = addressAt(BLOCK.prefix, ordinal);
    const sequenceNumber = known.sequenceNumbers[ordinal] ?? 0n;
    addresses.announce({
      nodeName,
      pod: { namespace: 'default', name, uid },
      addresses: [{ address, sequenceNumber }],
    });
  }

  test('is the pod’s until the datastore says so, with the number of the lease', () => {
    addresses.setBlock('b', leased);
    announce('web');
    expect(changed).toEqual(['default/web']);
    const member = `10.65.0.3 ${numberOf(leased, 3)}`;
    expect(texts(podOn('n1'))).toEqual([member]);
    addresses.setBlock('b', replaceAttributes(leased, 3, held('n1', 'web')));
    expect(texts(podOn('n1'))).toEqual([member]);
    addresses.setBlock('b', replaceAttributes(leased, 3, held('n1', 'other')));
    expect(texts(podOn('n1'))).toEqual([]);
  });

  test('counts when the lease arrives after it', () => {
    announce('web');
    expect(texts(podOn('n1'))).toEqual([]);
    changed = [];
    addresses.setBlock('b', leased);
    expect(changed).toEqual(['default/web']);
    expect(texts(podOn('n1'))).toHaveLength(1);
  });

  test('counts for a pod of the node that leases it alone', () => {
    addresses.setBlock('b', leased);
    announce('web', { nodeName: 'n2' });
    expect(texts(podOn('n2'))).toEqual([]);
    announce('web');
    expect(texts(podOn('n2'))).toEqual([]);
    announce('web', { uid: 'earlier' });
    expect(texts(podOn('n1'))).toEqual([]);
    announce('web', { uid: '' });
    expect(texts(podOn('n1'))).toHaveLength(1);
  });

  test('is the later pod’s, also while the datastore has the earlier one', () => {
    addresses.setBlock('b', leased);
    announce('web');
    announce('other');
    expect(texts(podOn('n1'))).toEqual([]);
    const bound = replaceAttributes(leased, 3, held('n1', 'web'));
    addresses.setBlock('b', bound);
    expect(texts(podOn('n1'))).toHaveLength(1);
    announce('other');
    expect(texts(podOn('n1'))).toEqual([]);
  });

  test('is dropped when its node announces thousands of further ones, and other nodes’ stay', () => {
    const other = takeOrdinals(block('10.66.0.0/28', 'n2'), [3], lease('n2'));
    addresses.setBlock('b', leased);
    addresses.setBlock('c', other);
    const address = addressAt(other.prefix, 3);
    const pod = { namespace: 'default', name: 'web', uid: 'u' };
    addresses.announce({
      nodeName: 'n2',
      pod,
      addresses: [{ address, sequenceNumber: other.sequenceNumbers[3] ?? 0n }],
    });
    announce('web');
    changed = [];
    for (let value = 0n; value < 2048n; value++) {
      const free = { address: { family: 4 as const, value: 0x0a_70_00_00n + value }, sequenceNumber: 0n };
      addresses.announce({ nodeName: 'n1', pod: { ...pod, name: 'flood' }, addresses: [free] });
    }
    expect(changed).toContain('default/web');
    expect([texts(podOn('n1')).length, texts(podOn('n2')).length]).toEqual([0, 1]);
  });

  test('ends with the lease, for the next lease of the address too', () => {
    addresses.setBlock('b', leased);
    announce('web');
    const free = releaseAddresses(leased, [3]);
    addresses.setBlock('b', free);
    expect(texts(podOn('n1'))).toEqual([]);
    const again = takeOrdinals(free, [3], lease('n1'));
    addresses.setBlock('b', again);
    announce('web');
    expect(texts(podOn('n1'))).toEqual([]);
    announce('web', { block: again });
    addresses.setBlock('b', undefined);
    expect(texts(podOn('n1'))).toEqual([]);
  });
});
