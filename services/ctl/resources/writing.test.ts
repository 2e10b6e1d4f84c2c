import { existsSync, mkdirSync, readFileSync, unlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

import { AddressServiceService, GetAddressResponse, IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import { GetNodeResponse, Node, NodeServiceService, UpdateNodeResponse } from '@podwire/proto/podwire/ipam/v1/node';
import {
  AddressUse,
  AssignmentMode,
  CreatePoolResponse,
  DeletePoolResponse,
  EncapsulationMode,
  GetPoolResponse,
  Pool,
  PoolServiceService,
  UpdatePoolResponse,
} from '@podwire/proto/podwire/ipam/v1/pool';
import { RequestPolicy, RequestPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/request_policy';
import { Reservation, ReservationServiceService } from '@podwire/proto/podwire/ipam/v1/reservation';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { fake, Fakes, foundPool, pool } from '../testing/ctl.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

const requestsTo = (method: string) =>
  fakes.calls.filter((call) => call.method === method).map(({ request }) => request);
const { createRequestPolicy, updateRequestPolicy, getRequestPolicy, listRequestPolicies, deleteRequestPolicy } =
  RequestPolicyServiceService;

const TENANTS = RequestPolicy.fromPartial({
  name: 'tenants',
  namespaces: ['red'],
  namespaceSelector: "tier == 'lab'",
  pools: { names: ['a', 'b'], cidrs: ['10.64.0.0/12'], selector: 'has(open)' },
  addresses: { cidrs: ['10.65.0.0/28'] },
  addressesWithoutIpam: {},
  sourcePrefixes: { cidrs: ['10.8.0.0/16'] },
  macAddresses: { ranges: ['02:42:00:00:00:00/16'] },
  families: { families: [IpFamily.IP_FAMILY_IPV4, IpFamily.IP_FAMILY_IPV6] },
});

const MANIFEST = `apiVersion: podwire.dev/v1
kind: RequestPolicy
metadata: {name: tenants}
spec:
  namespaces: [red]
  namespaceSelector: tier == 'lab'
  pools: {names: [a, b], cidrs: [10.64.0.0/12], selector: has(open)}
  addresses: [10.65.0.0/28]
  addressesWithoutIPAM: []
  sourcePrefixes: [10.8.0.0/16]
  macAddresses: ['02:42:00:00:00:00/16']
  families: [IPv4, IPv6]
`;

test('apply creates a request policy, and replaces an existing one', async () => {
  let isStored = false;
  await fakes.serve(
    fake(getRequestPolicy, () => {
      if (!isStored) throw new Failure('REQUEST_POLICY_NOT_FOUND', 'there is none');
      return { requestPolicy: TENANTS };
    }),
    fake(updateRequestPolicy, ({ requestPolicy }) => ({ requestPolicy })),
    fake(createRequestPolicy, ({ requestPolicy }) => ({ requestPolicy })),
  );
  fakes.input = MANIFEST;
  const made = await fakes.podwirectl('apply', '-f', '-');
  expect(made).toMatchObject({ exitCode: 0, stdout: 'policy/tenants created\n' });
  expect(requestsTo('CreateRequestPolicy')).toEqual([{ requestPolicy: TENANTS }]);
  const missing = await fakes.podwirectl('replace', '-f', '-');
  expect([missing.exitCode, requestsTo('UpdateRequestPolicy')]).toEqual([3, []]);
  isStored = true;
  const shown = await fakes.podwirectl('describe', 'policy', 'tenants');
  expect(shown.stdout.split('\n').map((line) => line.replace(/ {2,}/g, ' | '))).toEqual([
    'Name | tenants',
    "Namespaces | red, tier == 'lab'",
    'Pools | a, b, 10.64.0.0/12, has(open)',
    'Addresses | 10.65.0.0/28',
    'Without IPAM | none',
    'Source prefixes | 10.8.0.0/16',
    'MACs | 02:42:00:00:00:00/16',
    'Families | IPv4, IPv6',
    '',
  ]);
  expect((await fakes.podwirectl('apply', '-f', '-')).stdout).toBe('policy/tenants configured\n');
  expect(requestsTo('UpdateRequestPolicy')).toEqual([{ requestPolicy: TENANTS }]);
  // Calico's tools write the revision of the datastore, which is no version of podwire-ipam.
  for (const [written, sent] of [
    ['5cc6f33120bf1a81', '5cc6f33120bf1a81'],
    ['1207', ''],
  ] as const) {
    fakes.input = MANIFEST.replace('{name: tenants}', `{name: tenants, resourceVersion: "${written}"}`);
    await fakes.podwirectl('replace', '-f', '-');
    expect(requestsTo('UpdateRequestPolicy').at(-1)).toEqual({ requestPolicy: { ...TENANTS, resourceVersion: sent } });
  }
  await fakes.podwirectl('create', 'policy', 'closed', 'pools={}');
  expect(requestsTo('CreateRequestPolicy').at(-1)).toEqual({
    requestPolicy: RequestPolicy.fromPartial({ name: 'closed', pools: {} }),
  });
  expect((await fakes.podwirectl('create', 'policy', 'closed', 'nodes=[]')).exitCode).toBe(2);
});

test('the output of get as YAML and JSON is applied without a change', async () => {
  const stored = Pool.fromPartial({
    ...pool,
    allowedUses: [AddressUse.ADDRESS_USE_WORKLOAD],
    assignmentMode: AssignmentMode.ASSIGNMENT_MODE_MANUAL,
    ipipMode: EncapsulationMode.ENCAPSULATION_MODE_NEVER,
    nodeSelector: 'all()',
    namespaceSelector: "team == 'red'",
    disableBgpExport: true,
    createTime: new Date(0),
    resourceVersion: '00000000000000c1',
  });
  await fakes.serve(
    fake(PoolServiceService.getPool, () => ({ pool: stored })),
    fake(PoolServiceService.listPools, () => ({ pools: [stored], nextPageToken: '' })),
    fake(PoolServiceService.updatePool, ({ pool: changed }) => ({ pool: changed })),
  );
  const { utilization, state, createTime, ...writable } = stored;
  expect([utilization, state, createTime]).toBeDefined();
  for (const words of [
    ['ippool', '-o', 'yaml'],
    ['ippool', 'main', '-o', 'yaml'],
    ['ippools', '-o', 'json'],
  ]) {
    const printed = await fakes.podwirectl('get', ...words);
    fakes.input = printed.stdout;
    expect(await fakes.podwirectl('apply', '-f', '-')).toMatchObject({
      exitCode: 0,
      stdout: 'ippool/main unchanged\n',
    });
    expect(requestsTo('UpdatePool').at(-1)).toMatchObject({ pool: writable, updateMask: [] });
  }
  const exported = await fakes.podwirectl('get', 'ippool', 'main', '-o', 'yaml', '--export');
  expect(exported.stdout).toBe(`apiVersion: projectcalico.org/v3
kind: IPPool
metadata:
  name: main
spec:
  cidr: 10.65.0.0/16
  blockSize: 26
  vxlanMode: CrossSubnet
  ipipMode: Never
  natOutgoing: true
  disabled: false
  disableBGPExport: true
  nodeSelector: all()
  namespaceSelector: team == 'red'
  allowedUses:
    - Workload
  assignmentMode: Manual
`);
});

test('create and patch send exactly the given fields', async () => {
  await fakes.serve(
    fake(PoolServiceService.createPool, ({ pool: made }) => ({ pool: made })),
    fake(PoolServiceService.getPool, () => ({ pool: Pool.fromPartial({ ...pool, resourceVersion: '7' }) })),
    fake(PoolServiceService.updatePool, ({ pool: changed }) => ({ pool: changed })),
  );
  const made = await fakes.podwirectl(
    ...['create', 'ippool', 'a', 'cidr=fd65::/48', 'blockSize=120', 'allowedUses=[Tunnel, Workload]'],
  );
  expect(made).toMatchObject({ exitCode: 0, stdout: 'ippool/a created\n' });
  expect(requestsTo('CreatePool')).toMatchObject([
    { pool: { name: 'a', cidr: 'fd65::/48', blockSize: 120, allowedUses: [2, 1], disabled: false } },
  ]);
  await fakes.podwirectl('patch', 'ippool', 'main', 'disabled=true', 'nodeSelector=!has(zone)');
  await fakes.podwirectl('patch', 'ippool', 'main', '-p', '{"spec":{"natOutgoing":null}}', '--type=merge');
  const changed = {
    name: 'main',
    cidr: '10.65.0.0/16',
    blockSize: 26,
    vxlanMode: pool.vxlanMode,
    resourceVersion: '7',
  };
  expect(requestsTo('UpdatePool')).toMatchObject([
    { pool: { ...changed, disabled: true, nodeSelector: '!has(zone)', natOutgoing: true } },
    { pool: { ...changed, disabled: false, natOutgoing: false } },
  ]);
  expect(await fakes.podwirectl('patch', 'ippool', 'main')).toMatchObject({
    exitCode: 2,
    stderr: expect.stringContaining('no field to change'),
  });
  const renamed = await fakes.podwirectl('patch', 'ippool', 'main', '-p', '{"metadata":{"name":"b"}}');
  expect([renamed.exitCode, requestsTo('UpdatePool')]).toEqual([2, expect.objectContaining({ length: 2 })]);
  expect(await fakes.podwirectl('patch', 'ippool', 'main', '-p', '&self {spec: *self}')).toMatchObject({
    exitCode: 2,
    stderr: expect.stringContaining('is not an object'),
  });
  // Forms that calicoctl takes.
  await fakes.podwirectl('patch', 'ippool', 'main', 'disabled=yes', 'natOutgoing=Off');
  expect(requestsTo('UpdatePool').at(-1)).toMatchObject({ pool: { ...changed, disabled: true, natOutgoing: false } });
  expect(await fakes.podwirectl('patch', 'ippool', 'main', 'disabled=maybe')).toMatchObject({
    exitCode: 2,
    stderr: expect.stringContaining('disabled: must be true or false'),
  });
});

test.each([
  ['', 'has no object'],
  ['kind: [', 'is not YAML'],
  ['kind: *absent', 'Unresolved alias'],
  ['&self [*self]', 'has an alias that cannot be used'],
  ['kind: IPPool', 'apiVersion'],
  [
    '{apiVersion: projectcalico.org/v3, kind: BGPPeer, metadata: {name: a}}',
    'BGPPeer of projectcalico.org/v3: is not known',
  ],
  ['{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {}}', 'metadata: name'],
  ['{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: a}, spec: {cidr: 1}}', 'IPPool "a": spec.cidr'],
  ['{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: a}, spec: {cidr: a, nat: true}}', '"nat"'],
  ['{apiVersion: projectcalico.org/v3, kind: WorkloadEndpoint, metadata: {name: a}}', 'cannot be created or changed'],
])('one invalid manifest is refused, and nothing is stored: %s', async (text, reason) => {
  await fakes.serve(fake(PoolServiceService.createPool, ({ pool: made }) => ({ pool: made })));
  const valid = '{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: b}, spec: {cidr: 10.0.0.0/8}}';
  fakes.input = text === '' ? '' : `${valid}\n---\n${text}\n`;
  for (const verb of ['create', 'apply', 'replace'])
    expect(await fakes.podwirectl(verb, '-f', '-')).toMatchObject({
      exitCode: 2,
      stderr: expect.stringContaining(reason),
    });
  expect(fakes.calls).toEqual([]);
});

test.each([
  [['create', 'ippool', 'a', 'cdir=10.0.0.0/8'], /Unrecognized key: "cdir"; did you mean "cidr"\?/],
  [['create', 'ippol', 'a', 'cidr=10.0.0.0/8'], /is not one of .*; did you mean "ippool"\?/],
])('%j is refused with the name that was meant', async (words, message) => {
  expect(await fakes.podwirectl(...words)).toMatchObject({ exitCode: 2, stderr: expect.stringMatching(message) });
});

test('files of a directory are stored in turn; the first failure ends the command, and earlier changes are reported', async () => {
  await fakes.serve(
    fake(PoolServiceService.createPool, ({ pool: made }) => {
      if (made?.name === 'b') throw new Failure('POOL_EXISTS', 'pool b exists');
      return { pool: made };
    }),
  );
  const folder = join(fakes.folder, 'manifests');
  mkdirSync(folder);
  for (const name of ['a', 'b', 'c'])
    writeFileSync(
      join(folder, `${name}.yaml`),
      `{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: ${name}}, spec: {cidr: 10.0.0.0/8}}`,
    );
  writeFileSync(join(folder, 'notes.txt'), 'kind: nothing');
  const failed = await fakes.podwirectl('create', '-f', folder);
  expect(failed).toMatchObject({ exitCode: 1, stdout: expect.stringContaining('ippool/a created') });
  expect(failed.stderr).toContain('podwirectl: failed: pool b exists (POOL_EXISTS); not executed: 1 object');
  const skipped = await fakes.podwirectl('create', '-f', folder, '--skip-exists');
  expect(skipped).toMatchObject({ exitCode: 0, stdout: expect.stringMatching(/b skipped: it exists[^]*c created/) });
  expect(await fakes.podwirectl('create', '-f', join(folder, 'none.yaml'))).toMatchObject({ exitCode: 2 });
});

test('labels of a node are changed; its spec is not', async () => {
  const node = Node.fromPartial({
    name: 'node-1',
    ipv4Address: '192.0.2.7/24',
    labels: { zone: 'a' },
    resourceVersion: '00000000000000b3',
  });
  await fakes.serve(
    fake(NodeServiceService.getNode, () => ({ node, podCidrs: [] })),
    fake(NodeServiceService.updateNode, ({ labels }) => ({ node: Node.fromPartial({ ...node, labels }) })),
  );
  expect(await fakes.podwirectl('label', 'nodes', 'node-1', 'zone=b')).toMatchObject({ exitCode: 2 });
  expect(requestsTo('UpdateNode')).toEqual([]);
  await fakes.podwirectl('label', 'nodes', 'node-1', 'zone=b', '--overwrite');
  await fakes.podwirectl('label', 'nodes', 'node-1', 'zone', '--remove');
  fakes.input = (await fakes.podwirectl('get', 'node', 'node-1', '-o', 'yaml')).stdout;
  expect(await fakes.podwirectl('apply', '-f', '-')).toMatchObject({ exitCode: 0, stdout: 'node/node-1 unchanged\n' });
  expect(requestsTo('UpdateNode')).toEqual([
    { name: 'node-1', labels: { zone: 'b' }, resourceVersion: '00000000000000b3' },
    { name: 'node-1', labels: {}, resourceVersion: '00000000000000b3' },
    { name: 'node-1', labels: { zone: 'a' }, resourceVersion: '00000000000000b3' },
  ]);
  fakes.input = fakes.input.replace('192.0.2.7', '192.0.2.8');
  expect(await fakes.podwirectl('apply', '-f', '-')).toMatchObject({
    exitCode: 2,
    stderr: expect.stringContaining('its spec is written by the node'),
  });
  expect(requestsTo('UpdateNode')).toHaveLength(3);
  expect(await fakes.podwirectl('create', 'node', 'node-2')).toMatchObject({ exitCode: 2 });
});

test('request policies are listed, shown and deleted', async () => {
  await fakes.serve(
    fake(listRequestPolicies, ({ pageToken }) => ({
      requestPolicies: [pageToken === '' ? TENANTS : RequestPolicy.fromPartial({ name: 'closed', pools: {} })],
      nextPageToken: pageToken === '' ? 'x' : '',
    })),
    fake(getRequestPolicy, () => ({ requestPolicy: TENANTS })),
    fake(deleteRequestPolicy, () => ({})),
  );
  const { stdout } = await fakes.podwirectl('get', 'policies');
  expect(stdout).toMatch(/^tenants +red, tier == 'lab' +pools: a, b, 10\.64\.0\.0\/12, has\(open\); addresses: /m);
  expect(stdout).toMatch(/^closed +all +pools: none/m);
  expect((await fakes.podwirectl('describe', 'policies', 'tenants')).stdout).toContain('Source prefixes');
  expect(await fakes.podwirectl('delete', 'policy', 'tenants')).toMatchObject({ exitCode: 2 });
  expect(requestsTo('DeleteRequestPolicy')).toEqual([]);
  const deleted = await fakes.podwirectl('delete', 'policy', 'tenants', '--resource-version', '7', '--yes');
  expect(deleted).toMatchObject({ exitCode: 0, stdout: 'request policy tenants is deleted\n' });
  expect(requestsTo('DeleteRequestPolicy')).toEqual([{ name: 'tenants', resourceVersion: '7' }]);
});

test('a reservation is shown', async () => {
  const reservation = Reservation.fromPartial({ name: 'routers', cidrs: ['10.65.0.0/28'] });
  await fakes.serve(fake(ReservationServiceService.getReservation, () => ({ reservation })));
  expect((await fakes.podwirectl('get', 'reservation', 'routers')).stdout).toMatch(/^routers +10\.65\.0\.0\/28/m);
  expect(requestsTo('GetReservation')).toEqual([{ name: 'routers' }]);
});

test('attributes are changed on condition of the values that were read', async () => {
  const source = { pod: 'launcher-1', ticket: '7' };
  const target = { pod: 'launcher-2' };
  const held = { attributes: source, alternateAttributes: target, sequenceNumber: 12n, handleId: 'net.vm' };
  let holder: typeof held | undefined = held;
  await fakes.serve(
    fake(AddressServiceService.getAddress, () => GetAddressResponse.fromPartial({ holder })),
    fake(AddressServiceService.setAttributes, ({ attributes, alternate }) => ({
      holder: {
        ...held,
        attributes: attributes?.values ?? source,
        alternateAttributes: alternate?.values ?? target,
      },
    })),
  );
  const read = { sequenceNumber: 12n, expected: { values: source }, expectedAlternate: { values: target } };
  await fakes.podwirectl('attributes', 'set', '10.65.0.7', '--set', 'note=x', '--remove', 'ticket');
  expect(requestsTo('SetAttributes')).toEqual([
    expect.objectContaining({
      ...read,
      attributes: { values: { pod: 'launcher-1', note: 'x' } },
      alternate: undefined,
    }),
  ]);
  await fakes.podwirectl('attributes', 'set', '10.65.0.7', '--alternate', 'node=n2', '--remove-alternate', 'pod');
  expect(requestsTo('SetAttributes').at(-1)).toMatchObject({
    attributes: undefined,
    alternate: { values: { node: 'n2' } },
  });
  const swapped = await fakes.podwirectl('attributes', 'swap', '10.65.0.7');
  expect(requestsTo('SetAttributes').at(-1)).toMatchObject({
    ...read,
    attributes: { values: target },
    alternate: { values: source },
  });
  expect(swapped.stdout).toMatch(/^Second owner +pod=launcher-1, ticket=7$/m);
  expect((await fakes.podwirectl('attributes', 'set', '10.65.0.7')).exitCode).toBe(2);
  holder = undefined;
  expect(await fakes.podwirectl('attributes', 'swap', '10.65.0.7')).toMatchObject({ exitCode: 3 });
});

describe('edit', () => {
  const serve = () =>
    fakes.serve(
      foundPool,
      fake(PoolServiceService.updatePool, ({ pool: changed }) => UpdatePoolResponse.fromPartial({ pool: changed })),
    );
  const replaceIn = (from: string, to: string) => (file: string) =>
    writeFileSync(file, readFileSync(file, 'utf8').replace(from, to));

  test('stores what the editor leaves', async () => {
    await serve();
    fakes.edit = replaceIn('natOutgoing: true', 'natOutgoing: false');
    expect(await fakes.podwirectl('edit', 'ippool', 'main')).toMatchObject({
      exitCode: 0,
      stdout: 'ippool/main patched\n',
    });
    expect(requestsTo('UpdatePool')).toMatchObject([{ pool: { name: 'main', natOutgoing: false } }]);
  });

  test.each<[string, (file: string) => void, string]>([
    [
      'fails',
      () => {
        throw new Failure('INVALID_REQUEST', 'vi: exit code 1');
      },
      'vi: exit code 1',
    ],
    ['removes the file', unlinkSync, 'the edited text cannot be read'],
  ])('leaves nothing behind where the editor %s', async (_, change, reason) => {
    await serve();
    let edited = '';
    fakes.edit = (file) => {
      edited = file;
      change(file);
    };
    expect(await fakes.podwirectl('edit', 'ippool', 'main')).toMatchObject({
      exitCode: 2,
      stderr: expect.stringContaining(reason),
    });
    expect(existsSync(dirname(edited))).toBe(false);
  });

  test('names the file of a refused change', async () => {
    await serve();
    fakes.edit = replaceIn('natOutgoing', 'natOutgoin');
    const { exitCode, stderr } = await fakes.podwirectl('edit', 'ippool', 'main');
    expect([exitCode, stderr]).toEqual([
      2,
      expect.stringMatching(/did you mean "natOutgoing"\?; the edited text is in .*object\.yaml/),
    ]);
    expect(requestsTo('UpdatePool')).toEqual([]);
  });
});

describe('a dry run', () => {
  const serve = () =>
    fakes.serve(
      foundPool,
      fake(PoolServiceService.createPool, ({ pool: created }) => CreatePoolResponse.fromPartial({ pool: created })),
      fake(PoolServiceService.updatePool, ({ pool: changed }) => UpdatePoolResponse.fromPartial({ pool: changed })),
      fake(PoolServiceService.deletePool, () => DeletePoolResponse.fromPartial({})),
      fake(NodeServiceService.getNode, ({ name }) => GetNodeResponse.fromPartial({ node: { name } })),
      fake(NodeServiceService.deleteNode, (): never => {
        throw new Failure('NODE_IN_USE', 'node n1 runs');
      }),
      fake(NodeServiceService.updateNode, ({ name }) => UpdateNodeResponse.fromPartial({ node: { name } })),
    );

  test.each([
    ['create ippool a cidr=10.0.0.0/8', 'ippool/a created (dry run)', 'CreatePool'],
    ['patch ippool main disabled=true', 'ippool/main patched (dry run)', 'UpdatePool'],
    ['patch node n1 --patch {"metadata":{"labels":{"zone":"a"}}}', 'node/n1 patched (dry run)', 'UpdateNode'],
    ['delete ippool main --yes', 'This pool would be deleted if none', 'DeletePool'],
  ])('of %s is decided by podwire-ipam', async (line, text, method) => {
    await serve();
    const { exitCode, stdout, stderr } = await fakes.podwirectl(...line.split(' '), '--dry-run');
    expect([exitCode, stdout, stderr]).toEqual([0, expect.stringContaining(text), '']);
    const methods = fakes.calls.map((call) => call.method).filter((name) => !name.includes('Get'));
    expect(methods).toEqual([`DryRun ${method}`]);
  });

  test('of a deletion shows the addresses that would be kept', async () => {
    const kept = [{ address: '10.65.0.7', nodeName: 'n1' }];
    await fakes.serve(
      foundPool,
      fake(PoolServiceService.deletePool, () => DeletePoolResponse.fromPartial({ kept, keptAddresses: 1n })),
    );
    const words = ['delete', 'ippool', 'main', '--release-addresses', '--force', '--dry-run'];
    expect(await fakes.podwirectl(...words)).toMatchObject({
      exitCode: 1,
      stdout: expect.stringMatching(/^kept: pods of nodes that run have 1 address:\n[^]*10\.65\.0\.7 +n1/m),
    });
  });

  test('fails as the change would', async () => {
    await serve();
    for (const words of [['--dry-run'], []])
      expect(await fakes.podwirectl('delete', 'node', 'n1', ...words)).toMatchObject({
        exitCode: 1,
        stderr: expect.stringContaining('node n1 runs'),
      });
  });
});

describe('diff', () => {
  const manifest = (name: string, natOutgoing: boolean): string =>
    `{"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": "${name}"}, "spec": ` +
    `{"cidr": "10.65.0.0/16", "blockSize": 26, "vxlanMode": "CrossSubnet", "natOutgoing": ${natOutgoing}}}\n`;
  const serve = () =>
    fakes.serve(
      fake(PoolServiceService.getPool, ({ name }) => {
        if (name !== pool.name) throw new Failure('POOL_NOT_FOUND', `there is no ${name}`);
        return GetPoolResponse.fromPartial({ pool: { ...pool, resourceVersion: 'v1' } });
      }),
      fake(PoolServiceService.createPool, ({ pool: created }) => {
        if (created?.name === 'refused') throw new Failure('POOL_OVERLAP', 'it overlaps');
        return CreatePoolResponse.fromPartial({ pool: created });
      }),
      fake(PoolServiceService.updatePool, ({ pool: changed }) =>
        UpdatePoolResponse.fromPartial({ pool: { ...changed, resourceVersion: 'v2' } }),
      ),
    );
  const diff = async (...manifests: readonly string[]) => {
    await serve();
    fakes.input = manifests.join('---\n');
    const { exitCode, stdout, stderr } = await fakes.podwirectl('diff', '-f', '-');
    expect(fakes.calls.filter(({ method }) => !/^(DryRun |Get)/.test(method))).toEqual([]);
    return [exitCode, stdout, stderr];
  };

  test('prints nothing for an object that apply would not change', async () => {
    expect(await diff(manifest('main', true))).toEqual([0, '', '']);
  });

  test('prints the lines that apply would change', async () => {
    const changed = `--- ippool/main
+++ ippool/main
@@ -8,7 +8,7 @@
   cidr: 10.65.0.0/16
   disableBGPExport: false
   disabled: false
   ipipMode: Never
-  natOutgoing: true
+  natOutgoing: false
   nodeSelector: all()
   vxlanMode: CrossSubnet
`;
    expect(await diff(manifest('main', false))).toEqual([4, changed, '']);
  });

  test('prints all lines of an object that apply would create', async () => {
    const created = /^--- \/dev\/null\n\+\+\+ ippool\/new\n@@ -0,0 \+1,\d+ @@\n(\+.*\n)+$/;
    expect(await diff(manifest('new', true))).toEqual([4, expect.stringMatching(created), '']);
  });

  test('of an object that is refused fails, with the differences before it', async () => {
    expect(await diff(manifest('new', true), manifest('refused', true))).toEqual([
      1,
      expect.stringContaining('+++ ippool/new'),
      expect.stringContaining('it overlaps'),
    ]);
  });
});
