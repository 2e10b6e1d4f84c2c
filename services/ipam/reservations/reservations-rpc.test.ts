import { ConfigServiceService, UpdateConfigRequest } from '@podwire/proto/podwire/ipam/v1/config';
import { NodeServiceService } from '@podwire/proto/podwire/ipam/v1/node';
import { Reservation, ReservationServiceService } from '@podwire/proto/podwire/ipam/v1/reservation';
import { describe, expect, test } from 'vitest';

import { clientLimits, failureOf, faultsOf, servedForEachTest } from '../testing/service.js';

const served = servedForEachTest({
  PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.65.0.0/30',
  PODWIRE_IPAM_DEFAULT_POOL_BLOCK_SIZE: '30',
});

async function create(name: string, ...cidrs: string[]): Promise<Reservation> {
  const message = { reservation: Reservation.fromPartial({ name, cidrs }) };
  const { reservation } = await served.caller.peer.call(
    ReservationServiceService.createReservation,
    message,
    clientLimits(),
  );
  return reservation!;
}

function get(name: string) {
  return served.caller.peer.call(ReservationServiceService.getReservation, { name }, clientLimits());
}

function list(pageSize = 0, pageToken = '') {
  return served.caller.peer.call(ReservationServiceService.listReservations, { pageSize, pageToken }, clientLimits());
}

function update(name: string, cidrs: string[], resourceVersion = '') {
  return served.caller.peer.call(
    ReservationServiceService.updateReservation,
    { name, cidrs, resourceVersion },
    clientLimits(),
  );
}

function remove(name: string, resourceVersion = '') {
  return served.caller.peer.call(
    ReservationServiceService.deleteReservation,
    { name, resourceVersion },
    clientLimits(),
  );
}

async function getConfig() {
  const { config } = await served.caller.peer.call(ConfigServiceService.getConfig, {}, clientLimits());
  return config!;
}

async function updateConfig(change: Partial<UpdateConfigRequest>) {
  const message = UpdateConfigRequest.fromPartial(change);
  const { config } = await served.caller.peer.call(ConfigServiceService.updateConfig, message, clientLimits());
  return config!;
}

describe('a reservation', () => {
  test('is created, shown, changed and deleted', async () => {
    const made = await create('printers', '10.65.0.0/31', '10.65.0.3', 'FD00::1', 'fd00:1::/64');
    expect(made).toEqual({
      name: 'printers',
      cidrs: ['10.65.0.0/31', '10.65.0.3', 'fd00::1', 'fd00:1::/64'],
      createTime: expect.any(Date),
      resourceVersion: expect.stringMatching(/./),
    });
    expect(await get('printers')).toEqual({ reservation: made });
    expect((await failureOf(create('printers', '10.0.0.0/8'))).code).toBe('RESERVATION_EXISTS');
    const { reservation } = await update('printers', ['10.65.0.0'], made.resourceVersion);
    expect(reservation).toEqual({
      ...made,
      cidrs: ['10.65.0.0'],
      resourceVersion: expect.not.stringMatching(made.resourceVersion),
    });
    expect(await update('printers', ['10.65.0.0'])).toEqual({ reservation });
    expect((await failureOf(update('printers', ['10.0.0.1'], made.resourceVersion))).code).toBe('STALE_VERSION');
    expect((await failureOf(remove('printers', made.resourceVersion))).code).toBe('STALE_VERSION');
    expect(await get('printers')).toEqual({ reservation });
    await remove('printers', reservation!.resourceVersion);
    for (const call of [get('printers'), remove('printers'), update('printers', ['10.0.0.1'])])
      expect((await failureOf(call)).code).toBe('RESERVATION_NOT_FOUND');
  });

  test('keeps its addresses from being allocated', async () => {
    await create('most', '10.65.0.0/31', '10.65.0.3');
    expect(await served.caller.allocateAddress('c1')).toBe('10.65.0.2/32');
    expect((await failureOf(served.caller.allocate('c2'))).code).toBe('POOLS_EXHAUSTED');
    await remove('most');
    expect(await served.caller.allocateAddress('c2')).toBe('10.65.0.0/32');
  });

  test('is counted separately in pools, blocks and nodes, and not as available', async () => {
    expect(await served.caller.allocateAddress('c1')).toBe('10.65.0.0/32');
    await create('some', '10.65.0.0/31', '10.65.0.1', '10.65.0.3', '10.65.1.0/24');
    const ofBlock = { allocated: 1, cooling: 0, reserved: 2, available: 1, leased: 0 };
    expect((await served.caller.getPool('default')).pool!.utilization).toEqual({
      capacity: '4',
      allocated: 1n,
      free: '3',
      blocks: 1n,
      cooling: 0n,
      reserved: '2',
      available: '1',
      leased: 0n,
    });
    expect((await served.caller.allBlocks()).map(({ utilization }) => utilization)).toEqual([ofBlock]);
    const { node } = await served.caller.peer.call(NodeServiceService.getNode, { name: 'node-1' }, clientLimits());
    expect(node!.utilization).toMatchObject({ allocated: 1n, cooling: 0n, reserved: 2n, available: 1n });
  });

  test('survives a restart', async () => {
    const made = await create('printers', '10.65.0.0/31');
    await served.restart();
    expect(await get('printers')).toEqual({ reservation: made });
  });

  test('that is malformed is refused, with all its faults', async () => {
    expect(
      await faultsOf(create('A', '10.65.0.1/31', 'x', '10.0.0.0/8', '10.0.0.0/8', '10.0.0.1', '10.0.0.1/32')),
    ).toEqual([
      expect.stringMatching(/^reservation.name is no RFC 1123 subdomain/),
      'reservation.cidrs[0] has host bits set',
      expect.stringMatching(/^reservation.cidrs\[1\] is .*, such as 10.65.0.0\/28 or 10.65.0.99$/),
      'reservation.cidrs[3] repeats 10.0.0.0/8',
      'reservation.cidrs[5] repeats 10.0.0.1/32',
    ]);
    expect(await faultsOf(create('a'))).toEqual(['reservation.cidrs is empty; name at least one range or address']);
    const many = Array.from({ length: 1001 }, (_, i) => `10.0.${i >> 8}.${i & 255}`);
    expect(await faultsOf(create('a', ...many))).toEqual([
      'reservation.cidrs has 1001 entries; at most 1000 are allowed',
    ]);
    const missing = served.caller.peer.call(
      ReservationServiceService.createReservation,
      { reservation: undefined },
      clientLimits(),
    );
    expect(await faultsOf(missing)).toEqual(['reservation is missing']);
    expect(await faultsOf(update('A', []))).toEqual([
      expect.stringMatching(/^name is no RFC 1123/),
      'cidrs is empty; name at least one range or address',
    ]);
    for (const call of [get(''), remove('')]) expect(await faultsOf(call)).toEqual(['name is empty']);
    expect((await list()).reservations).toEqual([]);
  });
});

