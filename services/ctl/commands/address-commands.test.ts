import {
  AddressReleaseResult,
  AddressServiceService,
  AddressState,
  ExplainAllocationResponse,
  GetAddressResponse,
  GetEndpointResponse,
  ReleaseAddressesResponse,
} from '@podwire/proto/podwire/ipam/v1/address';
import { GetHandleResponse, HandleServiceService } from '@podwire/proto/podwire/ipam/v1/handle';
import {
  GetAddressHistoryResponse,
  HistoryServiceService,
  QueryAtResponse,
} from '@podwire/proto/podwire/ipam/v1/history';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { attributes, fake, Fakes, holder } from '../testing/ctl.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

const asked = (method: string) => fakes.calls.filter((call) => call.method === method).map(({ request }) => request);

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

describe('history', () => {
  const tenure = (address: string, releaseTime?: Date) => ({
    address,
    handleId: holder.handleId,
    attributes,
    allocateTime: new Date(0),
    releaseTime,
    sequenceNumber: 4n,
  });
  const past = tenure('10.65.0.7', new Date(90_000));

  test('of a pod tells its addresses, from all pages, as far as they are wanted', async () => {
    const pages: Record<string, GetAddressHistoryResponse> = {
      '': GetAddressHistoryResponse.fromPartial({ tenures: [tenure('10.65.0.9')], nextPageToken: 'b' }),
      b: GetAddressHistoryResponse.fromPartial({ nextPageToken: 'c' }),
      c: GetAddressHistoryResponse.fromPartial({ tenures: [past, past] }),
    };
    await fakes.serve(fake(HistoryServiceService.getAddressHistory, ({ pageToken }) => pages[pageToken]!));
    const { exitCode, stdout, stderr } = await fakes.podwirectl('history', 'default/web-0', '--limit', '2');
    expect(exitCode).toBe(0);
    expect(stdout).toMatch(/^10\.65\.0\.9 +node-1 +1970-01-01T00:00:00Z +- .* 4 +net\.c0ffee$/m);
    expect(stdout.match(/^10\.65\.0\.7 +node-1 +1970-01-01T00:00:00Z +1970-01-01T00:01:30Z +90s /gm)).toHaveLength(1);
    expect(stderr).toContain('there are more');
    const subject = { $case: 'pod', value: { namespace: 'default', name: 'web-0' } };
    expect(asked('GetAddressHistory')).toMatchObject([
      { subject, pageSize: 2 },
      { pageToken: 'b' },
      { pageToken: 'c' },
    ]);
    expect((await fakes.podwirectl('history', 'default/web-0')).stderr).toBe('');
  });

  test('of a handle since a time; none is an answer of its own', async () => {
    await fakes.serve(fake(HistoryServiceService.getAddressHistory, () => GetAddressHistoryResponse.fromPartial({})));
    const none = await fakes.podwirectl('history', 'web-0', '--since', '1970-01-01T00:01:00Z');
    expect(none).toMatchObject({ exitCode: 3, stdout: 'No address is known.\n' });
    expect(none.stderr).toContain('a pod is NAMESPACE/NAME');
    expect(asked('GetAddressHistory')).toMatchObject([
      { subject: { $case: 'handleId', value: 'web-0' }, from: new Date(60_000) },
    ]);
    expect((await fakes.podwirectl('history', 'a/b')).stderr).toBe('');
  });

  test.each(['a/b/c', '/b', 'a/', ''])('of "%s" is nobody’s', async (whose) => {
    expect(await fakes.podwirectl('history', whose)).toMatchObject({ exitCode: 2 });
  });
});

test.each(['web-0', 'a/b/c', '/web-0'])('explain refuses "%s" as a pod', async (pod) => {
  const { exitCode, stderr } = await fakes.podwirectl('explain', 'node-1', '--pod', pod);
  expect([exitCode, stderr]).toEqual([2, expect.stringContaining('such as default/web-0')]);
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

  test.each([
    ['--handle', 'net.other'],
    ['--sequence', '11'],
  ])('of an address that is held by another than %s says proposes nothing', async (...condition) => {
    await fakes.serve(
      fake(AddressServiceService.getAddress, () =>
        GetAddressResponse.fromPartial({ state: AddressState.ADDRESS_STATE_ALLOCATED, holder }),
      ),
    );
    expect(await fakes.podwirectl('release', 'address', '10.65.0.7', ...condition)).toMatchObject({
      exitCode: 1,
      stdout: '10.65.0.7 is held by another than was meant, and stays: default/web-0, sequence 12\n',
      stderr: '',
    });
    const meant = ['--handle', holder.handleId];
    const { stderr } = await fakes.podwirectl('release', 'address', '10.65.0.7', ...meant);
    expect(stderr).toContain(`release address 10.65.0.7 ${meant.join(' ')} --sequence 12 --yes`);
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
      stdout: 'net.c0ffee holds no address, and has no endpoint any more\n',
    });
    expect(asked('ReleaseHandle')).toEqual([{ handleId: 'net.c0ffee', searchAllBlocks: true }]);
  });

  test('of an attachment and of a handle whose addresses another tool released says what is left to remove', async () => {
    const missing = (code: 'ENDPOINT_NOT_FOUND' | 'HANDLE_NOT_FOUND') => () => {
      throw new Failure(code, 'there is none');
    };
    await fakes.serve(
      fake(AddressServiceService.getEndpoint, missing('ENDPOINT_NOT_FOUND')),
      fake(HandleServiceService.getHandle, missing('HANDLE_NOT_FOUND')),
    );
    for (const which of [
      ['attachment', 'net/c0ffee/eth0'],
      ['handle', 'net.c0ffee'],
    ]) {
      const preview = await fakes.podwirectl('release', ...which);
      expect(preview).toMatchObject({ exitCode: 2, stdout: expect.stringMatching(/holds no address; .* removed\./) });
    }
  });
});
