import { tunnelMac } from '@podwire/shared/attachment/names';
import { formatAddress } from '@podwire/shared/net/address';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { allocate } from '../addresses/allocate/allocate.js';
import { takeOrdinals } from '../records/block.js';
import type { RecordValue } from '../records/view.js';
import { TestView } from '../testing/test-view.js';
import { leaseAttributes } from '../records/lease.js';
import type { Node } from '../records/node.js';
import { ALIVE_MS } from '../records/session.js';
import { versionOf } from '../records/versions.js';
import {
  block,
  claimedBlock,
  failureOf,
  fullBlock,
  host,
  node,
  nodeRecord,
  NOW_MS,
  poolRecord,
  prefix,
  request,
  session,
} from '../testing/records.js';
import { getNode, listNodes, recordCluster, registerNode, updateNode, type Registration } from './nodes.js';

const ATTRIBUTES = { handleId: 'net.c1', owner: { node: 'n1' }, releasedAtMs: undefined };

test('a node has the blocks whose owner and affinity agree', () => {
  const view = new TestView([
    nodeRecord('n1'),
    ...claimedBlock(takeOrdinals(block('10.0.0.0/30', 'n1'), [0, 1], ATTRIBUTES)),
    ...claimedBlock(fullBlock('10.0.0.8/29', 'n1')),
    ...claimedBlock(fullBlock('10.0.1.0/30', 'n2')),
    // The affinity of a claim that another node won, and one whose block is gone.
    { kind: 'block', value: block('10.0.2.0/30', 'n2') },
    { kind: 'affinity', value: { owner: host('n1'), block: prefix('10.0.2.0/30'), state: 'pending' } },
    { kind: 'affinity', value: { owner: host('n1'), block: prefix('10.0.3.0/30'), state: 'pending' } },
  ]);
  expect(getNode(view, 'n1').utilization).toMatchObject({ blocks: 2, capacity: 12, allocated: 10 });
});

test('nodes are listed in the order of their names, in pages', () => {
  const view = new TestView(['c', 'a', 'b', 'd'].map((name) => nodeRecord(name)));
  const names = (after: string, limit: number) => {
    const { items, more } = listNodes(view, { after, limit });
    return [items.map(({ node }) => node.name).join(''), more];
  };
  expect([names('', 2), names('b', 2), names('b', 1), names('bb', 9), names('d', 1), names('', 4)]).toEqual([
    ['ab', true],
    ['cd', false],
    ['c', true],
    ['cd', false],
    ['', false],
    ['abcd', false],
  ]);
});

test('an unknown node is not found', () => {
  expect(failureOf(() => getNode(new TestView(), 'n1'))).toMatchObject({
    code: 'NODE_NOT_FOUND',
    details: { node: 'n1' },
  });
});

/** MAC addresses of n1. */
const MACS = new Map([
  ['vxlanTunnelAddress', tunnelMac('n1', 4)],
  ['vxlanV6TunnelAddress', tunnelMac('n1', 6)],
] as const);

describe('the Kubernetes cluster of a node', () => {
  const sighting = { name: 'n1', clusterUid: 'uid-1' };

  test('is recorded once, and stays when the node registers again', () => {
    const view = new TestView([nodeRecord('n1', { kubernetesCluster: 'earlier' })]);
    const [change] = recordCluster(view, sighting).changes;
    expect(change).toMatchObject({ type: 'put', record: { value: { name: 'n1', kubernetesCluster: 'uid-1' } } });
    const recorded = new TestView([nodeRecord('n1', { kubernetesCluster: 'uid-1' })]);
    expect(recordCluster(recorded, sighting).changes).toEqual([]);
    expect(register(recorded).listing.node.kubernetesCluster).toBe('uid-1');
  });

  test('is not recorded for a node that is unknown or being deleted', () => {
    expect(recordCluster(new TestView(), sighting).changes).toEqual([]);
    const deleting = new TestView([nodeRecord('n1', { deletionTimeMs: NOW_MS })]);
    expect(recordCluster(deleting, sighting).changes).toEqual([]);
  });
});

const IPV4 = { address: prefix('192.0.2.7/32'), subnetBits: 24 };

