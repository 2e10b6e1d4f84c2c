// Hostile surroundings of the shim: unusual environments, limits, streams, paths and peers.
import { execFileSync, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, symlinkSync, writeFileSync } from 'node:fs';
import type { Socket } from 'node:net';
import { join } from 'node:path';

import { describe, expect, it } from 'vitest';

import { CONFIGURATION, errorOf, HASTY, PATIENT, run, ShimUnderTest, type Outcome } from '../testing/shim.js';

const ADD = { CNI_COMMAND: 'ADD', CNI_CONTAINERID: 'c0ffee', CNI_NETNS: '/run/netns/pod', CNI_IFNAME: 'eth0' };

const shim = new ShimUnderTest(PATIENT);
const hasty = new ShimUnderTest(HASTY);

const resident = (body = '{}') => shim.resident((response) => response.end(body));

const add = (environment: Record<string, string> = {}, stdin: string = CONFIGURATION) =>
  run({ program: shim.build.shim, environment: { ...ADD, ...environment }, stdin });

const addHastily = (stdin: string) => run({ program: hasty.build.shim, environment: ADD, stdin });

/** Runs a shell script in which `$SHIM` is the shim; its stdout is what the script sends to descriptor 3. */
async function shell(script: string, stdin: string = CONFIGURATION): Promise<Outcome> {
  const file = join(mkdtempSync(join(shim.build.folder, 'script-')), 'script');
  writeFileSync(file, `#!/bin/bash\nexec 3>&1\n${script}\n`, { mode: 0o755 });
  return run({ program: file, environment: { ...ADD, SHIM: shim.build.shim, PATH: '/usr/bin:/bin' }, stdin });
}

const ANSWERED = { exitCode: 0, signal: null, stdout: '{}', stderr: '' };

describe('the runtime’s environment', () => {
  it('does not affect a static program', async () => {
    const library = join(shim.build.folder, 'evil.so');
    const source = join(shim.build.folder, 'evil.c');
    writeFileSync(source, '#include <unistd.h>\n__attribute__((constructor)) void f(void) { _exit(77); }\n');
    execFileSync('gcc', ['-shared', '-fPIC', '-o', library, source]);
    const hostile = { LD_PRELOAD: library, LD_LIBRARY_PATH: shim.build.folder, LD_AUDIT: library, LD_DEBUG: 'all' };
    // The library works: it ends every dynamically linked program.
    expect((await run({ program: '/bin/true', environment: { LD_PRELOAD: library } })).exitCode).toBe(77);
    await resident();
    expect(await add({ ...hostile, NODE_OPTIONS: '--require /nowhere.js', NODE_EXTRA_CA_CERTS: '/nowhere' })).toEqual(
      ANSWERED,
    );
    expect(
      await add({ GLIBC_TUNABLES: 'glibc.malloc.check=3:x', MALLOC_PERTURB_: '7', LC_ALL: 'xx', TZ: ':/x' }),
    ).toEqual(ANSWERED);
  });

  it('may have 10,000 variables before the CNI variables', async () => {
    const { requests } = await resident();
    const many = Object.fromEntries(Array.from({ length: 10_000 }, (_, n) => [`CNI_COMMAND${n}`, 'DEL'.repeat(20)]));
    expect(await run({ program: shim.build.shim, environment: { ...many, ...ADD }, stdin: CONFIGURATION })).toEqual(
      ANSWERED,
    );
    expect(requests[0]!.headers).toMatchObject({ 'cni-command': 'ADD', 'cni-containerid': 'c0ffee' });
  });

  it('passes trace context on', async () => {
    const { requests } = await resident();
    const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
    await add({ TRACEPARENT: traceparent, TRACESTATE: 'a=1,b=2', BAGGAGE: 'k=v%20w;p' });
    expect(requests[0]!.headers).toMatchObject({ traceparent, tracestate: 'a=1,b=2', baggage: 'k=v%20w;p' });
  });

  it.each(['calico', 'podwire', 'podwire-ipam', 'a name with spaces', 'ünïcode'])('may run it as %s', async (name) => {
    const { requests } = await resident();
    const folder = mkdtempSync(join(shim.build.folder, 'name-'));
    symlinkSync(shim.build.shim, join(folder, name));
    expect(await run({ program: join(folder, name), environment: ADD, stdin: CONFIGURATION })).toEqual(ANSWERED);
    const sent = Buffer.from(String(requests[0]!.headers['cni-plugin']), 'latin1').toString();
    expect(sent).toBe(name);
  });

  it('may omit the program name', async () => {
    const { requests } = await resident();
    const outcome = await shell('(exec -a "" "$SHIM")');
    expect(outcome).toEqual(ANSWERED);
    expect(requests[0]!.headers['cni-plugin']).toBe('podwire');
  });
});

