import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import {
  AddressReleaseResult,
  AddressServiceService,
  AddressState,
  GetAddressResponse,
  ReleaseAddressesResponse,
} from '@podwire/proto/podwire/ipam/v1/address';
import { BlockServiceService, ListBlocksResponse } from '@podwire/proto/podwire/ipam/v1/block';
import { ConfigServiceService, GetConfigResponse, UpdateConfigResponse } from '@podwire/proto/podwire/ipam/v1/config';
import { EndpointServiceService, ListEndpointsResponse } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { GetAddressHistoryResponse, HistoryServiceService } from '@podwire/proto/podwire/ipam/v1/history';
import { AuditResponse, AuditServiceService, FindingKind, Severity } from '@podwire/proto/podwire/ipam/v1/maintenance';
import { GetNodeResponse, ListNodesResponse, Node, NodeServiceService } from '@podwire/proto/podwire/ipam/v1/node';
import {
  DeletePoolResponse,
  ListPoolsResponse,
  PoolServiceService,
  SplitPoolResponse,
} from '@podwire/proto/podwire/ipam/v1/pool';
import {
  GetReservationResponse,
  ListReservationsResponse,
  ReservationServiceService,
} from '@podwire/proto/podwire/ipam/v1/reservation';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { fake, Fakes, foundPool, holder, pool } from '../testing/ctl.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

const requestsTo = (method: string) =>
  fakes.calls.filter((call) => call.method === method).map(({ request }) => request);

const node = Node.fromPartial({ name: 'node-1', labels: { cluster: 'backend' } });
const allocation = { address: '192.168.1.2', ...holder };
const leak = {
  kind: FindingKind.FINDING_KIND_ALLOCATION_UNUSED,
  severity: Severity.SEVERITY_WARNING,
  objects: [{ type: 'address', name: '192.168.1.2' }],
};

/** Everything that the command lines ask for. */
const services = () => [
  foundPool,
  fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools: [pool] })),
  fake(PoolServiceService.createPool, ({ pool: made }) => ({ pool: made })),
  fake(PoolServiceService.updatePool, ({ pool: changed }) => ({ pool: changed })),
  fake(PoolServiceService.deletePool, () => DeletePoolResponse.fromPartial({})),
  fake(PoolServiceService.splitPool, () => SplitPoolResponse.fromPartial({ pools: [pool] })),
  fake(NodeServiceService.listNodes, () => ListNodesResponse.fromPartial({ nodes: [node] })),
  fake(NodeServiceService.getNode, () => GetNodeResponse.fromPartial({ node })),
  fake(NodeServiceService.updateNode, ({ labels }) => ({ node: Node.fromPartial({ ...node, labels }) })),
  fake(EndpointServiceService.listEndpoints, () =>
    ListEndpointsResponse.fromPartial({ endpoints: [{ name: 'node--1-k8s-web-eth0', namespace: 'default' }] }),
  ),
  fake(ReservationServiceService.listReservations, () => ListReservationsResponse.fromPartial({})),
  fake(ReservationServiceService.getReservation, () => GetReservationResponse.fromPartial({ reservation: {} })),
  fake(ConfigServiceService.getConfig, () => GetConfigResponse.fromPartial({ config: {} })),
  fake(ConfigServiceService.updateConfig, () => UpdateConfigResponse.fromPartial({ config: {} })),
  fake(BlockServiceService.listBlocks, () =>
    ListBlocksResponse.fromPartial({ blocks: [{ cidr: '192.168.1.0/26', allocations: [allocation] }] }),
  ),
  fake(AddressServiceService.getAddress, () =>
    GetAddressResponse.fromPartial({
      state: AddressState.ADDRESS_STATE_ALLOCATED,
      holder: { handleId: 'h', sequenceNumber: 12n },
    }),
  ),
  fake(HistoryServiceService.getAddressHistory, () => GetAddressHistoryResponse.fromPartial({})),
  fake(AuditServiceService.audit, () => AuditResponse.fromPartial({ findings: [leak] })),
  fake(AddressServiceService.releaseAddresses, ({ releases }) =>
    ReleaseAddressesResponse.fromPartial({
      addresses: releases.map(({ address }) => ({
        address,
        result: AddressReleaseResult.ADDRESS_RELEASE_RESULT_RELEASED,
      })),
    }),
  ),
];

const MANIFEST = JSON.stringify({
  apiVersion: 'projectcalico.org/v3',
  kind: 'IPPool',
  metadata: { name: 'main', creationTimestamp: null },
  spec: { cidr: '10.65.0.0/16', ipipMode: 'Always', natOutgoing: true, nodeSelector: 'all()' },
});

/** Words of a shell's command line. */
const wordsOf = (line: string) =>
  [...line.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, bare]) => quoted ?? bare ?? '');

/** Command lines of Calico's documentation, behind the program's name; FILE has an IPPool, and so has the standard input. */
const READING = [
  'get ippool',
  'get ippools -o wide',
  'get ipPool default-ipv4-ippool -o yaml',
  'get pool --output=json',
  'get ipp -o ps',
  'get nodes',
  'get nodes --output=wide',
  'get node node-1 -o yaml',
  'get node node-1 -o yaml --export',
  'get workloadendpoints',
  'get workloadendpoints -a',
  'get wep --all-namespaces',
  'get workloadEndpoint --namespace=default -o yaml',
  'get wep node--1-k8s-web-eth0 -n default -o yml',
  'get ipreservations',
  'get ipamconfig default',
  'get ipamconfiguration -o yaml',
  'ipam show',
  'ipam show --ip=192.168.1.2',
  'ipam show --ip 10.0.0.1',
  'ipam show --show-blocks',
  'ipam show --show-borrowed',
  'ipam show --show-configuration',
  'validate -f FILE',
];

