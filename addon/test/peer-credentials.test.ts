import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { ADDON_FOLDER } from './ip.js';
import { peerCredentialsReader } from '../lib/peer-credentials.js';

/** In a user namespace that maps root alone there are no other users. */
const hasOtherUsers = !/^\s*0\s+\d+\s+1\s*$/.test(readFileSync('/proc/self/uid_map', 'utf8'));

const read = peerCredentialsReader();

let folder: string;
let path: string;
let server: Server;
let accepted: Promise<Socket>;

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-peer-'));
  chmodSync(folder, 0o755);
  path = join(folder, 'socket');
  // A connection outlives the end of its peer.
  server = createServer({ allowHalfOpen: true });
  accepted = new Promise((resolve) => server.once('connection', resolve));
  server.listen(path);
  await once(server, 'listening');
  chmodSync(path, 0o777);
});

afterEach(() => {
  server.close();
  rmSync(folder, { recursive: true });
});

/** The descriptor of a socket, which has no public name. */
function descriptorOf(socket: Socket): number {
  return Reflect.get(Reflect.get(socket, '_handle'), 'fd');
}

/** Connects to the socket as a user and group that need no permission to execute Node.js. */
const CONNECT_AS = `const [user, group, path] = process.argv.slice(1);
  process.setgroups([]);
  process.setgid(Number(group));
  process.setuid(Number(user));
  require('net').connect(path).on('error', () => process.exit(1));`;

describe('the credentials of a peer', () => {
  it('name the process at the other end, on both sides', async () => {
    const client = connect(path);
    const socket = await accepted;
    const own = { pid: process.pid, uid: process.geteuid?.(), gid: process.getegid?.() };
    expect(read(descriptorOf(socket))).toEqual(own);
    expect(read(descriptorOf(client))).toEqual(own);
    client.destroy();
    socket.destroy();
  });

  it.runIf(hasOtherUsers)('name another user', async () => {
    const child = spawn(process.execPath, ['-e', CONNECT_AS, '1234', '2345', path], { stdio: 'ignore' });
    const socket = await accepted;
    expect(read(descriptorOf(socket))).toEqual({ pid: child.pid, uid: 1234, gid: 2345 });
    child.kill('SIGKILL');
    socket.destroy();
  });

  it.runIf(hasOtherUsers)('date from the time of the connection', async () => {
    const script = `const socket = require('net').connect(${JSON.stringify(path)}, () => {
      process.setuid(1234);
      socket.write('changed');
    });`;
    const child = spawn(process.execPath, ['-e', script], { stdio: 'ignore' });
    const socket = await accepted;
    await once(socket, 'data');
    expect(read(descriptorOf(socket))).toMatchObject({ pid: child.pid, uid: 0 });
    child.kill('SIGKILL');
    await once(child, 'close');
    // The process is gone; what the kernel noted is not.
    expect(read(descriptorOf(socket))).toMatchObject({ pid: child.pid, uid: 0 });
    socket.destroy();
  });

  it('name no process that is outside of the PID namespace', async () => {
    // The server is in a PID namespace of its own, below that of the client.
    const script = `const read = require('node-gyp-build')(${JSON.stringify(ADDON_FOLDER)}).peerCredentials;
      const path = process.argv[1] + '.inner';
      require('net').createServer((socket) => {
        console.log(JSON.stringify(read(socket._handle.fd)));
        process.exit();
      }).listen(path, () => console.log('listening'));`;
    const inner = spawn('unshare', ['--pid', '--fork', '--kill-child', process.execPath, '-e', script, path], {
      cwd: ADDON_FOLDER,
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let output = '';
    inner.stdout.setEncoding('utf8').on('data', (text: string) => (output += text));
    await expect.poll(() => output).toBe('listening\n');
    const client = connect(`${path}.inner`);
    await once(inner, 'close');
    client.destroy();
    expect(JSON.parse(output.split('\n')[1]!)).toMatchObject({ pid: 0, uid: process.geteuid?.() });
  });

  it.runIf(hasOtherUsers)('are the overflow IDs for a user that the user namespace does not map', () => {
    // The server has a user namespace that maps root alone; the client is a user outside of it.
    const server = `const read = require('node-gyp-build')(${JSON.stringify(ADDON_FOLDER)}).peerCredentials;
      const { spawn } = require('child_process');
      require('net').createServer((socket) => {
        console.log(JSON.stringify(read(socket._handle.fd)));
        process.exit();
      }).listen(process.argv[1], () => {
        require('fs').chmodSync(process.argv[1], 0o777);
        console.error('listening');
      });`;
    const shell = `unshare --user --map-root-user "$0" -e "$1" "$2" 2>"$2.log" & 
      until grep -q listening "$2.log"; do sleep 0.02; done
      "$0" -e "$3" 1234 2345 "$2"
      wait`;
    const args = [process.execPath, server, `${path}.mapped`, CONNECT_AS];
    const output = execFileSync('sh', ['-c', shell, ...args], { cwd: ADDON_FOLDER, encoding: 'utf8' });
    expect(JSON.parse(output)).toMatchObject({ uid: 65_534, gid: 65_534 });
  });
});

describe('refused is', () => {
  it.each([-1, 0.5, 2 ** 31, '3', undefined])('the descriptor %j', (descriptor) => {
    expect(() => Reflect.apply(read, undefined, [descriptor])).toThrow(
      expect.objectContaining({ name: 'ArgumentError', path: 'descriptor' }),
    );
  });

  it('a closed descriptor, a file, and a socket that is not connected to a process', async () => {
    const file = openSync('/dev/null', 'r');
    expect(() => read(file)).toThrow(expect.objectContaining({ name: 'NetlinkError', code: 'ENOTSOCK' }));
    expect(() => read(1_000_000)).toThrow(expect.objectContaining({ code: 'EBADF' }));
    const tcp = createServer().listen(0, '127.0.0.1');
    await once(tcp, 'listening');
    expect(() => read(Reflect.get(Reflect.get(tcp, '_handle'), 'fd'))).toThrow(
      /^peer\.credentials of file descriptor \d+: ENOTCONN .*not a connected unix socket/,
    );
    tcp.close();
  });

  it('a wrong argument of the compiled addon', () => {
    const script = `require('node-gyp-build')(${JSON.stringify(ADDON_FOLDER)}).peerCredentials('3')`;
    const { stderr } = spawnSync(process.execPath, ['-e', script], { cwd: ADDON_FOLDER, encoding: 'utf8' });
    expect(stderr).toContain('TypeError: descriptor: must be a number');
  });
});
