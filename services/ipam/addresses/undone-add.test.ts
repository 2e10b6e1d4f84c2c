import { formatPrefix } from '@podwire/shared/net/prefix';
import { expect, test } from 'vitest';

import { inconsistencies, readAll } from '../engine/testing/consistency.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, keys } from '../engine/testing/stores.js';
import { poolSpec } from '../testing/interleaved-operations.js';
import { startIpam } from '../testing/ipam.js';
import { attachment, NOW_MS, request } from '../testing/records.js';

const POD = { namespace: 'default', name: 'web', uid: '0d2b7c1e-52a3-4f6e-9d1c-8f6a0e3b2c11' };
const NETNS = { bootId: '8d3ff0c2-1d3f-4a51-94dd-0e7d3a1b1b5a', inode: 4_026_532_001n };
const KEY = keys.endpoint({ namespace: 'default', name: 'n1-k8s-web-eth0' });
const SECOND = { pod: POD, attachment: attachment('c1', { network: 'second' }) };

/** As Calico's plugin writes it, with fields that only its own programs know. */
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

async function start(stored: Readonly<Record<string, string>> = {}) {
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
  const { store, ipam } = await start();
  const first = request('c1', { pod: POD, netns: NETNS });
  const { endpoint } = await ipam.addresses.allocate(first, forever);
  const before = await texts(store);
  await ipam.addresses.allocate(request('c1', SECOND), forever);
  expect((await texts(store))[KEY]).toContain('"podwire.dev/network":"second"');
  // The records of the first one are known meanwhile.
  expect(await ipam.addresses.getEndpoint(attachment('c1'), forever)).toEqual(endpoint);
  await ipam.addresses.release(SECOND.attachment, forever);
  expect(await texts(store)).toEqual(before);
  expect(inconsistencies(await readAll(store, keys), NOW_MS)).toEqual([]);
  const { addresses } = await ipam.addresses.getEndpoint(attachment('c1'), forever);
  expect(addresses.map(({ address }) => formatPrefix(address))).toEqual(['10.0.0.0/32']);
});

test('an undone ADD for a pod of Calico restores its endpoint, with every unknown field', async () => {
  const { store, ipam } = await start({ [KEY]: CALICOS });
  const before = await texts(store);
  await ipam.addresses.allocate(request('c1', SECOND), forever);
  expect((await texts(store))[KEY]).toContain('"podwire.dev/network":"second"');
  await ipam.addresses.release(SECOND.attachment, forever);
  expect(await texts(store)).toEqual(before);
});