function registration(rest: Partial<Registration> = {}): Registration {
  const none = { ipv6: undefined, labels: {}, interfaces: [] };
  return { name: 'n1', ipv4: IPV4, ...none, ...rest };
}

function register(view: TestView, rest: Partial<Registration> = {}) {
  const result = view.apply(registerNode(view, { registration: registration(rest), uid: 'new', nowMs: NOW_MS }));
  if (result.refusal) throw result.refusal;
  return result;
}

function update(view: TestView, labels: Record<string, string>, resourceVersion = '') {
  return view.apply(updateNode(view, { name: 'n1', labels, resourceVersion }));
}

describe('a node that registers', () => {
  test('is known from then on', () => {
    const view = new TestView();
    const { listing, outcome } = register(view, { labels: { rack: 'r1' } });
    expect(outcome).toBe('created');
    expect(listing.node).toEqual({
      ...node('n1', { ipv4: IPV4, labels: { rack: 'r1' }, registeredLabels: { rack: 'r1' }, tunnelMacs: MACS }),
      uid: 'new',
      createTimeMs: Date.parse('2026-08-22T06:33:25Z'),
    });
    expect(view.node('n1')).toEqual(listing.node);
  });

  test('again, unchanged, writes nothing', () => {
    const view = new TestView();
    register(view, { labels: { rack: 'r1' } });
    const decision = registerNode(view, {
      registration: registration({ labels: { rack: 'r1' } }),
      uid: 'other',
      nowMs: NOW_MS + 5000,
    });
    expect(decision.changes).toEqual([]);
    expect(decision.outcome).toMatchObject({ outcome: 'unchanged', listing: { node: { uid: 'new' } } });
  });

  test('keeps omitted fields and replaces given ones', () => {
    const tunnels = new Map([['ipipTunnelAddress', { address: prefix('10.0.0.1/32') }]] as const);
    const ipv6 = { address: prefix('2001:db8::7/128'), subnetBits: 64 };
    const interfaces = [{ name: 'eth0', addresses: [IPV4] }];
    const view = new TestView([
      nodeRecord('n1', { tunnels, tunnelMacs: new Map(), ipv6, interfaces, asNumber: 64512 }),
    ]);
    expect(register(view).outcome).toBe('changed');
    expect(view.node('n1')).toEqual(
      node('n1', {
        ipv4: IPV4,
        tunnels,
        tunnelMacs: MACS,
        asNumber: 64512,
      }),
    );
  });

  test('while it is being deleted is refused', () => {
    const view = new TestView([nodeRecord('n1', { deletionTimeMs: NOW_MS })]);
    expect(failureOf(() => register(view)).code).toBe('NODE_BEING_DELETED');
  });
});

