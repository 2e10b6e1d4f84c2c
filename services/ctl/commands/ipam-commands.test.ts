import {
  AddressReleaseResult,
  AddressServiceService,
  AddressState,
  GetAddressResponse,
  GetEndpointResponse,
} from '@podwire/proto/podwire/ipam/v1/address';
import { ExplainAllocationResponse, ReleaseAddressesResponse } from '@podwire/proto/podwire/ipam/v1/address';
import { AffinityState, BlockServiceService, ListBlocksResponse } from '@podwire/proto/podwire/ipam/v1/block';
import { ConfigServiceService, GetConfigResponse, UpdateConfigResponse } from '@podwire/proto/podwire/ipam/v1/config';
import { GetHandleResponse, HandleServiceService } from '@podwire/proto/podwire/ipam/v1/handle';
import {
  GetAddressHistoryResponse,
  HistoryServiceService,
  QueryAtResponse,
} from '@podwire/proto/podwire/ipam/v1/history';
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
import {
  CreatePoolResponse,
  DeletePoolResponse,
  EncapsulationMode,
  GetPoolResponse,
  ListPoolsResponse,
  PoolServiceService,
  PoolState,
  SplitPoolResponse,
  UpdatePoolResponse,
} from '@podwire/proto/podwire/ipam/v1/pool';
import { ListReservationsResponse, ReservationServiceService } from '@podwire/proto/podwire/ipam/v1/reservation';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { fake, Fakes } from '../ctl.fixture.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

const asked = (method: string) => fakes.calls.filter((call) => call.method === method).map(({ request }) => request);

const pool = {
  name: 'main',
  cidr: '10.65.0.0/16',
  blockSize: 26,
  vxlanMode: EncapsulationMode.ENCAPSULATION_MODE_CROSS_SUBNET,
  natOutgoing: true,
  state: PoolState.POOL_STATE_ACTIVE,
  utilization: { capacity: '65536', allocated: 65000n, free: '536', blocks: 1016n },
};
const foundPool = fake(PoolServiceService.getPool, () => GetPoolResponse.fromPartial({ pool }));
const attributes = { namespace: 'default', pod: 'web-0', node: 'node-1', network: 'net', interface: 'eth0' };
const holder = { handleId: 'net.c0ffee', attributes, sequenceNumber: 12n };

