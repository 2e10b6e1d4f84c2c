import { AffinityState, BlockServiceService, ListBlocksResponse } from '@podwire/proto/podwire/ipam/v1/block';
import { EndpointServiceService, ListEndpointsResponse } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { NodeServiceService } from '@podwire/proto/podwire/ipam/v1/node';
import {
  CreatePoolResponse,
  DeletePoolResponse,
  GetPoolResponse,
  ListPoolsResponse,
  PoolServiceService,
  PoolState,
  SplitPoolResponse,
  UpdatePoolResponse,
} from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { fake, Fakes, foundPool, holder, pool } from '../testing/ctl.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

const requestsTo = (method: string) =>
  fakes.calls.filter((call) => call.method === method).map(({ request }) => request);

describe('pools', () => {
  test('list reads all pages, and warns of nearly full pools', async () => {
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
      'NAME    CIDR          BLOCK SIZE  ENCAPSULATION       NAT  IN USE   USED  COOLING  RESERVED  AVAILABLE  STATE',
      'main    10.65.0.0/16         /26  vxlan cross-subnet  yes   64990  99.2%       10       500         36  active',
      'second  10.65.0.0/16         /26  vxlan cross-subnet  yes       0      -        0         -          -  draining',
      '',
    ]);
    expect(stderr).toBe('hint: pool main is nearly full; create another pool, or delete unneeded reservations\n');
    const json = await fakes.podwirectl('pools', '-o', 'json');
    expect(
      JSON.parse(json.stdout).pools.map(({ name, state }: { name: string; state: string }) => [name, state]),
    ).toEqual([
      ['main', 'POOL_STATE_ACTIVE'],
      ['second', 'POOL_STATE_DRAINING'],
    ]);
  });

  test('create and update send exactly the given options', async () => {
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
    expect(made).toMatchObject({ exitCode: 0, stdout: expect.stringContaining('pool a is created') });
    expect(requestsTo('CreatePool')).toMatchObject([
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
    expect(changed).toMatchObject({ exitCode: 0, stdout: expect.stringMatching(/^pool a is updated:\n\nName +a\n/) });
    expect(requestsTo('UpdatePool')).toMatchObject([
      {
        pool: { name: 'a', nodeSelector: 'has(zone)', resourceVersion: '7' },
        updateMask: ['disabled', 'node_selector'],
      },
    ]);
    expect(await fakes.podwirectl('pools', 'update', 'a')).toMatchObject({
      exitCode: 2,
      stderr: expect.stringContaining('no setting to change'),
    });
  });

  test.each([
    [['drain'], 1],
    [['delete'], 2],
    [['delete', '--release-addresses'], 3],
    [['delete', '--resource-version', 'a b'], 2],
  ])('%j is only previewed without --yes', async ([verb, ...flags], mode) => {
    const deleted = DeletePoolResponse.fromPartial({
      state: PoolState.POOL_STATE_DRAINING,
      heldAddresses: 2n,
      holders: [{ nodeName: 'node-1', addresses: 2n }],
    });
    await fakes.serve(
      foundPool,
      fake(PoolServiceService.deletePool, () => deleted),
    );
    const preview = await fakes.podwirectl('pools', verb!, 'main', ...flags);
    const confirmed = ['pools', verb!, 'main', ...flags, '--yes'];
    const command = confirmed.join(' ').replace('a b', "'a b'");
    expect(preview).toMatchObject({
      exitCode: 2,
      stderr: `hint: nothing was changed; to execute it: podwirectl ${command}\n`,
    });
    const addressOption = ['--ipam', `unix:${fakes.socket}`];
    const previewThere = await fakes.podwirectl(...addressOption, 'pools', verb!, 'main', ...flags);
    expect(previewThere.stderr).toContain(`to execute it: podwirectl ${addressOption.join(' ')} ${command}\n`);
    expect(requestsTo('DeletePool')).toEqual([]);
    const done = await fakes.podwirectl(...confirmed);
    expect(done).toMatchObject({ exitCode: 0, stdout: expect.stringMatching(/draining[^]*node-1 +2/) });
    expect(done.stderr).toMatch(/podwirectl blocks --pool \S+ --addresses\n/);
    const resourceVersion = flags[0] === '--resource-version' ? 'a b' : '';
    expect(requestsTo('DeletePool')).toEqual([{ name: 'main', resourceVersion, mode }]);
  });

  test.each([
    ['', 'active'],
    ['disabled', 'disabled'],
    ['Calico says so', 'not-allocatable: Calico says so'],
  ])('show prints the reason of the state once: "%s"', async (stateReason, stateText) => {
    const states: Record<string, PoolState> = {
      '': PoolState.POOL_STATE_ACTIVE,
      disabled: PoolState.POOL_STATE_DISABLED,
    };
    const state = states[stateReason] ?? PoolState.POOL_STATE_NOT_ALLOCATABLE;
    await fakes.serve(
      fake(PoolServiceService.getPool, () => GetPoolResponse.fromPartial({ pool: { ...pool, state, stateReason } })),
    );
    const { stdout } = await fakes.podwirectl('pools', 'show', 'main');
    expect(/^State +(.*)$/m.exec(stdout)?.[1]).toBe(stateText);
  });

  test('show and split', async () => {
    await fakes.serve(
      foundPool,
      fake(PoolServiceService.splitPool, () => SplitPoolResponse.fromPartial({ pools: [{ name: 'split-main-0' }] })),
    );
    expect((await fakes.podwirectl('pools', 'show', 'main')).stdout).toMatch(
      /^Addresses +65536\nIn use +64990 \(99.2%\), in 1016 blocks\nCooling +10\nReserved +500\nAvailable +36$/m,
    );
    expect(await fakes.podwirectl('pools', 'split', 'main', '2')).toMatchObject({ exitCode: 2 });
    const split = await fakes.podwirectl('pools', 'split', 'main', '2', '--yes');
    expect(split).toMatchObject({ exitCode: 0, stdout: expect.stringContaining('split-main-0') });
    expect(requestsTo('SplitPool')).toEqual([
      { pool: { $case: 'name', value: 'main' }, number: 2, resourceVersion: '' },
    ]);
  });
});