test('reservations are listed in pages', async () => {
  for (const name of ['b', 'c', 'a']) await create(name, '10.0.0.0/8');
  const first = await list(2);
  expect(first.reservations.map(({ name }) => name)).toEqual(['a', 'b']);
  const second = await list(2, first.nextPageToken);
  expect([second.reservations.map(({ name }) => name), second.nextPageToken]).toEqual([['c'], '']);
  expect(await faultsOf(list(-1, first.nextPageToken.slice(1)))).toEqual([
    'page_size is -1; it must be 0 or more',
    expect.stringMatching(/^page_token is not a token of this method/),
  ]);
});

describe('the configuration', () => {
  const DEFAULTS = {
    strictAffinity: false,
    autoAllocateBlocks: true,
    maxBlocksPerNode: 0,
    cooldownSeconds: 0,
    resourceVersion: expect.stringMatching(/./),
    stored: false,
  };

  test('has its defaults until it is changed, field by field', async () => {
    const before = await getConfig();
    expect(before).toEqual(DEFAULTS);
    const strict = await updateConfig({ strictAffinity: true, resourceVersion: before.resourceVersion });
    expect(strict).toEqual({ ...DEFAULTS, strictAffinity: true, stored: true });
    expect(await updateConfig({ autoAllocateBlocks: false, cooldownSeconds: 1200 })).toEqual({
      ...DEFAULTS,
      strictAffinity: true,
      autoAllocateBlocks: false,
      cooldownSeconds: 1200,
      stored: true,
    });
    expect((await failureOf(updateConfig({ cooldownSeconds: 0, resourceVersion: strict.resourceVersion }))).code).toBe(
      'STALE_VERSION',
    );
    expect((await getConfig()).cooldownSeconds).toBe(1200);
    expect((await updateConfig({ cooldownSeconds: 0 })).cooldownSeconds).toBe(0);
  });

  test('that contradicts itself, or is out of range, is refused and unchanged', async () => {
    expect(await failureOf(updateConfig({ autoAllocateBlocks: false, maxBlocksPerNode: 4 }))).toMatchObject({
      code: 'CONFIG_CONTRADICTION',
      message: expect.stringMatching(/neither claim.*4 blocks/),
    });
    expect(await faultsOf(updateConfig({ maxBlocksPerNode: -1, cooldownSeconds: 1201 }))).toEqual([
      'max_blocks_per_node is -1; it must be from 0 to 1000000',
      'cooldown_seconds is 1201; it must be from 0 to 1200',
    ]);
    expect(await getConfig()).toEqual(DEFAULTS);
  });

  test('takes effect with the next allocation', async () => {
    await served.caller.allocate('c1', { nodeName: 'node-1' });
    await updateConfig({ strictAffinity: true });
    expect((await failureOf(served.caller.allocate('c2', { nodeName: 'node-2' }))).code).toBe('POOLS_EXHAUSTED');
    await updateConfig({ strictAffinity: false });
    await served.caller.allocate('c2', { nodeName: 'node-2' });
  });
});
