import { endpointNames, hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import type { Block } from '../../records/block.js';
import type { Pool } from '../../records/pool.js';
import { ALIVE_MS } from '../../records/session.js';
import {
  affinity,
  attachment,
  block,
  claimedBlock,
  fullBlock,
  host,
  NOW_MS,
  poolRecord,
  prefix,
  request,
  session,
  takeAddress,
} from '../../testing/records.js';
import { TestView } from '../../testing/test-view.js';
import { release } from '../release.js';
import { allocate, type Allocation, type AllocationRequest } from './allocate.js';

const START = BigInt(NOW_MS) * 1_000_000n;

function run(view: TestView, asked: AllocationRequest): Allocation {
  return view.apply(allocate(view, { request: asked, nowMs: NOW_MS }));
}

function addressesOf({ endpoint }: Allocation): string[] {
  return endpoint.addresses.map(({ address }) => formatAddress(address));
}

const refusalOf = (view: TestView, asked: AllocationRequest): unknown => {
  const before = view.snapshot();
  try {
    allocate(view, { request: asked, nowMs: NOW_MS });
  } catch (failure) {
    expect(view.snapshot()).toEqual(before);
    return failure;
  }
  return undefined;
};

const onePool = () => new TestView([poolRecord('p', '10.0.0.0/26')]);
const dualStack = () => new TestView([poolRecord('four', '10.0.0.0/26'), poolRecord('six', 'fd00::/122')]);

describe('the first address of a node', () => {
  test('claims a block, and writes block, affinity, handle and endpoint together', () => {
    const view = onePool();
    const decision = allocate(view, { request: request('c1'), nowMs: NOW_MS });
    expect(decision.changes.map(({ type, ...rest }) => [type, 'record' in rest ? rest.record.kind : ''])).toEqual([
      ['put', 'node'],
      ['expect', 'pool'],
      ['expect', 'config'],
      ['put', 'affinity'],
      ['put', 'block'],
      ['put', 'handle'],
      ['expectUnreleased', ''],
      ['put', 'endpoint'],
    ]);
    const { endpoint, added, claimed } = view.apply(decision);
    expect(added).toEqual([4]);
    expect(claimed.map(formatPrefix)).toEqual(['10.0.0.0/26']);
    expect(endpoint).toEqual({
      attachment: attachment('c1'),
      uid: endpointNames(attachment('c1'), NOW_MS).uid,
      createTimeMs: Date.parse('2026-08-22T06:33:25Z'),
      nodeName: 'n1',
      pod: { namespace: 'default', name: 'pod-c1', uid: '' },
      addresses: [
        { address: prefix('10.0.0.0/32'), block: prefix('10.0.0.0/26'), poolName: 'p', sequenceNumber: START },
      ],
      mac: podMac(attachment('c1')),
      hostInterfaceName: hostInterfaceName(attachment('c1')),
      netns: undefined,
    });
    expect(view.affinity(host('n1'), prefix('10.0.0.0/26'))?.state).toBe('confirmed');
    expect(view.handle('net.c1')?.blocks).toEqual(new Map([['10.0.0.0/26', 1]]));
    expect(view.endpoint({ namespace: 'default', name: 'n1-k8s-pod--c1-eth0' })).toEqual(endpoint);
    expect(view.block(prefix('10.0.0.0/26'))!.attributes).toEqual([
      {
        handleId: 'net.c1',
        owner: {
          node: 'n1',
          namespace: 'default',
          pod: 'pod-c1',
          timestamp: '2026-08-22 06:33:25.1 +0000 UTC',
          network: 'net',
          interface: 'eth0',
        },
        releasedAtMs: undefined,
      },
    ]);
  });

  test('of a container outside Kubernetes is stored in the namespace default under its own ID', () => {
    const view = onePool();
    run(view, request('c-1', { pod: undefined }));
    expect(view.all('endpoint').map(({ key }) => key)).toEqual([{ namespace: 'default', name: 'n1-cni-c--1-eth0' }]);
  });

  test.each([
    ['10.0.0.0/24', 32, 'fd00::/120', 128],
    ['10.0.0.0/16', 20, 'fd00::/110', 116],
    ['10.0.0.0/26', 26, 'fd00::/122', 122],
  ])('of each family comes from %s cut to /%i and %s cut to /%i', (four, fourBits, six, sixBits) => {
    const view = new TestView([
      poolRecord('four', four, { blockSizeBits: fourBits }),
      poolRecord('six', six, { blockSizeBits: sixBits }),
    ]);
    const { endpoint } = run(view, request('c1', { families: [6, 4] }));
    expect(endpoint.addresses.map(({ address, block: from }) => [address.family, from.length])).toEqual([
      [6, sixBits],
      [4, fourBits],
    ]);
    expect(view.handle('net.c1')?.blocks.size).toBe(2);
  });

  test('works for a node with a name of extreme length', () => {
    const nodeName = Array.from({ length: 4 }, () => 'n'.repeat(63))
      .join('.')
      .slice(0, 253);
    expect(run(onePool(), request('c1', { nodeName })).endpoint.nodeName).toBe(nodeName);
  });
});

test('a pod of another boot gets nothing while the boot that has the node’s name runs', () => {
  const view = new TestView([poolRecord('p', '10.0.0.0/26'), { kind: 'nodeSession', value: session('n1') }]);
  const ofBoot = (bootId: string) => request(`of ${bootId}`, { netns: { bootId, inode: 7n } });
  expect(refusalOf(view, ofBoot('former'))).toMatchObject({ code: 'NODE_NAME_TAKEN' });
  expect(addressesOf(run(view, ofBoot('boot-n1')))).toHaveLength(1);
  expect(addressesOf(run(view, request('without a boot')))).toHaveLength(1);
  view.monotonicMs += ALIVE_MS;
  expect(addressesOf(run(view, ofBoot('former')))).toHaveLength(1);
});

describe('the node’s own blocks', () => {
  const pools = () => [poolRecord('p', '10.0.0.0/24')];
  const two = [block('10.0.0.128/26', 'n1'), block('10.0.0.64/26', 'n1')];

  test('come before new ones, in the order of their addresses', () => {
    const view = new TestView([...pools(), ...two.flatMap((value) => claimedBlock(value))]);
    expect(addressesOf(run(view, request('c1')))).toEqual(['10.0.0.64']);
    expect(view.blocks()).toHaveLength(2);
  });

  test('are skipped when they are full', () => {
    const view = new TestView([...pools(), ...claimedBlock(fullBlock('10.0.0.64/26', 'n1')), ...claimedBlock(two[0]!)]);
    expect(addressesOf(run(view, request('c1')))).toEqual(['10.0.0.128']);
  });

  test('are not used when their pool cannot serve, or was deleted', () => {
    const view = new TestView([
      poolRecord('a', '10.0.0.0/24', { disabled: true }),
      poolRecord('b', '10.1.0.0/26'),
      ...claimedBlock(block('10.0.0.64/26', 'n1')),
      ...claimedBlock(block('10.2.0.0/26', 'n1')),
    ]);
    expect(addressesOf(run(view, request('c1')))).toEqual(['10.1.0.0']);
    expect(view.affinitiesOf(host('n1'))).toHaveLength(3);
  });

  test.each(['pending', 'pendingDeletion'] as const)(
    'with an affinity left %s are used, and it is confirmed',
    (state) => {
      const view = new TestView([...pools(), ...claimedBlock(block('10.0.0.64/26', 'n1'), state)]);
      const { claimed } = run(view, request('c1'));
      expect(claimed).toEqual([]);
      expect(view.affinitiesOf(host('n1'))).toEqual([affinity('10.0.0.64/26', 'n1')]);
    },
  );

  test.each(['pending', 'confirmed', 'pendingDeletion'] as const)(
    'that do not exist but that a %s affinity names are created',
    (state) => {
      const view = new TestView([...pools(), { kind: 'affinity', value: affinity('10.0.0.192/26', 'n1', state) }]);
      const { claimed, endpoint } = run(view, request('c1'));
      expect(endpoint.addresses.map(({ block: from }) => formatPrefix(from))).toEqual(['10.0.0.192/26']);
      expect(claimed.map(formatPrefix)).toEqual(['10.0.0.192/26']);
      expect(view.affinitiesOf(host('n1'))).toEqual([affinity('10.0.0.192/26', 'n1')]);
    },
  );

  test('are not created from an affinity when the pool’s block size has changed', () => {
    const view = new TestView([...pools(), { kind: 'affinity', value: affinity('10.0.0.128/28', 'n1', 'pending') }]);
    expect(run(view, request('c1')).endpoint.addresses[0]!.block.length).toBe(26);
  });

  test.each<[string, Block['owner']]>([
    ['another node’s', host('n2')],
    ['a virtual owner’s of the same name', { kind: 'virtual', name: 'n1' }],
    ['without an owner', undefined],
  ])('that turned out to be %s are unchanged, and the stale affinity is deleted', (_, owner) => {
    const virtual = block('10.0.0.64/26', 'n1', { owner });
    const view = new TestView([
      ...pools(),
      { kind: 'block', value: virtual },
      { kind: 'affinity', value: affinity('10.0.0.64/26', 'n1', 'pending') },
    ]);
    run(view, request('c1'));
    expect(view.block(virtual.prefix)).toBe(virtual);
    expect(view.affinity(host('n1'), virtual.prefix)).toBeUndefined();
    expect(view.affinitiesOf(host('n1'))).toHaveLength(1);
  });

  test('without an affinity, as an incomplete claim of another writer leaves them, get one', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/26'), { kind: 'block', value: block('10.0.0.0/26', 'n1') }]);
    expect(addressesOf(run(view, request('c1')))).toEqual(['10.0.0.0']);
    expect(view.affinitiesOf(host('n1'))).toEqual([affinity('10.0.0.0/26', 'n1')]);
  });
});