describe('values that go into headers', () => {
  const variables = ['CNI_CONTAINERID', 'CNI_NETNS', 'CNI_IFNAME', 'CNI_ARGS', 'CNI_PATH'];

  it.each(variables)('cannot add a header by a line break in %s', async (name) => {
    const { requests } = await resident('');
    for (const value of ['a\r\nCNI-Command: DEL', 'a\nb', 'a\rb', 'a\u007fb', '\tb']) {
      const error = errorOf(await add({ [name]: value }));
      expect(error).toMatchObject({ code: 4, cniVersion: '0.4.0', msg: expect.stringContaining(name) });
    }
    expect(requests).toEqual([]);
  });

  it.each(['TRACEPARENT', 'TRACESTATE', 'BAGGAGE'])('are left out when %s cannot be sent', async (name) => {
    const { requests } = await resident('');
    for (const value of ['a\r\nCNI-Command: DEL', '\tb', ' x', 'x'.repeat(100_000)]) {
      expect(await add({ [name]: value })).toMatchObject({ exitCode: 0 });
      expect(requests.pop()!.headers).not.toHaveProperty(name.toLowerCase());
    }
  });

  it('name the longest variable when they do not fit', async () => {
    const error = errorOf(await add({ CNI_ARGS: 'x'.repeat(100_000) }));
    expect(error).toMatchObject({ code: 4, msg: expect.stringContaining('CNI_ARGS has 100000 bytes') });
  });

  it('fit up to the limit into a Node.js server with default settings', async () => {
    const { requests } = await resident('');
    expect(await add({ CNI_ARGS: 'x'.repeat(14 << 10) })).toMatchObject({ exitCode: 0 });
    expect(requests[0]!.headers['cni-args']).toHaveLength(14 << 10);
  });
});

describe('limits', () => {
  it('without memory for a configuration, the shim reports that', async () => {
    const outcome = await shell('ulimit -v 3500; exec "$SHIM"', `"${'x'.repeat(3 << 20)}"`);
    expect(errorOf(outcome)).toMatchObject({ code: 5, msg: 'podwire: out of memory' });
  });

  it('without a free descriptor, the shim reports that', async () => {
    const outcome = await shell('exec 3>&-; ulimit -n 3; exec "$SHIM"');
    expect(errorOf(outcome)).toMatchObject({ code: 5, msg: expect.stringContaining('Too many open files') });
  });

  it('with a limit on file sizes, the shim still reports its failure', async () => {
    await resident('{}'.padEnd(1 << 20));
    const outcome = await shell(`ulimit -f 1; "$SHIM" > "${shim.build.folder}/limited"; echo "exit $?" >&3`);
    expect(outcome.stdout).toBe('exit 1\n');
  });
});

describe('standard streams', () => {
  it.each([
    ['>/dev/null <&-', 'exit 0'],
    ['>/dev/null 2>&-', 'exit 0'],
    ['>/dev/null <&- 2>&-', 'exit 0'],
    ['>/dev/full', 'exit 1'],
    ['>/dev/null </', 'exit 1'],
  ])('closed or unusable: %s', async (redirections, expected) => {
    await resident();
    expect((await shell(`"$SHIM" ${redirections}; echo "exit $?" >&3`)).stdout).toBe(`${expected}\n`);
  });

  it.each(['>&-', '<&- >&- 2>&-'])('the plugin is called once, and the answer is lost: %s', async (redirections) => {
    const { requests } = await resident();
    expect((await shell(`"$SHIM" ${redirections}; echo "exit $?" >&3`)).stdout).toBe('exit 1\n');
    expect(requests).toHaveLength(1);
  });

  it('a closed reader of the answer is a failure without SIGPIPE', async () => {
    await resident('{}'.padEnd(1 << 20));
    const { stdout } = await shell('{ "$SHIM"; echo "exit $?" >&3; } | true');
    expect(stdout).toBe('exit 1\n');
  });

  it.each([
    // Node's pipes are sockets; the shell's are pipes.
    ['a socket', 'exec "$SHIM" <<<"{}"'],
    ['a pipe', 'exec 4< <("$SHIM" <<<"{}"; echo "exit $?" >&3); wait $!'],
  ])('an unread answer ends at the deadline: %s', async (kind, script) => {
    await hasty.resident((response) => response.end('{}'.padEnd(1 << 20)));
    const isSocket = kind === 'a socket';
    const child = spawn('/bin/bash', ['-c', script], {
      env: { ...ADD, SHIM: hasty.build.shim, PATH: '/usr/bin:/bin' },
      stdio: ['ignore', 'pipe', 'ignore', 'pipe'],
    });
    const [, stdout, , exits] = child.stdio;
    stdout?.pause();
    let printed = '';
    exits?.on('data', (chunk: Buffer) => (printed += chunk.toString()));
    const exitCode = await new Promise((resolve) => child.on('exit', resolve));
    expect(isSocket ? `exit ${String(exitCode)}\n` : printed).toBe('exit 1\n');
  });
});

