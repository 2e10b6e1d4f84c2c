import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  chownSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { CONFIGURATION, errorOf, HASTY, PATIENT, run, ShimUnderTest, type Run } from '../testing/shim.js';

const DEL = {
  CNI_COMMAND: 'DEL',
  CNI_CONTAINERID: 'c0ffee',
  CNI_NETNS: '/run/netns/pod',
  CNI_IFNAME: 'eth0',
  CNI_ARGS: 'IgnoreUnknown=1;K8S_POD_NAME=web-0',
  CNI_PATH: '/opt/cni/bin',
};
const NAME = 'net,c0ffee,eth0.del';
const SUCCESS = { exitCode: 0, signal: null, stdout: '', stderr: '' };

/** Most files of a spool (kMaxSpooledCount). */
const MAX_COUNT = 4096;

const hasty = new ShimUnderTest(HASTY);
const patient = new ShimUnderTest(PATIENT);

const del = (options: Partial<Run> = {}) =>
  run({ program: hasty.build.shim, environment: DEL, stdin: CONFIGURATION, ...options });
const spool = () => join(hasty.build.folder, 'spool');
const files = () => (existsSync(spool()) ? readdirSync(spool()) : []);
const mode = (path: string) => (statSync(path).mode & 0o7777).toString(8);

function bytes(): Buffer {
  return readFileSync(join(spool(), NAME));
}

/** The request without the time at which the shim started. */
const withoutTime = (request: Buffer) => request.toString('latin1').replace(/CNI-Exec-Time: \d+/, '');

beforeEach(() => rmSync(spool(), { recursive: true, force: true }));
afterEach(() => rmSync(hasty.build.defaultSocket, { force: true }));

describe('a DEL while no process listens', () => {
  it('is spooled after the wait, as the bytes that the socket would get', async () => {
    let sent: Buffer = Buffer.alloc(0);
    const peer = await hasty.rawPeer((connection, data) => {
      sent = data;
      connection.end('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n');
    });
    expect(await del()).toEqual(SUCCESS);
    expect(files()).toEqual([]);
    await peer.close();

    const startMs = performance.now();
    expect(await del()).toEqual(SUCCESS);
    expect(performance.now() - startMs).toBeGreaterThanOrEqual(HASTY.connectWindowMs - 50);
    expect(files()).toEqual([NAME]);
    expect(withoutTime(bytes())).toBe(withoutTime(sent));
    expect([mode(spool()), mode(join(spool(), NAME))]).toEqual(['700', '600']);
  });

  it('is spooled after one call when the process hangs', async () => {
    let calls = 0;
    await hasty.rawPeer(() => calls++);
    expect(await del()).toEqual(SUCCESS);
    expect([calls, files()]).toEqual([1, [NAME]]);
  });

  it.each([
    ['a directory', ['mkdir']],
    ['a file', ['touch']],
    ['a FIFO', ['mkfifo']],
  ])('is spooled where %s has the path of the socket', async (_, [program = '']) => {
    const socket = join(hasty.build.folder, program);
    execFileSync(program, [socket]);
    expect(await del({ stdin: JSON.stringify({ name: 'net', socket }) })).toEqual(SUCCESS);
    expect(files()).toEqual([NAME]);
  });

  it('is spooled after one call when the process answers for ever', async () => {
    let calls = 0;
    await hasty.rawPeer((connection) => {
      calls++;
      connection.write('HTTP/1.1 200 OK\r\nX: ');
      const timer = setInterval(() => connection.write('x'), HASTY.silenceMs / 7);
      connection.on('close', () => clearInterval(timer));
    });
    expect(await del()).toEqual(SUCCESS);
    expect([calls, files()]).toEqual([1, [NAME]]);
  });

  it('is spooled where a killed process left its socket', async () => {
    const bind = `require('net').createServer().listen(${JSON.stringify(hasty.build.defaultSocket)}, () => process.kill(process.pid, 'SIGKILL'))`;
    await once(spawn(process.execPath, ['-e', bind]), 'exit');
    expect(existsSync(hasty.build.defaultSocket)).toBe(true);
    expect(await del()).toEqual(SUCCESS);
    expect(files()).toEqual([NAME]);
  });

  it('replaces an earlier DEL of the attachment, and no other', async () => {
    const environments = [
      DEL,
      { ...DEL, CNI_NETNS: '' },
      { ...DEL, CNI_IFNAME: 'eth1' },
      { ...DEL, CNI_CONTAINERID: 'cafe' },
    ];
    for (const environment of environments) expect(await del({ environment })).toEqual(SUCCESS);
    expect(files().sort()).toEqual(['net,c0ffee,eth0.del', 'net,c0ffee,eth1.del', 'net,cafe,eth0.del']);
    expect(bytes().toString()).not.toContain('CNI-Netns');
  });

  it('is sent to a process that starts within the wait, and not spooled', async () => {
    const pending = run({ program: patient.build.shim, environment: DEL, stdin: CONFIGURATION });
    await sleep(100);
    const { requests } = await patient.resident((response) => response.end());
    expect(await pending).toEqual(SUCCESS);
    expect(requests).toHaveLength(1);
    expect(existsSync(join(patient.build.folder, 'spool'))).toBe(false);
  });
});