describe('many addresses', () => {
  test('a /24 has 256 addresses, over four blocks, for one node; then all are in use', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/24')]);
    const given = Array.from({ length: 256 }, (_, i) => addressesOf(run(view, request(`c${i}`)))).flat();
    expect(new Set(given).size).toBe(256);
    expect(view.affinitiesOf(host('n1'))).toHaveLength(4);
    expect(refusalOf(view, request('one-more'))).toMatchObject({
      code: 'POOLS_EXHAUSTED',
      message: expect.stringContaining('pool "p" 10.0.0.0/24: all 4 blocks are full (256 of 256 addresses in use)'),
    });
  });

  test('an address is reused only after all that were free before it', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/30', { blockSizeBits: 30 })]);
    for (const id of ['a', 'b', 'c']) run(view, request(id));
    view.apply(release(view, attachment('b'), NOW_MS));
    view.apply(release(view, attachment('a'), NOW_MS));
    expect(['d', 'e', 'f'].map((id) => addressesOf(run(view, request(id)))[0])).toEqual([
      '10.0.0.3',
      '10.0.0.1',
      '10.0.0.0',
    ]);
  });

  test('single-address blocks start at a place derived from the container', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/24', { blockSizeBits: 32 })]);
    const given = ['a', 'b', 'c', 'd'].map((id) => addressesOf(run(view, request(id)))[0]!);
    expect(new Set(given).size).toBe(4);
    const last = given.map((address) => Number(address.split('.')[3])).sort((a, b) => a - b);
    expect(last[3]! - last[0]!).toBeGreaterThan(3);
  });
});

