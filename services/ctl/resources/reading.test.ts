import { AffinityState, BlockServiceService, ListBlocksResponse } from '@podwire/proto/podwire/ipam/v1/block';
import {
  AffinityReleaseResult,
  AffinityServiceService,
  ClaimAffinityResponse,
  ListAffinitiesResponse,
  OwnerKind,
  ReleaseAffinityResponse,
} from '@podwire/proto/podwire/ipam/v1/affinity';
import { GetHandleResponse, HandleServiceService, ListHandlesResponse } from '@podwire/proto/podwire/ipam/v1/handle';
import { EndpointServiceService, ListEndpointsResponse } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { NodeServiceService } from '@podwire/proto/podwire/ipam/v1/node';
import {
  DeletePoolResponse,
  GetPoolResponse,
  ListPoolsResponse,
  PoolServiceService,
  PoolState,
  SplitPoolResponse,
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
    const { exitCode, stdout, stderr } = await fakes.podwirectl('get', 'ippools');
    expect(exitCode).toBe(0);
    expect(stdout.split('\n')).toEqual([
      'NAME    CIDR          BLOCK SIZE  ENCAPSULATION       NAT  IN USE   USED  COOLING  RESERVED  AVAILABLE  LEASED  STATE',
      'main    10.65.0.0/16         /26  vxlan cross-subnet  yes   64990  99.2%       10       500         36       8  active',
      'second  10.65.0.0/16         /26  vxlan cross-subnet  yes       0      -        0         -          -       0  draining',
      '',
    ]);
    expect(stderr).toBe('hint: pool main is nearly full; create another pool, or delete unneeded reservations\n');
    const json = await fakes.podwirectl('get', 'pools', '-o', 'json');
    expect(JSON.parse(json.stdout)).toMatchObject({
      kind: 'IPPoolList',
      items: [{ metadata: { name: 'main' } }, { metadata: { name: 'second' } }],
    });
    const described = await fakes.podwirectl('describe', 'ippools', '-o', 'json');
    expect(
      JSON.parse(described.stdout).map((each: { pool: { name: string; state: string } }) => [
        each.pool.name,
        each.pool.state,
      ]),
    ).toEqual([
      ['main', 'POOL_STATE_ACTIVE'],
      ['second', 'POOL_STATE_DRAINING'],
    ]);
    const wide = await fakes.podwirectl('get', 'ipp', '-o', 'wide', '--no-headers');
    expect(wide.stdout).toMatch(/^main .* active +all\(\) +all +automatic$/m);
    expect(wide.stdout).not.toContain('NAME');
    expect((await fakes.podwirectl('get', 'ipp', '-o', 'name')).stdout).toBe('ippool/main\nippool/second\n');
  });

  test.each([
    [['--drain'], 1],
    [[], 2],
    [['--release-addresses'], 3],
    [['--release-addresses', '--force'], 3],
    [['--resource-version', 'a b'], 2],
  ])('delete %j is only previewed without --yes', async (flags, mode) => {
    const deleted = DeletePoolResponse.fromPartial({
      state: PoolState.POOL_STATE_DRAINING,
      heldAddresses: 2n,
      holders: [{ nodeName: 'node-1', addresses: 2n }],
    });
    await fakes.serve(
      foundPool,
      fake(PoolServiceService.deletePool, () => deleted),
    );
    const preview = await fakes.podwirectl('delete', 'ippool', 'main', ...flags);
    const confirmed = ['delete', 'ippool', 'main', ...flags, '--yes'];
    const command = confirmed.join(' ').replace('a b', "'a b'");
    expect(preview).toMatchObject({
      exitCode: 2,
      stderr: `hint: nothing was changed; to execute it: podwirectl ${command}\n`,
    });
    const addressOption = ['--ipam', `unix:${fakes.socket}`];
    const previewThere = await fakes.podwirectl(...addressOption, 'delete', 'ippool', 'main', ...flags);
    expect(previewThere.stderr).toContain(`to execute it: podwirectl ${addressOption.join(' ')} ${command}\n`);
    expect(fakes.calls.map(({ method }) => method)).toEqual([
      'GetPool',
      'DryRun DeletePool',
      'GetPool',
      'DryRun DeletePool',
    ]);
    fakes.calls.length = 0;
    const done = await fakes.podwirectl(...confirmed);
    expect(done).toMatchObject({ exitCode: 0, stdout: expect.stringMatching(/draining[^]*node-1 +2/) });
    expect(done.stderr).toMatch(/podwirectl get addresses --pool main\n/);
    const resourceVersion = flags[0] === '--resource-version' ? 'a b' : '';
    const force = flags.includes('--force') || undefined;
    expect(requestsTo('DeletePool')).toEqual([{ name: 'main', resourceVersion, mode, force }]);
  });

  test.each([
    ['delete', 'ippool', 'main'],
    ['ipam', 'split', '3', '--name', 'main'],
  ])('a preview fails as the execution would: %s %s %s', async (...words) => {
    const refuse = (): never => {
      throw new Failure('POOL_IN_USE', 'refused');
    };
    await fakes.serve(
      foundPool,
      fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools: [pool] })),
      fake(PoolServiceService.deletePool, refuse),
      fake(PoolServiceService.splitPool, refuse),
    );
    expect(await fakes.podwirectl(...words)).toMatchObject({
      exitCode: 1,
      stdout: '',
      stderr: expect.stringContaining('refused'),
    });
    expect(fakes.calls.at(-1)?.method).toMatch(/^DryRun /);
  });

  test('delete --force without --release-addresses is refused', async () => {
    expect(await fakes.podwirectl('delete', 'ippool', 'main', '--force', '--yes')).toMatchObject({
      exitCode: 2,
      stderr: expect.stringContaining('--force: requires --release-addresses for a pool'),
    });
  });

  test.each([
    ['y', 0, 1],
    ['no', 2, 0],
    ['', 2, 0],
  ])('on a terminal the answer "%s" decides on a deletion', async (answer, exitCode, count) => {
    await fakes.serve(
      foundPool,
      fake(PoolServiceService.deletePool, () => DeletePoolResponse.fromPartial({})),
    );
    fakes.isTerminal = true;
    fakes.input = `${answer}\n`;
    const { stderr, ...done } = await fakes.podwirectl('delete', 'ippool', 'main');
    expect(done).toMatchObject({ exitCode, stdout: expect.stringContaining('This pool would be deleted') });
    expect(stderr).toContain('execute it? [y/N]');
    expect(requestsTo('DeletePool')).toHaveLength(count);
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
    const { stdout } = await fakes.podwirectl('describe', 'pool', 'main');
    expect(/^State +(.*)$/m.exec(stdout)?.[1]).toBe(stateText);
  });

  test('show and split', async () => {
    await fakes.serve(
      foundPool,
      fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools: [pool] })),
      fake(PoolServiceService.splitPool, () => SplitPoolResponse.fromPartial({ pools: [{ name: 'split-main-0' }] })),
    );
    expect((await fakes.podwirectl('describe', 'pool', 'main')).stdout).toMatch(
      /^Addresses +65536\nIn use +64990 \(99.2%\), in 1016 blocks\nCooling +10\nReserved +500\nAvailable +36$/m,
    );
    expect(await fakes.podwirectl('ipam', 'split', '2', '--name=main')).toMatchObject({ exitCode: 2 });
    const split = await fakes.podwirectl('ipam', 'split', '2', '--name', 'main', '--yes');
    expect(split).toMatchObject({ exitCode: 0, stdout: expect.stringContaining('split-main-0') });
    const request = { pool: { $case: 'name', value: 'main' }, number: 2, resourceVersion: '' };
    expect([requestsTo('DryRun SplitPool'), requestsTo('SplitPool')]).toEqual([[request], [request]]);
  });
});