test('blocks and utilisation show the node of a block, and borrowed addresses', async () => {
  const borrowed = { address: '10.65.0.2', handleId: 'h', attributes: { node: 'node-2' }, sequenceNumber: 3n };
  const timestamp = '2026-11-23 12:58:07.962 +0000 UTC';
  const own = { address: '10.65.0.1', ...holder, attributes: { ...holder.attributes, timestamp } };
  const blocks = [
    {
      cidr: '10.65.0.0/26',
      poolName: 'main',
      nodeName: 'node-1',
      affinityState: AffinityState.AFFINITY_STATE_CONFIRMED,
      capacity: 64,
      allocations: [own, borrowed],
      utilization: { allocated: 3, cooling: 1, reserved: 5, available: 56 },
    },
    { cidr: '10.65.0.64/26', capacity: 64, utilization: { available: 64 } },
  ];
  await fakes.serve(
    fake(BlockServiceService.listBlocks, () => ListBlocksResponse.fromPartial({ blocks })),
    fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools: [pool] })),
  );
  const { stdout } = await fakes.podwirectl('blocks', '--node', 'node-1', '--pool', 'main');
  expect(stdout).toMatch(/^10\.65\.0\.0\/26 +main +node-1 +confirmed +64 +2 +3\.1% +1 +5 +56 +1 +-$/m);
  expect(requestsTo('ListBlocks')).toEqual([{ pageSize: 1000, pageToken: '', nodeName: 'node-1', poolName: 'main' }]);
  expect((await fakes.podwirectl('blocks', '--addresses')).stdout).toMatch(
    /^10\.65\.0\.1 +default\/web-0 +node-1 +eth0 +2026-11-23T12:58:07Z +12 +net\.c0ffee$/m,
  );
  const use = await fakes.podwirectl('utilisation');
  expect(use.stdout).toMatch(/^node-1 +1 +64 +2 +3\.1% +1 +5 +56 +1$/m);
  expect(use.stdout).toMatch(/^\(no owner\) +1 +64 +0 +0\.0% +0 +0 +64 +0$/m);
  expect(use.stdout).toMatch(/^main +10\.65\.0\.0\/16 +65536 +64990 +99\.2% +10 +500 +36 +1016$/m);
});