describe('the choice of pools', () => {
  const skipReason: readonly (readonly [string, Partial<Pool>, string])[] = [
    ['disabled', { disabled: true }, 'disabled'],
    ['for tunnels', { allowedUses: ['Tunnel'] }, 'not for containers: its allowedUses are Tunnel'],
    ['manual', { assignmentMode: 'Manual' }, 'its assignmentMode is Manual'],
    ['being deleted', { deletionTimeMs: NOW_MS }, 'being deleted'],
    [
      'of some nodes',
      { nodeSelector: 'zone == "a"' },
      'its nodeSelector "zone == "a"" does not match node n1, which has no labels',
    ],
    [
      'of some namespaces',
      { namespaceSelector: 'has(team)' },
      'its namespaceSelector "has(team)" does not match the namespace',
    ],
    [
      'with an unreadable selector',
      { nodeSelector: 'zone = "a"' },
      'its nodeSelector "zone = "a"" cannot be read: at character 6: ',
    ],
  ];

  test.each(skipReason)('skips a pool that is %s, and reports it when there is no other', (_, rest, reason) => {
    const only = new TestView([poolRecord('a', '10.0.0.0/26', rest)]);
    expect(refusalOf(only, request('c1'))).toMatchObject({
      code: 'NO_POOL_SERVES',
      message: expect.stringContaining(`pool "a" 10.0.0.0/26: ${reason}`),
    });
    const other = new TestView([poolRecord('a', '10.0.0.0/26', rest), poolRecord('b', '10.1.0.0/26')]);
    expect(addressesOf(run(other, request('c1')))).toEqual(['10.1.0.0']);
  });

  test.each(['', 'all()', ' all() '])('matches everything with the selector "%s"', (selector) => {
    const view = new TestView([
      poolRecord('p', '10.0.0.0/26', { nodeSelector: selector, namespaceSelector: selector }),
    ]);
    expect(addressesOf(run(view, request('c1')))).toEqual(['10.0.0.0']);
  });

  test('tries pools in the order of their names', () => {
    const view = new TestView([poolRecord('b', '10.0.0.0/26'), poolRecord('a', '10.1.0.0/26')]);
    expect(addressesOf(run(view, request('c1')))).toEqual(['10.1.0.0']);
  });

  test('continues with the next pool when one is exhausted, 128 addresses from two of 64', () => {
    const view = new TestView([poolRecord('a', '10.0.0.0/26'), poolRecord('b', '10.1.0.0/26')]);
    const given = Array.from({ length: 128 }, (_, i) => addressesOf(run(view, request(`c${i}`)))).flat();
    expect(new Set(given).size).toBe(128);
  });

  test('refuses a family that has no pool at all', () => {
    expect(refusalOf(onePool(), request('c1', { families: [6] }))).toMatchObject({
      code: 'NO_POOL',
      message: 'no IPv6 address for net/c1/eth0 on node n1: there is no IPv6 pool; create one',
    });
  });

  test('allocates both families or neither, and names the exhausted one', () => {
    const view = new TestView([poolRecord('four', '10.0.0.0/26'), poolRecord('six', 'fd00::/122', { disabled: true })]);
    expect(refusalOf(view, request('c1', { families: [4, 6] }))).toMatchObject({
      code: 'NO_POOL_SERVES',
      message: expect.stringMatching(/^no IPv6 address .*pool "six" fd00::\/122: disabled/),
    });
  });
});

