import { AuditRequest, AuditServiceService } from '@podwire/proto/podwire/ipam/v1/maintenance';
import { Endpoint, EndpointServiceService, ListEndpointsRequest } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { LeaseServiceService, OpenSessionRequest, ReportEndpointsRequest } from '@podwire/proto/podwire/ipam/v1/lease';
import { NodeServiceService, RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { beforeEach, describe, expect, test } from 'vitest';

import { attachment, clientLimits, faultsOf, servedForEachTest } from '../testing/service.js';

/** Pods with addresses of another IPAM plugin, over gRPC, on a service with one pool 10.65.0.0/24. */

const served = servedForEachTest();

const bootId = '11111111-1111-4111-8111-111111111111';

interface Reported {
  readonly id: string;
  readonly pod?: string;
  readonly addresses?: readonly string[];
}

const MAC = '02:00:5e:00:53:01';

let generation: bigint;

const open = async (nodeName: string): Promise<bigint> => {
  const registration = RegisterNodeRequest.fromPartial({
    name: nodeName,
    ipv4Address: `192.0.2.${nodeName === 'node-1' ? 7 : 8}/24`,
  });
  await served.caller.peer.call(NodeServiceService.registerNode, registration, clientLimits());
  const message = OpenSessionRequest.fromPartial({
    nodeName,
    machineId: '33333333-3333-4333-8333-333333333333',
    bootId,
  });
  return (await served.caller.peer.call(LeaseServiceService.openSession, message, clientLimits())).generation;
};

beforeEach(async () => {
  generation = await open('node-1');
});

const report = (pods: readonly Reported[], nodeName = 'node-1', session = generation) => {
  const endpoints = pods.map(({ id, pod: name, addresses = ['192.0.2.77'] }) =>
    Endpoint.fromPartial({
      attachment: attachment(id),
      macAddress: MAC,
      ...(name !== undefined && { pod: { namespace: 'shop', name, uid: 'u' } }),
      addresses: addresses.map((address) => ({ address })),
    }),
  );
  const message = ReportEndpointsRequest.fromPartial({
    nodeName,
    session: { bootId, generation: session, revision: 0n },
    endpoints,
  });
  return served.caller.peer.call(LeaseServiceService.reportEndpoints, message, clientLimits());
};

const list = async (rest: Partial<ListEndpointsRequest> = {}) => {
  const request = ListEndpointsRequest.fromPartial({ pageSize: 1000, ...rest });
  return (await served.caller.peer.call(EndpointServiceService.listEndpoints, request, clientLimits())).endpoints;
};

const names = async () => (await list()).map(({ namespace, name }) => `${namespace}/${name}`);

const findings = async () => {
  const request = AuditRequest.fromPartial({ topNodes: 10 });
  return (await served.caller.peer.call(AuditServiceService.audit, request, clientLimits())).findings;
};

describe('the endpoints of a node', () => {
  test('are what it reports, as Calico has them, and audit finds nothing', async () => {
    await report([{ id: 'a', pod: 'web-0', addresses: ['192.0.2.77', 'fd77::1'] }, { id: 'b' }]);
    expect(await list({ nodeName: 'node-1', podName: 'web-0' })).toMatchObject([
      {
        attachment: undefined,
        namespace: 'shop',
        name: 'node--1-k8s-web--0-eth0',
        pod: { namespace: 'shop', name: 'web-0' },
        addresses: [
          { address: '192.0.2.77/32', poolName: '', blockCidr: '' },
          { address: 'fd77::1/128', poolName: '', blockCidr: '' },
        ],
        macAddress: MAC,
        hostInterfaceName: expect.stringMatching(/^podw/),
        createTime: expect.any(Date),
      },
    ]);
    expect(await names()).toEqual(['default/node--1-cni-b-eth0', 'shop/node--1-k8s-web--0-eth0']);
    expect(await findings()).toEqual([]);

    const before = await list();
    const { sessionRevision } = await report([
      { id: 'a', pod: 'web-0', addresses: ['192.0.2.77', 'fd77::1'] },
      { id: 'b' },
    ]);
    expect([await list(), (await report([{ id: 'b' }])).sessionRevision]).toEqual([before, sessionRevision]);
    expect(await names()).toEqual(['default/node--1-cni-b-eth0']);
    await served.restart();
    expect(await names()).toEqual(['default/node--1-cni-b-eth0']);
    await report([]);
    expect(await names()).toEqual([]);
  });

  test('are the latest of the sandboxes of a pod', async () => {
    await report([{ id: 'old', pod: 'web' }]);
    await report([
      { id: 'old', pod: 'web' },
      { id: 'new', pod: 'web', addresses: ['192.0.2.78'] },
    ]);
    await report([{ id: 'new', pod: 'web', addresses: ['192.0.2.78'] }]);
    expect(await list()).toMatchObject([{ addresses: [{ address: '192.0.2.78/32' }] }]);
  });

  test('leave endpoints of podwire-ipam’s addresses and of other nodes alone', async () => {
    const pod = { namespace: 'shop', name: 'web', uid: 'u' };
    await served.caller.allocate('own', { pod });
    const own = await list();
    expect(await report([{ id: 'other', pod: 'web' }])).toMatchObject({ leftOut: 1 });
    expect(await list()).toEqual(own);
    await served.caller.release('own');
    expect(await report([{ id: 'other', pod: 'web' }])).toMatchObject({ leftOut: 0 });
    // A sandbox that gets addresses of podwire-ipam takes the name over, and nothing is left of the former one.
    await served.caller.allocate('own', { pod });
    await report([]);
    await served.caller.release('own');
    expect(await names()).toEqual([]);
    await served.caller.allocate('own', { pod });
    await report([{ id: 'c' }], 'node-2', await open('node-2'));
    await report([]);
    expect(await names()).toEqual(['default/node--2-cni-c-eth0', 'shop/node--1-k8s-web-eth0']);
  });

  test('are many in one report', async () => {
    const pods = Array.from({ length: 200 }, (_, index) => ({ id: `c${index}`, addresses: [`198.51.100.${index}`] }));
    await report(pods);
    expect(await list()).toHaveLength(200);
    await report(pods.slice(100));
    expect(await list()).toHaveLength(100);
  });

  test('go with the node, and with a report of an earlier session nothing changes', async () => {
    await report([{ id: 'a' }]);
    await expect(report([], 'node-1', generation + 1n)).rejects.toMatchObject({ code: 'SESSION_SUPERSEDED' });
    expect(await names()).toHaveLength(1);
    const request = { name: 'node-1', resourceVersion: '', force: true };
    await served.caller.peer.call(NodeServiceService.deleteNode, request, clientLimits());
    expect(await names()).toEqual([]);
  }, 60_000);
});

test('an address that is allocated to another pod is a finding', async () => {
  const address = await served.caller.allocateAddress('own', { nodeName: 'node-1' });
  await report([{ id: 'other', addresses: [address.replace('/32', '')] }]);
  expect(await findings()).toMatchObject([{ explanation: expect.stringContaining('is allocated to handle net.own') }]);
});

test('a container whose ID cannot be in a name holds up no other', async () => {
  await report([{ id: 'a-' }, { id: 'b' }]);
  expect(await names()).toEqual(['default/node--1-cni-b-eth0']);
});

test('a malformed report is refused with all faults', async () => {
  expect(await faultsOf(report([{ id: 'a', addresses: ['x'] }, { id: '-b' }], 'Node'))).toEqual([
    expect.stringContaining('node_name'),
    expect.stringContaining('endpoints[0].addresses[0].address'),
    expect.stringContaining('endpoints[1].attachment.container_id must begin with'),
  ]);
});
