import { execFileSync } from 'node:child_process';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { Fakes } from '../testing/ctl.js';
import { VERBS } from '../verbs.js';
import { candidates } from './completion.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

test.each([
  ['ge', ['get']],
  ['ipam s', ['ipam show', 'ipam split'].map((name) => name.slice(5))],
  ['get ippo', ['ippool', 'ippools']],
  ['get -o ', ['json', 'name', 'ps', 'table', 'wide', 'yaml', 'yml']],
  ['ipam show --show-b', ['--show-blocks', '--show-borrowed']],
  ['completion ', ['bash', 'fish', 'zsh']],
  ['who 10.65.0.7 --ti', ['--timeout']],
  ['nonsense ', []],
])('"%s" may be continued with %j', (line, expected) => {
  expect(candidates(line.split(' '), VERBS)).toEqual(expected);
});

test('the words that a script asks for are printed one per line', async () => {
  expect(await fakes.podwirectl('__complete', 'journal', 're')).toEqual({ exitCode: 0, stdout: 'retry\n', stderr: '' });
});

test('bash completes with its script', async () => {
  const { stdout: script } = await fakes.podwirectl('completion', 'bash');
  const program = 'podwirectl() { printf "%s\\n" get gc; }';
  const line = 'COMP_WORDS=(podwirectl g); COMP_CWORD=1; _podwirectl; echo "${COMPREPLY[@]}"';
  const output = execFileSync('bash', ['-c', `${program}\n${script}\n${line}`], { encoding: 'utf8' });
  expect(output).toBe('get gc\n');
});

test.each([
  ['zsh', 'compdef _podwirectl podwirectl'],
  ['fish', 'complete -c podwirectl'],
])('there is a script for %s', async (shell, text) => {
  const { exitCode, stdout } = await fakes.podwirectl('completion', shell);
  expect([exitCode, stdout]).toEqual([0, expect.stringContaining(text)]);
});

test('another shell is refused', async () => {
  expect(await fakes.podwirectl('completion', 'tcsh')).toMatchObject({ exitCode: 2 });
});