describe('a repeat for the same attachment', () => {
  test('returns the same and changes nothing', () => {
    const view = dualStack();
    const asked = request('c1', { families: [6, 4], netns: { bootId: 'boot', inode: 7n } });
    const first = run(view, asked);
    const again = allocate(view, { request: asked, nowMs: NOW_MS + 5 });
    expect(again.changes).toEqual([]);
    expect(again.outcome).toEqual({ ...first, added: [], claimed: [] });
  });

  test('works when the pools could not serve a new request', () => {
    const view = onePool();
    const first = run(view, request('c1'));
    view.put(poolRecord('p', '10.0.0.0/26', { disabled: true }));
    expect(run(view, request('c1')).endpoint).toEqual(first.endpoint);
  });

  test('that requests fewer addresses gets all held ones', () => {
    const view = dualStack();
    run(view, request('c1', { families: [4, 6] }));
    const again = allocate(view, { request: request('c1', { families: [6] }), nowMs: NOW_MS });
    expect(addressesOf(again.outcome)).toEqual(['10.0.0.0', 'fd00::']);
    expect(again.changes).toEqual([]);
  });

  test('that requests another family gets it too, in the same endpoint', () => {
    const view = dualStack();
    run(view, request('c1', { families: [6] }));
    const again = run(view, request('c1', { families: [4, 6] }));
    expect(addressesOf(again)).toEqual(['fd00::', '10.0.0.0']);
    expect(again.added).toEqual([4]);
    expect(view.all('endpoint').map(({ value }) => value)).toEqual([again.endpoint]);
    expect(view.handle('net.c1')?.blocks.size).toBe(2);
  });

  test('in another network namespace, as after a restart of the container, moves the endpoint there', () => {
    const view = onePool();
    run(view, request('c1', { netns: { bootId: 'one', inode: 7n } }));
    const again = run(view, request('c1', { netns: { bootId: 'two', inode: 8n } }));
    expect(again.added).toEqual([]);
    expect(view.all('endpoint').map(({ value }) => value.netns)).toEqual([{ bootId: 'two', inode: 8n }]);
  });

  test('restores an endpoint that was deleted by hand, unless the address is released meanwhile', () => {
    const view = onePool();
    const first = run(view, request('c1'));
    view.remove({ kind: 'endpoint', key: { namespace: 'default', name: 'n1-k8s-pod--c1-eth0' } });
    const again = allocate(view, { request: request('c1'), nowMs: NOW_MS });
    const [before] = view.blocks();
    const touched = { ...before, sequenceNumber: before!.sequenceNumber + 1n };
    expect(again.changes[0]).toEqual({ type: 'put', record: { kind: 'block', value: touched } });
    expect(view.apply(again).endpoint).toEqual(first.endpoint);
    expect(view.all('endpoint').map(({ value }) => value)).toEqual([first.endpoint]);
  });
});

