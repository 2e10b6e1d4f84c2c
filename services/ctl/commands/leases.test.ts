import { GetHandleResponse, HandleServiceService, ListHandlesResponse } from '@podwire/proto/podwire/ipam/v1/handle';
import { LeaseServiceService } from '@podwire/proto/podwire/ipam/v1/lease';
import { GetNodeResponse, NodeServiceService } from '@podwire/proto/podwire/ipam/v1/node';
import { ListPoolsResponse, PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { fake, Fakes, pool } from '../testing/ctl.js';

let fakes: Fakes;
/** Handles whose leases were returned. */
let returned: readonly string[];
beforeEach(async () => {
  returned = [];
  fakes = new Fakes();
  await fakes.serve(
    fake(HandleServiceService.listHandles, () =>
      // A service of a release without the prefix also lists other handles.
      ListHandlesResponse.fromPartial({ handles: [...Object.keys(HELD), 'net.c1'].map((handleId) => ({ handleId })) }),
    ),
    fake(HandleServiceService.getHandle, ({ handleId }) => {
      const addresses = returned.includes(handleId) ? undefined : HELD[handleId];
      if (!addresses) throw new Failure('HANDLE_NOT_FOUND', 'none');
      return GetHandleResponse.fromPartial({ addresses });
    }),
    fake(LeaseServiceService.recallLeases, () => ({ recalled: true })),
    fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools: [pool] })),
    fake(NodeServiceService.getNode, ({ name }) => {
      if (name !== 'node-3') throw new Failure('NODE_NOT_FOUND', 'there is no such node');
      return GetNodeResponse.fromPartial({ node: { name } });
    }),
  );
});
afterEach(() => fakes.clear());

const attributes = {
  type: 'podwireLease',
  'boot-id': 'b-1',
  timestamp: '2026-11-23 12:58:07.962 +0000 UTC',
};
const HELD: Readonly<Record<string, GetHandleResponse['addresses']>> = {
  'podwire-lease.node-1': [
    { address: '10.65.0.1', blockCidr: '10.65.0.0/26', sequenceNumber: 7n, attributes },
    { address: 'fd65::1', blockCidr: 'fd65::/122', sequenceNumber: 8n, attributes },
  ],
  'podwire-lease.node-2': [{ address: '10.65.0.65', blockCidr: '10.65.0.64/26', sequenceNumber: 9n, attributes }],
};

test('leases of all nodes have their pool and time, and a count per node', async () => {
  const { exitCode, stdout } = await fakes.podwirectl('leases');
  expect(exitCode).toBe(0);
  expect(stdout).toMatch(/^node-1 +IPv4 +10\.65\.0\.1 +main +2026-11-23T12:58:07Z$/m);
  expect(stdout).toMatch(/^node-1 +IPv6 +fd65::1 +- +2026-11-23T12:58:07Z$/m);
  expect(stdout).toMatch(/^3 leased addresses on 2 nodes: node-1 2, node-2 1$/m);
  expect(fakes.calls.filter(({ method }) => method !== 'ListPools').map(({ request }) => request)).toMatchObject([
    { prefix: 'podwire-lease.' },
    { handleId: 'podwire-lease.node-1' },
    { handleId: 'podwire-lease.node-2' },
  ]);
});

test('leases of one node are read by its handle; -o wide has block, sequence number and boot', async () => {
  const { stdout } = await fakes.podwirectl('leases', '--node', 'node-2', '-o', 'wide');
  expect(stdout).toMatch(/^node-2 +IPv4 +10\.65\.0\.65 +main +\S+ +10\.65\.0\.64\/26 +9 +b-1$/m);
  expect(stdout).toMatch(/^1 leased address on 1 node: node-2 1$/m);
  expect(fakes.calls.map(({ method }) => method)).toEqual(['GetHandle', 'ListPools']);
});

test('-o json has the answers of podwire-ipam by node', async () => {
  const { stdout } = await fakes.podwirectl('leases', '--node', 'node-2', '-o', 'json');
  expect(JSON.parse(stdout)).toMatchObject({
    nodes: [{ node: 'node-2', leases: { addresses: [{ address: '10.65.0.65', attributes: { 'boot-id': 'b-1' } }] } }],
  });
});

describe('leases return', () => {
  const asked = () => fakes.calls.filter(({ method }) => method === 'RecallLeases').map(({ request }) => request);

  test('asks each node, and waits until it has returned its leases', async () => {
    let waits = 0;
    fakes.sleep = () => {
      waits += 1;
      if (waits === 3) returned = ['podwire-lease.node-1', 'podwire-lease.node-2'];
      return Promise.resolve('elapsed');
    };
    const { exitCode, stdout } = await fakes.podwirectl('leases', 'return');
    expect({ exitCode, stdout, waits }).toEqual({
      exitCode: 0,
      stdout: 'returned 3 leased addresses on 2 nodes: node-1 2, node-2 1\n',
      waits: 3,
    });
    expect(asked()).toEqual([{ nodeName: 'node-1' }, { nodeName: 'node-2' }]);
  });

  test('names the leases of nodes that do not answer', async () => {
    fakes.sleep = () => Promise.resolve('elapsed');
    const { exitCode, stdout } = await fakes.podwirectl('leases', 'return', '--node', 'node-2');
    expect(exitCode).toBe(1);
    expect(stdout).toMatch(/^not returned: 1 leased address on 1 node: node-2 1; start podwire-node/);
    expect(asked()).toEqual([{ nodeName: 'node-2' }]);
  });

  test('does nothing where no node has leases', async () => {
    returned = Object.keys(HELD);
    expect(await fakes.podwirectl('leases', 'return')).toMatchObject({ exitCode: 0, stdout: 'leases: none\n' });
    expect(asked()).toEqual([]);
  });
});

test('a node without leases is distinguished from one that does not exist', async () => {
  expect(await fakes.podwirectl('leases', '--node', 'node-3')).toMatchObject({ exitCode: 0, stdout: 'leases: none\n' });
  expect(await fakes.podwirectl('leases', '--node', 'typo')).toMatchObject({
    exitCode: 3,
    stderr: expect.stringContaining('there is no such node (NODE_NOT_FOUND)'),
  });
});
