import { AddressServiceService } from '@podwire/proto/podwire/ipam/v1/address';
import { ConfigServiceService, UpdateConfigRequest } from '@podwire/proto/podwire/ipam/v1/config';
import { GetHandleRequest, HandleServiceService } from '@podwire/proto/podwire/ipam/v1/handle';
import { NodeServiceService, TunnelKind } from '@podwire/proto/podwire/ipam/v1/node';
import { Reservation, ReservationServiceService } from '@podwire/proto/podwire/ipam/v1/reservation';
import { parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import { expect, test } from 'vitest';

import type { Caller } from '../testing/service.js';
import { correct, keys, limits, onEtcd, spoil, textOf } from '../testing/unreadable-records.js';

/** Requests with an unreadable record of each kind: the table of DESIGN.md, "Unreadable records". */

function blockOf(text: string | undefined): Prefix {
  const parsed = parsePrefix(text ?? '');
  if (!parsed.ok) throw new Error(`${text} ${parsed.fault}`);
  return parsed.prefix;
}

async function allocatedBlock(caller: Caller, containerId: string, nodeName: string): Promise<string> {
  const { endpoint } = await caller.allocate(containerId, { nodeName });
  return endpoint?.addresses[0]?.blockCidr ?? '';
}

const corrupt = (key: string) => ({ code: 'STORE_CORRUPT', message: expect.stringContaining(key) });

test('an affinity: its owner does not get that block, and no other node adopts it', async () => {
  const bench = await onEtcd();
  const { caller } = bench;
  const block = await allocatedBlock(caller, 'c1', 'node-1');
  await caller.release('c1');
  const key = keys.affinity({ kind: 'host', name: 'node-1' }, blockOf(block));
  const text = await spoil(bench, key);

  const another = await allocatedBlock(caller, 'c2', 'node-1');
  expect(another).not.toBe(block);
  for (const nodeName of ['node-2', 'node-3', 'node-4', 'node-5']) await allocatedBlock(caller, nodeName, nodeName);
  const { blocks } = await caller.listBlocks();
  expect(blocks.find(({ cidr }) => cidr === block)).toMatchObject({ nodeName: 'node-1' });
  expect(await bench.inStore((store) => textOf(store, key))).toMatch(/nonsense/);

  await correct(bench, key, text);
  expect(await allocatedBlock(caller, 'c6', 'node-1')).toBe([block, another].sort()[0]);
});

test('an endpoint: its attachment gets nothing, and its release leaves the endpoint to the operator', async () => {
  const bench = await onEtcd();
  const { caller } = bench;
  const pod = { namespace: 'default', name: 'web-0', uid: 'u' };
  const address = await caller.allocateAddress('c1', { pod });
  const key = keys.endpoint({ namespace: 'default', name: 'node--1-k8s-web--0-eth0' });
  await spoil(bench, key);

  await expect(caller.allocate('c1', { pod })).rejects.toMatchObject(corrupt(key));
  await expect(caller.allocate('c2', { pod }), 'the same name').rejects.toMatchObject(corrupt(key));
  expect(await caller.allocateAddress('c3')).not.toBe(address);
  await caller.release('c1');
  expect(await bench.inStore((store) => textOf(store, key))).toMatch(/nonsense/);
  expect(await caller.allocateAddress('c4', { addresses: [address.replace('/32', '')] })).toBe(address);
});

test('a node: requests for it are refused, and other nodes are served', async () => {
  const bench = await onEtcd();
  const { caller } = bench;
  const address = await caller.allocateAddress('c1');
  const key = keys.node('node-1');
  const text = await spoil(bench, key);

  const { getNode, deleteNode, updateNode, releaseTunnelAddress } = NodeServiceService;
  const tunnel = { nodeName: 'node-1', kind: TunnelKind.TUNNEL_KIND_IPIP };
  const refused = await Promise.allSettled([
    caller.allocate('c2'),
    caller.peer.call(getNode, { name: 'node-1' }, limits()),
    caller.peer.call(updateNode, { name: 'node-1', labels: {}, resourceVersion: '' }, limits()),
    caller.peer.call(deleteNode, { name: 'node-1', resourceVersion: '' }, limits()),
    caller.peer.call(releaseTunnelAddress, tunnel, limits()),
  ]);
  expect(refused).toMatchObject(Array(5).fill({ status: 'rejected', reason: corrupt(key) }));
  await caller.allocate('c3', { nodeName: 'node-2' });
  expect(await caller.allocateAddress('c1'), 'it still gets its address').toBe(address);

  await correct(bench, key, text);
  await caller.allocate('c2');
});

test('a pool: nothing is allocated from it, and no pool is created, as it might overlap', async () => {
  const bench = await onEtcd();
  const { caller } = bench;
  await caller.createPool({ name: 'second', cidr: '10.66.0.0/24' });
  await caller.allocate('c1', { pools: ['second'] });
  const key = keys.pool('second');
  const text = await spoil(bench, key);

  await expect(caller.allocate('c2', { pools: ['second'] })).rejects.toMatchObject({ code: 'INVALID_REQUEST' });
  const refused = await Promise.allSettled([
    caller.createPool({ name: 'third', cidr: '10.67.0.0/24' }),
    caller.getPool('second'),
    caller.updatePool({ name: 'second', disabled: true }, 'disabled'),
    caller.deletePool('second'),
  ]);
  expect(refused).toMatchObject(Array(4).fill({ status: 'rejected', reason: corrupt(key) }));
  expect(await caller.allocateAddress('c3')).toMatch(/^10\.65\.0\./);
  await caller.release('c1');

  await correct(bench, key, text);
  await caller.createPool({ name: 'third', cidr: '10.67.0.0/24' });
  expect(await caller.allocateAddress('c2', { pools: ['second'] })).toMatch(/^10\.66\.0\./);
});

test('the configuration: dependent requests are refused, and the node’s own blocks still serve addresses', async () => {
  const bench = await onEtcd();
  const { caller } = bench;
  const { updateConfig, getConfig } = ConfigServiceService;
  await caller.peer.call(
    updateConfig,
    UpdateConfigRequest.fromPartial({ strictAffinity: true, cooldownSeconds: 600 }),
    limits(),
  );
  const cooling = await caller.allocateAddress('c0', { nodeName: 'node-9' });
  await caller.release('c0');
  await caller.allocate('c1');
  const text = await spoil(bench, keys.config);

  await caller.allocate('c2');
  const refused = await Promise.allSettled([
    caller.allocate('c3', { nodeName: 'node-2' }),
    caller.release('c1'),
    caller.peer.call(getConfig, {}, limits()),
    caller.peer.call(AddressServiceService.getAddress, { address: cooling.replace('/32', '') }, limits()),
    caller.peer.call(updateConfig, UpdateConfigRequest.fromPartial({ strictAffinity: false }), limits()),
  ]);
  expect(refused).toMatchObject(Array(5).fill({ status: 'rejected', reason: corrupt(keys.config) }));

  await correct(bench, keys.config, text);
  await caller.release('c1');
  await caller.allocate('c3', { nodeName: 'node-2' });
});

test('a reservation: it is ignored, as availability comes first', async () => {
  const bench = await onEtcd();
  const { caller } = bench;
  const reservation = Reservation.fromPartial({ name: 'all', cidrs: ['10.65.0.0/24'] });
  await caller.peer.call(ReservationServiceService.createReservation, { reservation }, limits());
  await expect(caller.allocate('c1')).rejects.toMatchObject({ code: 'POOLS_EXHAUSTED' });
  const key = keys.reservation('all');
  const text = await spoil(bench, key);
  await caller.allocate('c1');
  const { getReservation } = ReservationServiceService;
  await expect(caller.peer.call(getReservation, { name: 'all' }, limits())).rejects.toMatchObject(corrupt(key));
  await correct(bench, key, text);
  await expect(caller.allocate('c2')).rejects.toMatchObject({ code: 'POOLS_EXHAUSTED' });
});

test('a handle, or a block that it names: requests for it are not answered with nothing', async () => {
  const bench = await onEtcd();
  const { caller } = bench;
  const { endpoint } = await caller.allocate('c1');
  const { address = '', blockCidr = '' } = endpoint?.addresses[0] ?? {};
  const ask = () =>
    Promise.allSettled([
      caller.getEndpoint('c1'),
      caller.peer.call(HandleServiceService.getHandle, { ...GetHandleRequest.create(), handleId: 'net.c1' }, limits()),
    ]);
  for (const key of [keys.handle('net.c1'), keys.block(blockOf(blockCidr))]) {
    const text = await spoil(bench, key);
    expect(await ask()).toMatchObject(Array(2).fill({ status: 'rejected', reason: corrupt(key) }));
    await correct(bench, key, text);
    expect(await ask()).toMatchObject(Array(2).fill({ status: 'fulfilled' }));
  }
  expect(await caller.allocateAddress('c1')).toBe(address);
});
