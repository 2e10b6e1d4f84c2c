import { formatPrefix } from '@podwire/shared/net/prefix';
import { expect, test } from 'vitest';

import { inconsistencies, heldByHandle, readAll } from '../engine/testing/consistency.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, keys } from '../engine/testing/stores.js';
import type { Ipam } from '../ipam.js';
import { checkPool } from '../pools/rules.js';
import { startIpam } from '../testing/ipam.js';
import { attachment, NOW_MS, request } from '../testing/records.js';

const PODS = ['a', 'b', 'c'];

async function start() {
  const store = new MemoryStore();
  const { ipam } = await startIpam(store);
  const checked = checkPool({ name: 'p', cidr: '10.0.0.0/28', blockSizeBits: 30, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  await ipam.pools.create(checked.spec, forever);
  return { store, ipam };
}

async function allocate(
  ipam: Ipam,
  sandbox: string,
  { pod, bootId }: { readonly pod: string; readonly bootId: string },
) {
  const identity = { namespace: 'default', name: pod, uid: '' };
  const wanted = request(sandbox, { pod: identity, netns: { bootId, inode: 4026532000n } });
  const { endpoint } = await ipam.addresses.allocate(wanted, forever);
  return endpoint.addresses.map(({ address }) => formatPrefix(address)).join();
}

const REPAIR = { kinds: [], dryRun: false, releases: true, graceMs: 0, limit: 100 };

// Duplicates and leaked endpoints after a reboot: projectcalico/calicoctl#1523 and #1550, projectcalico/calico#13858.
test('old sandboxes after a reboot keep their addresses from new ones until an audit releases them', async () => {
  const { store, ipam } = await start();
  const old = await Promise.all(PODS.map((pod) => allocate(ipam, `old-${pod}`, { pod, bootId: 'one' })));
  const young = await Promise.all(PODS.map((pod) => allocate(ipam, `new-${pod}`, { pod, bootId: 'two' })));
  expect(new Set([...old, ...young]).size, 'a process of the old sandbox may live').toBe(2 * PODS.length);
  expect(await allocate(ipam, 'new-a', { pod: 'a', bootId: 'two' }), 'an ADD again').toBe(young[0]);
  const before = await readAll(store, keys);
  expect(inconsistencies(before, NOW_MS)).toEqual([]);
  expect(before.endpoints(), 'one for each pod').toHaveLength(PODS.length);

  const { results } = await ipam.audits.repair(REPAIR, forever);
  expect(results.map(({ finding, result }) => `${finding.kind} ${result.state}`)).toEqual(
    PODS.map(() => 'allocationUnused repaired'),
  );
  const after = await readAll(store, keys);
  expect(inconsistencies(after, NOW_MS)).toEqual([]);
  expect([...heldByHandle(after).values()].sort()).toEqual(young.toSorted());
  for (const [index, pod] of PODS.entries()) {
    await ipam.addresses.release(attachment(`old-${pod}`), forever);
    const { addresses } = await ipam.addresses.getEndpoint(attachment(`new-${pod}`), forever);
    expect(
      addresses.map(({ address }) => formatPrefix(address)),
      'after a late DEL of the old one',
    ).toEqual([young[index]]);
  }
});