describe('the socket’s path', () => {
  it.each([
    ['a directory', (path: string) => mkdirSync(path)],
    ['a file', (path: string) => writeFileSync(path, '')],
    ['a pipe', (path: string) => execFileSync('mkfifo', [path])],
  ])('may be %s, which is reported at once', async (_, make) => {
    const path = join(mkdtempSync(join(shim.build.folder, 'at-')), 'cni.sock');
    make(path);
    const error = errorOf(await add({}, JSON.stringify({ cniVersion: '1.0.0', socket: path })));
    expect(error).toMatchObject({ code: 5, msg: expect.stringContaining(`${path}: it is a file or a directory`) });
    expect(String(error.msg)).not.toContain(`waited ${PATIENT.connectWindowMs}`);
  });

  it('may be a link that leads nowhere, or in a circle', async () => {
    const folder = mkdtempSync(join(shim.build.folder, 'link-'));
    symlinkSync('nowhere', join(folder, 'a'));
    symlinkSync('b', join(folder, 'b'));
    const of = async (name: string) => errorOf(await addHastily(JSON.stringify({ socket: join(folder, name) })));
    expect(await of('a')).toMatchObject({ code: 11, msg: expect.stringContaining('the socket does not exist') });
    expect(await of('b')).toMatchObject({ code: 5, msg: expect.stringContaining('symbolic links') });
  });

  it('may be one byte too long for a socket', async () => {
    const longest = `/${'a'.repeat(106)}`;
    expect(errorOf(await addHastily(JSON.stringify({ socket: longest })))).toMatchObject({ code: 11 });
    const error = errorOf(await add({}, JSON.stringify({ socket: `${longest}a` })));
    expect(error).toMatchObject({ code: 7, msg: expect.stringContaining('has 108 bytes') });
  });
});

describe('a resident whose answer is too large', () => {
  const OK = 'HTTP/1.1 200 OK\r\n';

  /** Sends `chunk` until the shim disconnects. */
  function flood(connection: Socket, head: string, chunk: Buffer): void {
    connection.write(head);
    const more = (): void => {
      while (!connection.destroyed && connection.write(chunk)) continue;
      if (!connection.destroyed) connection.once('drain', more);
    };
    more();
  }

  it.each([
    ['a body', `${OK}Content-Length: 4194305\r\n\r\n`, Buffer.alloc(0x10000, 'x'), 'larger than 4 MiB'],
    ['headers', `${OK}X: `, Buffer.alloc(0x1000, 'x'), 'headers are larger than 16 KiB'],
    ['interim answers', '', Buffer.from('HTTP/1.1 100 Continue\r\n\r\n'.repeat(100)), 'larger than 16 KiB'],
  ])('in %s without end', async (_, head, chunk, fault) => {
    await shim.rawPeer((connection) => flood(connection, head, chunk));
    expect(errorOf(await add())).toMatchObject({ code: 5, msg: expect.stringContaining(fault) });
  });

  it('prints no more than the announced length', async () => {
    const answer = `${OK}Content-Length: 2\r\n\r\n{}HTTP/1.1 500 again\r\n\r\n`;
    await shim.rawPeer((connection) => void connection.end(answer));
    expect(await add()).toEqual(ANSWERED);
  });

  it('is reported when it disconnects before the request', async () => {
    await shim.rawPeer((connection) => void connection.destroy());
    expect(errorOf(await add({}, `"${'x'.repeat(1 << 20)}"`))).toMatchObject({
      code: 11,
      msg: expect.stringContaining('closed the connection without an answer'),
      details: expect.stringContaining('no file descriptor left'),
    });
  });
});
