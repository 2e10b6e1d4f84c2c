import { once } from 'node:events';

import { GetNodeStatusResponse, NodeServiceService } from '@podwire/proto/podwire/dataplane/v1/node';
import {
  ClusterServiceService,
  HttpResponse,
  type CallNodeResponse,
  type NodeRequest,
} from '@podwire/proto/podwire/ipam/v1/cluster';
import { Failure } from '@podwire/shared/failure/failure';
import type { Streaming } from '@podwire/shared/rpc/streaming';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { fakeNode, Fakes } from '../testing/ctl.js';

let fakes: Fakes;
let requests: NodeRequest[];

beforeEach(() => {
  fakes = new Fakes();
  requests = [];
});
afterEach(() => fakes.clear());

function serve(answer: (request: NodeRequest) => Uint8Array): Promise<void> {
  const node = fakeNode('node-7', (request) => {
    requests.push(request);
    return answer(request);
  });
  return fakes.serve(node);
}

const http = (status: number, body: object): Uint8Array =>
  HttpResponse.encode({ status, body: Buffer.from(JSON.stringify(body)) }).finish();

test('--node calls the dataplane of another node through podwire-ipam', async () => {
  const status = GetNodeStatusResponse.fromPartial({ nodeName: 'node-7', routing: 'native' });
  await serve(() => GetNodeStatusResponse.encode(status).finish());
  const { exitCode, stdout } = await fakes.podwirectl('node', 'status', '--node', 'node-7');
  expect(exitCode).toBe(0);
  expect(stdout).toMatch(/^Node +node-7$/m);
  expect(requests.map(({ path }) => path)).toEqual([NodeServiceService.getNodeStatus.path]);
});

test('--node calls the server of CNI commands of another node', async () => {
  await serve(() => http(200, { entries: [], unreadable: [], fault: null }));
  const { exitCode, stdout } = await fakes.podwirectl('journal', '--node', 'node-7');
  expect([exitCode, stdout]).toEqual([0, 'pending releases: none\n']);
  expect(requests).toMatchObject([{ httpMethod: 'GET', path: '/journal' }]);
});

test('a refusal of the server of CNI commands names the node', async () => {
  await serve(() => http(500, { msg: 'broken' }));
  const { exitCode, stderr } = await fakes.podwirectl('journal', '--node', 'node-7');
  expect(exitCode).toBe(1);
  expect(stderr).toContain(
    `podwire-node at node node-7 through unix:${fakes.socket}: GET /journal: answered 500: broken`,
  );
});

test.each([
  [new Failure('NODE_NOT_FOUND', 'there is no node'), 3],
  [new Failure('UNREACHABLE', 'it is not connected'), 5],
  [new Failure('ACCESS_DENIED', 'not for operators'), 1],
])('a failure of the way to the node is the failure of the command: %s', async (failure, expected) => {
  await serve(() => {
    throw failure;
  });
  const { exitCode, stderr } = await fakes.podwirectl('node', 'status', '--node', 'node-7');
  expect(exitCode).toBe(expected);
  expect(stderr).toContain(`node status failed: ${failure.message} (${failure.code})`);
});

test('a podwire-ipam that does not end the call is reported', async () => {
  const { callNode } = ClusterServiceService;
  const silent = async function* (): AsyncGenerator<CallNodeResponse> {
    await once(fakes.stopped.signal, 'abort');
    yield { part: Buffer.alloc(0) };
  };
  const handler = ({ streaming }: { readonly streaming: Streaming }) => streaming(callNode, silent);
  await fakes.serve({ path: callNode.path, definition: { CallNode: callNode }, handler });
  fakes.after = (_, act) => {
    const timer = setTimeout(act, 10);
    return () => clearTimeout(timer);
  };
  const { exitCode, stderr } = await fakes.podwirectl('node', 'status', '--node', 'node-7');
  expect(exitCode).toBe(5);
  expect(stderr).toContain(`podwire-ipam at unix:${fakes.socket}: no answer in time`);
});