describe('pools', () => {
  test('list goes through all pages, and warns of what is nearly full', async () => {
    const pages = [
      ListPoolsResponse.fromPartial({ pools: [pool], nextPageToken: 'x' }),
      ListPoolsResponse.fromPartial({
        pools: [{ ...pool, name: 'second', utilization: undefined, state: PoolState.POOL_STATE_DRAINING }],
      }),
    ];
    const list = fake(PoolServiceService.listPools, ({ pageToken }) => pages[pageToken === 'x' ? 1 : 0]!);
    await fakes.serve(list);
    const { exitCode, stdout, stderr } = await fakes.podwirectl('pools');
    expect(exitCode).toBe(0);
    expect(stdout.split('\n')).toEqual([
      'NAME    CIDR          BLOCKS OF  ENCAPSULATION       NAT  IN USE  FREE   USED  STATE',
      'main    10.65.0.0/16        /26  vxlan cross-subnet  yes   65000   536  99.2%  active',
      'second  10.65.0.0/16        /26  vxlan cross-subnet  yes       0     -      -  draining',
      '',
    ]);
    expect(stderr).toBe('hint: main is nearly full: make another pool before it is\n');
    const json = await fakes.podwirectl('pools', '-o', 'json');
    expect(
      JSON.parse(json.stdout).pools.map(({ name, state }: { name: string; state: string }) => [name, state]),
    ).toEqual([
      ['main', 'POOL_STATE_ACTIVE'],
      ['second', 'POOL_STATE_DRAINING'],
    ]);
  });

  test('create and update say what was typed, and no more', async () => {
    await fakes.serve(
      fake(PoolServiceService.createPool, (request) => CreatePoolResponse.fromPartial(request)),
      fake(PoolServiceService.updatePool, ({ pool: changed }) => UpdatePoolResponse.fromPartial({ pool: changed })),
    );
    const made = await fakes.podwirectl(
      'pools',
      'create',
      'a',
      'fd65::/48',
      '--block-size',
      '120',
      '--use',
      'tunnel',
      '--use',
      'workload',
    );
    expect(made).toMatchObject({ exitCode: 0, stdout: expect.stringContaining('pool a is made') });
    expect(asked('CreatePool')).toMatchObject([
      { pool: { name: 'a', cidr: 'fd65::/48', blockSize: 120, allowedUses: [2, 1], disabled: false } },
    ]);
    const changed = await fakes.podwirectl(
      'pools',
      'update',
      'a',
      '--disabled',
      'false',
      '--node-selector',
      'has(zone)',
      '--resource-version',
      '7',
    );
    expect(changed).toMatchObject({ exitCode: 0 });
    expect(asked('UpdatePool')).toMatchObject([
      {
        pool: { name: 'a', nodeSelector: 'has(zone)', resourceVersion: '7' },
        updateMask: ['disabled', 'node_selector'],
      },
    ]);
    expect(await fakes.podwirectl('pools', 'update', 'a')).toMatchObject({
      exitCode: 2,
      stderr: expect.stringContaining('nothing to change'),
    });
  });

  test.each([
    [['drain'], 1],
    [['delete'], 2],
    [['delete', '--release-addresses'], 3],
  ])('%j is only told without --yes', async ([verb, ...flags], mode) => {
    const deleted = DeletePoolResponse.fromPartial({
      state: PoolState.POOL_STATE_DRAINING,
      heldAddresses: 2n,
      holders: [{ nodeName: 'node-1', addresses: 2n }],
    });
    await fakes.serve(
      foundPool,
      fake(PoolServiceService.deletePool, () => deleted),
    );
    const told = await fakes.podwirectl('pools', verb!, 'main', ...flags);
    const again = ['pools', verb!, 'main', ...flags, '--yes'];
    expect(told).toMatchObject({
      exitCode: 2,
      stderr: `hint: nothing was changed; to do it: podwirectl ${again.join(' ')}\n`,
    });
    expect(asked('DeletePool')).toEqual([]);
    const done = await fakes.podwirectl(...again);
    expect(done).toMatchObject({ exitCode: 0, stdout: expect.stringMatching(/draining[^]*node-1 +2/) });
    expect(asked('DeletePool')).toEqual([{ name: 'main', resourceVersion: '', mode }]);
  });

  test('show and split', async () => {
    await fakes.serve(
      foundPool,
      fake(PoolServiceService.splitPool, () => SplitPoolResponse.fromPartial({ pools: [{ name: 'split-main-0' }] })),
    );
    expect((await fakes.podwirectl('pools', 'show', 'main')).stdout).toMatch(
      /^In use +65000 of 65536 \(99.2%\), in 1016 blocks$/m,
    );
    expect(await fakes.podwirectl('pools', 'split', 'main', '2')).toMatchObject({ exitCode: 2 });
    const split = await fakes.podwirectl('pools', 'split', 'main', '2', '--yes');
    expect(split).toMatchObject({ exitCode: 0, stdout: expect.stringContaining('split-main-0') });
    expect(asked('SplitPool')).toEqual([{ pool: { $case: 'name', value: 'main' }, number: 2, resourceVersion: '' }]);
  });
});

test('blocks and utilisation tell whose a block is, and who borrows from it', async () => {
  const borrowed = { address: '10.65.0.2', handleId: 'h', attributes: { node: 'node-2' }, sequenceNumber: 3n };
  const own = { address: '10.65.0.1', ...holder };
  const blocks = [
    {
      cidr: '10.65.0.0/26',
      poolName: 'main',
      nodeName: 'node-1',
      affinityState: AffinityState.AFFINITY_STATE_CONFIRMED,
      capacity: 64,
      allocations: [own, borrowed],
    },
    { cidr: '10.65.0.64/26', capacity: 64 },
  ];
  await fakes.serve(
    fake(BlockServiceService.listBlocks, () => ListBlocksResponse.fromPartial({ blocks })),
    fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools: [pool] })),
  );
  const { stdout } = await fakes.podwirectl('blocks', '--node', 'node-1', '--pool', 'main');
  expect(stdout).toMatch(/^10\.65\.0\.0\/26 +main +node-1 +confirmed +64 +2 +3\.1% +1 +-$/m);
  expect(asked('ListBlocks')).toEqual([{ pageSize: 1000, pageToken: '', nodeName: 'node-1', poolName: 'main' }]);
  expect((await fakes.podwirectl('blocks', '--addresses')).stdout).toMatch(
    /^10\.65\.0\.1 +default\/web-0 +node-1 +eth0 +- +12 +net\.c0ffee$/m,
  );
  const use = await fakes.podwirectl('utilisation');
  expect(use.stdout).toMatch(/^node-1 +1 +64 +2 +3\.1% +1$/m);
  expect(use.stdout).toMatch(/^\(no owner\) +1 +64 +0 +0\.0% +0$/m);
});

