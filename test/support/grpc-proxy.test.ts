import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { callLimits, echoPool, Gate, GET_POOL, TestServers } from '@podwire/shared/testing/server';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { GrpcProxy } from './grpc-proxy.js';

describe('a proxy of gRPC', () => {
  let servers: TestServers;
  let proxy: GrpcProxy;
  let path: string;

  const call = (name: string) => servers.peer(`unix:${path}`).call(GET_POOL, { name }, callLimits());

  beforeEach(async () => {
    servers = new TestServers();
    path = join(servers.folder, 'proxy.sock');
    proxy = await GrpcProxy.start(path, servers.address().replace('unix:', ''));
  });

  afterEach(async () => {
    await proxy.close();
    await servers.clear();
  });

  it('passes answers and failures', async () => {
    const refuse = () => Promise.reject(new Failure('POOL_NOT_FOUND', 'pool "b" does not exist'));
    await servers.serve({
      getPool: (request, context) => (request.name === 'b' ? refuse() : echoPool(request, context)),
    });
    await expect(call('a')).resolves.toMatchObject({ pool: { name: 'a' } });
    await expect(call('b')).rejects.toMatchObject({ code: 'POOL_NOT_FOUND' });
  });

  it('loses the answers of calls that begin once the method is answerless, until it cuts them', async () => {
    const executed: string[] = [];
    const [begun, answer, lost] = [new Gate(), new Gate(), new Gate()];
    await servers.serve({
      getPool: async (request, context) => {
        executed.push(request.name);
        if (request.name === 'in flight') begun.open();
        if (request.name === 'in flight') await answer.opened;
        if (request.name === 'lost') lost.open();
        return echoPool(request, context);
      },
    });
    const inFlight = call('in flight');
    await begun.opened;
    proxy.answerless = new Set([GET_POOL.path]);
    answer.open();
    await expect(inFlight).resolves.toMatchObject({ pool: { name: 'in flight' } });
    const failed = expect(call('lost')).rejects.toMatchObject({ code: 'UNREACHABLE' });
    await lost.opened;
    proxy.answerless = new Set();
    proxy.cut();
    await failed;
    await expect(call('later')).resolves.toMatchObject({ pool: { name: 'later' } });
    expect(executed).toEqual(['in flight', 'lost', 'later']);
  });
});