test('blocks and ipam show have the node of a block, and borrowed addresses', async () => {
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
      utilization: { allocated: 3, cooling: 1, reserved: 5, available: 56, leased: 4 },
    },
    { cidr: '10.65.0.64/26', capacity: 64, utilization: { available: 64 } },
  ];
  await fakes.serve(
    fake(BlockServiceService.listBlocks, () => ListBlocksResponse.fromPartial({ blocks })),
    fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools: [pool] })),
  );
  const { stdout } = await fakes.podwirectl('get', 'blocks', '--node', 'node-1', '--pool', 'main');
  expect(stdout).toMatch(/^10\.65\.0\.0\/26 +main +node-1 +confirmed +64 +2 +3\.1% +1 +5 +56 +4 +1 +-$/m);
  expect(requestsTo('ListBlocks')).toEqual([{ pageSize: 1000, pageToken: '', nodeName: 'node-1', poolName: 'main' }]);
  expect((await fakes.podwirectl('get', 'addresses', '-o', 'wide')).stdout).toMatch(
    /^10\.65\.0\.1 +default\/web-0 +node-1 +eth0 +2026-11-23T12:58:07Z +12 +net\.c0ffee$/m,
  );
  const use = await fakes.podwirectl('ipam', 'show');
  expect(use.stdout).toMatch(/^node-1 +1 +64 +2 +3\.1% +1 +5 +56 +4 +1$/m);
  expect(use.stdout).toMatch(/^\(no owner\) +1 +64 +0 +0\.0% +0 +0 +64 +0 +0$/m);
  const borrowedOnly = await fakes.podwirectl('ipam', 'show', '--show-borrowed');
  expect(borrowedOnly.stdout).toMatch(/^10\.65\.0\.2 +node-2 +10\.65\.0\.0\/26 +node-1 +- +h$/m);
  const withBlocks = await fakes.podwirectl('ipam', 'show', '--show-blocks');
  expect(withBlocks.stdout).toMatch(/^main +10\.65\.0\.0\/26 +node-1 +64 +2 /m);
  expect(use.stdout).toMatch(/^main +10\.65\.0\.0\/16 +65536 +64990 +99\.2% +10 +500 +36 +8 +1016$/m);
});