test('nodes are listed, shown, and deleted once that is confirmed', async () => {
  const node = {
    name: 'node-1',
    ipv4Address: '192.0.2.7/24',
    tunnels: [{ kind: 2, address: '10.65.0.1' }],
    labels: { zone: 'a' },
  };
  await fakes.serve(
    fake(NodeServiceService.listNodes, () => ListNodesResponse.fromPartial({ nodes: [node] })),
    fake(NodeServiceService.getNode, () => GetNodeResponse.fromPartial({ node })),
    fake(NodeServiceService.deleteNode, () =>
      DeleteNodeResponse.fromPartial({ releasedAddresses: 3n, releasedBlocks: 1n }),
    ),
  );
  expect((await fakes.podwirectl('nodes')).stdout).toMatch(/^node-1 +192\.0\.2\.7\/24 +- +vxlan-ipv4 10\.65\.0\.1 /m);
  expect((await fakes.podwirectl('nodes', 'show', 'node-1')).stdout).toMatch(/^Labels +zone=a$/m);
  expect(await fakes.podwirectl('nodes', 'delete', 'node-1')).toMatchObject({ exitCode: 2 });
  expect(asked('DeleteNode')).toEqual([]);
  expect(await fakes.podwirectl('nodes', 'delete', 'node-1', '--yes')).toMatchObject({
    exitCode: 0,
    stdout: 'node node-1 is gone: 3 addresses and 1 blocks were given back\n',
  });
});

