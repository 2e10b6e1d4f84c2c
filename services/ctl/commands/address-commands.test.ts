import {
  AddressReleaseResult,
  AddressServiceService,
  AddressState,
  ExplainAllocationResponse,
  GetAddressResponse,
  GetEndpointResponse,
  ReleaseAddressesResponse,
} from '@podwire/proto/podwire/ipam/v1/address';
import { Endpoint, EndpointServiceService } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { GetHandleResponse, HandleServiceService } from '@podwire/proto/podwire/ipam/v1/handle';
import {
  Change,
  GetAddressHistoryResponse,
  HistoryServiceService,
  QueryAtResponse,
} from '@podwire/proto/podwire/ipam/v1/history';
import { GetNodeResponse, NodeServiceService } from '@podwire/proto/podwire/ipam/v1/node';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { attributes, fake, Fakes, holder } from '../testing/ctl.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

const requestsTo = (method: string) =>
  fakes.calls.filter((call) => call.method === method).map(({ request }) => request);

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

  test('shows the current owner with its namespace, and earlier owners', async () => {
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
    expect(stdout).toMatch(/^x\/old +- +1970-01-01T00:00:00Z +1970-01-01T00:01:30Z +90s$/m);
    expect(requestsTo('GetEndpoint')).toEqual([
      { attachment: { network: 'net', containerId: 'c0ffee', interfaceName: 'eth0' } },
    ]);
    const { stdout: yaml } = await fakes.podwirectl('who', '10.65.0.7', '-o', 'yaml');
    expect(yaml).toContain('sequenceNumber: "12"');
  });

  test('hints at a missing endpoint and a missing history, and exits with 3 for an address without an owner', async () => {
    const refuse = (code: 'ENDPOINT_NOT_FOUND' | 'HISTORY_NOT_KEPT') => () => {
      throw new Failure(code, 'none');
    };
    let answer = held;
    await fakes.serve(
      fake(AddressServiceService.getAddress, () => answer),
      fake(AddressServiceService.getEndpoint, refuse('ENDPOINT_NOT_FOUND')),
      fake(HistoryServiceService.getAddressHistory, refuse('HISTORY_NOT_KEPT')),
      fake(EndpointServiceService.listEndpoints, () => ({ endpoints: [], nextPageToken: '' })),
    );
    const { exitCode, stderr } = await fakes.podwirectl('who', '10.65.0.7');
    expect(exitCode).toBe(0);
    expect(stderr).toMatch(/has no endpoint[^]*PODWIRE_IPAM_HISTORY_HOURS/);
    answer = GetAddressResponse.fromPartial({ state: AddressState.ADDRESS_STATE_UNMANAGED });
    expect(await fakes.podwirectl('who', '192.0.2.1')).toMatchObject({
      exitCode: 3,
      stdout: expect.stringMatching(/^State +unmanaged$/m),
    });
  });

  test('names the pod with an address of another IPAM plugin', async () => {
    const pod = { namespace: 'default', name: 'web-0', uid: '' };
    const addresses = [{ address: '192.0.2.7/32' }];
    const endpoints = [
      Endpoint.fromPartial({ nodeName: 'node-2', addresses: [{ address: '192.0.2.70/32' }] }),
      Endpoint.fromPartial({ nodeName: 'node-1', pod, addresses, macAddress: '02:00:5e:00:53:01' }),
    ];
    const unmanaged = GetAddressResponse.fromPartial({ state: AddressState.ADDRESS_STATE_UNMANAGED });
    await fakes.serve(
      history,
      fake(AddressServiceService.getAddress, () => unmanaged),
      fake(EndpointServiceService.listEndpoints, ({ podName }) => ({
        endpoints: endpoints.filter((each) => podName === '' || each.pod?.name === podName),
        nextPageToken: '',
      })),
    );
    for (const subject of ['192.0.2.7', 'default/web-0']) {
      const { exitCode, stdout, stderr } = await fakes.podwirectl('who', subject);
      expect([exitCode, stderr]).toEqual([0, expect.stringContaining('another IPAM plugin allocated it')]);
      expect(stdout).toMatch(/^Pod +default\/web-0$/m);
      expect(stdout).toMatch(/^Node +node-1$/m);
    }
  });

  test('names the node, the time and the boot of a lease, which no pod has yet', async () => {
    const lease = { node: 'node-1', type: 'podwireLease', 'boot-id': 'b-1' };
    const leased = GetAddressResponse.fromPartial({
      state: AddressState.ADDRESS_STATE_LEASED,
      holder: { handleId: 'podwire-lease.node-1', attributes: lease, sequenceNumber: 3n },
      allocateTime: new Date(0),
    });
    await fakes.serve(
      history,
      fake(AddressServiceService.getAddress, () => leased),
    );
    for (const command of [
      ['who', '10.65.0.7'],
      ['ipam', 'show', '--ip=10.65.0.7'],
    ]) {
      const { exitCode, stdout, stderr } = await fakes.podwirectl(...command);
      expect(exitCode).toBe(0);
      expect(stdout).toMatch(/^State +leased by node node-1 since 1970-01-01T00:00:00Z \(boot b-1\), no pod yet$/m);
      expect(stdout).toMatch(/^Handle +podwire-lease\.node-1$/m);
      expect(stderr).not.toContain('has no endpoint');
    }
  });

  test.each([
    ['tenure', QueryAtResponse.fromPartial({ tenure: tenures[0]!, covered: true }), 0, /^Pod +x\/old$/m],
    [
      'no owner',
      QueryAtResponse.fromPartial({ covered: true }),
      3,
      /^10\.65\.0\.7 had no owner at 1970-01-01T00:01:00Z$/m,
    ],
    ['before the history', QueryAtResponse.fromPartial({ covered: false }), 3, /before the history begins/],
  ])('at a time: %s', async (_, answer, code, output) => {
    await fakes.serve(fake(HistoryServiceService.queryAt, () => answer));
    const { exitCode, stdout } = await fakes.podwirectl('who', '10.65.0.7', '--at', '1970-01-01T00:01:00Z');
    expect([exitCode, stdout]).toEqual([code, expect.stringMatching(output)]);
    expect(requestsTo('QueryAt')).toEqual([{ address: '10.65.0.7', time: new Date(60_000) }]);
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

  test('of a pod lists its addresses from all pages, up to the limit', async () => {
    const pages: Record<string, GetAddressHistoryResponse> = {
      '': GetAddressHistoryResponse.fromPartial({ tenures: [tenure('10.65.0.9')], nextPageToken: 'b' }),
      b: GetAddressHistoryResponse.fromPartial({ nextPageToken: 'c' }),
      c: GetAddressHistoryResponse.fromPartial({ tenures: [past, past] }),
    };
    await fakes.serve(fake(HistoryServiceService.getAddressHistory, ({ pageToken }) => pages[pageToken]!));
    const { exitCode, stdout, stderr } = await fakes.podwirectl('history', 'default/web-0', '--limit', '2');
    expect(exitCode).toBe(0);
    expect(stdout).toMatch(/^10\.65\.0\.9 +node-1 +1970-01-01T00:00:00Z +- +\S+$/m);
    expect(stdout.match(/^10\.65\.0\.7 +node-1 +1970-01-01T00:00:00Z +1970-01-01T00:01:30Z +90s$/gm)).toHaveLength(1);
    expect(stderr).toContain('the list is incomplete');
    const subject = { $case: 'pod', value: { namespace: 'default', name: 'web-0' } };
    expect(requestsTo('GetAddressHistory')).toMatchObject([
      { subject, pageSize: 2 },
      { pageToken: 'b' },
      { pageToken: 'c' },
    ]);
    expect((await fakes.podwirectl('history', 'default/web-0')).stderr).toBe('');
    const wide = await fakes.podwirectl('history', 'default/web-0', '-o', 'wide');
    expect(wide.stdout).toMatch(/^10\.65\.0\.9 .* 4 +net\.c0ffee$/m);
  });

  test('of an address fits a terminal of 120 columns, and names the handle of an owner without a pod', async () => {
    const handleId = `net.${'c'.repeat(64)}`;
    const own = { node: 'ip-10-244-112-201', namespace: 'production', pod: 'checkout-frontend-7d4b9c6f5d-x2x7q' };
    const tenures = [
      { ...past, attributes: own, handleId },
      { ...past, attributes: {} },
    ];
    await fakes.serve(
      fake(HistoryServiceService.getAddressHistory, () => GetAddressHistoryResponse.fromPartial({ tenures })),
    );
    const { stdout } = await fakes.podwirectl('history', '10.65.0.7');
    expect(stdout).toMatch(/^net\.c0ffee +- +1970/m);
    expect(Math.max(...stdout.split('\n').map(({ length }) => length))).toBeLessThanOrEqual(120);
  });

  test('of a handle since a time; exits with 3 where no address is recorded', async () => {
    await fakes.serve(fake(HistoryServiceService.getAddressHistory, () => GetAddressHistoryResponse.fromPartial({})));
    const none = await fakes.podwirectl('history', '--handle', 'net.c0ffee', '--since', '1970-01-01T00:01:00Z');
    expect(none).toMatchObject({ exitCode: 3, stdout: 'addresses: none recorded\n' });
    expect(requestsTo('GetAddressHistory')).toMatchObject([
      { subject: { $case: 'handleId', value: 'net.c0ffee' }, from: new Date(60_000) },
    ]);
  });

  test.each([
    [['web-0'], { $case: 'pod', value: { namespace: 'default', name: 'web-0' } }],
    [['web-0', '-n', 'red'], { $case: 'pod', value: { namespace: 'red', name: 'web-0' } }],
    [['10.65.0.7'], { $case: 'address', value: '10.65.0.7' }],
  ])('%j is %j', async (words, subject) => {
    await fakes.serve(fake(HistoryServiceService.getAddressHistory, () => GetAddressHistoryResponse.fromPartial({})));
    await fakes.podwirectl('history', ...words);
    expect(requestsTo('GetAddressHistory')).toMatchObject([{ subject }]);
  });

  test.each(['a/b/c', '/b', 'a/', ''])('"%s" is neither a pod nor an address', async (argument) => {
    expect(await fakes.podwirectl('history', argument)).toMatchObject({ exitCode: 2 });
  });
});

