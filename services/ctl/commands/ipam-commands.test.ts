import { ConfigServiceService, GetConfigResponse, UpdateConfigResponse } from '@podwire/proto/podwire/ipam/v1/config';
import {
  AuditResponse,
  AuditServiceService,
  RepairOutcome,
  RepairResponse,
} from '@podwire/proto/podwire/ipam/v1/maintenance';
import {
  DeleteNodeResponse,
  GetNodeResponse,
  ListNodesResponse,
  NodeServiceService,
} from '@podwire/proto/podwire/ipam/v1/node';
import { PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import {
  ListReservationsResponse,
  Reservation,
  ReservationServiceService,
} from '@podwire/proto/podwire/ipam/v1/reservation';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { fake, Fakes } from '../testing/ctl.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

const requestsTo = (method: string) =>
  fakes.calls.filter((call) => call.method === method).map(({ request }) => request);

test('nodes are listed, shown, and deleted after confirmation', async () => {
  const node = {
    name: 'node-1',
    ipv4Address: '192.0.2.7/24',
    // An entry without an address announces the MAC address of a device.
    tunnels: [
      { kind: 2, address: '10.65.0.1' },
      { kind: 3, address: '', macAddress: '66:24:ac:63:df:6c' },
    ],
    labels: { zone: 'a' },
  };
  await fakes.serve(
    fake(NodeServiceService.listNodes, () => ListNodesResponse.fromPartial({ nodes: [node] })),
    fake(NodeServiceService.getNode, () => GetNodeResponse.fromPartial({ node })),
    fake(NodeServiceService.deleteNode, () =>
      DeleteNodeResponse.fromPartial({ releasedAddresses: 3n, releasedBlocks: 1n }),
    ),
  );
  expect((await fakes.podwirectl('get', 'nodes')).stdout).toMatch(
    /^node-1 +192\.0\.2\.7\/24 +- +vxlan-ipv4 10\.65\.0\.1 +\d/m,
  );
  expect((await fakes.podwirectl('describe', 'node', 'node-1')).stdout).toMatch(/^Labels +zone=a$/m);
  const preview = await fakes.podwirectl('delete', 'node', 'node-1');
  expect(preview).toMatchObject({ exitCode: 2, stdout: expect.stringContaining('would register the node again') });
  expect(requestsTo('DeleteNode')).toEqual([]);
  expect(await fakes.podwirectl('delete', 'node', 'node-1', '--yes')).toMatchObject({
    exitCode: 0,
    stdout: 'node node-1 is deleted; released: 3 addresses and 1 block\n',
  });
});

test('a node that runs keeps its pods when it is deleted with --force, and shows when it was heard of', async () => {
  const pod = { namespace: 'default', name: 'web-0', uid: '' };
  const node = {
    name: 'node-1',
    heardTime: new Date(Date.now() - 61_000),
    reportTime: new Date(Date.now() - 3600_000),
  };
  await fakes.serve(
    fake(NodeServiceService.listNodes, () => ListNodesResponse.fromPartial({ nodes: [node] })),
    fake(NodeServiceService.getNode, () => GetNodeResponse.fromPartial({ node })),
    fake(NodeServiceService.deleteNode, () =>
      DeleteNodeResponse.fromPartial({ kept: [{ address: '10.65.0.7', nodeName: 'node-1', pod }], keptAddresses: 1n }),
    ),
  );
  expect(await fakes.podwirectl('delete', 'node', 'node-1', '--force', '--yes')).toMatchObject({
    exitCode: 1,
    stdout: expect.stringMatching(/^node node-1 is not deleted: it runs\n[^]*10\.65\.0\.7 +node-1 +default\/web-0/),
  });
  expect(requestsTo('DeleteNode')).toMatchObject([{ name: 'node-1', force: true }]);
  expect((await fakes.podwirectl('describe', 'node', 'node-1')).stdout).toMatch(/^Last heard of +.+61s/m);
  expect((await fakes.podwirectl('get', 'nodes', '-o', 'wide')).stdout).toMatch(/HEARD +REPORT/);
});

describe('audit', () => {
  const finding = {
    id: 'f',
    kind: 14,
    severity: 2,
    remedy: 2,
    objects: [{ type: 'handle', name: 'h' }],
    explanation: 'counts 2, has 1',
  };
  const auditOf = (findings: object[]) =>
    fake(AuditServiceService.audit, () => AuditResponse.fromPartial({ findings, summary: { blocks: 3n } }));

  test('lists findings, and exits with 4', async () => {
    await fakes.serve(auditOf([finding]));
    const { exitCode, stdout, stderr } = await fakes.podwirectl('audit', '--kind', 'handle-counts-wrong');
    expect([exitCode, stderr]).toEqual([4, expect.stringContaining('audit --repair --dry-run')]);
    expect(stdout).toMatch(/^warning +handle-counts-wrong +handle h +--repair +counts 2, has 1$/m);
    expect(requestsTo('Audit')).toMatchObject([{ kinds: [14], includeInformation: false }]);
  });

  test('exits with 0 for findings of severity information', async () => {
    await fakes.serve(auditOf([{ ...finding, severity: 1 }]));
    expect(await fakes.podwirectl('audit', '--information')).toMatchObject({ exitCode: 0 });
  });

  test('has nothing to confirm where there is nothing to repair', async () => {
    await fakes.serve(fake(AuditServiceService.repair, () => RepairResponse.fromPartial({})));
    expect(await fakes.podwirectl('audit', '--repair')).toEqual({
      ...{ exitCode: 0, stdout: 'audit: nothing to repair\n', stderr: '' },
    });
  });

  test('repairs and releases unused addresses only after confirmation', async () => {
    const { REPAIR_OUTCOME_POSSIBLE, REPAIR_OUTCOME_REPAIRED } = RepairOutcome;
    await fakes.serve(
      fake(AuditServiceService.repair, ({ dryRun }) => {
        const outcome = dryRun === true ? REPAIR_OUTCOME_POSSIBLE : REPAIR_OUTCOME_REPAIRED;
        return RepairResponse.fromPartial({ results: [{ finding, outcome, explanation: 'counted again' }] });
      }),
    );
    expect(await fakes.podwirectl('audit', '--repair')).toMatchObject({
      exitCode: 2,
      stderr: expect.stringContaining('to execute it: podwirectl audit --repair --yes'),
    });
    expect(await fakes.podwirectl('audit', '--repair', '--yes')).toMatchObject({
      exitCode: 0,
      stdout: expect.stringContaining('repaired'),
    });
    await fakes.podwirectl('audit', '--repair', '--dry-run');
    const chosen = [
      'audit',
      '--repair',
      '--release-unused',
      '--kind',
      'handle-missing',
      '--grace',
      '1d',
      '--limit',
      '5',
    ];
    const preview = await fakes.podwirectl(...chosen);
    expect(preview).toMatchObject({ exitCode: 2 });
    // The suggested command executes exactly the preview.
    const suggested = /podwirectl (.*)\n$/.exec(preview.stderr)?.[1]?.split(' ') ?? [];
    expect([...suggested].sort()).toEqual([...chosen, '--yes'].sort());
    await fakes.podwirectl('audit', '--repair', '--release-unused', '--yes', '--grace', '2m');
    expect(requestsTo('Repair')).toMatchObject([
      { dryRun: true, releaseUnused: false },
      { dryRun: false, releaseUnused: false },
      { dryRun: true, releaseUnused: false },
      { dryRun: true, releaseUnused: true },
      { dryRun: false, releaseUnused: true, graceSeconds: 120 },
    ]);
  });
});

test('config is shown, and only the given settings are changed', async () => {
  const config = { autoAllocateBlocks: true, maxBlocksPerNode: 0, cooldownSeconds: 30 };
  await fakes.serve(
    fake(ConfigServiceService.getConfig, () => GetConfigResponse.fromPartial({ config })),
    fake(ConfigServiceService.updateConfig, () => UpdateConfigResponse.fromPartial({ config })),
  );
  expect((await fakes.podwirectl('describe', 'ipamconfig')).stdout).toMatch(/^ipCooldownSeconds +30$/m);
  expect((await fakes.podwirectl('ipam', 'show', '--show-configuration')).stdout).toMatch(/^ipCooldownSeconds +30$/m);
  await fakes.podwirectl('ipam', 'configure', '--strictaffinity=false', '--ip-cooldown-seconds=0');
  expect(requestsTo('UpdateConfig')).toEqual([{ strictAffinity: false, cooldownSeconds: 0, resourceVersion: '' }]);
  expect(await fakes.podwirectl('ipam', 'configure')).toMatchObject({ exitCode: 2 });
});

test('reservations are created, updated, listed and deleted', async () => {
  const cidrs = ['10.65.0.0/28', '10.65.0.99', 'fd65::7'];
  const reservation = Reservation.fromPartial({ name: 'routers', cidrs, resourceVersion: '3' });
  const { createReservation, updateReservation, deleteReservation, listReservations, getReservation } =
    ReservationServiceService;
  await fakes.serve(
    fake(createReservation, ({ reservation: made }) => ({ reservation: made })),
    fake(updateReservation, () => ({ reservation: undefined })),
    fake(deleteReservation, () => ({})),
    fake(getReservation, () => ({ reservation })),
    fake(listReservations, () => ListReservationsResponse.fromPartial({ reservations: [reservation] })),
  );
  const made = await fakes.podwirectl('create', 'ipreservation', 'routers', 'reservedCIDRs=[10.65.0.0/28, 10.65.0.99]');
  expect(made).toMatchObject({ exitCode: 0, stdout: 'ipreservation/routers created\n' });
  expect(requestsTo('CreateReservation')).toMatchObject([
    { reservation: { name: 'routers', cidrs: ['10.65.0.0/28', '10.65.0.99'] } },
  ]);
  await fakes.podwirectl('patch', 'ipreservation', 'routers', 'reservedCIDRs=[10.65.0.1]');
  expect(requestsTo('UpdateReservation')).toEqual([{ name: 'routers', cidrs: ['10.65.0.1'], resourceVersion: '3' }]);
  expect((await fakes.podwirectl('get', 'ipreservations')).stdout).toContain('10.65.0.0/28');
  const manifest = await fakes.podwirectl('get', 'ipreservation', 'routers', '-o', 'json');
  expect(JSON.parse(manifest.stdout)).toMatchObject({
    kind: 'IPReservation',
    spec: { reservedCIDRs: ['10.65.0.0/28', '10.65.0.99/32', 'fd65::7/128'] },
  });
  expect(await fakes.podwirectl('delete', 'ipreservation', 'routers')).toMatchObject({ exitCode: 2 });
  expect(requestsTo('DeleteReservation')).toEqual([]);
  expect(await fakes.podwirectl('delete', 'ipreservation', 'routers', '--yes')).toMatchObject({
    exitCode: 0,
    stdout: 'reservation routers is deleted\n',
  });
});

test('a failure prints its reason and code, and the exit code depends on the kind of failure', async () => {
  let code: 'POOL_NOT_FOUND' | 'POOL_IN_USE' | 'STORE_UNAVAILABLE' = 'POOL_NOT_FOUND';
  await fakes.serve(
    fake(PoolServiceService.getPool, () => {
      throw new Failure(code, 'there is no pool "main"');
    }),
  );
  const show = () => fakes.podwirectl('describe', 'ippool', 'main');
  expect(await show()).toEqual({
    exitCode: 3,
    stdout: '',
    stderr: 'podwirectl: describe failed: there is no pool "main" (POOL_NOT_FOUND)\n',
  });
  code = 'POOL_IN_USE';
  expect((await show()).exitCode).toBe(1);
  code = 'STORE_UNAVAILABLE';
  expect((await show()).exitCode).toBe(5);
});
