import { DryRunServiceService } from '@podwire/proto/podwire/ipam/v1/dry_run';
import { ConfigServiceService, UpdateConfigRequest } from '@podwire/proto/podwire/ipam/v1/config';
import {
  CreatePoolRequest,
  CreatePoolResponse,
  DeletePoolRequest,
  DeletePoolResponse,
  PoolServiceService,
} from '@podwire/proto/podwire/ipam/v1/pool';
import { beforeEach, expect, test } from 'vitest';

import { clientLimits, failureOf, servedForEachTest } from '../testing/service.js';

const served = servedForEachTest();

const { createPool, deletePool } = PoolServiceService;

const dryRun = async ({ path }: { readonly path: string }, request: Uint8Array): Promise<Buffer> => {
  const message = { path, request: Buffer.from(request) };
  return (await served.caller.peer.call(DryRunServiceService.dryRun, message, clientLimits())).response;
};

const creation = (name: string, cidr: string) =>
  dryRun(createPool, CreatePoolRequest.encode(CreatePoolRequest.fromPartial({ pool: { name, cidr } })).finish());

const listed = async () => (await served.caller.listPools()).pools.map(({ name }) => name);

let logBefore: string;
beforeEach(() => {
  logBefore = served.place.log;
});

test('a dry run answers as the call would, stores nothing and logs nothing', async () => {
  const { pool } = CreatePoolResponse.decode(await creation('web', '10.66.0.0/16'));
  expect(pool).toMatchObject({ name: 'web', blockSize: 26, resourceVersion: expect.stringMatching(/^[0-9a-f]{16}$/) });
  const request = DeletePoolRequest.encode(DeletePoolRequest.fromPartial({ name: 'default' })).finish();
  expect(DeletePoolResponse.decode(await dryRun(deletePool, request))).toMatchObject({ state: 0, heldAddresses: 0n });
  expect(await listed()).toEqual(['default']);
  expect(served.place.log).toBe(logBefore);
});

test('a dry run fails as the call would', async () => {
  expect(await failureOf(creation('web', '10.65.0.0/25'))).toMatchObject({ code: 'POOL_OVERLAP' });
  expect(await failureOf(creation('default', '10.66.0.0/16'))).toMatchObject({ code: 'POOL_EXISTS' });
  const request = UpdateConfigRequest.encode(UpdateConfigRequest.fromPartial({ resourceVersion: '1'.repeat(16) }));
  const failure = await failureOf(dryRun(ConfigServiceService.updateConfig, request.finish()));
  expect(failure).toMatchObject({ code: 'STALE_VERSION' });
});

test('a dry run of another method, or of bytes that are no message, is refused', async () => {
  for (const path of ['', '/podwire.ipam.v1.ClusterService/CallNode', DryRunServiceService.dryRun.path])
    expect(await failureOf(dryRun({ path }, Buffer.alloc(0)))).toMatchObject({ code: 'INVALID_REQUEST' });
  expect(await failureOf(dryRun(createPool, Buffer.from([0x0a, 0xff])))).toMatchObject({
    code: 'INVALID_REQUEST',
    message: expect.stringContaining('cannot be decoded'),
  });
});
