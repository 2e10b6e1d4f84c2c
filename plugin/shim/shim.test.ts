import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

import { RELEASE } from '@podwire/shared/rpc/release';
import { afterEach, describe, expect, it } from 'vitest';

import { OWN_VERSION, SUPPORTED_VERSIONS } from '../cni/version.js';
import { isShim } from '../install/conflist.js';
import { CONFIGURATION, errorOf, HASTY, make, PATIENT, run, ShimUnderTest, type Run } from '../testing/shim.js';

const ADD = {
  CNI_COMMAND: 'ADD',
  CNI_CONTAINERID: 'c0ffee',
  CNI_NETNS: '/run/netns/pod',
  CNI_IFNAME: 'eth0',
  CNI_ARGS: 'IgnoreUnknown=1;K8S_POD_NAME=web-0',
  CNI_PATH: '/opt/cni/bin:/usr/lib/cni',
};
// The resident plugin answers the same: a runtime must not see a difference.
const VERSIONS = `${JSON.stringify({ cniVersion: OWN_VERSION, supportedVersions: SUPPORTED_VERSIONS })}\n`;

const shim = new ShimUnderTest(PATIENT);
const hasty = new ShimUnderTest(HASTY);

const add = (options: Partial<Run> = {}) =>
  run({ program: shim.build.shim, environment: ADD, stdin: CONFIGURATION, ...options });

describe('answers of the shim without the resident plugin', () => {
  it.each<[NonNullable<Run['stdin']>, string]>([
    ['{"cniVersion":"0.3.1"}', '0.3.1'],
    ['{"name":"net","cniVersion":"9.\\u0039\\"\\n"}', '9.9"\n'],
    [{ kind: 'closed' }, OWN_VERSION],
    ['', OWN_VERSION],
    ['{"cniVersion":"0.3.1"', OWN_VERSION],
    ['["cniVersion"]', OWN_VERSION],
    ['{"cniVersion":3}', OWN_VERSION],
    ['{"cniVersion":""}', OWN_VERSION],
    [`{"cniVersion":"${'1'.repeat(65)}"}`, OWN_VERSION],
  ])('have for %j the version %j', async (stdin, cniVersion) => {
    const outcome = await run({ program: shim.build.shim, environment: { CNI_COMMAND: 'VERSION' }, stdin });
    expect(outcome).toMatchObject({ exitCode: 0, signal: null, stderr: '' });
    expect(JSON.parse(outcome.stdout)).toEqual({ cniVersion, supportedVersions: SUPPORTED_VERSIONS });
  });

  it('have its versions also where stdin does not end, and without connecting', async () => {
    const environment = { CNI_COMMAND: 'VERSION', CNI_NETNS: 'dummy', CNI_ARGS: 'hostile\r\nX: y' };
    const outcome = await run({ program: shim.build.shim, environment, stdin: { kind: 'open' } });
    expect(outcome).toEqual({ exitCode: 0, signal: null, stdout: VERSIONS, stderr: '' });
  });

  it.each([{}, { CNI_COMMAND: '' }])('print its name on stderr without a command: %o', async (environment) => {
    const outcome = await run({ program: shim.build.shim, environment, stdin: { kind: 'open' } });
    expect(outcome).toMatchObject({ exitCode: 0, stdout: '' });
    expect(outcome.stderr).toBe(
      `podwire: CNI plugin; hands each call to podwire-node\nCNI versions: ${SUPPORTED_VERSIONS.join(' ')}\n`,
    );
  });

  it('include the text by which an installer knows the shim', () => {
    expect(isShim(readFileSync(shim.build.shim))).toBe(true);
  });

  it.each(['add', 'ADD ', 'VERSIONS', 'a"\\\u0001\u00e9'])('refuse the unknown command %j', async (command) => {
    const error = errorOf(await add({ environment: { ...ADD, CNI_COMMAND: command } }));
    expect(error).toMatchObject({ cniVersion: '0.4.0', code: 4, msg: `unknown CNI_COMMAND: ${command}` });
  });
});

