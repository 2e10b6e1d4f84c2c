import { Server, ServerCredentials, ServerInterceptingCall } from '@grpc/grpc-js';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { Failure } from '../failure/failure.js';
import { TestServers, GET_POOL, pool, callLimits } from '../testing/server.js';

let servers: TestServers;

beforeEach(() => {
  servers = new TestServers();
});

/** A server that counts the calls that reach it, those with a request, and those that ended, in any way. */
const serveNoting = async () => {
  const asked: string[] = [];
  const noted = { opened: 0, ended: 0, asked };
  const server = new Server({
    interceptors: [
      (_, next) =>
        new ServerInterceptingCall(next, {
          start: (started) => {
            noted.opened += 1;
            started({ onCancel: () => void (noted.ended += 1) });
          },
        }),
    ],
  });
  const answer = ({ request }: { readonly request: { readonly name: string } }, reply: Reply) => {
    asked.push(request.name);
    reply(null, { pool: pool(request.name) });
  };
  server.addService({ getPool: GET_POOL }, { getPool: answer });
  const address = `unix:${servers.folder}/noting.sock`;
  await new Promise((resolve) => server.bindAsync(address, ServerCredentials.createInsecure(), resolve));
  ends.push(() => server.forceShutdown());
  return { noted, address, server };
};
type Reply = (error: null, value: { readonly pool: ReturnType<typeof pool> }) => void;
const ends: (() => void)[] = [];

/** Of `preopened-call.ts`. */
const MAX_OPEN_MS = 250;

/** From here on a call expires when the test says so, however long this machine takes to get it to the server. */
const holdTimers = () => vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });

afterEach(async () => {
  vi.useRealTimers();
  ends.splice(0).forEach((end) => end());
  await servers.clear();
});

test('an opened call reaches the server, which answers its request', async () => {
  const { noted, address } = await serveNoting();
  holdTimers();
  const opened = servers.peer(address).open(GET_POOL, callLimits());
  await expect.poll(() => noted).toEqual({ opened: 1, ended: 0, asked: [] });
  await expect(opened.send({ name: 'a' }, callLimits())).resolves.toMatchObject({ pool: { name: 'a' } });
  opened.close();
  expect(noted).toMatchObject({ opened: 1, asked: ['a'] });
});

test('a call is made with its request when that follows at once, and at each later time', async () => {
  const { noted, address } = await serveNoting();
  const opened = servers.peer(address).open(GET_POOL, callLimits());
  await Promise.all(['a', 'b'].map((name) => opened.send({ name }, callLimits())));
  await opened.send({ name: 'c' }, callLimits());
  expect(noted).toMatchObject({ opened: 3, asked: ['a', 'b', 'c'] });
});

test('a closed call has sent no request', async () => {
  const { noted, address } = await serveNoting();
  holdTimers();
  const opened = servers.peer(address).open(GET_POOL, callLimits());
  await expect.poll(() => noted.opened).toBe(1);
  opened.close();
  opened.close();
  await expect.poll(() => noted.ended).toBe(1);
  const unopened = servers.peer(address).open(GET_POOL, callLimits());
  unopened.close();
  await new Promise((resolve) => setImmediate(resolve));
  expect(noted).toEqual({ opened: 1, ended: 1, asked: [] });
});

test('an expired call is closed, and its request is a new call', async () => {
  const { noted, address } = await serveNoting();
  holdTimers();
  const opened = servers.peer(address).open(GET_POOL, callLimits());
  await expect.poll(() => noted).toEqual({ opened: 1, ended: 0, asked: [] });
  vi.advanceTimersByTime(MAX_OPEN_MS);
  await expect.poll(() => noted).toEqual({ opened: 1, ended: 1, asked: [] });
  vi.useRealTimers();
  await expect(opened.send({ name: 'a' }, callLimits())).resolves.toBeDefined();
  await expect.poll(() => noted).toEqual({ opened: 2, ended: 2, asked: ['a'] });
});

test('a call that has failed meanwhile is replaced', async () => {
  const { noted, address, server } = await serveNoting();
  holdTimers();
  const peer = servers.peer(address);
  const opened = peer.open(GET_POOL, callLimits());
  await expect.poll(() => noted.opened).toBe(1);
  vi.useRealTimers();
  server.forceShutdown();
  await expect.poll(() => noted.ended).toBe(1);
  const again = await serveNoting();
  await expect(opened.send({ name: 'a' }, callLimits())).resolves.toMatchObject({ pool: { name: 'a' } });
  expect(again.noted.asked).toEqual(['a']);
});

test('a failed call fails like every call', async () => {
  await servers.serve({ getPool: () => Promise.reject(new Failure('POOL_NOT_FOUND', 'no such pool')) });
  const peer = servers.peer();
  const opened = peer.open(GET_POOL, callLimits());
  await new Promise((resolve) => setTimeout(resolve, 20));
  await expect(opened.send({ name: 'a' }, callLimits())).rejects.toMatchObject({ code: 'POOL_NOT_FOUND' });
  const late = peer.open(GET_POOL, callLimits());
  await new Promise((resolve) => setTimeout(resolve, 20));
  peer.close();
  await expect(late.send({ name: 'a' }, callLimits())).rejects.toMatchObject({ code: 'CANCELLED' });
  await expect(peer.open(GET_POOL, callLimits()).send({ name: 'a' }, callLimits())).rejects.toMatchObject({
    code: 'CANCELLED',
  });
});

test('opening a call does not fail when the channel was closed before', async () => {
  const { noted, address } = await serveNoting();
  const peer = servers.peer(address);
  const opened = peer.open(GET_POOL, callLimits());
  peer.close();
  // An error thrown there would have no caller, and end the process.
  await new Promise((resolve) => setImmediate(resolve));
  await expect(opened.send({ name: 'a' }, callLimits())).rejects.toMatchObject({ code: 'CANCELLED' });
  expect(noted.opened).toBe(0);
});

test('a call ends when its caller cancels', async () => {
  await servers.serve({ getPool: () => new Promise(() => undefined) });
  const opened = servers.peer().open(GET_POOL, callLimits());
  await new Promise((resolve) => setTimeout(resolve, 20));
  const limits = { ...callLimits(), signal: AbortSignal.timeout(50) };
  await expect(opened.send({ name: 'a' }, limits)).rejects.toMatchObject({ code: 'CANCELLED' });
});
