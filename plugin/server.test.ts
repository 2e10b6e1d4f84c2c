import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { request as httpRequest, type RequestOptions } from 'node:http';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';

import { Failure } from '@podwire/shared/failure/failure';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import type { CniRequest } from './requests/request.js';
import type { CniAnswer } from './run.js';
import { CniServer } from './server.js';
import { recordingLog } from './testing/plugin.js';

const MAX_BODY_BYTES = 4 * 1024 * 1024;
/** Longer than a busy machine takes to send a request, and shorter for requests that never complete. */
const PATIENT_MS = 30_000;
const HASTY_MS = 300;

const ARRIVED_NS = 1_700_000_000_000_000_123n;

let folder: string;
let path: string;
let server: CniServer;
let requests: CniRequest[];
let answer: (request: CniRequest) => Promise<CniAnswer>;
let record: ReturnType<typeof recordingLog>;
let clock: ManualClock;
let journal: { content: string; retried: number; refusal?: Error };
let activity: string[];

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-server-'));
  path = join(folder, 'cni.sock');
  requests = [];
  activity = [];
  clock = new ManualClock();
  journal = { content: 'two', retried: 0 };
  record = recordingLog();
  answer = () => Promise.resolve({ exitCode: 0, stdout: '{}\n' });
  server = serverWith(PATIENT_MS);
  await server.listen();
});

let shortage: Failure | undefined;

function serverWith(requestTimeoutMs: number): CniServer {
  return new CniServer({
    path,
    log: record.log,
    clock,
    commands: () => 'ten',
    journal: {
      text: () => journal.content,
      retry: async () => {
        journal.retried++;
        await Promise.resolve();
        journal.content = 'one';
      },
      discard: async (asked) => {
        await Promise.resolve();
        if (journal.refusal) throw journal.refusal;
        return `discarded ${asked}`;
      },
    },
    nowNs: () => ARRIVED_NS,
    requestTimeoutMs,
    drainTimeoutMs: 1_000_000_000,
    onDrained: () => undefined,
    activity: { busy: () => activity.push('busy'), idle: () => activity.push('idle') },
    shortage: () => shortage,
    run: async (request, sendAnswer) => {
      requests.push(request);
      sendAnswer(await answer(request));
    },
  });
}

afterEach(async () => {
  await server.stop();
  rmSync(folder, { recursive: true });
});

function send(body: Buffer | string = '{}', options: RequestOptions = {}) {
  return new Promise<{ status: number | undefined; headers: object; body: string }>((resolve, reject) => {
    const request = httpRequest({ socketPath: path, method: 'POST', path: '/cni', ...options }, (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (chunk: string) => (text += chunk));
      response.on('end', () => resolve({ status: response.statusCode, headers: response.headers, body: text }));
    });
    request.on('error', reject).end(body);
  });
}

/** Sends bytes and returns the answer until the connection ends. */
function sendRaw(bytes: string): Promise<string> {
  return new Promise((resolve, reject) => {
    let text = '';
    const socket = connect(path, () => socket.write(bytes));
    socket.setEncoding('utf8').on('data', (chunk: string) => (text += chunk));
    socket.on('end', () => resolve(text)).on('error', reject);
  });
}