describe('not spooled', () => {
  it.each(['ADD', 'CHECK', 'GC', 'STATUS'])('%s', async (command) => {
    expect(errorOf(await del({ environment: { ...DEL, CNI_COMMAND: command } }))).toMatchObject({ code: 11 });
    expect(files()).toEqual([]);
  });

  it.each([
    ['without a container ID', { CNI_CONTAINERID: '' }, CONFIGURATION, 11],
    ['without an interface', { CNI_IFNAME: '' }, CONFIGURATION, 11],
    ['with a path as container ID', { CNI_CONTAINERID: '../c0ffee' }, CONFIGURATION, 11],
    ['without a network', {}, '{"cniVersion":"0.4.0"}', 11],
    ['without a configuration', {}, '', 6],
    ['with a configuration that is not an object', {}, '[]', 6],
  ])('a DEL %s', async (_, environment, stdin, code) => {
    expect(errorOf(await del({ environment: { ...DEL, ...environment }, stdin }))).toMatchObject({ code });
    expect(files()).toEqual([]);
  });

  it('a DEL that the plugin answers with an error', async () => {
    await hasty.resident((response) =>
      response.writeHead(500, { 'content-length': Buffer.byteLength('{"code":5}') }).end('{"code":5}'),
    );
    expect(await del()).toMatchObject({ exitCode: 1, stdout: '{"code":5}' });
    expect(files()).toEqual([]);
  });
});

describe('a DEL whose success is not confirmed', () => {
  it('is spooled if a stopping plugin returns it and no other starts', async () => {
    await hasty.resident((response) => {
      rmSync(hasty.build.defaultSocket);
      response.writeHead(421, { 'content-length': Buffer.byteLength('{"code":11}') }).end('{"code":11}');
    });
    expect(await del()).toEqual(SUCCESS);
    expect(files()).toEqual([NAME]);
  });

  it.each([
    ['before the answer', ''],
    ['within the answer', 'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{'],
  ])('is sent once more if the connection ends %s, then spooled', async (_, bytes) => {
    let count = 0;
    await hasty.rawPeer((connection) => {
      count++;
      connection.end(bytes);
    });
    expect(await del()).toEqual(SUCCESS);
    expect([count, files()]).toEqual([2, [NAME]]);
  });

  it('is done by the plugin that follows a killed one, and not spooled', async () => {
    let count = 0;
    await hasty.rawPeer((connection) =>
      count++ === 0 ? connection.destroy() : connection.end('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'),
    );
    expect(await del()).toEqual(SUCCESS);
    expect([count, files()]).toEqual([2, []]);
  });

  it('fails if it cannot be spooled either, with both reasons', async () => {
    writeFileSync(spool(), '');
    await hasty.rawPeer((connection) => connection.destroy());
    const { code, msg } = errorOf(await del());
    expect(code).toBe(11);
    expect(msg).toMatch(/without an answer; the DEL cannot be spooled: its folder cannot be opened/);
  });

  it('replaces a FIFO or a link of its name in the spool', async () => {
    for (const make of [['mkfifo'], ['ln', '-s', '/dev/zero']]) {
      mkdirSync(spool(), { recursive: true, mode: 0o700 });
      execFileSync(make[0]!, [...make.slice(1), join(spool(), NAME)]);
      expect(await del()).toEqual(SUCCESS);
      expect(lstatSync(join(spool(), NAME)).isFile()).toBe(true);
      rmSync(spool(), { recursive: true });
    }
  });
});