test.each(['web-0', 'a/b/c', '/web-0'])('explain refuses "%s" as a pod', async (pod) => {
  const { exitCode, stderr } = await fakes.podwirectl('explain', 'node-1', '--pod', pod);
  expect([exitCode, stderr]).toEqual([2, expect.stringContaining('such as default/web-0')]);
});

const registered = fake(NodeServiceService.getNode, ({ name }) => {
  if (name !== 'node-1') throw new Failure('NODE_NOT_FOUND', `node ${name} not found`);
  return GetNodeResponse.fromPartial({});
});

test('explain refuses a node that is not registered', async () => {
  await fakes.serve(registered);
  expect(await fakes.podwirectl('explain', 'nod-1')).toMatchObject({ exitCode: 3, stdout: '' });
});

test('explain sends its options, and shows skipped pools', async () => {
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
    registered,
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
  expect(stdout).toContain('allocation preview: refused: no address (POOLS_EXHAUSTED)');
  expect(stdout).toMatch(/^main +10\.65\.0\.0\/16 +skipped +is disabled$/m);
  expect(stdout).toMatch(/^b +9 more +other-owner +-$/m);
  expect(stdout).toContain('… and 2 pools more');
  expect(requestsTo('ExplainAllocation')).toMatchObject([
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

test('explain names the leases that would be recalled', async () => {
  const nodes = [
    { nodeName: 'node-2', leased: 8n },
    { nodeName: 'node-3', leased: 4n },
  ];
  const answer = { families: [{ family: 4, recall: { leased: 12n, nodes } }] };
  await fakes.serve(
    fake(AddressServiceService.explainAllocation, () => ExplainAllocationResponse.fromPartial(answer)),
    registered,
  );
  const { exitCode, stdout } = await fakes.podwirectl('explain', 'node-1');
  expect(exitCode).toBe(0);
  expect(stdout).toContain('IPv4: none is free; 12 leased addresses would be recalled from node-2 (8), node-3 (4)');
});

describe('release', () => {
  test.each([
    [
      AddressReleaseResult.ADDRESS_RELEASE_RESULT_RELEASED,
      0,
      '10.65.0.7 is released; its owner was default/web-0, sequence 12',
    ],
    [AddressReleaseResult.ADDRESS_RELEASE_RESULT_NOT_ALLOCATED, 3, '10.65.0.7 is not allocated'],
    [AddressReleaseResult.ADDRESS_RELEASE_RESULT_MISMATCH, 1, 'is not released: its owner does not match'],
    [AddressReleaseResult.ADDRESS_RELEASE_RESULT_UNREADABLE, 1, 'its block cannot be read'],
    [
      AddressReleaseResult.ADDRESS_RELEASE_RESULT_IN_USE,
      1,
      '10.65.0.7 is kept: its node runs, and has it for default/web-0, sequence 12',
    ],
  ])('of an address with result %d exits with %d', async (result, code, text) => {
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
    expect(requestsTo('ReleaseAddresses')).toEqual([]);
    const done = await fakes.podwirectl('release', 'address', '10.65.0.7', '--sequence', '12', '--yes');
    expect(done).toMatchObject({ exitCode: code, stdout: expect.stringContaining(text) });
    expect(requestsTo('ReleaseAddresses')).toMatchObject([
      { releases: [{ address: '10.65.0.7', sequenceNumber: 12n }] },
    ]);
  });

  test.each([
    ['--handle', 'net.other'],
    ['--sequence', '11'],
  ])('of an address whose owner does not match %s suggests no command', async (...condition) => {
    await fakes.serve(
      fake(AddressServiceService.getAddress, () =>
        GetAddressResponse.fromPartial({ state: AddressState.ADDRESS_STATE_ALLOCATED, holder }),
      ),
    );
    expect(await fakes.podwirectl('release', 'address', '10.65.0.7', ...condition)).toMatchObject({
      exitCode: 1,
      stdout:
        '10.65.0.7 is not released: its owner does not match --sequence or --handle: default/web-0, sequence 12\n',
      stderr: '',
    });
    const matching = ['--handle', holder.handleId];
    const { stderr } = await fakes.podwirectl('release', 'address', '10.65.0.7', ...matching);
    expect(stderr).toContain(`release address 10.65.0.7 ${matching.join(' ')} --sequence 12 --yes`);
  });

  test('of an attachment and of a handle', async () => {
    const endpoint = {
      addresses: [{ address: '10.65.0.7/32', sequenceNumber: 12n }],
      pod: { namespace: 'default', name: 'web-0', uid: '' },
    };
    await fakes.serve(
      fake(AddressServiceService.getEndpoint, () => GetEndpointResponse.fromPartial({ endpoint })),
      fake(AddressServiceService.releaseAddresses, () =>
        ReleaseAddressesResponse.fromPartial({
          addresses: [{ address: '10.65.0.7', result: AddressReleaseResult.ADDRESS_RELEASE_RESULT_RELEASED, holder }],
        }),
      ),
      fake(AddressServiceService.release, () => ({ addresses: [] })),
      fake(HandleServiceService.getHandle, () =>
        GetHandleResponse.fromPartial({ addresses: [{ address: '10.65.0.7', attributes, sequenceNumber: 12n }] }),
      ),
      fake(HandleServiceService.releaseHandle, () => ({ addresses: [], kept: [], keptAddresses: 0n })),
    );
    const preview = await fakes.podwirectl('release', 'attachment', 'net/c0ffee/eth0');
    expect(preview).toMatchObject({
      exitCode: 2,
      stdout: '10.65.0.7/32 of net/c0ffee/eth0 would be released; pod default/web-0\n',
    });
    expect(await fakes.podwirectl('release', 'attachment', 'net/c0ffee/eth0', '--yes')).toMatchObject({
      exitCode: 0,
      stdout: '10.65.0.7/32 of net/c0ffee/eth0 released\n',
    });
    expect(await fakes.podwirectl('delete', 'handle', 'net.c0ffee')).toMatchObject({
      exitCode: 2,
      stdout: expect.stringContaining('default/web-0'),
    });
    expect(await fakes.podwirectl('delete', 'handle', 'net.c0ffee', '--search-all-blocks', '--yes')).toMatchObject({
      exitCode: 0,
      stdout: 'net.c0ffee holds no address; its endpoints, if any, are removed\n',
    });
    expect(requestsTo('ReleaseHandle')).toEqual([{ handleId: 'net.c0ffee', searchAllBlocks: true }]);
  });

  describe('of what a node that runs has', () => {
    const [kept, text] = [AddressReleaseResult.ADDRESS_RELEASE_RESULT_IN_USE, 'node n1 runs, and its pods have'];
    let answer: () => ReleaseAddressesResponse;
    beforeEach(async () => {
      answer = () =>
        ReleaseAddressesResponse.fromPartial({ addresses: [{ address: '10.65.0.7', result: kept, holder }] });
      await fakes.serve(
        fake(AddressServiceService.getEndpoint, () =>
          GetEndpointResponse.fromPartial({
            endpoint: { addresses: [{ address: '10.65.0.7/32', sequenceNumber: 12n }] },
          }),
        ),
        fake(AddressServiceService.getAddress, () => GetAddressResponse.fromPartial({ holder })),
        fake(AddressServiceService.releaseAddresses, () => answer()),
        fake(AddressServiceService.release, () => ({ addresses: ['10.65.0.7/32'] })),
        fake(HandleServiceService.releaseHandle, () => ({
          addresses: [],
          kept: [{ address: '10.65.0.7', nodeName: 'n1', attachment: undefined, pod: undefined }],
          keptAddresses: 1n,
        })),
      );
    });

    test('the refusal is shown, and the attachment keeps all', async () => {
      answer = () => {
        throw new Failure('NODE_IN_USE', text);
      };
      for (const command of ['attachment net/c0ffee/eth0', 'address 10.65.0.7'])
        expect(await fakes.podwirectl('release', ...command.split(' '), '--yes')).toMatchObject({
          exitCode: 1,
          stderr: expect.stringContaining(text),
        });
      expect(requestsTo('Release')).toEqual([]);
    });

    test('with --force the node is asked, and its addresses are kept', async () => {
      const preview = await fakes.podwirectl('ipam', 'release', '--ip=10.65.0.7', '--force');
      expect(preview.stderr).toContain('release address 10.65.0.7 --sequence 12 --force --yes');
      expect(await fakes.podwirectl('release', 'attachment', 'net/c0ffee/eth0', '--force', '--yes')).toMatchObject({
        exitCode: 1,
        stdout: expect.stringContaining('10.65.0.7 is kept: its node runs'),
      });
      expect(requestsTo('Release')).toEqual([]);
      expect(requestsTo('ReleaseAddresses')).toMatchObject([{ force: true, releases: [{ handleId: 'net.c0ffee' }] }]);
      expect(await fakes.podwirectl('delete', 'handle', 'net.c0ffee', '--force', '--yes')).toMatchObject({
        exitCode: 1,
        stdout: expect.stringMatching(/^kept: pods of nodes that run have 1 address:\n[^]*10\.65\.0\.7 +n1/),
      });
      expect(requestsTo('ReleaseHandle')).toMatchObject([{ force: true }]);
    });
  });

  test('of an attachment or a handle without addresses previews the removal of its endpoint', async () => {
    const missing = (code: 'ENDPOINT_NOT_FOUND' | 'HANDLE_NOT_FOUND') => () => {
      throw new Failure(code, 'there is none');
    };
    await fakes.serve(
      fake(AddressServiceService.getEndpoint, missing('ENDPOINT_NOT_FOUND')),
      fake(HandleServiceService.getHandle, missing('HANDLE_NOT_FOUND')),
      fake(HandleServiceService.releaseHandle, () => ({ addresses: [], kept: [], keptAddresses: 0n })),
    );
    for (const which of [
      ['release', 'attachment', 'net/c0ffee/eth0'],
      ['delete', 'handle', 'net.c0ffee'],
    ]) {
      const preview = await fakes.podwirectl(...which);
      expect(preview).toMatchObject({
        exitCode: 2,
        stdout: expect.stringMatching(/(holds no address|addresses: none); .* removed/),
      });
    }
  });
});

describe('events', () => {
  const DAY_MS = 86_400_000;
  const change = (minute: number, author: string, rest: Partial<Change>): Change =>
    Change.fromPartial({ time: new Date(Date.now() - DAY_MS / 2 + minute * 60_000), author, ...rest });
  const CHANGES = [
    change(0, 'local process', {
      ...{ kind: 'ippool', name: 'web', action: 'created' },
      fields: [
        { path: 'cidr', before: undefined, after: '10.70.0.0/16' },
        { path: 'nodeSelector', before: undefined, after: 'x'.repeat(200) },
      ],
    }),
    change(1, 'operator "ann"', {
      ...{ kind: 'ippool', name: 'web', action: 'changed' },
      fields: [
        { path: 'disabled', before: 'false', after: 'true' },
        { path: 'natOutgoing', before: 'true', after: undefined },
      ],
    }),
    change(9, 'podwire-ipam', { kind: 'node', name: 'n1', action: 'deleted' }),
  ];
  const tenure = {
    ...{ address: '10.70.0.7', attributes: { namespace: 'default', pod: 'web-0', node: 'n1' } },
    allocateTime: new Date(0),
    releaseTime: new Date(Date.now() - DAY_MS / 2 + 300_000),
  };
  const serveAll = () =>
    fakes.serve(
      fake(HistoryServiceService.listChanges, ({ pageToken }) =>
        pageToken === ''
          ? { changes: CHANGES.slice(0, 1), nextPageToken: 'next' }
          : { changes: CHANGES.slice(1), nextPageToken: '' },
      ),
      fake(HistoryServiceService.getAddressHistory, () =>
        GetAddressHistoryResponse.fromPartial({
          tenures: [tenure, { ...tenure, attributes: { ...tenure.attributes, node: 'n2' } }],
        }),
      ),
    );

  test('are one table of all pages, the newest last, with who made each change', async () => {
    await serveAll();
    const { exitCode, stdout } = await fakes.podwirectl('events');
    expect(exitCode).toBe(0);
    const [head, ...lines] = stdout.split('\n').filter(Boolean);
    expect(head).toMatch(/^TIME +KIND +OBJECT +CHANGE +BY$/);
    expect(lines.map((line) => line.split(/ {2,}/).slice(1))).toEqual([
      ['ippool', 'web', `created cidr=10.70.0.0/16 nodeSelector=${'x'.repeat(23)}…`, 'local process'],
      ['ippool', 'web', 'disabled: false → true, natOutgoing: true → unset', 'operator "ann"'],
      ['node', 'n1', 'deleted', 'podwire-ipam'],
    ]);
    expect((await fakes.podwirectl('events', '-o', 'wide')).stdout).toContain('x'.repeat(200));
    expect(requestsTo('GetAddressHistory')).toEqual([]);
  });

  test('of a node have the addresses of its pods, within the time, and no further ones', async () => {
    await serveAll();
    const { stdout } = await fakes.podwirectl('events', '--node', 'n1');
    expect(stdout.match(/address.*|node +n1.*/g)?.map((line) => line.replace(/ +/g, ' '))).toEqual([
      'address 10.70.0.7 released by default/web-0 on n1 -',
      'node n1 deleted podwire-ipam',
    ]);
    expect(requestsTo('ListChanges')[0]).toMatchObject({ nodeName: 'n1', kind: '' });
    expect(requestsTo('GetAddressHistory')[0]).toMatchObject({ subject: { $case: 'nodeName', value: 'n1' } });
  });

  test('of a namespace are addresses; as JSON they are whole', async () => {
    await serveAll();
    const { stdout } = await fakes.podwirectl('events', '--namespace', 'default', '-o', 'json');
    expect(JSON.parse(stdout).changes).toMatchObject([
      { kind: 'address', name: '10.70.0.7', action: 'released by default/web-0 on n1' },
      { kind: 'address', action: 'released by default/web-0 on n2' },
    ]);
    const { stdout: whole } = await fakes.podwirectl('events', '--kind', 'ippool', '-o', 'json');
    expect(JSON.parse(whole).changes[0].fields[1]).toEqual({ path: 'nodeSelector', after: 'x'.repeat(200) });
    expect(requestsTo('ListChanges')).toHaveLength(2);
  });

  test('of all addresses are refused', async () => {
    await serveAll();
    const { exitCode, stderr } = await fakes.podwirectl('events', '--kind', 'address');
    expect([exitCode, stderr]).toEqual([2, expect.stringContaining('add --node or --namespace')]);
  });
});