describe('POST /cni', () => {
  test('passes variables, configuration, trace context and times to the command', async () => {
    const headers = {
      'CNI-Command': 'ADD',
      'CNI-ContainerID': 'c',
      'CNI-Netns': Buffer.from('/run/netns/größe').toString('latin1'),
      'CNI-IfName': 'eth0',
      'CNI-Args': 'A=B',
      'CNI-Path': '/opt',
      'CNI-Plugin': 'podwire',
      'CNI-Exec-Time': '1700000000000000000',
      'Podwire-Release': '7',
      'Podwire-Later': 'a field of a later shim',
      traceparent: 't',
      tracestate: 's',
      baggage: 'b',
    };
    expect(await send(Buffer.from('{"a":"ä"}'), { headers })).toMatchObject({
      status: 200,
      headers: { 'content-type': 'application/json', connection: 'close' },
      body: '{}\n',
    });
    expect(requests).toEqual([
      {
        plugin: 'podwire',
        shimRelease: '7',
        variables: {
          CNI_COMMAND: 'ADD',
          CNI_CONTAINERID: 'c',
          CNI_NETNS: '/run/netns/größe',
          CNI_IFNAME: 'eth0',
          CNI_ARGS: 'A=B',
          CNI_PATH: '/opt',
        },
        overridesNetns: false,
        configuration: '{"a":"ä"}',
        traceContext: { traceparent: 't', tracestate: 's', baggage: 'b' },
        isStrict: false,
        startedNs: 1_700_000_000_000_000_000n,
        arrivedNs: ARRIVED_NS,
        cancel: expect.any(AbortController),
      },
    ]);
    expect(requests[0]!.cancel.signal.aborted).toBe(false);
  });

  test.each(['', '-1', '1e9', '9'.repeat(21), 'x'])('ignores the exec time %j', async (execTime) => {
    await send('{}', { headers: { 'CNI-Exec-Time': execTime } });
    expect(requests[0]!.startedNs).toBeUndefined();
  });

  test.each([
    ['1', true],
    ['True', true],
    ['0', false],
    ['yes', false],
  ])('reads CNI_NETNS_OVERRIDE=%s like Go’s plugins', async (text, overrides) => {
    await send('{}', { headers: { 'CNI-Netns-Override': text } });
    expect(requests[0]!.overridesNetns).toBe(overrides);
  });

  test('answers a failed command with its error object under another status', async () => {
    answer = () => Promise.resolve({ exitCode: 1, stdout: '{"code":7}\n' });
    expect(await send()).toMatchObject({ status: 500, body: '{"code":7}\n' });
  });

  test('answers an empty result with an empty body', async () => {
    answer = () => Promise.resolve({ exitCode: 0, stdout: '' });
    expect(await send()).toMatchObject({ status: 200, headers: { 'content-length': '0' }, body: '' });
  });

  test('cancels the command when its caller disconnects', async () => {
    const cancelled = vi.fn();
    answer = ({ cancel }) =>
      new Promise((resolve) => {
        cancel.signal.addEventListener('abort', () => {
          cancelled(cancel.signal.reason);
          resolve({ exitCode: 1, stdout: '{}' });
        });
      });
    const socket = connect(path, () => socket.write('POST /cni HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}'));
    await vi.waitFor(() => expect(requests).toHaveLength(1), { timeout: 20_000 });
    socket.destroy();
    await vi.waitFor(() => expect(cancelled).toHaveBeenCalledWith(expect.any(Failure)), { timeout: 20_000 });
  });

  test('answers a command that throws, and logs it', async () => {
    answer = () => Promise.reject(new TypeError('secret'));
    const { status, body } = await send();
    expect(status).toBe(500);
    expect(JSON.parse(body)).toMatchObject({ code: 999, msg: expect.not.stringContaining('secret') });
    expect(record.lines()).toContainEqual(
      expect.objectContaining({ err: expect.objectContaining({ message: 'secret' }) }),
    );
  });
});

describe('a refused request, after which the server continues', () => {
  afterEach(async () => {
    expect(requests).toEqual([]);
    expect(await send('', { method: 'GET', path: '/healthz' })).toMatchObject({ status: 200, body: 'ok\n' });
  });

  test('with a configuration that is too large, read to its end', async () => {
    const { status, body } = await send(Buffer.alloc(MAX_BODY_BYTES + 1, ' '));
    expect(status).toBe(400);
    expect(JSON.parse(body)).toMatchObject({ code: 7, msg: expect.stringContaining(String(MAX_BODY_BYTES)) });
  });

  test('with a configuration that is not UTF-8', async () => {
    const { status, body } = await send(Buffer.from([0x7b, 0xff, 0x7d]));
    expect(status).toBe(400);
    expect(JSON.parse(body)).toMatchObject({ code: 6 });
  });

  test.each([
    ['GET', '/cni'],
    ['POST', '/'],
    ['POST', '/cni/'],
    ['DELETE', '/healthz'],
  ])('%s %s', async (method, url) => {
    const { status, body } = await send('', { method, path: url });
    expect(status).toBe(404);
    expect(JSON.parse(body)).toMatchObject({ msg: expect.stringContaining('POST /cni') });
  });

  const expectRefusal = async (bytes: string) => {
    const [head, body] = (await sendRaw(bytes)).split('\r\n\r\n');
    expect(head).toMatch(/^HTTP\/1\.1 400 /);
    expect(JSON.parse(body!)).toMatchObject({ cniVersion: '1.1.0', code: 7 });
  };

  test.each([
    ['bytes that are not HTTP', '\u0000\u0001garbage\r\n\r\n'],
    ['a head that is too large', `POST /cni HTTP/1.1\r\nHost: x\r\nCNI-Args: ${'x'.repeat(20_000)}\r\n\r\n`],
    ['two lengths', 'POST /cni HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}'],
  ])('%s', async (_, bytes) => {
    await expectRefusal(bytes);
  });

  test.each([
    ['a body that never ends', 'POST /cni HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{'],
    ['a head that never ends', 'POST /cni HTTP/1.1\r\nHost: x\r\n'],
  ])('%s', async (_, bytes) => {
    await server.stop();
    server = serverWith(HASTY_MS);
    await server.listen();
    await expectRefusal(bytes);
    // A request that takes longer is refused as well.
    await expect.poll(async () => (await send('', { method: 'GET', path: '/healthz' })).status).toBe(200);
    await server.stop();
    server = serverWith(PATIENT_MS);
    await server.listen();
  });

  test('on a connection that ends in the middle of it', async () => {
    const socket = connect(path, () => {
      socket.write('POST /cni HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{');
      socket.destroy();
    });
    await new Promise((resolve) => socket.once('close', resolve));
  });
});

