import { describe, expect, test } from 'vitest';

import { runCommandLine } from './command-line.js';
import { readOptions, USAGE } from './options.js';
import { jsonReport, junitReport } from './report/machines.js';
import { mustFailures, summaryText, verdictText } from './report/people.js';
import type { Verdict } from './case.js';

const FILES: Readonly<Record<string, string>> = {
  '/usr/lib/cni/ptp': '',
  '/usr/lib/cni/static': '',
  '/mine/own': '',
  '/list': JSON.stringify({ plugins: [{ type: 'other' }, { type: 'own', key: '{leases}' }] }),
  '/text': '[',
};
const deps = { exists: (path: string) => path in FILES, read: (path: string) => FILES[path] ?? '', seed: 11 };
const read = (...args: readonly string[]) => readOptions(args, deps);

describe('the command line', () => {
  test('accepts a known plugin', () => {
    const options = read('--plugin', 'ptp', '--kills', '3', '--only', 'add', '--only', 'del');
    expect(options).toMatchObject({ seed: 11, kills: 3, pods: 110, parallel: 16, only: ['add', 'del'] });
    expect(options?.subject).toMatchObject({ program: '/usr/lib/cni/ptp', binDir: '/usr/lib/cni', kind: 'interface' });
  });

  test('accepts another plugin with its configuration', () => {
    const { subject } = read('--plugin', '/mine/own', '--config', '/list', '--ipam', 'static', '--kind', 'meta')!;
    expect(subject).toMatchObject({ name: 'own', program: '/mine/own', kind: 'meta', makesInterface: false });
    expect(subject.template).toMatchObject({ type: 'own', key: '{leases}', ipam: { type: 'static' } });
  });

  test('accepts the socket and the records of a resident', () => {
    const { subject } = read('--plugin', '/mine/own', '--resident', '--node-netns', '/n', '--socket', '/s')!;
    expect(subject).toMatchObject({ isResident: true, nodeNetns: '/n', template: { socket: '/s' } });
  });

  test.each([
    [[], '--plugin is missing'],
    [['--plugin', 'nowhere'], 'there is no /opt/cni/bin/nowhere'],
    [['--plugin', './own'], 'no absolute path'],
    [['--plugin', 'ptp', '--seed', 'x'], '--seed x is no number'],
    [['--plugin', 'ptp', '--kind', 'x'], '--kind x is none of'],
    [['--plugin', 'ptp', '--ipam', 'toString'], '--ipam toString is none of'],
    [['--plugin', 'ptp', '--config', '/text'], '/text holds no JSON object'],
    [['--plugin', 'ptp', '--keeps', '('], '--keeps: '],
    [['--plugin', 'ptp', '--wrong'], '--wrong'],
  ])('%j is refused', (args, message) => {
    expect(() => read(...args)).toThrow(message);
  });

  test('explains every option', () => {
    for (const [, option] of USAGE.matchAll(/^ {2}(--[a-z-]+) /gm))
      expect(() => read(option!)).not.toThrow('Unknown option');
    expect(read('--help')).toBeUndefined();
  });

  test('requires root, and runs no case without it', async () => {
    const said: string[] = [];
    const write = (text: string) => void said.push(text);
    const process = { self: [], env: {}, pid: 1, isRoot: false, chance: () => 0.5, write, complain: write };
    expect(await runCommandLine({ ...process, args: ['--plugin', '/bin/true'] })).toBe(254);
    expect(await runCommandLine({ ...process, args: ['--help'] })).toBe(0);
    expect(said).toEqual([expect.stringContaining('need root'), USAGE]);
  });
});

describe('reports', () => {
  const verdict = (id: string, rest: Partial<Verdict>): Verdict => {
    const usual = {
      section: '2 ADD',
      level: 'MUST',
      title: 'a <title>',
      status: 'pass',
      reasons: [],
      evidence: [],
    } as const;
    return { id, durationMs: 1500, ...usual, ...rest };
  };
  const verdicts = [
    verdict('a', {}),
    verdict('b', { status: 'fail', reasons: ['"quoted" & more'], evidence: ['$ plugin\u0000'] }),
    verdict('c', { status: 'fail', level: 'SHOULD', reasons: ['r'] }),
    verdict('d', { status: 'not applicable', reasons: ['r'] }),
    verdict('e', { status: 'error', reasons: ['r'] }),
  ];

  test('count the failures', () => {
    expect(mustFailures(verdicts)).toBe(2);
    expect(summaryText('p', verdicts)).toMatch(/MUST +1 +1 +1 +1\nSHOULD +0 +1 +0 +0\n/);
  });

  test('show evidence on request', () => {
    expect(verdictText(verdicts[1]!, { isVerbose: false })).not.toContain('$ plugin');
    expect(verdictText(verdicts[1]!, { isVerbose: true })).toContain('      | $ plugin');
  });

  test('are well-formed for machines', () => {
    const xml = junitReport({ name: 'p', seed: 1, verdicts });
    expect(xml).toContain('<testsuite name="p" tests="5" failures="1" errors="1" skipped="2">');
    expect(xml).toContain('<failure message="&quot;quoted&quot; &amp; more">$ plugin?</failure>');
    expect(JSON.parse(jsonReport({ name: 'p', seed: 1, verdicts }))).toMatchObject({ plugin: 'p', seed: 1, verdicts });
  });
});
