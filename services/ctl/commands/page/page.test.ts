import { NodeServiceService, GetNodeStatusResponse } from '@podwire/proto/podwire/dataplane/v1/node';
import {
  ClusterServiceService,
  GetClusterInfoResponse,
  HttpResponse,
  NodeContact,
  NodeState,
} from '@podwire/proto/podwire/ipam/v1/cluster';
import { GetPolicyStatusResponse, NetworkPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/network_policy';
import { ListPoolsResponse, PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, expect, test } from 'vitest';

import type { PageData } from '../../page/data.js';
import { fake, fakeNode, Fakes, pool } from '../../testing/ctl.js';
import { addOf } from '../../testing/recent-commands.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

const commandsOf = (node: string, ...commands: ReturnType<typeof addOf>[]) => JSON.stringify({ node, commands });
const listPools = () => fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools: [pool] }));

/** Runs the command, reads its page, and ends it. */
async function pageOf(...args: readonly string[]): Promise<{ readonly data: PageData; readonly exitCode: number }> {
  const running = fakes.podwirectl('page', ...args);
  await expect.poll(() => fakes.written.stdout).toMatch(/^http:\/\/127\.0\.0\.1:\d+\/$/m);
  const response = await fetch(`${fakes.written.stdout.trim()}data.json`);
  const data: PageData = JSON.parse(await response.text());
  fakes.stopped.abort();
  return { data, exitCode: (await running).exitCode };
}

test('of a node: its ADDs, conditions and the pools, until Ctrl-C', async () => {
  const status = { conditions: [{ reason: 'ForwardDropped', message: 'a firewall drops' }] };
  await fakes.serve(
    fake(NodeServiceService.getNodeStatus, () => GetNodeStatusResponse.fromPartial(status)),
    listPools(),
  );
  await fakes.servePlugin(() => commandsOf('node-1', addOf(2), addOf(1)));
  const { data, exitCode } = await pageOf();
  expect(exitCode).toBe(0);
  expect(data).toMatchObject({ scope: 'Node node-1', adds: { addCount: 2 }, faults: [], problems: [], actions: [] });
  expect(data.tables.map(({ rows }) => rows[0]?.slice(0, 2))).toEqual([
    ['ForwardDropped', 'a firewall drops'],
    ['main', '10.65.0.0/16'],
  ]);
});

test('of a node without podwire-ipam: its ADDs and conditions', async () => {
  await fakes.serve(
    fake(NodeServiceService.getNodeStatus, () => GetNodeStatusResponse.fromPartial({})),
    fake(PoolServiceService.listPools, () => {
      throw new Failure('UNREACHABLE', 'podwire-ipam: no answer');
    }),
  );
  await fakes.servePlugin(() => commandsOf('node-1', addOf(1)));
  const { data } = await pageOf();
  expect(data).toMatchObject({ adds: { addCount: 1 }, faults: ['podwire-ipam: no answer (UNREACHABLE)'] });
  expect(data.tables.map(({ none }) => none)).toEqual(['conditions: none']);
});

test('of a cluster: problems, nodes, pools, and the ADDs of the nodes that are connected', async () => {
  const node = (name: string, contact: NodeContact) =>
    NodeState.fromPartial({ name, contact, report: { release: '0.1.0', ready: true, status: {} } });
  const nodes = [
    node('a', NodeContact.NODE_CONTACT_CONNECTED),
    node('b', NodeContact.NODE_CONTACT_CONNECTED),
    node('c', NodeContact.NODE_CONTACT_SILENT),
  ];
  const body = Buffer.from(commandsOf('a', addOf(2), addOf(1)));
  await fakes.serve(
    fake(ClusterServiceService.getClusterInfo, () => GetClusterInfoResponse.fromPartial({ store: 'etcd' })),
    fake(ClusterServiceService.listNodeStates, () => ({ nodes, nextPageToken: '' })),
    fake(NetworkPolicyServiceService.getPolicyStatus, () => GetPolicyStatusResponse.fromPartial({})),
    listPools(),
    fakeNode('a', () => HttpResponse.encode({ status: 200, body }).finish()),
  );
  const { data } = await pageOf('--cluster');
  expect(data).toMatchObject({
    scope: 'Cluster of 3 nodes',
    adds: { addCount: 2 },
    faults: [expect.stringContaining('there is no node "b"')],
  });
  expect(data.problems.map(({ object }) => object)).toContain('node c');
  expect(data.tables.map(({ rows }) => rows.map(([name]) => name))).toEqual([['a', 'b', 'c'], ['main']]);
});

test('of a cluster whose nodes fail with one reason: the reason once', async () => {
  const nodes = ['a', 'b'].map((name) =>
    NodeState.fromPartial({ name, contact: NodeContact.NODE_CONTACT_CONNECTED, report: { ready: true, status: {} } }),
  );
  await fakes.serve(
    fake(ClusterServiceService.getClusterInfo, () => GetClusterInfoResponse.fromPartial({ store: 'etcd' })),
    fake(ClusterServiceService.listNodeStates, () => ({ nodes, nextPageToken: '' })),
    fake(NetworkPolicyServiceService.getPolicyStatus, () => GetPolicyStatusResponse.fromPartial({})),
    listPools(),
    fakeNode('none', () => Buffer.alloc(0), new Failure('ACCESS_DENIED', 'a reader only reads')),
  );
  expect((await pageOf('--cluster')).data.faults).toEqual(['a reader only reads (ACCESS_DENIED)']);
});

test.each([
  [['--cluster', '--node', 'a'], 2, '--cluster: shows all nodes'],
  [['--port', '65536'], 2, '--port'],
  [[], 5, 'podwire-node'],
  [['--cluster'], 5, 'podwire-ipam'],
])('%j is refused before a page is served', async (args, exitCode, message) => {
  const result = await fakes.podwirectl('page', ...args);
  expect(result).toMatchObject({ exitCode, stdout: '', stderr: expect.stringContaining(message) });
});

test('a port that is in use is named', async () => {
  await fakes.serve(
    fake(NodeServiceService.getNodeStatus, () => GetNodeStatusResponse.fromPartial({})),
    listPools(),
  );
  await fakes.servePlugin(() => commandsOf('node-1'));
  const running = fakes.podwirectl('page');
  await expect.poll(() => fakes.written.stdout).toContain('http://');
  const port = new URL(fakes.written.stdout.trim()).port;
  const second = await fakes.podwirectl('page', '--port', port);
  expect(second).toMatchObject({ exitCode: 2, stderr: expect.stringContaining(`--port ${port}: listen EADDRINUSE`) });
  fakes.stopped.abort();
  await running;
});