test('a configuration of the largest size is accepted', async () => {
  expect(await send(Buffer.alloc(MAX_BODY_BYTES, ' '))).toMatchObject({ status: 200 });
  expect(requests[0]!.configuration).toHaveLength(MAX_BODY_BYTES);
});

test('a command that takes long has interim responses, by which the shim knows that the process works', async () => {
  let letGo: (value: CniAnswer) => void = () => undefined;
  answer = () => new Promise((resolve) => (letGo = resolve));
  const interims: number[] = [];
  const response = new Promise<number | undefined>((resolve, reject) => {
    const request = httpRequest({ socketPath: path, method: 'POST', path: '/cni' }, (received) => {
      received.resume().on('end', () => resolve(received.statusCode));
    });
    request
      .on('information', ({ statusCode }) => interims.push(statusCode))
      .on('error', reject)
      .end('{}');
  });
  await vi.waitFor(() => expect(requests).toHaveLength(1), { interval: 1, timeout: 20_000 });
  for (let count = 1; count <= 2; count++) {
    clock.advance(5_000);
    await vi.waitFor(() => expect(interims).toHaveLength(count), { interval: 1, timeout: 20_000 });
  }
  letGo({ exitCode: 0, stdout: '{}' });
  expect(await response).toBe(200);
  expect(interims).toEqual([102, 102]);
});

test('stopping waits for commands whose caller disconnected', async () => {
  const end = vi.fn();
  answer = async ({ cancel }) => {
    await new Promise((resolve) => cancel.signal.addEventListener('abort', resolve));
    await new Promise((resolve) => setTimeout(resolve, 30));
    end();
    return { exitCode: 1, stdout: '{}' };
  };
  const socket = connect(path, () => socket.write('POST /cni HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}'));
  await vi.waitFor(() => expect(requests).toHaveLength(1), { timeout: 20_000 });
  socket.destroy();
  await server.stop();
  expect(end).toHaveBeenCalledOnce();
  await server.listen();
});

describe('a missing socket file', () => {
  const healthz = () => send('', { method: 'GET', path: '/healthz' });
  const looked = async (sleeping = 1) => {
    await vi.waitFor(() => expect(clock.sleeping).toBe(sleeping), { interval: 1, timeout: 20_000 });
    clock.advance(1_000);
  };

  test('is created again after its directory was cleaned, and a command in flight is answered', async () => {
    let letGo: (value: CniAnswer) => void = () => undefined;
    answer = () => new Promise((resolve) => (letGo = resolve));
    const inFlight = send();
    await vi.waitFor(() => expect(requests).toHaveLength(1), { interval: 1, timeout: 20_000 });
    rmSync(path);
    await expect(healthz()).rejects.toMatchObject({ code: 'ENOENT' });
    // The command in flight has a timer, too.
    await looked(2);
    await vi.waitFor(async () => expect((await healthz()).status).toBe(200), { interval: 5, timeout: 20_000 });
    expect(statSync(path).mode & 0o777).toBe(0o600);
    letGo({ exitCode: 0, stdout: 'late' });
    expect(await inFlight).toMatchObject({ status: 200, body: 'late' });
    expect(record.lines().map(({ msg }) => msg)).toContainEqual(expect.stringContaining('was deleted'));
  });
});

test('notifies its listener when no request is in flight any more', async () => {
  let answerFirst: (answer: CniAnswer) => void = () => undefined;
  answer = () => new Promise((resolve) => (answerFirst = resolve));
  const first = send();
  await expect.poll(() => requests.length).toBe(1);
  answer = () => Promise.resolve({ exitCode: 0, stdout: '' });
  await send();
  expect(activity).toEqual(['busy', 'busy']);
  answerFirst({ exitCode: 0, stdout: '' });
  await first;
  await expect.poll(() => activity).toEqual(['busy', 'busy', 'idle']);
});