describe('addresses and names of another node', () => {
  const IPV6 = { address: prefix('2001:db8::7/128'), subnetBits: 64 };
  const TUNNEL = { address: prefix('10.0.0.1/32') };
  const at = (last: number) => ({ address: prefix(`192.0.2.${last}/32`), subnetBits: 24 });
  const other = (rest: Partial<Node> = {}): RecordValue[] => [
    nodeRecord('n2', {
      ipv4: at(8),
      ipv6: IPV6,
      tunnels: new Map([['vxlanTunnelAddress', TUNNEL]]),
      ...rest,
    }),
    { kind: 'nodeSession', value: session('n2') },
  ];

  test.each<[string, Partial<Registration>]>([
    ['192.0.2.8', { ipv4: at(8) }],
    ['2001:db8::7', { ipv6: IPV6 }],
    ['10.0.0.1', { ipv4: { ...TUNNEL, subnetBits: 24 } }],
  ])('is refused, with its name: %s', (text, rest) => {
    const view = new TestView(other());
    const failure = failureOf(() => register(view, rest));
    expect(failure).toMatchObject({ code: 'ADDRESS_IN_USE', details: { node: 'n1', address: text } });
    expect(failure.message).toContain(`registers ${text}, which node "n2" has`);
    expect(failure.message).toContain('podwirectl delete node n2');
    expect(view.snapshot()).toEqual(new TestView(other()).snapshot());
  });

  test('is refused also where that node never had a session, as with nodes of Calico', () => {
    expect(failureOf(() => register(new TestView(other().slice(0, 1)), { ipv4: at(8) })).code).toBe('ADDRESS_IN_USE');
  });

  test('is allocated to nothing, even on request', () => {
    const range = '192.0.2.8/30';
    const view = new TestView([poolRecord('p', range, { blockSizeBits: 30 }), ...other()]);
    const allocated = ['c1', 'c2', 'c3'].map((containerId) =>
      view.apply(allocate(view, { request: request(containerId, { nodeName: 'n2' }), nowMs: NOW_MS })),
    );
    const texts = allocated.map(({ endpoint }) => formatAddress(endpoint.addresses[0]!.address));
    expect(texts.toSorted()).toEqual(['192.0.2.10', '192.0.2.11', '192.0.2.9']);
    const one = { nodeName: 'n2', addresses: [prefix('192.0.2.8/32')] };
    for (const rest of [{ nodeName: 'n2' }, one])
      expect(failureOf(() => allocate(view, { request: request('c4', rest), nowMs: NOW_MS })).message).toMatch(
        rest === one ? '192.0.2.8 is the address of node n2' : /./,
      );
    view.put(nodeRecord('n2'));
    expect(view.apply(allocate(view, { request: request('c4', one), nowMs: NOW_MS })).added).toEqual([4]);
  });

  test('is refused while it is leased', () => {
    const lease = takeOrdinals(
      block('192.0.2.4/30', 'n2'),
      [3],
      leaseAttributes({ nodeName: 'n2', bootId: 'b', nowMs: NOW_MS }),
    );
    const view = new TestView(claimedBlock(lease));
    expect(failureOf(() => register(view)).message).toContain('registers 192.0.2.7, which a lease on node n2 has');
  });

  test('stays registered where both have it already', () => {
    const view = new TestView([...other(), nodeRecord('n1', { ipv4: at(8) })]);
    expect(register(view, { ipv4: at(8), labels: { a: '1' } }).outcome).toBe('changed');
  });

  test('passes on once that node is silent: its addresses, but not its tunnel', () => {
    const view = new TestView(other());
    view.monotonicMs = ALIVE_MS;
    expect(failureOf(() => register(view, { ipv4: { ...TUNNEL, subnetBits: 24 } })).code).toBe('ADDRESS_IN_USE');
    const decision = registerNode(view, {
      registration: registration({ ipv4: at(8), ipv6: IPV6 }),
      uid: 'new',
      nowMs: NOW_MS,
    });
    // If it is heard of before the commit, the decision runs again.
    expect(decision.changes).toContainEqual({ type: 'expect', record: { kind: 'nodeSession', value: session('n2') } });
    expect(view.apply(decision)).toMatchObject({ outcome: 'created' });
    expect(view.node('n1')).toMatchObject({ ipv4: at(8), ipv6: IPV6 });
    expect(view.node('n2')).toMatchObject({
      ipv4: undefined,
      ipv6: undefined,
    });
    // The former holder returns.
    expect(failureOf(() => register(view, { name: 'n2', ipv4: at(8) })).message).toContain('node "n1" has');
  });

  test.each([2, 3, 5])('does not stop %i nodes that exchange their addresses in a ring, and all run', (count) => {
    const names = Array.from({ length: count }, (_, index) => `n${index}`);
    const view = new TestView(
      names.flatMap((name, index): RecordValue[] => [
        nodeRecord(name, { ipv4: at(10 + index) }),
        { kind: 'nodeSession', value: session(name) },
      ]),
    );
    const wanted = (index: number) => at(10 + ((index + 1) % count));
    // Each tries again until it succeeds.
    for (let round = 0; round < 2; round++)
      names.forEach((name, index) => {
        const input = { registration: registration({ name, ipv4: wanted(index) }), uid: 'new', nowMs: NOW_MS };
        view.apply(registerNode(view, input));
      });
    expect(names.map((name) => view.node(name)?.ipv4)).toEqual(names.map((_, index) => wanted(index)));
  });
});