describe('the request to the resident', () => {
  it('sends the environment as headers and stdin as the body', async () => {
    const { requests } = await shim.resident((response) => response.end('{}'));
    const before = BigInt(Date.now()) * 1_000_000n;
    const environment = {
      ...ADD,
      CNI_NETNS_OVERRIDE: '1',
      TRACEPARENT: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
      TRACESTATE: 'vendor=x',
      BAGGAGE: 'tenant=a',
      LD_PRELOAD: '/nowhere.so',
      HTTP_PROXY: 'http://proxy',
      CNI_OTHER: 'x',
    };
    await add({ environment });
    const { 'cni-exec-time': execTime, ...headers } = requests[0]!.headers;
    expect(requests).toMatchObject([{ method: 'POST', url: '/cni', httpVersion: '1.1' }]);
    expect(requests[0]!.body.toString()).toBe(CONFIGURATION);
    expect(headers).toEqual({
      host: 'podwire',
      connection: 'close',
      'content-type': 'application/json',
      'content-length': String(CONFIGURATION.length),
      'podwire-release': String(RELEASE),
      'cni-plugin': 'podwire',
      'cni-command': 'ADD',
      'cni-containerid': ADD.CNI_CONTAINERID,
      'cni-netns': ADD.CNI_NETNS,
      'cni-netns-override': '1',
      'cni-ifname': 'eth0',
      'cni-args': ADD.CNI_ARGS,
      'cni-path': ADD.CNI_PATH,
      traceparent: environment.TRACEPARENT,
      tracestate: 'vendor=x',
      baggage: 'tenant=a',
    });
    expect(BigInt(String(execTime))).toBeGreaterThanOrEqual(before);
    expect(BigInt(String(execTime))).toBeLessThanOrEqual(BigInt(Date.now() + 1) * 1_000_000n);
  });

  it('sends empty variables like absent ones', async () => {
    const { requests } = await shim.resident((response) => response.end());
    await add({ environment: { CNI_COMMAND: 'DEL', CNI_NETNS: '', CNI_ARGS: '', TRACEPARENT: '' } });
    const sent = requests[0]!.rawHeaders.filter((_, index) => index % 2 === 0);
    expect(sent.filter((name) => /^(cni|trace|baggage)/i.test(name))).toEqual([
      'CNI-Exec-Time',
      'CNI-Plugin',
      'CNI-Command',
    ]);
  });

  it.each(['ADD', 'DEL', 'CHECK', 'GC', 'STATUS'])('sends %s', async (command) => {
    const { requests } = await shim.resident((response) => response.end());
    const outcome = await add({ environment: { ...ADD, CNI_COMMAND: command } });
    expect(outcome).toEqual({ exitCode: 0, signal: null, stdout: '', stderr: '' });
    expect(requests[0]!.headers['cni-command']).toBe(command);
  });

  it('sends its program name', async () => {
    const { requests } = await shim.resident((response) => response.end());
    const link = join(shim.build.folder, 'my-ipam');
    symlinkSync(shim.build.shim, link);
    await add({ program: join(shim.build.folder, 'podwire-ipam') });
    await add({ program: link });
    expect(requests.map(({ headers }) => headers['cni-plugin'])).toEqual(['podwire-ipam', 'my-ipam']);
  });

  it('sends configurations of up to 4 MiB, byte for byte', async () => {
    const { requests } = await shim.resident((response) => response.end());
    const frame = '{"pad":""}';
    for (const bytes of [1 << 20, 4 << 20]) {
      const stdin = `{"pad":"${'x'.repeat(bytes - frame.length)}"}`;
      expect(await add({ stdin })).toMatchObject({ exitCode: 0 });
      expect(requests.at(-1)!.body.equals(Buffer.from(stdin))).toBe(true);
    }
  });

  it('refuses a larger configuration', async () => {
    const { requests } = await shim.resident((response) => response.end());
    expect(errorOf(await add({ stdin: Buffer.alloc((4 << 20) + 1, ' ') }))).toMatchObject({ code: 7 });
    expect(requests).toEqual([]);
  });

  it.each([{ kind: 'closed' } as const, ''])('sends an empty body for the stdin %o', async (stdin) => {
    const { requests } = await shim.resident((response) => response.end('{}'));
    expect(await add({ stdin })).toMatchObject({ exitCode: 0, stdout: '{}' });
    expect(requests[0]!.body).toHaveLength(0);
  });

  it('fails with a stdin that never ends', async () => {
    expect(errorOf(await add({ program: hasty.build.shim, stdin: { kind: 'open' } }))).toMatchObject({
      code: 5,
      msg: expect.stringContaining('stdin'),
    });
  });
});