describe('who', () => {
  const held = GetAddressResponse.fromPartial({
    state: AddressState.ADDRESS_STATE_ALLOCATED,
    holder,
    poolName: 'main',
    blockCidr: '10.65.0.0/26',
    allocateTime: new Date(0),
  });
  const endpoint = GetEndpointResponse.fromPartial({
    endpoint: { netns: { bootId: 'b-1', inode: 4026532001n }, hostInterfaceName: 'podw1' },
  });
  const tenures = [
    {
      address: '10.65.0.7',
      handleId: 'net.dead',
      attributes: { pod: 'old', namespace: 'x' },
      allocateTime: new Date(0),
      releaseTime: new Date(90_000),
      sequenceNumber: 4n,
    },
  ];
  const history = fake(HistoryServiceService.getAddressHistory, () =>
    GetAddressHistoryResponse.fromPartial({ tenures }),
  );

  test('tells the holder with its namespace, and those before', async () => {
    await fakes.serve(
      history,
      fake(AddressServiceService.getAddress, () => held),
      fake(AddressServiceService.getEndpoint, () => endpoint),
    );
    const { exitCode, stdout } = await fakes.podwirectl('who', '10.65.0.7');
    expect(exitCode).toBe(0);
    expect(stdout).toMatch(/^Pod +default\/web-0$/m);
    expect(stdout).toMatch(/^Netns +inode 4026532001 of boot b-1$/m);
    expect(stdout).toMatch(/^Sequence +12$/m);
    expect(stdout).toMatch(/^x\/old +- +1970-01-01T00:00:00Z +1970-01-01T00:01:30Z +90s +4 +net\.dead$/m);
    expect(asked('GetEndpoint')).toEqual([
      { attachment: { network: 'net', containerId: 'c0ffee', interfaceName: 'eth0' } },
    ]);
    const { stdout: yaml } = await fakes.podwirectl('who', '10.65.0.7', '-o', 'yaml');
    expect(yaml).toContain('sequenceNumber: "12"');
  });

  test('says what is not recorded or not kept, and that nobody is an answer of its own', async () => {
    const refuse = (code: 'ENDPOINT_NOT_FOUND' | 'HISTORY_NOT_KEPT') => () => {
      throw new Failure(code, 'none');
    };
    let answer = held;
    await fakes.serve(
      fake(AddressServiceService.getAddress, () => answer),
      fake(AddressServiceService.getEndpoint, refuse('ENDPOINT_NOT_FOUND')),
      fake(HistoryServiceService.getAddressHistory, refuse('HISTORY_NOT_KEPT')),
    );
    const { exitCode, stderr } = await fakes.podwirectl('who', '10.65.0.7');
    expect(exitCode).toBe(0);
    expect(stderr).toMatch(/no endpoint is recorded[^]*PODWIRE_IPAM_HISTORY_HOURS/);
    answer = GetAddressResponse.fromPartial({ state: AddressState.ADDRESS_STATE_UNMANAGED });
    expect(await fakes.podwirectl('who', '192.0.2.1')).toMatchObject({
      exitCode: 3,
      stdout: expect.stringMatching(/^State +unmanaged$/m),
    });
  });

  test.each([
    ['tenure', QueryAtResponse.fromPartial({ tenure: tenures[0]!, covered: true }), 0, /^Pod +x\/old$/m],
    [
      'nobody',
      QueryAtResponse.fromPartial({ covered: true }),
      3,
      /^Nobody held 10\.65\.0\.7 at 1970-01-01T00:01:00Z\.$/m,
    ],
    ['too long ago', QueryAtResponse.fromPartial({ covered: false }), 3, /does not reach back so far/],
  ])('at a time: %s', async (_, answer, code, told) => {
    await fakes.serve(fake(HistoryServiceService.queryAt, () => answer));
    const { exitCode, stdout } = await fakes.podwirectl('who', '10.65.0.7', '--at', '1970-01-01T00:01:00Z');
    expect([exitCode, stdout]).toEqual([code, expect.stringMatching(told)]);
    expect(asked('QueryAt')).toEqual([{ address: '10.65.0.7', time: new Date(60_000) }]);
  });
});

test('explain asks what was typed, and shows what was passed over', async () => {
  const pools = [
    { name: 'main', cidr: '10.65.0.0/16', passedOverReason: 'is disabled' },
    {
      name: 'b',
      cidr: '10.66.0.0/16',
      blocks: [{ cidr: '10.66.0.0/26', verdict: 2, reason: '64 of 64 in use' }],
      moreBlocks: [{ verdict: 3, count: 9 }],
    },
  ];
  const refused = {
    refusalCode: 'POOLS_EXHAUSTED',
    refusal: 'no address',
    families: [{ family: 4, pools, morePools: 2 }],
  };
  await fakes.serve(
    fake(AddressServiceService.explainAllocation, () => ExplainAllocationResponse.fromPartial(refused)),
  );
  const { exitCode, stdout } = await fakes.podwirectl(
    'explain',
    'node-1',
    '--family',
    '4',
    '--family',
    '6',
    '--pool',
    'b',
    '--pod',
    'a/web',
    '--namespace-label',
    'x=y',
  );
  expect(exitCode).toBe(4);
  expect(stdout).toContain('It would be refused: no address (POOLS_EXHAUSTED)');
  expect(stdout).toMatch(/^main +10\.65\.0\.0\/16 +passed over +is disabled$/m);
  expect(stdout).toMatch(/^b +9 more +other-owner +-$/m);
  expect(stdout).toContain('… and 2 pools more');
  expect(asked('ExplainAllocation')).toMatchObject([
    {
      request: {
        nodeName: 'node-1',
        families: [4, 6],
        pools: ['b'],
        pod: { namespace: 'a', name: 'web' },
        namespaceLabels: { x: 'y' },
      },
    },
  ]);
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

  test('finds what is wrong, and nothing where nothing is', async () => {
    await fakes.serve(auditOf([finding]));
    const { exitCode, stdout, stderr } = await fakes.podwirectl('audit', '--kind', 'handle-counts-wrong');
    expect([exitCode, stderr]).toEqual([4, expect.stringContaining('audit --repair --dry-run')]);
    expect(stdout).toMatch(/^warning +handle-counts-wrong +handle h +--repair +counts 2, has 1$/m);
    expect(asked('Audit')).toMatchObject([{ kinds: [14], includeInformation: false }]);
  });

  test('information is no fault', async () => {
    await fakes.serve(auditOf([{ ...finding, severity: 1 }]));
    expect(await fakes.podwirectl('audit', '--information')).toMatchObject({ exitCode: 0 });
  });

  test('repairs, and gives unused addresses back only once that is confirmed', async () => {
    const results = [{ finding, outcome: RepairOutcome.REPAIR_OUTCOME_REPAIRED, explanation: 'counted anew' }];
    await fakes.serve(fake(AuditServiceService.repair, () => RepairResponse.fromPartial({ results })));
    expect(await fakes.podwirectl('audit', '--repair')).toMatchObject({
      exitCode: 0,
      stdout: expect.stringContaining('repaired'),
    });
    await fakes.podwirectl('audit', '--repair', '--dry-run');
    expect(await fakes.podwirectl('audit', '--repair', '--release-unused')).toMatchObject({ exitCode: 2 });
    await fakes.podwirectl('audit', '--repair', '--release-unused', '--yes', '--grace', '2m');
    expect(asked('Repair')).toMatchObject([
      { dryRun: false, releaseUnused: false },
      { dryRun: true, releaseUnused: false },
      { dryRun: true, releaseUnused: true },
      { dryRun: false, releaseUnused: true, graceSeconds: 120 },
    ]);
  });
});