test('a second resident is refused with the remedy, and the first one continues', async () => {
  const second = new CniServer({
    path,
    log: record.log,
    clock,
    commands: () => '',
    journal: { text: () => '', retry: () => Promise.resolve(), discard: () => Promise.resolve('') },
    nowNs: () => ARRIVED_NS,
    requestTimeoutMs: PATIENT_MS,
    drainTimeoutMs: 1_000_000_000,
    onDrained: () => undefined,
    shortage: () => shortage,
    run: (_, sendAnswer) => {
      sendAnswer({ exitCode: 1, stdout: 'second' });
      return Promise.resolve();
    },
  });
  await expect(second.listen()).rejects.toMatchObject({
    code: 'INVALID_SETTINGS',
    message: expect.stringMatching(/another process listens there; stop it first/),
  });
  expect(await send()).toMatchObject({ status: 200, body: '{}\n' });
});

test('connections made before the socket was removed are answered', async () => {
  const sent = Array.from({ length: 20 }, () => send());
  await new Promise((resolve) => setImmediate(resolve));
  await server.stop();
  const answers = await Promise.allSettled(sent);
  const refused = answers.filter((each) => each.status === 'rejected').map((each): unknown => each.reason.code);
  expect(refused.filter((code) => code !== 'ENOENT')).toEqual([]);
});

test('a burst of connections in the accept queue is answered', async () => {
  const count = 40;
  const made = new Int32Array(new SharedArrayBuffer(4));
  const burst = new Worker(
    `const { connect } = require('node:net');
     const { parentPort, workerData: { path, count, made } } = require('node:worker_threads');
     const answers = [];
     for (let i = 0; i < count; i++) {
       let text = '';
       const socket = connect(path, () => {
         socket.write('POST /cni HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 2\\r\\n\\r\\n{}');
         Atomics.add(made, 0, 1);
         Atomics.notify(made, 0);
       });
       socket.on('data', (chunk) => (text += chunk)).on('error', (error) => (text += error.code));
       socket.on('close', () => answers.push(text.slice(0, 12)) === count && parentPort.postMessage(answers));
     }`,
    { eval: true, workerData: { path, count, made } },
  );
  const answers = new Promise((resolve) => burst.once('message', resolve));
  // Nothing is accepted meanwhile, as on a machine that is too busy.
  for (let seen = 0; seen < count; seen = Atomics.load(made, 0)) Atomics.wait(made, 0, seen);
  // A silent connection has half a second; the clock skips it.
  const hurry = setInterval(() => clock.advance(500), 0);
  await server.stop();
  clearInterval(hurry);
  expect(await answers).toEqual(Array.from({ length: count }, () => 'HTTP/1.1 200'));
  await burst.terminate();
});

test('the journal can be listed and retried', async () => {
  expect(await send('', { method: 'GET', path: '/commands' })).toMatchObject({ status: 200, body: 'ten' });
  expect(await send('', { method: 'GET', path: '/journal' })).toMatchObject({ status: 200, body: 'two' });
  expect(journal.retried).toBe(0);
  expect(await send('', { method: 'POST', path: '/journal/retry' })).toMatchObject({ status: 200, body: 'one' });
  expect(journal.retried).toBe(1);
  expect(await send('', { method: 'GET', path: '/journal/retry' })).toMatchObject({ status: 404 });
});

test('an entry of the journal can be discarded; a refusal has the reason', async () => {
  const discard = (body: Buffer | string) => send(body, { method: 'POST', path: '/journal/discard' });
  expect(await discard('{"a":"ä"}')).toMatchObject({ status: 200, body: 'discarded {"a":"ä"}' });
  expect(await discard(Buffer.from([0xff]))).toMatchObject({ status: 200, body: 'discarded ' });
  const refusals = [
    [new Failure('ATTACHMENT_NOT_FOUND', 'no such entry'), 410, { code: 103, msg: 'no such entry' }],
    [new Failure('INVALID_REQUEST', 'send another'), 400, { code: 7, msg: 'send another' }],
    [new Failure('STATE_IO', 'it cannot be read'), 503, { code: 100, msg: 'it cannot be read' }],
    [new TypeError('secret'), 500, { msg: expect.not.stringContaining('secret') }],
  ] as const;
  for (const [refusal, status, expected] of refusals) {
    journal.refusal = refusal;
    const refused = await discard('{}');
    expect([refused.status, JSON.parse(refused.body)]).toEqual([status, expect.objectContaining(expected)]);
  }
  expect(await send('', { method: 'GET', path: '/journal/discard' })).toMatchObject({ status: 404 });
});

test('a call that takes the last descriptor is refused with the reason, and the next one is served', async () => {
  shortage = new Failure('UNREACHABLE', 'no file descriptor left');
  const refused = await send('{}');
  shortage = undefined;
  expect([refused.status, JSON.parse(refused.body)]).toMatchObject([503, { code: 11, msg: 'no file descriptor left' }]);
  expect(requests).toEqual([]);
  expect(await send('{}')).toMatchObject({ status: 200 });
});