describe('a list filtered by something that does not exist', () => {
  const missing = (code: 'POOL_NOT_FOUND' | 'NODE_NOT_FOUND') => () => {
    throw new Failure(code, 'there is none of that name');
  };

  test.each([
    ['get blocks', '--pool', 'there is none of that name (POOL_NOT_FOUND)'],
    ['get blocks', '--node', 'there is none of that name (NODE_NOT_FOUND)'],
    ['ipam show', '--pool', 'there is none of that name (POOL_NOT_FOUND)'],
    ['ipam show', '--node', 'there is none of that name (NODE_NOT_FOUND)'],
    ['get workloadendpoints', '--pool', 'there is none of that name (POOL_NOT_FOUND)'],
    ['get workloadendpoints', '--node', 'there is none of that name (NODE_NOT_FOUND)'],
  ])('fails instead of being empty: %s %s', async (verb, option, text) => {
    await fakes.serve(
      fake(BlockServiceService.listBlocks, () => ListBlocksResponse.fromPartial({})),
      fake(EndpointServiceService.listEndpoints, () => ListEndpointsResponse.fromPartial({})),
      fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools: [pool] })),
      fake(PoolServiceService.getPool, missing('POOL_NOT_FOUND')),
      fake(NodeServiceService.getNode, missing('NODE_NOT_FOUND')),
    );
    expect(await fakes.podwirectl(...verb.split(' '), option, 'typo')).toMatchObject({
      exitCode: 3,
      stdout: '',
      stderr: expect.stringContaining(text),
    });
    expect(await fakes.podwirectl(...verb.split(' '))).toMatchObject({ exitCode: 0 });
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
  const { exitCode, stdout } = await fakes.podwirectl(
    ...['get', 'wep', '--pod', 'default/web-0', '--node', 'node-1', '-o', 'wide'],
  );
  expect([exitCode, stdout]).toEqual([
    0,
    expect.stringMatching(/ default\/web-0 +10\.65\.0\.7, fd65::7 +node-1 +podw1 +- +- +Podwire +net\/c0ffee\/eth0$/m),
  ]);
  expect(stdout).toMatch(
    / default\/old +10\.65\.0\.8 +node-1 +cali1 +- +- +Calico +endpoint default\/node--1-k8s-old-eth0$/m,
  );
  await fakes.podwirectl('get', 'wep', '-n', 'red', '--pool', 'main');
  await fakes.podwirectl('get', 'wep');
  await fakes.podwirectl('get', 'wep', '-A');
  expect(requestsTo('ListEndpoints')).toMatchObject([
    { namespace: 'default', podName: 'web-0', nodeName: 'node-1', poolName: '' },
    { namespace: 'red', podName: '', nodeName: '', poolName: 'main' },
    { namespace: 'default', podName: '', nodeName: '', poolName: '' },
    { namespace: '', podName: '', nodeName: '', poolName: '' },
  ]);
});

