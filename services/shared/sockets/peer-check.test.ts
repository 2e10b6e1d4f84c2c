import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { connect, createServer, Socket, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { currentUserId } from '../runtime/user.js';
import { ManualClock } from '../testing/manual-clock.js';
import { callLimits, GET_POOL, recordingLog, TestServers } from '../testing/server.js';
import { isTrustedUser, PeerCheck } from './peer-check.js';

/** There are no other users in a user namespace that maps root alone. */
const hasOtherUsers = !/^\s*0\s+\d+\s+1\s*$/.test(readFileSync('/proc/self/uid_map', 'utf8'));

/** Connects as a user, and ends when the connection does. */
const CONNECT_AS = `process.setuid(Number(process.argv[1]));
  const socket = require('net').connect(process.argv[2]);
  socket.on('error', () => undefined).on('close', () => process.exit()).resume();`;

describe('trusted is', () => {
  test.each([
    [0, 0, true],
    [0, 65_532, true],
    [65_532, 65_532, true],
    [65_532, 0, false],
    [1000, 65_532, false],
    // Stands for all users that the user namespace does not map, also where the service itself runs as 65534.
    [65_534, 0, false],
    [65_534, 65_534, false],
    [0, 65_534, true],
    [2 ** 32 - 1, 65_532, false],
  ])('user %i by a process of user %i: %j', (uid, own, trusted) => {
    expect(isTrustedUser(uid, own)).toBe(trusted);
  });
});

describe('a connection', () => {
  const clock = new ManualClock();
  let folder: string;
  let path: string;
  let server: Server;
  let record: ReturnType<typeof recordingLog>;
  let admitted: boolean[];

  beforeEach(async () => {
    folder = mkdtempSync(join(tmpdir(), 'podwire-peers-'));
    chmodSync(folder, 0o755);
    path = join(folder, 'socket');
    record = recordingLog();
    admitted = [];
    const peers = new PeerCheck({ path, log: record.log, clock });
    server = createServer((connection) => {
      const isAdmitted = peers.admits(connection);
      expect(connection.destroyed).toBe(!isAdmitted);
      admitted.push(isAdmitted);
      connection.destroy();
    });
    server.listen(path);
    await once(server, 'listening');
    chmodSync(path, 0o777);
  });

  afterEach(() => {
    server.close();
    rmSync(folder, { recursive: true });
  });

  /** @returns the process's ID */
  async function connectAs(user: number): Promise<number | undefined> {
    const child = spawn(process.execPath, ['-e', CONNECT_AS, String(user), path], { stdio: 'ignore' });
    await once(child, 'close');
    return child.pid;
  }

  const messages = () => record.lines.map(({ msg }) => msg);

  test('of the own user is served', async () => {
    await once(connect(path).resume(), 'close');
    expect(admitted).toEqual([true]);
    expect(record.lines).toEqual([]);
  });

  test.runIf(hasOtherUsers)('of another user is closed and logged, once in a minute for each user', async () => {
    const pid = await connectAs(1234);
    await connectAs(1234);
    await connectAs(65_534);
    clock.advance(59_999);
    await connectAs(1234);
    expect(record.lines).toMatchObject([{ path, uid: 1234, pid }, { uid: 65_534 }]);
    expect(messages()).toEqual([
      `socket ${path}: refused a connection of user 1234, process ${pid}; run it as root, or find out why the permissions of the socket let it connect`,
      expect.stringContaining('of user 65534 (which stands for users that this user namespace does not map), process '),
    ]);
    clock.advance(1);
    await connectAs(1234);
    clock.setBack(86_400_000);
    clock.advance(59_999);
    await connectAs(1234);
    expect(record.lines.map(({ uid }) => uid)).toEqual([1234, 65_534, 1234]);
    expect(admitted).toEqual(Array.from({ length: 6 }, () => false));
  });

  test('whose descriptor is not shown is closed', () => {
    const peers = new PeerCheck({ path, log: record.log, clock });
    const connection = new Socket();
    expect([peers.admits(connection), peers.admits(new Socket())]).toEqual([false, false]);
    expect(connection.destroyed).toBe(true);
    expect(messages()).toEqual([
      expect.stringMatching(/^socket .*: refused a connection: this release of Node\.js does not show/),
    ]);
  });
});

test.runIf(hasOtherUsers)(
  'a gRPC server serves root alone where the permissions of its socket are widened',
  async () => {
    expect(currentUserId()).toBe(0);
    const servers = new TestServers();
    try {
      const { lines } = await servers.serve();
      const socket = servers.address().slice('unix:'.length);
      for (const directory of [servers.folder, dirname(socket)]) chmodSync(directory, 0o755);
      chmodSync(socket, 0o666);
      const client = spawn(process.execPath, ['-e', CONNECT_AS, '1234', socket], { stdio: 'ignore' });
      await once(client, 'close');
      expect(lines.at(-1)).toMatchObject({ level: 'warn', path: socket, uid: 1234, gid: 0, pid: client.pid });
      const answer = await servers.peer().call(GET_POOL, { name: 'a' }, callLimits());
      expect(answer).toHaveProperty('pool.name', 'a');
    } finally {
      await servers.clear();
    }
  },
);