describe('release', () => {
  test.each([
    [
      AddressReleaseResult.ADDRESS_RELEASE_RESULT_RELEASED,
      0,
      '10.65.0.7 is given back; it was held by default/web-0, sequence 12',
    ],
    [AddressReleaseResult.ADDRESS_RELEASE_RESULT_NOT_ALLOCATED, 3, 'nobody holds 10.65.0.7'],
    [AddressReleaseResult.ADDRESS_RELEASE_RESULT_MISMATCH, 1, 'is held by another than was meant, and stays'],
    [AddressReleaseResult.ADDRESS_RELEASE_RESULT_UNREADABLE, 1, 'its block cannot be read'],
  ])('of an address that is answered with %d ends with %d', async (result, code, told) => {
    const addresses = [{ address: '10.65.0.7', result, holder }];
    await fakes.serve(
      fake(AddressServiceService.getAddress, () =>
        GetAddressResponse.fromPartial({ state: AddressState.ADDRESS_STATE_ALLOCATED, holder }),
      ),
      fake(AddressServiceService.releaseAddresses, () => ReleaseAddressesResponse.fromPartial({ addresses })),
    );
    const preview = await fakes.podwirectl('release', 'address', '10.65.0.7');
    expect(preview).toMatchObject({
      exitCode: 2,
      stderr: expect.stringContaining('release address 10.65.0.7 --sequence 12 --yes'),
    });
    expect(asked('ReleaseAddresses')).toEqual([]);
    const done = await fakes.podwirectl('release', 'address', '10.65.0.7', '--sequence', '12', '--yes');
    expect(done).toMatchObject({ exitCode: code, stdout: expect.stringContaining(told) });
    expect(asked('ReleaseAddresses')).toMatchObject([{ releases: [{ address: '10.65.0.7', sequenceNumber: 12n }] }]);
  });

  test('of an attachment and of a handle', async () => {
    const endpoint = {
      addresses: [{ address: '10.65.0.7/32' }],
      pod: { namespace: 'default', name: 'web-0', uid: '' },
    };
    await fakes.serve(
      fake(AddressServiceService.getEndpoint, () => GetEndpointResponse.fromPartial({ endpoint })),
      fake(AddressServiceService.release, () => ({ addresses: ['10.65.0.7/32'] })),
      fake(HandleServiceService.getHandle, () =>
        GetHandleResponse.fromPartial({ addresses: [{ address: '10.65.0.7', attributes, sequenceNumber: 12n }] }),
      ),
      fake(HandleServiceService.releaseHandle, () => ({ addresses: [] })),
    );
    const preview = await fakes.podwirectl('release', 'attachment', 'net/c0ffee/eth0');
    expect(preview).toMatchObject({
      exitCode: 2,
      stdout: 'net/c0ffee/eth0 would give back 10.65.0.7/32, of pod default/web-0.\n',
    });
    expect(await fakes.podwirectl('release', 'attachment', 'net/c0ffee/eth0', '--yes')).toMatchObject({
      exitCode: 0,
      stdout: 'net/c0ffee/eth0 has given back 10.65.0.7/32\n',
    });
    expect(await fakes.podwirectl('release', 'handle', 'net.c0ffee')).toMatchObject({
      exitCode: 2,
      stdout: expect.stringContaining('default/web-0'),
    });
    expect(await fakes.podwirectl('release', 'handle', 'net.c0ffee', '--search-all-blocks', '--yes')).toMatchObject({
      exitCode: 0,
      stdout: 'net.c0ffee holds nothing\n',
    });
    expect(asked('ReleaseHandle')).toEqual([{ handleId: 'net.c0ffee', searchAllBlocks: true }]);
  });
});