describe('a list filtered by something that does not exist', () => {
  const missing = (code: 'POOL_NOT_FOUND' | 'NODE_NOT_FOUND') => () => {
    throw new Failure(code, 'there is none of that name');
  };

  test.each([
    ['blocks', '--pool', 'there is none of that name (POOL_NOT_FOUND)'],
    ['blocks', '--node', 'there is none of that name (NODE_NOT_FOUND)'],
    ['utilisation', '--pool', 'there is none of that name (POOL_NOT_FOUND)'],
    ['utilisation', '--node', 'there is none of that name (NODE_NOT_FOUND)'],
    ['endpoints', '--pool', 'there is none of that name (POOL_NOT_FOUND)'],
    ['endpoints', '--node', 'there is none of that name (NODE_NOT_FOUND)'],
  ])('fails instead of being empty: %s %s', async (verb, option, text) => {
    await fakes.serve(
      fake(BlockServiceService.listBlocks, () => ListBlocksResponse.fromPartial({})),
      fake(EndpointServiceService.listEndpoints, () => ListEndpointsResponse.fromPartial({})),
      fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools: [pool] })),
      fake(PoolServiceService.getPool, missing('POOL_NOT_FOUND')),
      fake(NodeServiceService.getNode, missing('NODE_NOT_FOUND')),
    );
    expect(await fakes.podwirectl(verb, option, 'typo')).toMatchObject({
      exitCode: 3,
      stdout: '',
      stderr: expect.stringContaining(text),
    });
    expect(await fakes.podwirectl(verb)).toMatchObject({ exitCode: 0 });
  });
});

test('endpoints show which pod has which addresses, and which program wrote each', async () => {
  const endpoint = {
    attachment: { network: 'net', containerId: 'c0ffee', interfaceName: 'eth0' },
    pod: { namespace: 'default', name: 'web-0' },
    nodeName: 'node-1',
    addresses: [{ address: '10.65.0.7/32' }, { address: 'fd65::7/128' }],
    hostInterfaceName: 'podw1',
  };
  const calicos = {
    namespace: 'default',
    name: 'node--1-k8s-old-eth0',
    pod: { namespace: 'default', name: 'old' },
    nodeName: 'node-1',
    addresses: [{ address: '10.65.0.8/32' }],
    hostInterfaceName: 'cali1',
  };
  await fakes.serve(
    fake(EndpointServiceService.listEndpoints, () =>
      ListEndpointsResponse.fromPartial({ endpoints: [endpoint, calicos] }),
    ),
  );
  const { exitCode, stdout } = await fakes.podwirectl('endpoints', '--pod', 'default/web-0', '--node', 'node-1');
  expect([exitCode, stdout]).toEqual([
    0,
    expect.stringMatching(/^default\/web-0 +10\.65\.0\.7, fd65::7 +node-1 +podw1 +- +Podwire +net\/c0ffee\/eth0$/m),
  ]);
  expect(stdout).toMatch(
    /^default\/old +10\.65\.0\.8 +node-1 +cali1 +- +Calico +endpoint default\/node--1-k8s-old-eth0$/m,
  );
  await fakes.podwirectl('endpoints', '--namespace', 'red', '--pool', 'main');
  expect(requestsTo('ListEndpoints')).toMatchObject([
    { namespace: 'default', podName: 'web-0', nodeName: 'node-1', poolName: '' },
    { namespace: 'red', podName: '', nodeName: '', poolName: 'main' },
  ]);
});
