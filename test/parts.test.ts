import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate, setTimeout as sleep } from 'node:timers/promises';

import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { failures, queue, total, type Part } from './parts.mjs';
import { ROOT } from './support/root.js';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-parts-'));
});
afterEach(() => rmSync(folder, { recursive: true }));

describe('queue', () => {
  test('gives a free worker the next task, and returns the results in the order of the tasks', async () => {
    const begun: number[] = [];
    const ends: (() => void)[] = [];
    const tasks = Array.from({ length: 5 }, (_, index) => async () => {
      begun.push(index);
      await new Promise<void>((resolve) => (ends[index] = resolve));
      return index;
    });
    const all = queue(tasks, 2);
    expect(begun).toEqual([0, 1]);
    for (const index of [1, 2, 3]) {
      ends[index]!();
      await setImmediate();
    }
    // The first task took long, and the other worker ran all other tasks.
    expect(begun).toEqual([0, 1, 2, 3, 4]);
    ends[4]!();
    ends[0]!();
    expect(await all).toEqual([0, 1, 2, 3, 4]);
  });
});

describe('the total', () => {
  const part = (name: string, report?: string): Part => {
    const path = join(folder, name);
    if (report !== undefined) writeFileSync(path, report);
    return { name, status: report === undefined ? 137 : 0, report: path };
  };
  const counts = (passed: number, failed: number, skipped: number) =>
    JSON.stringify({ numPassedTests: passed, numFailedTests: failed, numPendingTests: skipped });

  test('is the sum of all reports', () => {
    const parts = [part('a', counts(3, 0, 1)), part('b', counts(4, 2, 0))];
    expect(total(parts)).toEqual({ missing: [], passed: 7, failed: 2, skipped: 1 });
  });

  test.each([
    ['is absent', undefined],
    ['was cut off', '{"numPassedTests": 9'],
  ])('counts a part whose report %s as failed, and names it', (_, report) => {
    const { missing, ...sums } = total([part('a', counts(3, 0, 0)), part('b', report)]);
    expect(sums).toEqual({ passed: 3, failed: 1, skipped: 0 });
    expect(missing).toEqual([expect.stringMatching(/^b ended with exit code \d+, and left no report/)]);
  });
});

describe('the failures', () => {
  const part = (status: number, { report, output }: { report?: object; output?: string }): Part => {
    const [path, log] = [join(folder, `${status}.json`), join(folder, `${status}.log`)];
    if (report !== undefined) writeFileSync(path, JSON.stringify(report));
    if (output !== undefined) writeFileSync(log, output);
    return { name: 'part 2 of 3', status, report: path, log };
  };
  const passed = { fullName: 'pods have addresses', status: 'passed', failureMessages: [] };
  const failed = { fullName: 'pods have routes', status: 'failed', failureMessages: ['Error: none\n    at a.ts:1'] };
  const lines = (count: number) => Array.from({ length: count }, (_, index) => `line ${index + 1}`);

  test('have the file, the test and its error', () => {
    const result = { name: '/a.test.ts', status: 'failed', message: '', assertionResults: [passed, failed] };
    expect(failures([part(1, { report: { testResults: [result] } })])).toEqual([
      '/a.test.ts: pods have routes\n  Error: none\n      at a.ts:1',
    ]);
  });

  test('include a file that could not be run', () => {
    const result = { name: '/a.test.ts', status: 'failed', message: 'no such module', assertionResults: [] };
    expect(failures([part(1, { report: { testResults: [result] } })])).toEqual(['/a.test.ts\n  no such module']);
  });

  test('are cut when they are long', () => {
    const long = { ...failed, failureMessages: [lines(50).join('\n')] };
    const result = { name: '/a.test.ts', status: 'failed', message: '', assertionResults: [long] };
    const [text] = failures([part(1, { report: { testResults: [result] } })]);
    expect(text?.split('\n').slice(-2)).toEqual(['  line 40', '  … 10 more lines']);
  });

  test.each([
    ['names no test', { testResults: [{ name: '/a', status: 'passed', message: '', assertionResults: [passed] }] }],
    ['is absent', undefined],
  ])('are the last lines of a part whose report %s', (_, report) => {
    const [text] = failures([part(137, { ...(report && { report }), output: `${lines(50).join('\n')}\n` })]);
    expect(text?.split('\n').slice(0, 2)).toEqual(['part 2 of 3 ended with exit code 137', '  line 11']);
    expect(text?.split('\n').at(-1)).toBe('  line 50');
  });

  test('are empty for a part that passed', () => {
    const result = { name: '/a.test.ts', status: 'failed', message: '', assertionResults: [failed] };
    expect(failures([part(0, { report: { testResults: [result] } })])).toEqual([]);
  });
});

