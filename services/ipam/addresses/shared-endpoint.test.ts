import { formatPrefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { inconsistencies, readAll } from '../engine/testing/consistency.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, keys } from '../engine/testing/stores.js';
import { poolSpec } from '../testing/interleaved-operations.js';
import { startIpam } from '../testing/ipam.js';
import { attachment, nodeRecord, NOW_MS, poolRecord, request } from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { allocate, type AllocationRequest } from './allocate/allocate.js';
import { continueAddressRelease, release } from './release.js';

/** An endpoint's key has neither network nor, for a pod, container: several attachments share one. */

const POD = { namespace: 'default', name: 'web', uid: 'u1' };
const NETNS = { bootId: '8d3ff0c2-1d3f-4a51-94dd-0e7d3a1b1b5a', inode: 4_026_532_001n };
const KEY = { namespace: 'default', name: 'n1-k8s-web-eth0' };

const add = (view: TestView, asked: AllocationRequest) => view.apply(allocate(view, { request: asked, nowMs: NOW_MS }));

function started(): TestView {
  return new TestView([
    poolRecord('four', '10.0.0.0/28', { blockSizeBits: 30 }),
    poolRecord('six', 'fd00::/124', { blockSizeBits: 126 }),
    nodeRecord('n1'),
  ]);
}

/** All but the blocks, whose sequence numbers and free lists show an earlier allocation. */
const recorded = (view: TestView) => view.snapshot().filter(([, { kind }]) => kind !== 'block' && kind !== 'affinity');

/** The first one has both families, in another order. */
const FIRST = request('c1', { pod: POD, netns: NETNS, families: [6, 4] });

const LATER = [
  [
    'the same interface on a second network',
    request('c1', { pod: POD, attachment: attachment('c1', { network: 'b' }) }),
  ],
  ['a second sandbox of the pod', request('c2', { pod: POD })],
] as const;

describe.each(LATER)('an undone ADD of %s', (_, second) => {
  test.each([
    ['by a release of the attachment', (view: TestView) => void view.apply(release(view, second.attachment, NOW_MS))],
    [
      'by a release of the allocation',
      (view: TestView) => {
        const { addresses } = view.endpoint(KEY)!;
        const releases = addresses.map(({ address, sequenceNumber }) => ({
          address,
          sequenceNumber,
          handleId: `${second.attachment.network}.${second.attachment.containerId}`,
        }));
        view.apply(continueAddressRelease(view, { releases, nowMs: NOW_MS }));
      },
    ],
  ])('%s leaves everything unchanged', (_name, undo) => {
    const view = started();
    add(view, FIRST);
    const before = recorded(view);
    add(view, second);
    undo(view);
    expect(recorded(view)).toEqual(before);
    // A runtime sends a DEL after a failed ADD.
    view.apply(release(view, second.attachment, NOW_MS));
    expect(recorded(view)).toEqual(before);
  });
});

test('property: attachments with a shared key are recorded with their addresses; a temporary one has no trace', () => {
  const steps = fc.array(
    fc.record({
      type: fc.constantFrom('add', 'add', 'release', 'come and go'),
      network: fc.constantFrom('net', 'b'),
      id: fc.constantFrom('c1', 'c2', 'c3'),
      families: fc.constantFrom<readonly (4 | 6)[]>([4], [6], [6, 4]),
      netns: fc.constantFrom(undefined, NETNS),
    }),
    { maxLength: 20 },
  );
  fc.assert(
    fc.property(steps, (sequence) => {
      const view = started();
      for (const { type, network, id, families, netns } of sequence) {
        const asked = request(id, { pod: POD, attachment: attachment(id, { network }), families, netns });
        const before = recorded(view);
        const isHeld = view.handle(`${network}.${id}`) !== undefined;
        if (type === 'come and go' && isHeld) continue;
        if (type !== 'release') add(view, asked);
        if (type !== 'add') view.apply(release(view, asked.attachment, NOW_MS));
        if (type === 'come and go') expect(recorded(view)).toEqual(before);
        const current = view.endpoint(KEY);
        const isAnyHeld = view.handles().length > 0;
        expect(current !== undefined).toBe(isAnyHeld);
      }
    }),
    { numRuns: 200, verbose: fc.VerbosityLevel.Verbose },
  );
});

const STORED_POD = { namespace: 'default', name: 'web', uid: '0d2b7c1e-52a3-4f6e-9d1c-8f6a0e3b2c11' };
const STORED_KEY = keys.endpoint(KEY);
const SECOND = { pod: STORED_POD, attachment: attachment('c1', { network: 'second' }) };

/** Endpoint as Calico's plugin writes it, with fields that only its own programs know. */
const CALICOS = JSON.stringify({
  kind: 'WorkloadEndpoint',
  apiVersion: 'projectcalico.org/v3',
  metadata: {
    name: 'n1-k8s-web-eth0',
    namespace: 'default',
    uid: '5e0c9a58-8c21-4d04-b6a5-3f4a6f7d9e10',
    creationTimestamp: '2026-08-22T06:33:20Z',
    labels: { app: 'web', 'projectcalico.org/namespace': 'default', 'projectcalico.org/orchestrator': 'k8s' },
  },
  spec: {
    orchestrator: 'k8s',
    node: 'n1',
    containerID: 'c9',
    pod: 'web',
    endpoint: 'eth0',
    ipNetworks: ['192.168.7.7/32'],
    profiles: ['kns.default', 'ksa.default.default'],
    interfaceName: 'cali0123456789a',
    mac: '0a:1b:2c:3d:4e:5f',
    ports: [{ name: 'http', protocol: 'TCP', port: 80 }],
  },
});

async function startStored(stored: Readonly<Record<string, string>> = {}) {
  const store = new MemoryStore();
  const puts = Object.entries(stored).map(([key, text]) => ({ key, value: Buffer.from(text) }));
  await store.commit({ comparisons: [], puts, deletes: [] }, forever);
  const { ipam } = await startIpam(store);
  await ipam.pools.create(poolSpec('p', '10.0.0.0/29'), forever);
  return { store, ipam };
}

/** The texts of all but the blocks, whose sequence numbers and free lists show an ended allocation. */
async function texts(store: MemoryStore): Promise<Record<string, string>> {
  const { records } = await store.list('', forever);
  const kept = records.filter(({ key }) => !/\/(assignment|host|history|nodes)\//.test(key));
  return Object.fromEntries(kept.map(({ key, value }) => [key, Buffer.from(value).toString()]));
}

test('an undone ADD of the same interface on a second network leaves every text unchanged', async () => {
  const { store, ipam } = await startStored();
  const first = request('c1', { pod: STORED_POD, netns: NETNS });
  const { endpoint } = await ipam.addresses.allocate(first, forever);
  const before = await texts(store);
  await ipam.addresses.allocate(request('c1', SECOND), forever);
  expect((await texts(store))[STORED_KEY]).toContain('"podwire.dev/network":"second"');
  // The records of the first one are known meanwhile.
  expect(await ipam.addresses.getEndpoint(attachment('c1'), forever)).toEqual(endpoint);
  await ipam.addresses.release(SECOND.attachment, forever);
  expect(await texts(store)).toEqual(before);
  expect(inconsistencies(await readAll(store, keys), NOW_MS)).toEqual([]);
  const { addresses } = await ipam.addresses.getEndpoint(attachment('c1'), forever);
  expect(addresses.map(({ address }) => formatPrefix(address))).toEqual(['10.0.0.0/32']);
});

test('an undone ADD for a pod of Calico restores its endpoint, with every unknown field', async () => {
  const { store, ipam } = await startStored({ [STORED_KEY]: CALICOS });
  const before = await texts(store);
  await ipam.addresses.allocate(request('c1', SECOND), forever);
  expect((await texts(store))[STORED_KEY]).toContain('"podwire.dev/network":"second"');
  await ipam.addresses.release(SECOND.attachment, forever);
  expect(await texts(store)).toEqual(before);
});
