import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  chownSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { connect, createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { setImmediate } from 'node:timers/promises';

import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { tryLockDirectory } from '../files/directory-lock.js';
import { bindSocket, prepareSocket } from './listen.js';

let folder: string;
let path: string;
const servers: Server[] = [];

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-listen-'));
  path = join(folder, 'run', 'podwire', 'ipam.sock');
});

afterEach(() => {
  for (const server of servers.splice(0)) server.close();
  rmSync(folder, { recursive: true });
});

async function listenAt(at: string): Promise<Server> {
  const server = createServer();
  servers.push(server);
  server.listen(at);
  await once(server, 'listening');
  return server;
}

/** Leaves a socket without a listener, as a killed process does. */
async function leaveStaleSocket(): Promise<void> {
  const program = 'require("net").createServer().listen(process.argv[1], () => process.kill(process.pid, "SIGKILL"))';
  await once(spawn(process.execPath, ['-e', program, path]), 'close');
  expect(statSync(path).isSocket()).toBe(true);
}

const mode = (of: string) => (statSync(of).mode & 0o777).toString(8);
const refusal = (reason: RegExp) => ({
  code: 'INVALID_SETTINGS',
  message: expect.stringMatching(new RegExp(`^cannot listen at ${path}: .*${reason.source}`)),
});

describe('the socket’s path is prepared', () => {
  test('with missing folders, which only their owner can access', async () => {
    await prepareSocket(path);
    expect([join(folder, 'run'), dirname(path)].map(mode)).toEqual(['700', '700']);
    expect(existsSync(path)).toBe(false);
  });

  test('in an existing folder, whose mode is kept', async () => {
    mkdirSync(dirname(path), { recursive: true });
    chmodSync(dirname(path), 0o755);
    await prepareSocket(path);
    expect(mode(dirname(path))).toBe('755');
  });

  test('after removing the socket of a dead process', async () => {
    await prepareSocket(path);
    await leaveStaleSocket();
    await prepareSocket(path);
    expect(existsSync(path)).toBe(false);
  });

  test('for a socket that only its owner can access', async () => {
    const server = createServer();
    servers.push(server);
    await bindSocket(server, path);
    expect(mode(path)).toBe('600');
  });
});

describe('refused and left unchanged is', () => {
  test('a socket where a process listens', async () => {
    await prepareSocket(path);
    const server = await listenAt(path);
    await expect(prepareSocket(path)).rejects.toMatchObject(refusal(/another process listens there; stop it first/));
    expect(server.listening && statSync(path).isSocket()).toBe(true);
  });

  test.each([
    ['a file', () => writeFileSync(path, 'precious')],
    ['a folder', () => mkdirSync(path)],
    ['a link to any target', () => symlinkSync('/nowhere', path)],
  ])('%s', async (_, make) => {
    await prepareSocket(path);
    make();
    await expect(prepareSocket(path)).rejects.toMatchObject(refusal(/the file there is not a socket; remove it/));
  });

  test.each([0o775, 0o757, 0o1777])('a folder of mode %o, where other users may write', async (loose) => {
    await prepareSocket(path);
    chmodSync(dirname(path), loose);
    await expect(prepareSocket(path)).rejects.toMatchObject(refusal(/is writable by other users; run chmod go-w/));
  });

  test('a path below a file', async () => {
    writeFileSync(join(folder, 'run'), '');
    await expect(prepareSocket(path)).rejects.toMatchObject(refusal(/cannot create .*run\/podwire: .*ENOTDIR/));
  });

  test('a path too long for the kernel', async () => {
    path = join(folder, 'a'.repeat(106 - folder.length));
    await expect(prepareSocket(path)).rejects.toMatchObject(refusal(/longer than 106 bytes; shorten it/));
    const server = createServer();
    servers.push(server);
    await bindSocket(server, path.slice(0, 106));
    expect(statSync(path.slice(0, 106)).isSocket()).toBe(true);
  });
});

describe('at the same moment', () => {
  /** A server that begins to listen some iterations of the event loop later. */
  async function begin(at: string, rounds: number): Promise<Server> {
    for (let round = 0; round < rounds; round++) await setImmediate();
    const server = createServer((socket) => socket.end());
    await bindSocket(server, at);
    servers.push(server);
    return server;
  }

  /** Same as {@link leaveStaleSocket}, without a process. */
  async function linkStaleSocket(): Promise<void> {
    rmSync(path, { force: true });
    const dead = await listenAt(join(folder, 'dead'));
    linkSync(join(folder, 'dead'), path);
    dead.close();
  }

  test.each([0, 1, 2, 3, 4, 6, 8])(
    'of servers that find a dead process’s socket, %i rounds apart, one listens, and it is heard',
    async (apart) => {
      await prepareSocket(path);
      await linkStaleSocket();
      const outcomes = await Promise.allSettled([0, 1, 2].map((index) => begin(path, index * apart)));
      const listening = outcomes.flatMap((outcome) => (outcome.status === 'fulfilled' ? [outcome.value] : []));
      expect(listening).toHaveLength(1);
      expect(outcomes.flatMap((outcome) => (outcome.status === 'rejected' ? [outcome.reason] : []))).toEqual([
        expect.objectContaining(refusal(/another process listens there/)),
        expect.objectContaining(refusal(/another process listens there/)),
      ]);
      const heard = once(listening[0]!, 'connection');
      connect(path);
      await heard;
    },
  );

  test('servers with their own sockets in one directory all listen', async () => {
    const paths = ['a.sock', 'b.sock', 'c.sock'].map((name) => join(dirname(path), name));
    await Promise.all(paths.map((each) => begin(each, 0)));
    expect(paths.map((each) => statSync(each).isSocket())).toEqual([true, true, true]);
  });
});

test('a process that freezes while it begins to listen delays other processes by some seconds, and is named', async () => {
  await prepareSocket(path);
  const outcome = tryLockDirectory({ directory: dirname(path), name: '.socket-lock', owner: '4711' });
  const reason = /another process \(4711\) has held the lock of .* for too long; stop it first/;
  await expect(prepareSocket(path)).rejects.toMatchObject(refusal(reason));
  if ('lock' in outcome) outcome.lock.release();
  await prepareSocket(path);
}, 30_000);

/** Files cannot belong to another user in a user namespace that maps root only. */
const hasOtherUsers = !/^\s*0\s+\d+\s+1\s*$/.test(readFileSync('/proc/self/uid_map', 'utf8'));

test.runIf(hasOtherUsers)('a folder in which another user could create a socket is refused', async () => {
  await prepareSocket(path);
  chownSync(dirname(path), 65534, 65534);
  await expect(prepareSocket(path)).rejects.toMatchObject(refusal(/belongs to user 65534; change its owner/));
});