describe('attachments that look alike', () => {
  test('two interfaces of one container share a handle and nothing else', () => {
    const view = onePool();
    const other = request('c1', { attachment: attachment('c1', { interfaceName: 'eth1' }) });
    expect(addressesOf(run(view, request('c1')))).toEqual(['10.0.0.0']);
    expect(addressesOf(run(view, other))).toEqual(['10.0.0.1']);
    expect(view.handle('net.c1')?.blocks).toEqual(new Map([['10.0.0.0/26', 2]]));
    view.apply(release(view, attachment('c1'), NOW_MS));
    expect(view.handle('net.c1')?.blocks).toEqual(new Map([['10.0.0.0/26', 1]]));
    expect(addressesOf(run(view, other))).toEqual(['10.0.0.1']);
  });

  test('network a.b with container c, and network a with container b.c, share a handle and nothing else', () => {
    const view = onePool();
    const one = request('c', { attachment: attachment('c', { network: 'a.b' }), pod: undefined });
    const two = request('b.c', { attachment: attachment('b.c', { network: 'a' }), pod: undefined });
    expect(addressesOf(run(view, one))).toEqual(['10.0.0.0']);
    expect(addressesOf(run(view, two))).toEqual(['10.0.0.1']);
    view.apply(release(view, one.attachment, NOW_MS));
    expect(addressesOf(run(view, two))).toEqual(['10.0.0.1']);
    expect(view.all('endpoint').map(({ value }) => value.attachment)).toEqual([two.attachment]);
  });

  const pod = { namespace: 'default', name: 'web', uid: '' };

  test('the pod’s next sandbox takes over the endpoint’s key, but not the old sandbox’s address or data', () => {
    const view = onePool();
    const old = run(view, request('old', { pod }));
    const next = run(view, request('new', { pod }));
    expect(next.replaced).toEqual(attachment('old'));
    expect(addressesOf(next)).not.toEqual(addressesOf(old));
    const replaced = [{ kind: 'endpoint', value: old.endpoint }];
    expect(view.all('endpoint').map(({ value }) => value)).toEqual([{ ...next.endpoint, replaced }]);

    const again = allocate(view, { request: request('old', { pod }), nowMs: NOW_MS });
    expect(again.changes).toEqual([]);
    expect(again.outcome.endpoint).toEqual(old.endpoint);
  });

  test('a late release of the old sandbox frees its address and leaves the new one’s endpoint', () => {
    const view = onePool();
    const old = run(view, request('old', { pod }));
    const next = run(view, request('new', { pod }));
    const { addresses } = view.apply(release(view, attachment('old'), NOW_MS));
    expect(addresses).toEqual(old.endpoint.addresses.map(({ address }) => address));
    expect(view.all('endpoint').map(({ value }) => value)).toEqual([next.endpoint]);
    expect(view.all('handle').map(({ value }) => value.id)).toEqual(['net.new']);
  });
});

test('a handle whose count is too high, as after a crash of Calico, is corrected by the next change', () => {
  const view = onePool();
  view.put({ kind: 'handle', value: { id: 'net.c1', blocks: new Map([['10.9.0.0/26', 3]]) } });
  run(view, request('c1'));
  expect(view.handle('net.c1')?.blocks).toEqual(new Map([['10.0.0.0/26', 1]]));
});

test('addresses that Calico allocated under the same handle are not the attachment’s', () => {
  const view = onePool();
  const calico = { handleId: 'net.c1', owner: { node: 'n1', pod: 'x', namespace: 'y' }, releasedAtMs: undefined };
  const taken = takeAddress(block('10.0.0.0/26', 'n1'), calico)!.block;
  for (const record of claimedBlock(taken)) view.put(record);
  view.put({ kind: 'handle', value: { id: 'net.c1', blocks: new Map([['10.0.0.0/26', 1]]) } });
  expect(addressesOf(run(view, request('c1')))).toEqual(['10.0.0.1']);
  expect(view.handle('net.c1')?.blocks).toEqual(new Map([['10.0.0.0/26', 2]]));
});
