import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';

import { describe, expect, test } from 'vitest';

import { run } from '../support/programs.js';
import { ROOT } from '../support/root.js';

const START = join(ROOT, 'deploy', 'local', 'start.mjs');

const start = (...args: readonly string[]) => spawnSync(process.execPath, [START, ...args], { encoding: 'utf8' });

/** Runs `npm start` until it ends, while this process serves it. */
async function end(...args: readonly string[]) {
  const child = spawn(process.execPath, [START, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
  const ended = once(child, 'exit');
  const [stdout, stderr] = await Promise.all([text(child.stdout), text(child.stderr)]);
  const [code]: unknown[] = await ended;
  return { code, stdout, stderr };
}

/** A collector that takes everything, outside of the demonstration's namespaces. */
async function startCollector() {
  const bodies: { readonly path: string | undefined; readonly body: string }[] = [];
  const collector = createServer((request, response) => {
    void text(request).then((body) => {
      bodies.push({ path: request.url, body });
      response.end();
    });
  });
  await once(collector.listen(0, '127.0.0.1'), 'listening');
  const address: AddressInfo | string | null = collector.address();
  const url = `http://127.0.0.1:${typeof address === 'object' ? address!.port : 0}`;
  const received = (path: string) =>
    bodies
      .filter((each) => each.path === path)
      .map(({ body }) => body)
      .join('');
  return { collector, received, url };
}

/** Runs `npm start`, in a process group of its own as a terminal does, until it prints a text. */
async function running(text = 'Ctrl-C takes everything away') {
  const child = spawn(process.execPath, [START], { stdio: ['ignore', 'pipe', 'pipe'], detached: true });
  let output = '';
  const ended = new Promise<number | null>((resolve) => child.once('exit', resolve));
  await new Promise<void>((resolve, reject) => {
    child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
      output += chunk;
      if (output.includes(text)) resolve();
    });
    void ended.then((code) => reject(new Error(`ended with code ${code}: ${output}`)));
  });
  let errors = '';
  child.stderr.setEncoding('utf8').on('data', (chunk: string) => (errors += chunk));
  return { child, ended, output: () => output, errors: () => errors };
}

