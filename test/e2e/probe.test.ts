import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { RpcServer } from '@podwire/shared/rpc/server';
import { recordingLog } from '@podwire/shared/testing/server';
import { systemClock } from '@podwire/shared/runtime/clock';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { PROBE, SHIM } from '../support/root.js';
import { Stack, type ProcessName } from '../support/stack.js';

interface Answer {
  readonly exitCode: number | null;
  readonly stderr: string;
}

/** Not spawnSync: servers of this process must answer meanwhile. */
function probe(...args: readonly string[]): Promise<Answer> {
  const child = spawn(PROBE, args, { stdio: ['ignore', 'ignore', 'pipe'] });
  let stderr = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text));
  return new Promise((resolve) => child.once('close', (exitCode) => resolve({ exitCode, stderr })));
}

const HEALTHY = { exitCode: 0, stderr: '' };

const unhealthy = (socket: string, text: string) => ({
  exitCode: 1,
  stderr: expect.stringMatching(new RegExp(`^podwire-probe: ${socket}: ${text}.*; .*\n$`)),
});

describe('the processes of a node', () => {
  const stack = new Stack();

  beforeAll(() => stack.start());
  afterAll(() => stack.destroy());

  describe.each<ProcessName>(['ipam', 'node'])('%s', (name) => {
    test('is healthy and alive while it serves', async () => {
      await stack.untilServing(name);
      expect(await probe(stack.sockets[name])).toEqual(HEALTHY);
      expect(await probe('--live', stack.sockets[name])).toEqual(HEALTHY);
    });

    test('is neither after a stop, within about a second', async () => {
      const pid = stack.pid(name);
      process.kill(pid, 'SIGSTOP');
      try {
        const answer = unhealthy(stack.sockets[name], 'no answer within 1000 ms');
        expect(await probe(stack.sockets[name])).toEqual(answer);
        expect(await probe('--live', stack.sockets[name])).toEqual(answer);
      } finally {
        process.kill(pid, 'SIGCONT');
      }
      await stack.untilServing(name);
    });

    test('is neither after a SIGKILL', async () => {
      await stack.kill(name);
      expect(await probe(stack.sockets[name])).toEqual(
        unhealthy(stack.sockets[name], 'cannot connect: no process listens on the socket'),
      );
      await stack.start(name);
    }, 60_000);
  });

  test('are probed with the shim as well, under its own name', () => {
    expect(spawnSync(SHIM, ['probe', stack.sockets.dataplane]).status).toBe(0);
  });

  test('take little more time than the start of a program', () => {
    const timeMs = (program: string, args: readonly string[]) => {
      const startMs = performance.now();
      spawnSync(program, args);
      return performance.now() - startMs;
    };
    const rounds = Array.from({ length: 100 }, () => ({
      probe: timeMs(PROBE, [stack.sockets.dataplane]),
      bare: timeMs('/bin/true', []),
    }));
    const median = (times: readonly number[]) => times.toSorted((a, b) => a - b)[times.length / 2]!;
    const [probed, bare] = [median(rounds.map((round) => round.probe)), median(rounds.map((round) => round.bare))];
    expect(probed, `/bin/true: ${bare} ms`).toBeLessThan(Math.max(20, 10 * bare));
  });
});

describe('other sockets', () => {
  const folder = mkdtempSync(join(tmpdir(), 'podwire-probe-'));
  const path = (name: string) => join(folder, name);
  const servers: Server[] = [];

  afterAll(async () => {
    await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
    rmSync(folder, { recursive: true });
  });

  async function speak(name: string, speech: (socket: Socket) => void): Promise<string> {
    const server = createServer((socket) => {
      socket.on('error', () => undefined);
      socket.once('data', () => speech(socket));
    });
    servers.push(server);
    await new Promise<void>((resolve) => server.listen(path(name), resolve));
    return path(name);
  }

  test('a server that is not serving is alive only', async () => {
    const socket = path('run/server.sock');
    const server = new RpcServer({
      addresses: [`unix:${socket}`],
      log: recordingLog().log,
      clock: systemClock,
      defaultCallTimeoutMs: 1000,
      drainTimeoutMs: 1000,
      services: () => [],
    });
    await server.listen();
    expect(await probe(socket)).toEqual(unhealthy(socket, 'the process is not serving'));
    expect(await probe('--live', socket)).toEqual(HEALTHY);
    server.setServing();
    expect(await probe(socket)).toEqual(HEALTHY);
    server.setNotServing();
    expect(await probe(socket)).toEqual(unhealthy(socket, 'the process is not serving'));
    await server.stop();
  });

  test('a missing socket and a file are reported', async () => {
    expect(await probe(path('none'))).toEqual(unhealthy(path('none'), 'cannot connect: the socket does not exist'));
    writeFileSync(path('file'), '');
    expect(await probe(path('file'))).toEqual(unhealthy(path('file'), 'cannot connect: it is a file or a directory'));
    const long = path('x'.repeat(120));
    expect(await probe(long)).toEqual(unhealthy(long, 'the path is longer than 107 bytes'));
  });

  test('a server of another protocol is not healthy', async () => {
    const ssh = await speak('ssh', (socket) => socket.end('SSH-2.0-OpenSSH_9.2p1\r\n'));
    expect(await probe(ssh)).toEqual(unhealthy(ssh, 'the answer is not HTTP'));
    const http = await speak('http', (socket) => socket.end('HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n'));
    expect(await probe(http)).toEqual(unhealthy(http, 'answered HTTP status 404'));
    const closing = await speak('closing', (socket) => socket.end());
    expect(await probe(closing)).toEqual(unhealthy(closing, 'the connection was closed without an answer'));
  });

  test('of several sockets each has to answer, within one second in all', async () => {
    const [one, other] = await Promise.all(
      ['one', 'other'].map((name) =>
        speak(name, (socket) => socket.end('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n')),
      ),
    );
    const silent = await speak('silent', () => undefined);
    const failing = await speak('failing', (socket) => socket.end('HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n'));
    expect(await probe(one!, other!)).toEqual(HEALTHY);
    expect(await probe(one!, failing)).toEqual(unhealthy(failing, 'the process is not serving'));
    expect(await probe('--live', one!, failing)).toEqual(HEALTHY);
    expect(await probe(failing, one!)).toEqual(unhealthy(failing, 'the process is not serving'));
    expect(await probe('--live', one!, silent, other!)).toEqual(unhealthy(silent, 'no answer within 1000 ms'));
  });

  test('an endless answer is cut off by size and time', async () => {
    const [status, header] = ['HTTP/1.1 200 OK\r\n', 'X: y\r\n'];
    const endless = await speak('endless', (socket) => {
      socket.write(status + header.repeat(10_000));
    });
    expect(await probe(endless)).toEqual(unhealthy(endless, 'the answer is not HTTP'));
    const slow = await speak('slow', (socket) => {
      const timer = setInterval(() => socket.write(header), 50);
      socket.write(status);
      socket.once('close', () => clearInterval(timer));
    });
    expect(await probe(slow)).toEqual(unhealthy(slow, 'no answer within 1000 ms'));
  });

  test('a usage error has its own exit code', async () => {
    expect((await probe('--nonsense')).exitCode).toBe(2);
    expect((await probe('a', '--nonsense')).exitCode).toBe(2);
    expect(await probe('--help')).toEqual(HEALTHY);
  });
});