describe('choosing the socket', () => {
  it('takes the path from the configuration', async () => {
    const path = join(shim.build.folder, 'other.sock');
    const { requests } = await shim.resident((response) => response.end(), path);
    const escaped = path.replaceAll('/', '\\/');
    await add({ stdin: `{"ipam":{"socket":"/wrong"},"socket":"/wrong","\\u0073ocket":"${escaped}","x":"socket"}` });
    expect(requests).toHaveLength(1);
  });

  it.each([
    ['is not a string', '5'],
    ['is not an absolute path', '"cni.sock"'],
    ['is not an absolute path', '""'],
    ['holds a NUL', '"/a\\u0000b"'],
    ['has 200 bytes', `"/${'a'.repeat(199)}"`],
  ])('refuses a key that %s: %s', async (fault, value) => {
    const error = errorOf(await add({ stdin: `{"cniVersion":"0.3.1","socket":${value}}` }));
    expect(error).toMatchObject({ cniVersion: '0.3.1', code: 7, msg: expect.stringContaining(fault) });
  });

  it.each(['{"socket":"/nowhere",', '[{"socket":"/nowhere"}]'])('passes %j to the resident plugin', async (stdin) => {
    const { requests } = await shim.resident((response) =>
      response.writeHead(400, { 'content-length': Buffer.byteLength('{"code":6}') }).end('{"code":6}'),
    );
    const outcome = await add({ stdin });
    expect(outcome).toMatchObject({ exitCode: 1, stdout: '{"code":6}' });
    expect(requests).toHaveLength(1);
  });
});