describe('npm start', () => {
  test('--once shows two connected pods, and ends with exit code 0; --otlp sends traces and metrics', async () => {
    const { collector, received, url } = await startCollector();
    const { code, stdout, stderr } = await end('--once', '--otlp', url);
    collector.close();
    expect(code, stdout + stderr).toBe(0);
    expect(stdout.match(/✓/g)).toHaveLength(6);
    expect(stdout).not.toContain('✗');
    expect(stdout).toMatch(/web-0 +10\.65\.\d+\.\d+\/32 +podw[0-9a-f]{11}/);
    expect(stdout).toMatch(/ADD ms +shim .*plugin .*dataplane .*kernel/);
    const [total, ...parts] = /web-1 +\S+ +\S+ +(.*)/.exec(stdout)![1]!.split(/ +/).map(Number);
    expect(parts.length).toBeGreaterThanOrEqual(4);
    expect(parts.reduce((sum, part) => sum + part)).toBeCloseTo(total!, 0);
    expect(stdout).toMatch(/default-ipv4-ippool +10\.65\.0\.0\/16 +65536/);
    expect(stdout).toContain('receives traces and metrics');
    for (const service of ['podwire-ipam', 'podwire-node']) {
      expect(received('/v1/traces')).toContain(service);
      expect(received('/v1/metrics')).toContain(service);
    }
    expect(received('/v1/traces')).toContain('CNI ADD');
    expect(received('/v1/metrics')).toContain('podwire.plugin.command.duration');
  }, 300_000);

  test('a second one is refused while the first runs; Ctrl-C ends the first and removes everything', async () => {
    const before = run('ip', '-br', 'link');
    const first = await running();
    const folder = /logs: (\S+)\/log/.exec(first.output())![1]!;
    expect(existsSync(folder)).toBe(true);

    const second = start('--once');
    expect(second.status).toBe(1);
    expect(second.stderr).toContain('runs already');

    const link = /live: (http:\/\/127\.0\.0\.1:\d+\/)/.exec(first.output())![1]!;
    const data = async () => (await fetch(`${link}data.json`)).text();
    await expect.poll(data).toContain('"pod":"demo/rollout-1"');
    expect(await (await fetch(link)).text()).toContain('<h1>Pod setup latency</h1>');

    // A terminal's Ctrl-C goes to every process of the group.
    process.kill(-first.child.pid!, 'SIGINT');
    expect(await first.ended).toBe(0);
    expect(first.output()).toContain('done: everything taken away');
    expect(existsSync(folder)).toBe(false);
    expect(run('ip', '-br', 'link')).toBe(before);
    expect(run('sh', '-c', 'ps ax -o args | grep -c "[d]ist/main.js" || true').trim()).toBe('0');
  }, 300_000);

  test('the suggested commands work from outside, on the node of the demonstration', async () => {
    const first = await running();
    const proposed = first.output().split('try, in another terminal in this folder:\n')[1]!.split('logs: ')[0]!;
    const lines = proposed.split('\n').filter((line) => line.startsWith('  '));
    // Commands that CI may lack, and a command that does not end; npm links the programs only where it has installed.
    const runnable = lines.filter((line) => !line.includes('grpcurl')).map((line) => line.trim().replace(/^sudo /, ''));
    const script = runnable
      .map((line) => line.replace('npx podwirectl', 'services/ctl/bin/podwirectl.mjs'))
      .join(' &&\n');
    const { status, stdout, stderr } = spawnSync('sh', ['-c', script], { cwd: ROOT, encoding: 'utf8' });
    process.kill(-first.child.pid!, 'SIGINT');
    expect(await first.ended).toBe(0);
    expect(status, stdout + stderr).toBe(0);
    expect(stdout).toMatch(/^State +healthy$/m);
    expect(stdout).toMatch(/^Pod +demo\/web-0$/m);
    expect(stdout).toContain('ADD of demo/web-0:');
    expect(stdout).toContain('podwire.ipam.v1.PoolService/ListPools');
    expect(stdout).toMatch(/^10\.65\.\d+\.\d+ dev podw[0-9a-f]{11} /m);
    expect(stdout).toMatch(/inet 10\.65\.\d+\.\d+\/32 .*eth0/);
  }, 300_000);

  test('Ctrl-C while it adds pods is no failure', async () => {
    const first = await running('pings');
    process.kill(-first.child.pid!, 'SIGINT');
    await first.ended;
    expect(first.output()).toMatch(/(done|stopped): everything taken away/);
    expect(first.errors()).toBe('');
  }, 300_000);

  test('a second Ctrl-C ends it where podwire-node hangs', async () => {
    const first = await running();
    const folder = /logs: (\S+)\/log/.exec(first.output())![1]!;
    const [node = ''] = run('pgrep', '-f', '[n]ode/dist/main.js').split('\n');
    process.kill(Number(node), 'SIGSTOP');
    const presses = setInterval(() => process.kill(-first.child.pid!, 'SIGINT'), 200);
    expect(await first.ended).toBe(1);
    clearInterval(presses);
    expect(existsSync(folder)).toBe(false);
  }, 300_000);

  test('removes everything also when it is killed', async () => {
    const first = await running();
    const folder = /logs: (\S+)\/log/.exec(first.output())![1]!;
    first.child.kill('SIGKILL');
    await expect.poll(() => existsSync(folder), { timeout: 20_000 }).toBe(false);
    await expect
      .poll(() => run('sh', '-c', 'ps ax -o args | grep -c "[d]ist/main.js" || true').trim(), { timeout: 20_000 })
      .toBe('0');
  }, 300_000);

  test.each([
    ['an unknown argument', ['--twice'], /--twice.*usage/s],
    ['a collector that is no URL of HTTP', ['--otlp', 'localhost:4318'], /localhost:4318: must be a URL.*usage/s],
  ])('%s is refused', (_, args, message) => {
    const { status, stderr } = start(...args);
    expect(status).toBe(1);
    expect(stderr).toMatch(message);
  });

  test.each([
    ['darwin', '20.20.0', 'Run it on Linux'],
    ['linux', '18.20.0', 'needs Node.js 20.19'],
    ['linux', '20.18.0', 'needs Node.js 20.19'],
  ])('on %s with Node.js %s it fails with the reason', (platform, version, message) => {
    const program = `import { systemFault } from ${JSON.stringify(join(ROOT, 'deploy', 'local', 'prepare.mjs'))};
      process.stdout.write(systemFault(${JSON.stringify({ platform, version })}))`;
    expect(run(process.execPath, '--input-type=module', '-e', program)).toContain(message);
  });
});