test('a watched list prints the objects that change, and the objects that are removed', async () => {
  const lists = [
    [pool, { ...pool, name: 'second' }],
    [pool, { ...pool, name: 'second' }],
    [{ ...pool, disabled: true, state: PoolState.POOL_STATE_DISABLED }],
  ];
  let reads = 0;
  await fakes.serve(
    fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools: lists[reads++] ?? [] })),
  );
  fakes.sleep = () => Promise.resolve(reads < lists.length ? 'elapsed' : 'aborted');
  const { exitCode, stdout } = await fakes.podwirectl('get', 'ippools', '--watch');
  expect(exitCode).toBe(0);
  expect(stdout.split('\n').map((line) => line.replace(/ .* /, ' … '))).toEqual([
    'NAME … STATE',
    'main … active',
    'second … active',
    'main … disabled',
    'ippool/second deleted',
    '',
  ]);
  expect(await fakes.podwirectl('get', 'ippools', '--watch', '-o', 'yaml')).toMatchObject({ exitCode: 2 });
});

test('handles and affinities are listed, described, claimed and released', async () => {
  const affinity = {
    blockCidr: '10.65.0.0/26',
    owner: { kind: OwnerKind.OWNER_KIND_HOST, name: 'node-1' },
    state: AffinityState.AFFINITY_STATE_CONFIRMED,
    backed: true,
    poolName: 'main',
    usedCount: 3,
  };
  await fakes.serve(
    fake(HandleServiceService.listHandles, () =>
      ListHandlesResponse.fromPartial({
        handles: [{ handleId: 'net.c0ffee', blocks: [{ cidr: '10.65.0.0/26', addressCount: 2 }] }],
      }),
    ),
    fake(HandleServiceService.getHandle, () =>
      GetHandleResponse.fromPartial({
        addresses: [{ address: '10.65.0.7', blockCidr: '10.65.0.0/26', attributes: holder.attributes }],
      }),
    ),
    fake(AffinityServiceService.listAffinities, () => ListAffinitiesResponse.fromPartial({ affinities: [affinity] })),
    fake(AffinityServiceService.claimAffinity, () => ClaimAffinityResponse.fromPartial({ claimed: ['10.65.0.0/26'] })),
    fake(AffinityServiceService.releaseAffinity, () =>
      ReleaseAffinityResponse.fromPartial({
        affinities: [{ blockCidr: '10.65.0.0/26', result: AffinityReleaseResult.AFFINITY_RELEASE_RESULT_REMOVED }],
      }),
    ),
  );
  expect((await fakes.podwirectl('get', 'handles')).stdout).toMatch(/^net\.c0ffee +2 +10\.65\.0\.0\/26$/m);
  expect((await fakes.podwirectl('get', 'handle', 'net.c0ffee')).stdout).toMatch(/^net\.c0ffee +1 +10\.65\.0\.0\/26$/m);
  expect((await fakes.podwirectl('describe', 'handle', 'net.c0ffee')).stdout).toMatch(
    /^10\.65\.0\.7 +default\/web-0 /m,
  );
  expect((await fakes.podwirectl('get', 'affinities')).stdout).toMatch(
    /^10\.65\.0\.0\/26 +node-1 +host +confirmed +yes +main +3$/m,
  );
  expect((await fakes.podwirectl('get', 'blockaffinity', 'node-1-10-65-0-0-26', '-o', 'yaml')).stdout).toContain(
    'state: confirmed',
  );
  const claimed = await fakes.podwirectl('create', 'affinity', 'any', 'cidr=10.65.0.0/26', 'node=node-1');
  expect(claimed).toMatchObject({ exitCode: 0, stdout: 'blockaffinity/any created\n' });
  expect(requestsTo('ClaimAffinity')).toEqual([{ cidr: '10.65.0.0/26', nodeName: 'node-1' }]);
  const release = ['delete', 'affinity', 'node-1-10-65-0-0-26'];
  expect(await fakes.podwirectl(...release)).toMatchObject({ exitCode: 2 });
  expect(requestsTo('ReleaseAffinity')).toEqual([]);
  expect(await fakes.podwirectl(...release, '--yes')).toMatchObject({
    exitCode: 0,
    stdout: 'affinity of 10.65.0.0/26: removed\n',
  });
  expect(requestsTo('ReleaseAffinity')).toEqual([
    { scope: { $case: 'blockCidr', value: '10.65.0.0/26' }, mustBeEmpty: true },
  ]);
  expect(await fakes.podwirectl('delete', 'affinity', 'node-2-10-65-0-0-26', '--yes')).toMatchObject({ exitCode: 3 });
  expect(requestsTo('ReleaseAffinity')).toHaveLength(1);
});