describe('a DEL fails with the reason', () => {
  const reason = async (options: Partial<Run> = {}) => {
    const { code, msg } = errorOf(await del(options));
    expect(code).toBe(11);
    expect(msg).toContain('cannot connect to the podwire plugin');
    return String(msg).split('the DEL cannot be spooled: ')[1];
  };

  it('where the spool is full, except for one that replaces another', async () => {
    mkdirSync(spool(), { mode: 0o700 });
    for (let count = 1; count < MAX_COUNT; count++) writeFileSync(join(spool(), `net,${count},eth0.del`), '');
    expect(await del()).toEqual(SUCCESS);
    expect(await reason({ environment: { ...DEL, CNI_CONTAINERID: 'cafe' } })).toBe('it holds 4096 files, its limit');
    expect(await del()).toEqual(SUCCESS);
    expect(files()).toHaveLength(MAX_COUNT);
  });

  it('where the folder of the socket does not exist, and creates none', async () => {
    const folder = join(hasty.build.folder, 'missing');
    const stdin = JSON.stringify({ name: 'net', socket: join(folder, 'cni.sock') });
    expect(await reason({ stdin })).toBe('the folder of the socket does not exist');
    expect(existsSync(folder)).toBe(false);
  });

  it('where the socket is a link: the plugin reads the spool beside the socket itself', async () => {
    const link = join(hasty.build.folder, 'link.sock');
    symlinkSync('/run/elsewhere/cni.sock', link);
    expect(await reason({ stdin: JSON.stringify({ name: 'net', socket: link }) })).toBe(
      'the path of the socket is a link',
    );
    expect(files()).toEqual([]);
  });

  it('where the spool is a file or a link', async () => {
    writeFileSync(spool(), '');
    expect(await reason()).toBe('its folder cannot be opened: Not a directory');
    rmSync(spool());
    symlinkSync('/tmp', spool());
    expect(await reason()).toMatch(
      /^its folder cannot be opened: (Not a directory|Too many levels of symbolic links)$/,
    );
  });

  it('where other users own the spool or can write to it', async () => {
    mkdirSync(spool());
    chmodSync(spool(), 0o770);
    const fault = 'its folder belongs to another user, or other users can write to it';
    expect(await reason()).toBe(fault);
    chmodSync(spool(), 0o700);
    chownSync(spool(), 1234, 1234);
    expect(await reason()).toBe(fault);
    expect(files()).toEqual([]);
  });

  it('where the file exceeds the limit of the process, and leaves nothing', async () => {
    const script = join(hasty.build.folder, 'limited');
    writeFileSync(script, `#!/bin/sh\nulimit -f 1\nexec "${hasty.build.shim}"\n`, { mode: 0o755 });
    const stdin = JSON.stringify({ name: 'net', pad: 'x'.repeat(100_000) });
    expect(await reason({ program: script, stdin })).toBe('its file cannot be written: File too large');
    expect(files()).toEqual([]);
  });
});

it('a killed shim leaves a whole file or a temporary one', { timeout: 60_000 }, async () => {
  const body = JSON.stringify({ name: 'net', pad: 'x'.repeat(3 << 20) });
  const killed = Array.from({ length: 24 }, async (_, index) => {
    const environment = { ...DEL, CNI_CONTAINERID: `c${index}` };
    const child = spawn(hasty.build.shim, [], { env: environment, stdio: ['pipe', 'ignore', 'ignore'] });
    child.stdin.on('error', () => undefined).end(body);
    const exited = once(child, 'exit');
    await sleep(HASTY.connectWindowMs + index * 4);
    child.kill('SIGKILL');
    await exited;
  });
  await Promise.all(killed);
  for (const name of files()) {
    if (name.endsWith('.writing')) continue;
    expect(name).toMatch(/^net,c\d+,eth0\.del$/);
    const text = readFileSync(join(spool(), name), 'utf8');
    expect(text.startsWith('POST /cni HTTP/1.1\r\n')).toBe(true);
    expect(text.split('\r\n\r\n')[1] === body).toBe(true);
  }
});