describe('labels', () => {
  test('that an operator changed, added or removed stay, whatever the node registers', () => {
    const view = new TestView();
    register(view, { labels: { rack: 'r1', arch: 'arm', os: 'linux' } });
    update(view, { rack: 'r9', own: 'x', os: 'linux' });
    for (const labels of [
      { rack: 'r1', arch: 'arm', os: 'linux' },
      { rack: 'r2', arch: 'arm64', os: 'linux', own: 'y' },
      { os: 'linux' },
    ]) {
      register(view, { labels });
      expect(view.node('n1')?.labels).toEqual({ rack: 'r9', own: 'x', os: 'linux' });
    }
  });

  test('that the node no longer registers are removed', () => {
    const view = new TestView();
    register(view, { labels: { rack: 'r1', arch: 'arm' } });
    register(view, { labels: { arch: 'arm64' } });
    expect(view.node('n1')?.labels).toEqual({ arch: 'arm64' });
  });

  test('that Calico stored stay', () => {
    const view = new TestView([nodeRecord('n1', { labels: { role: 'gateway' } })]);
    register(view, { labels: { role: 'worker', rack: 'r1' } });
    register(view);
    expect(view.node('n1')?.labels).toEqual({ role: 'gateway' });
  });

  test('that an operator removes return as the node’s', () => {
    const view = new TestView();
    register(view, { labels: { rack: 'r1' } });
    update(view, { rack: 'r9' });
    register(view, { labels: { rack: 'r1' } });
    update(view, {});
    register(view, { labels: { rack: 'r1' } });
    expect(view.node('n1')?.labels).toEqual({ rack: 'r1' });
  });

  const labels = fc.dictionary(fc.constantFrom('a', 'b', 'c'), fc.constantFrom('1', '2', '3'));
  const step = fc.record({ by: fc.constantFrom('node', 'operator'), labels });

  test('with another value of an operator stay, in any sequence of registrations', () => {
    fc.assert(
      fc.property(fc.array(step), labels, fc.array(labels, { minLength: 1 }), (before, wanted, registrations) => {
        const view = new TestView();
        register(view);
        let given: Record<string, string> = {};
        for (const { by, labels } of before) {
          if (by === 'operator') update(view, labels);
          else register(view, { labels: (given = labels) });
        }
        update(view, wanted);
        const changed = Object.entries(wanted).filter(([key, value]) => given[key] !== value);
        for (const labels of registrations) {
          register(view, { labels });
          expect(view.node('n1')?.labels).toMatchObject(Object.fromEntries(changed));
          // A repeat changes nothing.
          expect(register(view, { labels }).outcome).toBe('unchanged');
        }
      }),
    );
  });

  test('without a change of an operator are as last registered', () => {
    fc.assert(
      fc.property(fc.array(labels, { minLength: 1 }), (registrations) => {
        const view = new TestView();
        for (const labels of registrations) {
          register(view, { labels });
          expect(view.node('n1')?.labels).toEqual(labels);
        }
      }),
    );
  });
});

describe('an update', () => {
  test('replaces the labels, and nothing when they are the same', () => {
    const view = new TestView([nodeRecord('n1', { labels: { a: '1', b: '2' } })]);
    expect(update(view, { b: '3' })).toMatchObject({ outcome: 'changed', listing: { node: { labels: { b: '3' } } } });
    expect(updateNode(view, { name: 'n1', labels: { b: '3' }, resourceVersion: '' }).changes).toEqual([]);
  });

  test('of the version that was read is made, of an older one refused', () => {
    const view = new TestView([nodeRecord('n1')]);
    const version = versionOf(node('n1'));
    const { node: updated } = update(view, { a: '1' }, version).listing;
    const stale = failureOf(() => update(view, { a: '2' }, version));
    expect([stale.code, stale.message]).toEqual(['STALE_VERSION', expect.stringContaining('node "n1"')]);
    expect(view.node('n1')).toEqual(updated);
    expect(versionOf(updated)).not.toBe(version);
  });

  test.each([
    ['n2', 'NODE_NOT_FOUND'],
    ['n3', 'NODE_BEING_DELETED'],
  ])('of node %s is refused', (name, code) => {
    const view = new TestView([nodeRecord('n1'), nodeRecord('n3', { deletionTimeMs: NOW_MS })]);
    expect(failureOf(() => updateNode(view, { name, labels: {}, resourceVersion: '' })).code).toBe(code);
  });
});