test('config is shown, and changed in what is named', async () => {
  const config = { autoAllocateBlocks: true, maxBlocksPerNode: 0, cooldownSeconds: 30 };
  await fakes.serve(
    fake(ConfigServiceService.getConfig, () => GetConfigResponse.fromPartial({ config })),
    fake(ConfigServiceService.updateConfig, () => UpdateConfigResponse.fromPartial({ config })),
  );
  expect((await fakes.podwirectl('config', 'get')).stdout).toMatch(/^cooldown +30s$/m);
  await fakes.podwirectl('config', 'set', '--strict-affinity', 'false', '--cooldown', '0');
  expect(asked('UpdateConfig')).toEqual([{ strictAffinity: false, cooldownSeconds: 0, resourceVersion: '' }]);
  expect(await fakes.podwirectl('config', 'set')).toMatchObject({ exitCode: 2 });
});

test('reservations are made, replaced, listed and ended', async () => {
  const reservation = { name: 'routers', cidrs: ['10.65.0.0/28'] };
  const { createReservation, updateReservation, deleteReservation, listReservations } = ReservationServiceService;
  await fakes.serve(
    fake(createReservation, ({ reservation: made }) => ({ reservation: made })),
    fake(updateReservation, () => ({ reservation: undefined })),
    fake(deleteReservation, () => ({})),
    fake(listReservations, () => ListReservationsResponse.fromPartial({ reservations: [reservation] })),
  );
  const made = await fakes.podwirectl('reservations', 'create', 'routers', '10.65.0.0/28', '10.65.0.99');
  expect(made).toMatchObject({
    exitCode: 0,
    stdout: expect.stringMatching(/^routers +10\.65\.0\.0\/28, 10\.65\.0\.99 /m),
  });
  await fakes.podwirectl('reservations', 'update', 'routers', '10.65.0.1', '--resource-version', '3');
  expect(asked('UpdateReservation')).toEqual([{ name: 'routers', cidrs: ['10.65.0.1'], resourceVersion: '3' }]);
  expect((await fakes.podwirectl('reservations')).stdout).toContain('10.65.0.0/28');
  expect(await fakes.podwirectl('reservations', 'delete', 'routers')).toMatchObject({
    exitCode: 0,
    stdout: 'reservation routers is gone\n',
  });
});

test('a refusal ends with its reason, its code and an exit code of its kind', async () => {
  let code: 'POOL_NOT_FOUND' | 'POOL_IN_USE' | 'STORE_UNAVAILABLE' = 'POOL_NOT_FOUND';
  await fakes.serve(
    fake(PoolServiceService.getPool, () => {
      throw new Failure(code, 'there is no pool "main"');
    }),
  );
  const show = () => fakes.podwirectl('pools', 'show', 'main');
  expect(await show()).toEqual({
    exitCode: 3,
    stdout: '',
    stderr: 'podwirectl: pools show failed: there is no pool "main" (POOL_NOT_FOUND)\n',
  });
  code = 'POOL_IN_USE';
  expect((await show()).exitCode).toBe(1);
  code = 'STORE_UNAVAILABLE';
  expect((await show()).exitCode).toBe(5);
});
