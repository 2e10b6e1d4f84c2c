import {
  AddressReleaseResult,
  AddressServiceService,
  AllocateRequest,
  BlockVerdict,
  ExplainAllocationRequest,
  ReleaseAddressesRequest,
} from '@podwire/proto/podwire/ipam/v1/address';
import { formatAddress } from '@podwire/shared/net/address';
import { addressAt, formatPrefix, parsePrefix, prefixContains } from '@podwire/shared/net/prefix';
import { expect, test } from 'vitest';

import { attachment } from '../testing/service.js';
import { correct, keys, limits, onEmbedded, onEtcd, spoil, unreadable } from '../testing/unreadable-records.js';

/** Unreadable records are excluded and reported, on each kind of datastore, and the readable ones are served. */

function prefixOfText(text: string) {
  const parsed = parsePrefix(text);
  if (!parsed.ok) throw new Error(text);
  return parsed.prefix;
}

const STORES = [
  ['the embedded store', onEmbedded],
  ['etcd', onEtcd],
] as const;

test.each(STORES)('on %s an unreadable block is set aside, named, and serves again later', async (_, start) => {
  const bench = await start();
  const { caller } = bench;
  const { endpoint } = await caller.allocate('c1');
  const { address = '', blockCidr = '' } = endpoint?.addresses[0] ?? {};
  const spoiled = prefixOfText(blockCidr);
  const key = keys.block(spoiled);
  const text = await spoil(bench, key);

  expect(await unreadable(caller)).toEqual([key]);
  // Three of four blocks are left, for all nodes, and for the block's own; every search passes it.
  const nodes = Array.from({ length: 12 }, (_, index) => `node-${index + 1}`);
  const given = await Promise.all(nodes.map((nodeName) => caller.allocateAddress(`more-${nodeName}`, { nodeName })));
  expect(new Set(given).size).toBe(12);
  for (const each of given) expect(prefixContains(spoiled, prefixOfText(each))).toBe(false);

  const corrupt = { code: 'STORE_CORRUPT', message: expect.stringContaining(key) };
  await expect(caller.allocate('c1'), 'a repeat must not get a second address').rejects.toMatchObject(corrupt);
  await expect(caller.release('c1')).rejects.toMatchObject(corrupt);
  await expect(caller.allocate('c2', { addresses: [address.replace('/32', '')] })).rejects.toMatchObject(corrupt);

  const [other = ''] = given;
  const releases = [address, other].map((each) => ({ address: each.replace('/32', '') }));
  const released = await caller.peer.call(
    AddressServiceService.releaseAddresses,
    ReleaseAddressesRequest.fromPartial({ releases }),
    limits(),
  );
  expect(released.addresses.map(({ result }) => result)).toEqual([
    AddressReleaseResult.ADDRESS_RELEASE_RESULT_UNREADABLE,
    AddressReleaseResult.ADDRESS_RELEASE_RESULT_RELEASED,
  ]);

  const request = AllocateRequest.fromPartial({ attachment: attachment('c3'), nodeName: 'node-1' });
  const asked = ExplainAllocationRequest.fromPartial({ request });
  const explained = await caller.peer.call(AddressServiceService.explainAllocation, asked, limits());
  expect(explained.families[0]?.pools[0]?.blocks[0]).toMatchObject({
    cidr: formatPrefix(spoiled),
    verdict: BlockVerdict.BLOCK_VERDICT_UNREADABLE,
    reason: expect.stringContaining(key),
  });

  await correct(bench, key, text);
  expect(await caller.allocateAddress('c1')).toBe(address);
  const ninth = formatAddress(addressAt(spoiled, 9));
  expect(await caller.allocateAddress('c4', { addresses: [ninth] })).toBe(`${ninth}/32`);
  await caller.release('c1');
});

test.each(STORES)('on %s an unreadable handle affects its attachment only', async (_, start) => {
  const bench = await start();
  const { caller } = bench;
  const held = await caller.allocateAddress('c1');
  const key = keys.handle('net.c1');
  const text = await spoil(bench, key);
  const corrupt = { code: 'STORE_CORRUPT', message: expect.stringContaining(key) };
  await expect(caller.allocate('c1')).rejects.toMatchObject(corrupt);
  await expect(caller.release('c1'), 'not that there was nothing').rejects.toMatchObject(corrupt);
  expect(await caller.allocateAddress('c2')).not.toBe(held);
  await caller.release('c2');
  await correct(bench, key, text);
  expect(await caller.allocateAddress('c1')).toBe(held);
});

test.each(STORES)(
  'on %s a pool with an unreadable block stays, and is deleted once that is corrected',
  async (_, start) => {
    const bench = await start();
    const { caller } = bench;
    const { endpoint } = await caller.allocate('c1');
    const key = keys.block(prefixOfText(endpoint?.addresses[0]?.blockCidr ?? ''));
    await caller.release('c1');
    const text = await spoil(bench, key);
    expect(await caller.deletePool('default')).toMatchObject({ heldAddresses: 0n, unreadableRecord: key });
    await expect(caller.getPool('default')).resolves.toMatchObject({ pool: { name: 'default' } });
    await correct(bench, key, text);
    // Unless it was deleted in the background.
    await caller.deletePool('default').catch(() => undefined);
    await expect(caller.getPool('default')).rejects.toMatchObject({ code: 'POOL_NOT_FOUND' });
  },
);
