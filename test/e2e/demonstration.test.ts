import { spawn, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';

import { describe, expect, test } from 'vitest';

import { run } from '../support/programs.js';
import { ROOT } from '../support/root.js';

const START = join(ROOT, 'deploy', 'local', 'start.mjs');

const start = (...args: readonly string[]) => spawnSync(process.execPath, [START, ...args], { encoding: 'utf8' });

/** Runs `npm start`, in a process group of its own as a terminal does, until it prints that it is running. */
async function running() {
  const child = spawn(process.execPath, [START], { stdio: ['ignore', 'pipe', 'inherit'], detached: true });
  let output = '';
  const ended = new Promise<number | null>((resolve) => child.once('exit', resolve));
  await new Promise<void>((resolve, reject) => {
    child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
      output += chunk;
      if (output.includes('Ctrl-C takes everything away')) resolve();
    });
    void ended.then((code) => reject(new Error(`ended with code ${code}: ${output}`)));
  });
  return { child, ended, output: () => output };
}

describe('npm start', () => {
  test('--once shows two connected pods, and ends with exit code 0', () => {
    const { status, stdout, stderr } = start('--once');
    expect(status, stdout + stderr).toBe(0);
    expect(stdout.match(/✓/g)).toHaveLength(6);
    expect(stdout).not.toContain('✗');
    expect(stdout).toMatch(/web-0 +10\.65\.\d+\.\d+\/32 +podw[0-9a-f]{11}/);
    expect(stdout).toMatch(/ADD ms +shim .*plugin .*rpc .*ipam .*datastore .*dataplane .*kernel/);
    const [total, ...parts] = /web-1 +\S+ +\S+ +(.*)/.exec(stdout)![1]!.split(/ +/).map(Number);
    expect(parts.length).toBeGreaterThanOrEqual(7);
    expect(parts.reduce((sum, part) => sum + part)).toBeCloseTo(total!, 0);
    expect(stdout).toMatch(/default-ipv4-ippool +10\.65\.0\.0\/16 +65536/);
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
    // Commands that CI may lack, and the one that does not end; npm links the programs only where it has installed.
    const runnable = lines.filter((line) => !line.includes('grpcurl')).map((line) => line.trim().replace(/^sudo /, ''));
    const script = runnable
      .map((line) => line.replace('npx podwirectl', 'services/ctl/bin/podwirectl.mjs'))
      .join(' &&\n');
    const { status, stdout, stderr } = spawnSync('sh', ['-c', script], { cwd: ROOT, encoding: 'utf8' });
    process.kill(-first.child.pid!, 'SIGINT');
    expect(await first.ended).toBe(0);
    expect(status, stdout + stderr).toBe(0);
    expect(stdout).toMatch(/^Pod +demo\/web-0$/m);
    expect(stdout).toContain('podwire.ipam.v1.PoolService/ListPools');
    expect(stdout).toMatch(/^10\.65\.\d+\.\d+ dev podw[0-9a-f]{11} /m);
    expect(stdout).toMatch(/inet 10\.65\.\d+\.\d+\/32 .*eth0/);
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

  test('an unknown argument is refused', () => {
    const { status, stderr } = start('--twice');
    expect(status).toBe(1);
    expect(stderr).toMatch(/--twice.*usage/s);
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