describe('answers', () => {
  it('prints the body of a 200 with any delivery', async () => {
    const result = JSON.stringify({ cniVersion: '0.4.0', text: 'é'.repeat(100_000) });
    await shim.resident((response, { headers }) => {
      response.setHeader('content-length', Buffer.byteLength(result));
      if (headers['cni-ifname'] === 'whole') response.end(result);
      else [result.slice(0, 1), result.slice(1, 70_000), result.slice(70_000)].forEach((part) => response.write(part));
      response.end();
    });
    for (const CNI_IFNAME of ['whole', 'parts']) {
      const outcome = await add({ environment: { ...ADD, CNI_IFNAME } });
      expect(outcome).toEqual({ exitCode: 0, signal: null, stdout: result, stderr: '' });
    }
  });

  it.each([201, 400, 404, 500, 503])('prints the CNI error of a %i and fails', async (status) => {
    const body = '{"cniVersion":"1.0.0","code":11,"msg":"no address","details":""}';
    await shim.resident((response) =>
      response.writeHead(status, { 'content-length': Buffer.byteLength(body) }).end(body),
    );
    expect(await add()).toEqual({ exitCode: 1, signal: null, stdout: body, stderr: '' });
  });

  it.each(['', 'Not Found', '[]', '"text"', '{"code":', '<html>not found</html>'])(
    'explains an error answer whose body is %j',
    async (body) => {
      await shim.resident((response) =>
        response.writeHead(404, { 'content-length': Buffer.byteLength(body) }).end(body),
      );
      const error = errorOf(await add());
      expect(error).toMatchObject({ cniVersion: '0.4.0', code: 5, msg: expect.stringContaining('404') });
      expect(error.details).toContain(`curl -i --unix-socket ${shim.build.defaultSocket}`);
    },
  );

  it.each([
    ['it is not HTTP/1.1', 'SSH-2.0-OpenSSH\r\n'],
    ['it is not HTTP/1.1', '\u0000\u0001\u0002'],
    ['does not say where its body ends', 'HTTP/1.1 200 OK\r\n\r\n{}'],
    ['larger than 4 MiB', 'HTTP/1.1 200 OK\r\nContent-Length: 4194305\r\n\r\n'],
    ['it has a Transfer-Encoding', 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n'],
  ])('prints nothing of an invalid answer: %s', async (fault, bytes) => {
    await shim.rawPeer((connection) => connection.end(bytes, 'latin1'));
    const error = errorOf(await add());
    expect(error).toMatchObject({ code: 5, msg: expect.stringContaining(fault) });
    expect(error.details).toContain('curl -i --unix-socket');
  });

  it.each([
    ['after 9 bytes', 'HTTP/1.1 '],
    ['after 40 bytes', 'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}'],
  ])('prints nothing of an answer that is cut off %s', async (when, bytes) => {
    await shim.rawPeer((connection) => connection.end(bytes, 'latin1'));
    expect(errorOf(await add())).toMatchObject({
      code: 11,
      msg: expect.stringContaining(`closed the connection ${when} of its answer`),
    });
  });

  it('waits for an answer that comes a byte at a time', async () => {
    const answer = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}';
    await shim.rawPeer((connection) => {
      connection.setNoDelay(true);
      let sent = 0;
      const timer = setInterval(() => {
        connection.write(answer.slice(sent, ++sent));
        if (sent === answer.length) clearInterval(timer);
      }, 2);
    });
    expect(await add()).toMatchObject({ exitCode: 0, stdout: '{}' });
  });

  it.each([
    ['silence', (): void => undefined],
    [
      'half an answer',
      (connection: Socket): void => void connection.write('HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{'),
    ],
  ])('does not wait longer than for a resident that hangs: %s', async (_, speak) => {
    await hasty.rawPeer(speak);
    const error = errorOf(await add({ program: hasty.build.shim }));
    expect(error).toMatchObject({ code: 11, msg: expect.stringContaining(`nothing for ${HASTY.silenceMs} ms`) });
  });

  it('waits until its deadline while the resident works', async () => {
    await hasty.rawPeer((connection) => {
      const timer = setInterval(() => connection.write('HTTP/1.1 102 Processing\r\n\r\n'), HASTY.silenceMs / 7);
      connection.on('close', () => clearInterval(timer));
    });
    const started = performance.now();
    const error = errorOf(await add({ program: hasty.build.shim }));
    expect(performance.now() - started).toBeGreaterThanOrEqual(HASTY.overallDeadlineMs - 50);
    expect(error).toMatchObject({ code: 11, msg: expect.stringContaining(`within ${HASTY.overallDeadlineMs} ms`) });
  });

  it('reads the answer of a resident that refuses a large body without reading it', async () => {
    const body = '{"code":7,"msg":"too large","details":""}';
    await shim.rawPeer((connection) => {
      connection.end(`HTTP/1.1 413 x\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
      connection.pause();
    });
    expect(await add({ stdin: `"${'x'.repeat(1 << 20)}"` })).toMatchObject({ exitCode: 1, stdout: body });
  });
});

describe('an absent resident plugin', () => {
  it('has its socket waited for', async () => {
    const pending = add();
    await new Promise((resolve) => setTimeout(resolve, 100));
    const { requests } = await shim.resident((response) => response.end('{}'));
    expect(await pending).toMatchObject({ exitCode: 0, stdout: '{}' });
    expect(requests).toHaveLength(1);
  });

  it('fails with a retryable code while the socket is missing', async () => {
    const started = performance.now();
    const error = errorOf(await add({ program: hasty.build.shim }));
    expect(performance.now() - started).toBeGreaterThanOrEqual(HASTY.connectWindowMs - 50);
    expect(error).toMatchObject({ cniVersion: '0.4.0', code: 11 });
    expect(error.msg).toContain(`${hasty.build.defaultSocket}: the socket does not exist`);
    expect(error.details).toContain('check that podwire-node runs');
  });

  it('lets STATUS succeed at once while the resident restarts, within its lease', async () => {
    const lease = join(hasty.build.folder, 'node-ready');
    const status = () => add({ program: hasty.build.shim, environment: { CNI_COMMAND: 'STATUS' } });
    const held = (seconds: number) => utimesSync(lease, new Date(), new Date(Date.now() + seconds * 1000));
    expect(errorOf(await status())).toMatchObject({ code: 11 });
    writeFileSync(lease, '');
    expect(errorOf(await status())).toMatchObject({ code: 11 });
    held(30);
    expect(await status()).toEqual({ exitCode: 0, signal: null, stdout: '', stderr: '' });
    expect(errorOf(await add({ program: hasty.build.shim }))).toMatchObject({ code: 11 });
    // A lease beyond the maximum, after the clock was set back.
    held(3600);
    expect(errorOf(await status())).toMatchObject({ code: 11 });
    held(30);
    await hasty.resident((response) =>
      response.writeHead(500, { 'content-length': Buffer.byteLength('{"code":50}') }).end('{"code":50}'),
    );
    expect(await status()).toMatchObject({ exitCode: 1, stdout: '{"code":50}' });
    rmSync(lease);
  });

  it('fails with code 11 when no process listens', async () => {
    const path = join(hasty.build.folder, 'dead.sock');
    // A killed process leaves its socket's file behind.
    const bind = `require('net').createServer().listen(${JSON.stringify(path)}, () => process.kill(process.pid, 'SIGKILL'))`;
    await run({
      program: '/bin/sh',
      environment: {},
      stdin: `exec '${process.execPath}' -e "$(cat <<'END'\n${bind}\nEND\n)"`,
    });
    const error = errorOf(await add({ program: hasty.build.shim, stdin: JSON.stringify({ socket: path }) }));
    expect(error).toMatchObject({ code: 11, msg: expect.stringContaining('no process listens') });
  });

  it.each(['', '{"cniVersion":"0.4.0"', '[]', '"text"', 'null'])(
    'has the configuration %j reported by the shim',
    async (stdin) => {
      const error = errorOf(await add({ program: hasty.build.shim, stdin }));
      expect(error).toMatchObject({ cniVersion: '1.1.0', code: 6, msg: expect.stringContaining('not a JSON object') });
      // A restarted resident would refuse it too.
      expect(error.msg).not.toContain('waited');
    },
  );

  it('has its socket’s permissions reported when it refuses the caller', async () => {
    await shim.resident((response) => response.end());
    chmodSync(shim.build.defaultSocket, 0o000);
    // Root without this capability is refused like other users, also in a user namespace that has only root.
    const script = join(shim.build.folder, 'unprivileged');
    const caps = '-dac_override,-dac_read_search';
    writeFileSync(script, `#!/bin/sh\nexec setpriv --bounding-set ${caps} "${shim.build.shim}"\n`, { mode: 0o755 });
    const error = errorOf(await add({ program: script }));
    expect(error).toMatchObject({ code: 5, details: expect.stringContaining('only root may use it') });
  });

  it('fails at once where a wait cannot help', async () => {
    const file = join(shim.build.folder, 'file');
    writeFileSync(file, '');
    const error = errorOf(await add({ stdin: JSON.stringify({ socket: `${file}/cni.sock` }) }));
    expect(error).toMatchObject({ code: 5, msg: expect.stringContaining('Not a directory') });
  });
});

/** In a user namespace that maps root alone there are no other users. */
const hasOtherUsers = !/^\s*0\s+\d+\s+1\s*$/.test(readFileSync('/proc/self/uid_map', 'utf8'));

describe.runIf(hasOtherUsers)('a socket of another user', () => {
  const ends: (() => Promise<void>)[] = [];

  afterEach(async () => {
    for (const end of ends.splice(0)) await end();
  });

  /** A process of that user: it listens, says what it receives, and closes each connection after the first bytes. */
  async function listener(user: number) {
    const folder = mkdtempSync(join(tmpdir(), 'shim-user-'));
    chmodSync(folder, 0o777);
    const socket = join(folder, 'cni.sock');
    const script = `process.setuid(${user});
      const say = (text) => process.stdout.write(text);
      require('net').createServer((connection) => {
        connection.on('data', (bytes) => say(bytes) && connection.end());
        connection.on('close', () => say('closed'));
        connection.on('error', () => undefined);
      }).listen(${JSON.stringify(socket)}, () => say('listens'));`;
    const child = spawn(process.execPath, ['-e', script], { stdio: ['ignore', 'pipe', 'inherit'] });
    let said = '';
    child.stdout.setEncoding('utf8').on('data', (text: string) => (said += text));
    ends.push(async () => {
      child.kill('SIGKILL');
      await once(child, 'close');
      rmSync(folder, { recursive: true });
    });
    await expect.poll(() => said).toBe('listens');
    const stdin = JSON.stringify({ cniVersion: '1.0.0', name: 'net', type: 'podwire', socket });
    return { socket, pid: child.pid, received: () => said.slice('listens'.length), stdin };
  }

  it('gets no call', async () => {
    const { socket, pid, received, stdin } = await listener(1234);
    for (const CNI_COMMAND of ['ADD', 'DEL', 'STATUS']) {
      const error = errorOf(await add({ environment: { ...ADD, CNI_COMMAND }, stdin }));
      expect(error).toMatchObject({ cniVersion: '1.0.0', code: 5 });
      expect(error.msg).toBe(`the socket ${socket} belongs to a process of user 1234, not of root`);
      expect(error.details).toContain(`end process ${pid}, `);
    }
    await expect.poll(received).toBe('closed'.repeat(3));
  });

  it.each<[string, number, Record<string, unknown>]>([
    ['gets the calls of that user', 1234, { code: 11, msg: expect.stringContaining('without an answer') }],
    [
      'gets no call when the user is the overflow user of a user namespace',
      65_534,
      { code: 5, msg: expect.stringContaining('a process of user 65534') },
    ],
  ])('%s', async (_, user, outcome) => {
    const { stdin, received } = await listener(user);
    const script = join(shim.build.folder, `as-${user}`);
    chmodSync(shim.build.folder, 0o755);
    writeFileSync(script, `#!/bin/sh\nexec setpriv --reuid=${user} --clear-groups "${shim.build.shim}"\n`, {
      mode: 0o755,
    });
    expect(errorOf(await add({ program: script, stdin }))).toMatchObject(outcome);
    expect(received().startsWith('POST /cni')).toBe(outcome.code === 11);
  });
});

describe('a resident that stops', () => {
  const ENDING = '{"cniVersion":"0.4.0","code":11,"msg":"is being stopped"}';
  const refused = { exitCode: 1, signal: null, stdout: ENDING, stderr: '' };

  it('has its call repeated to the next one', async () => {
    let count = 0;
    const { requests } = await shim.resident((response) => {
      if (++count === 1)
        response.writeHead(421, { connection: 'close', 'content-length': Buffer.byteLength(ENDING) }).end(ENDING);
      else response.end('{}');
    });
    expect(await add()).toMatchObject({ exitCode: 0, stdout: '{}' });
    const [first, second] = requests.map(({ rawHeaders, body }) => ({ rawHeaders, body: body.toString() }));
    expect(second).toEqual(first);
    expect(requests).toHaveLength(2);
  });

  it('has its answer returned where no other resident starts', async () => {
    const { requests } = await hasty.resident((response) => {
      // Its socket is removed first.
      rmSync(hasty.build.defaultSocket);
      response.writeHead(421, { 'content-length': Buffer.byteLength(ENDING) }).end(ENDING);
    });
    expect(await add({ program: hasty.build.shim })).toEqual(refused);
    expect(requests).toHaveLength(1);
  });

  it('is not called a third time', async () => {
    const { requests } = await shim.resident((response) =>
      response.writeHead(421, { 'content-length': Buffer.byteLength(ENDING) }).end(ENDING),
    );
    expect(await add()).toEqual(refused);
    expect(requests).toHaveLength(2);
  });

  it('counts as failed where the next one ends without an answer', async () => {
    let count = 0;
    await shim.resident((response) => {
      if (++count === 1) response.writeHead(421, { 'content-length': Buffer.byteLength(ENDING) }).end(ENDING);
      else response.destroy();
    });
    expect(errorOf(await add())).toMatchObject({ code: 11, msg: expect.stringContaining('without an answer') });
  });
});

describe('the shipped build', () => {
  it('is one small static program under two names', () => {
    make();
    expect(make()).toBe('');
    const shim = join(import.meta.dirname, 'build', 'podwire');
    expect(statSync(shim).size).toBeLessThan(1 << 20);
    expect(statSync(join(dirname(shim), 'podwire-ipam')).ino).toBe(statSync(shim).ino);
    // A program with an interpreter depends on other files of the machine.
    expect(execFileSync('readelf', ['--program-headers', shim], { encoding: 'utf8' })).not.toContain('INTERP');
    expect(execFileSync(shim, { env: { CNI_COMMAND: 'VERSION' }, encoding: 'utf8' })).toBe(VERSIONS);
  });

  it('passes its unit tests under the address and undefined-behaviour sanitizers', { timeout: 120_000 }, () => {
    expect(make('test')).toMatch(/^shim: \d+ unit tests, 0 failed expectations$/m);
  });
});