/** A run of four parts, each with a separate script in a process of its own. @param script - has `report` and `selection` */
function runInProcess(script: string) {
  const program = `
    import { runParts, Running, total } from ${JSON.stringify(join(ROOT, 'test', 'parts.mjs'))};
    const running = new Running();
    const args = ({ report, selection }) => ${script};
    const options = { cwd: ${JSON.stringify(ROOT)}, env: process.env };
    const parts = await runParts({ running, folder: ${JSON.stringify(folder)}, count: 4, workersCount: 2, args, options });
    console.log(JSON.stringify({ statuses: parts.map(({ status }) => status), total: total(parts) }));
    process.exit(running.stoppedWith ?? 0);`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let output = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => (output += text));
  const ended = once(child, 'close').then(() => child.exitCode);
  return { child, ended, output: () => output };
}

describe('parts', () => {
  test('write their output as a whole, one after the other; a killed one is reported', async () => {
    const script = `['-e', \`
      const [part] = \${JSON.stringify(selection)};
      console.log('begin ' + part);
      if (part === '--shard=3/4') process.kill(process.pid, 'SIGKILL');
      require('node:fs').writeFileSync(\${JSON.stringify(report)}, JSON.stringify({ numPassedTests: 2, numFailedTests: 0, numPendingTests: 0 }));
      console.log('end ' + part + ' in ' + require('node:os').tmpdir());\`]`;
    const { ended, output } = runInProcess(script);
    expect(await ended).toBe(0);
    const lines = output().split('\n').filter(Boolean);
    expect(JSON.parse(lines.at(-1)!)).toMatchObject({
      statuses: [0, 0, 128 + 9, 0],
      total: { passed: 6, failed: 1, missing: [expect.stringContaining('part 3 of 4 ended with exit code 137')] },
    });
    for (const part of [1, 2, 4]) {
      const first = lines.indexOf(`── part ${part} of 4`);
      const [begin, end] = [`begin --shard=${part}/4`, `end --shard=${part}/4 in ${join(folder, `part-${part}`)}`];
      expect(lines.slice(first + 1, first + 3)).toEqual([begin, end]);
    }
  });

  test('end with the run at a signal, with every process in their namespaces; no other begins', async () => {
    const isolated = JSON.stringify(join(ROOT, 'test', 'support', 'isolated.mjs'));
    const script = `[${isolated}, 'sh', '-c', 'touch "$TMPDIR/begun"; while sleep 0.1; do touch "$TMPDIR/alive"; done']`;
    const { child, ended } = runInProcess(script);
    const begun = () => readdirSync(folder).filter((part) => existsSync(join(folder, part, 'begun')));
    await expect.poll(begun, { timeout: 60_000 }).toHaveLength(2);
    child.kill('SIGTERM');
    expect(await ended).toBe(128 + 15);
    expect(readdirSync(folder)).toEqual(['part-1', 'part-2']);
    // A process that survived would write this.
    for (const part of begun()) rmSync(join(folder, part, 'alive'), { force: true });
    await sleep(500);
    for (const part of begun()) expect(readdirSync(join(folder, part))).not.toContain('alive');
  }, 120_000);
});