const WRITING = [
  'create -f FILE',
  'create --filename=FILE --skip-exists',
  'create -f -',
  'apply -f FILE',
  'apply -f -',
  'replace -f FILE',
  'patch ippool main --patch \'{"spec":{"disabled":true}}\'',
  'patch ippool main -p \'{"spec": {"natOutgoing": true}}\' -t merge',
  'label nodes node-1 cluster=backend',
  'label nodes node-1 cluster=frontend --overwrite',
  'label nodes node-1 cluster --remove',
  'ipam configure --strictaffinity=true',
  'ipam configure --strictaffinity=true --max-blocks-per-host=4',
  'ipam configure --ip-cooldown-seconds=60',
];

const DESTRUCTIVE = [
  ['delete -f FILE', 'DeletePool'],
  ['delete ippool main', 'DeletePool'],
  ['delete pool main another --skip-not-exists', 'DeletePool'],
  ['ipam release --ip=192.168.1.2', 'ReleaseAddresses'],
  ['ipam release --ip=192.168.1.2 --force', 'ReleaseAddresses'],
  ['ipam split 4 --name main', 'SplitPool'],
  ['ipam split --cidr=10.65.0.0/16 2', 'SplitPool'],
] as const;

describe('a command line of calicoctl', () => {
  const type = async (line: string, ...more: string[]) => {
    const file = join(fakes.folder, 'pool.yaml');
    writeFileSync(file, MANIFEST);
    fakes.input = MANIFEST;
    return fakes.podwirectl(...wordsOf(line.replace('FILE', file)), ...more);
  };

  test.each([...READING, ...WRITING])('works: %s', async (line) => {
    await fakes.serve(...services());
    expect(await type(line)).toMatchObject({ exitCode: 0, stdout: expect.stringMatching(/\S/) });
  });

  test.each(DESTRUCTIVE)('is executed once it is confirmed: %s', async (line, method) => {
    await fakes.serve(...services());
    expect(await type(line)).toMatchObject({ exitCode: 2, stderr: expect.stringContaining('nothing was changed') });
    expect(requestsTo(method)).toEqual([]);
    expect(await type(line, '--yes')).toMatchObject({ exitCode: 0 });
    expect(requestsTo(method)).not.toEqual([]);
  });

  test('checks the datastore, and releases the unused addresses of the report by their sequence numbers', async () => {
    await fakes.serve(...services());
    const file = join(fakes.folder, 'report.json');
    expect(await type('ipam check')).toMatchObject({ exitCode: 4, stdout: expect.stringContaining('192.168.1.2') });
    expect(await type('ipam check --show-all-ips')).toMatchObject({ stdout: expect.stringContaining('net.c0ffee') });
    expect(existsSync(file)).toBe(false);
    expect(await type(`ipam check --show-problem-ips -o ${file}`)).toMatchObject({
      exitCode: 4,
      stdout: expect.stringContaining(`report written to ${file}`),
    });
    const release = `ipam release --from-report=${file} --from-report=${file} --force`;
    expect(await type(release)).toMatchObject({ exitCode: 2, stdout: expect.stringMatching(/^192\.168\.1\.2 +12 /m) });
    expect(requestsTo('ReleaseAddresses')).toEqual([]);
    expect(await type(release, '--yes')).toMatchObject({ exitCode: 0 });
    expect(requestsTo('ReleaseAddresses')).toMatchObject([
      { releases: [{ address: '192.168.1.2', sequenceNumber: 12n, handleId: 'net.c0ffee' }] },
    ]);
    const other = join(fakes.folder, 'other.json');
    writeFileSync(other, readFileSync(file, 'utf8').replaceAll('"12"', '"13"'));
    const both = `ipam release --from-report=${file} --from-report=${other} --yes`;
    expect(await type(both)).toMatchObject({ exitCode: 0, stdout: 'unused addresses: none\n' });
    writeFileSync(other, '{}');
    expect(await type(both)).toMatchObject({ exitCode: 2, stderr: expect.stringContaining('is not a report') });
    rmSync(other);
    expect(await type(both)).toMatchObject({ exitCode: 2, stderr: expect.stringContaining('cannot be read') });
    expect(requestsTo('ReleaseAddresses')).toHaveLength(1);
    expect(JSON.parse((await type('ipam check -o json')).stdout)).toHaveProperty('findings');
  });
});

test('a who command for a pod shows the owner of each of its addresses', async () => {
  const endpoints = [
    { pod: { namespace: 'red', name: 'web-0' }, attachment: {}, addresses: [{ address: '10.65.0.7/32' }] },
  ];
  let isKnown = true;
  await fakes.serve(
    ...services().filter(({ path }) => path !== EndpointServiceService.listEndpoints.path),
    fake(EndpointServiceService.listEndpoints, () =>
      ListEndpointsResponse.fromPartial({ endpoints: isKnown ? endpoints : [] }),
    ),
  );
  for (const words of [['red/web-0'], ['web-0', '-n', 'red']])
    expect(await fakes.podwirectl('who', ...words)).toMatchObject({
      exitCode: 0,
      stdout: expect.stringMatching(/^Address +10\.65\.0\.7$/m),
    });
  expect(requestsTo('ListEndpoints')).toMatchObject([
    { namespace: 'red', podName: 'web-0' },
    { namespace: 'red', podName: 'web-0' },
  ]);
  isKnown = false;
  expect(await fakes.podwirectl('who', 'red/web-0')).toMatchObject({
    exitCode: 3,
    stdout: 'pod red/web-0 has no address; podwirectl history red/web-0 shows earlier ones\n',
  });
});
