import { formatPrefix, type Prefix } from '@podwire/shared/net/prefix';
import { expect, test } from 'vitest';

import { inconsistencies, readAll } from '../engine/testing/consistency.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, keys } from '../engine/testing/stores.js';
import type { Ipam } from '../ipam.js';
import { checkPool } from '../pools/rules.js';
import { startIpam } from '../testing/ipam.js';
import { NOW_MS, request } from '../testing/records.js';

const REGISTRATION = { ipv4: undefined, ipv6: undefined, labels: {}, interfaces: [] };
const TUNNEL = { nodeName: 'n1', kind: 'vxlanTunnelAddress' } as const;

/** A pool of four addresses, for tunnels and containers. */
async function start() {
  const store = new MemoryStore();
  const { ipam, dryRun } = await startIpam(store);
  const rules = { name: 'p', cidr: '10.0.0.0/30', blockSizeBits: 31, disabled: false, vxlanMode: 'Always' } as const;
  const checked = checkPool(rules);
  if (!checked.ok) throw new Error('the pool is at fault');
  await ipam.pools.create(checked.spec, forever);
  await ipam.nodes.register({ ...REGISTRATION, name: 'n1' }, forever);
  return { store, ipam, dryRun };
}

const tunnelOf = async (ipam: Ipam): Promise<string | undefined> => {
  const { node } = await ipam.nodes.get('n1', forever);
  const tunnel = node.tunnels.get(TUNNEL.kind);
  return tunnel && formatPrefix(tunnel.address);
};

async function podAddress(ipam: Ipam, id: string, nodeName: string): Promise<string> {
  const { endpoint } = await ipam.addresses.allocate(request(id, { nodeName }), forever);
  return endpoint.addresses.map(({ address }: { address: Prefix }) => formatPrefix(address)).join();
}

// A recreated node used its old tunnel's address while a pod had it (projectcalico/calico#3589).
test('a node that is deleted and recreated does not use the tunnel address that a container has by now', async () => {
  const { store, ipam } = await start();
  const old = formatPrefix((await ipam.nodes.assignTunnel(TUNNEL, forever)).address);
  await podAddress(ipam, 'c1', 'n1');
  await ipam.nodes.delete({ name: 'n1', resourceVersion: '' }, forever);
  const pods = [];
  for (const id of ['a', 'b', 'c']) pods.push(await podAddress(ipam, id, 'n2'));
  await ipam.nodes.register({ ...REGISTRATION, name: 'n1' }, forever);
  expect(await tunnelOf(ipam), 'nothing of what it was').toBeUndefined();
  const { address } = await ipam.nodes.assignTunnel(TUNNEL, forever);
  const tunnel = formatPrefix(address);
  expect(new Set([...pods, tunnel]).size).toBe(4);
  expect(await tunnelOf(ipam)).toBe(tunnel);
  expect([...pods, tunnel]).toContain(old);
  expect(inconsistencies(await readAll(store, keys), NOW_MS)).toEqual([]);
});

test('a tunnel’s address is not allocated to a container while the node’s record names it', async () => {
  const { ipam } = await start();
  const tunnel = formatPrefix((await ipam.nodes.assignTunnel(TUNNEL, forever)).address);
  const pods = [];
  for (const id of ['a', 'b', 'c']) pods.push(await podAddress(ipam, id, 'n2'));
  expect(pods).not.toContain(tunnel);
  await expect(podAddress(ipam, 'd', 'n2')).rejects.toMatchObject({ code: 'POOLS_EXHAUSTED' });
  await ipam.nodes.releaseTunnel(TUNNEL, forever);
  expect(await tunnelOf(ipam)).toBeUndefined();
  expect(await podAddress(ipam, 'd', 'n2')).toBe(tunnel);
});

test('the refused deletion of a pool names the tunnel address, and drain mode as the remedy', async () => {
  const { ipam, dryRun } = await start();
  await ipam.nodes.assignTunnel(TUNNEL, forever);
  const { items } = await ipam.pools.list({ after: '', limit: 1 }, forever);
  const deletion = { name: items[0]?.pool.name ?? '', resourceVersion: '', whenInUse: 'refuse' } as const;
  await expect(dryRun().pools.delete(deletion, forever)).rejects.toMatchObject({
    code: 'POOL_IN_USE',
    message: expect.stringMatching(
      /1 on node n1, of them 1 tunnel address\).*drain mode, in which nodes replace or release/,
    ),
  });
});
