import { Failure } from '@podwire/shared/failure/failure';
import { parseAddress, type Address } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { inconsistencies, readAll } from '../engine/testing/consistency.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, keys } from '../engine/testing/stores.js';
import type { Ipam } from '../ipam.js';
import { checkPool } from '../pools/rules.js';
import { startIpam } from '../testing/ipam.js';
import { attachment, NOW_MS, request } from '../testing/records.js';

const CIDR = '10.0.0.0/28';
const WANTED: Address = parseAddress('10.0.0.9')!;

const allocate = async (ipam: Ipam, id: string) => {
  const { endpoint } = await ipam.addresses.allocate(request(id, { addresses: [WANTED] }), forever);
  return endpoint.addresses.map(({ address }) => formatPrefix(address)).join();
};

/** A container that requests an address, and whose response is lost before or after the commit. */
async function lostAnswer(type: 'fails' | 'failsAfterCommit') {
  const store = new MemoryStore();
  const { ipam } = await startIpam(store);
  const checked = checkPool({ name: 'p', cidr: CIDR, blockSizeBits: 30, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  await ipam.pools.create(checked.spec, forever);
  store.injectFault('commit', { type, failure: new Failure('STORE_UNAVAILABLE', 'the connection was cut') });
  await expect(allocate(ipam, 'c1')).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
  expect(store.unusedFaults()).toEqual([]);
  return { store, ipam };
}

// Addresses that stayed in use without a known holder, so that a pod with a fixed address could never start again:
// projectcalico/calico#5203, projectcalico/libcalico-go#1329.
describe.each(['fails', 'failsAfterCommit'] as const)(
  'a requested address, where the commit %s and the caller gets a failure,',
  (type) => {
    test('is returned to the retry', async () => {
      const { store, ipam } = await lostAnswer(type);
      expect(await allocate(ipam, 'c1')).toBe('10.0.0.9/32');
      expect(inconsistencies(await readAll(store, keys), NOW_MS)).toEqual([]);
    });

    test('is free for the next container, after the release that follows a failed ADD', async () => {
      const { store, ipam } = await lostAnswer(type);
      await ipam.addresses.release(attachment('c1'), forever);
      expect(await allocate(ipam, 'c2')).toBe('10.0.0.9/32');
      const view = await readAll(store, keys);
      expect(inconsistencies(view, NOW_MS)).toEqual([]);
      expect(view.all('handle').map(({ value }) => value.id)).toEqual(['net.c2']);
    });
  },
);
