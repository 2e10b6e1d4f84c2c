import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { ListPoolsResponse, PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { builtFile } from '@podwire/shared/testing/program';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { fake, Fakes, pool } from '../testing/ctl.js';
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
  ['-o json get ippo', ['ippool', 'ippools']],
  ['get --output yaml ippo', ['ippool', 'ippools']],
  ['get --output=js', ['--output=json']],
  ['get --output = js', ['--output=json']],
  ['get --output =', ['json', 'name', 'ps', 'table', 'wide', 'yaml', 'yml'].map((word) => `--output=${word}`)],
  ['get --nonsense=j', []],
  ['nonsense ', []],
])('"%s" may be continued with %j', async (line, expected) => {
  expect(await candidates(line.split(' '), VERBS, () => Promise.resolve([]))).toEqual(expected);
});

test('the words that a script asks for are printed one per line', async () => {
  expect(await fakes.podwirectl('__complete', 'journal', 're')).toEqual({ exitCode: 0, stdout: 'retry\n', stderr: '' });
});

describe('names', () => {
  test.each([
    ['get ippools ', 'ippools', []],
    ['delete ippool a ', 'ippool', []],
    ['describe -o json node n', 'node', []],
    ['get blocks --node ', 'nodes', []],
    ['get weps -n ', 'namespaces', []],
    ['get blocks --ipam unix:/a --pool=', 'ippools', ['--ipam', 'unix:/a']],
    ['--ipam=unix:/a explain ', 'nodes', ['--ipam=unix:/a']],
  ])('"%s" may be continued with names of %s', async (line, kind, options) => {
    const asked: unknown[] = [];
    await candidates(line.split(' '), VERBS, (...each) => {
      asked.push(each);
      return Promise.resolve([]);
    });
    expect(asked).toEqual([[kind, options]]);
  });

  test('come from the service; there is none, and no error, where it does not answer', async () => {
    const complete = () => fakes.podwirectl('__complete', 'get', 'ippools', 'ma');
    expect(await complete()).toEqual({ exitCode: 0, stdout: '', stderr: '' });
    await fakes.serve(fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools: [pool] })));
    expect(await complete()).toEqual({ exitCode: 0, stdout: 'main\n', stderr: '' });
  });
});

/** Completes the line and prints it. A pseudo terminal is needed, as zsh completes only there. */
const ZSH_DRIVER = `zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'autoload -Uz compinit; compinit -u -D; source <(podwirectl completion zsh)
  finish() { print -r -- "$BUFFER" >completed; exit }; zle -N finish; bindkey "^X" finish; bindkey "^I" complete-word
  print READY-$((1+1))'
zpty -r shell output '*READY-2*'
zpty -w -n shell "$1"$'\\t\\x18'
while zpty -r shell output; do :; done
cat completed`;

/** Puts the only candidate in place of the last word, as the other shells do. */
const FISH_DRIVER = String.raw`podwirectl completion fish | source
set -l completed (complete -C $argv[1])
test -n "$completed"; or set completed (string match -r '\S*$' -- $argv[1])
echo (string replace -r '\S*$' '' -- $argv[1])$completed`;

const BASH_DRIVER = `source <(podwirectl completion bash)
COMP_WORDS=($(sed 's/=/ = /g' <<<"$1")); [[ $1 == *' ' ]] && COMP_WORDS+=('')
COMP_CWORD=$((\${#COMP_WORDS[@]} - 1))
_podwirectl
echo "\${1%"\${COMP_WORDS[-1]}"}\${COMPREPLY[*]}"`;

const SHELLS = {
  bash: ['-c', BASH_DRIVER, 'bash'],
  zsh: ['-f', '-c', ZSH_DRIVER, 'zsh'],
  fish: ['--no-config', '-c', FISH_DRIVER],
} as const;

/** The line after the Tab key. */
function completedBy(shell: keyof typeof SHELLS, line: string): string {
  const main = builtFile(fileURLToPath(new URL('../main.ts', import.meta.url)));
  const program = `#!/bin/sh\nexec '${process.execPath}' '${main}' "$@"\n`;
  writeFileSync(join(fakes.folder, 'podwirectl'), program, { mode: 0o755 });
  const env = { HOME: fakes.folder, PATH: `${fakes.folder}:${process.env.PATH}`, TERM: 'dumb' };
  const options = { cwd: fakes.folder, env, encoding: 'utf8', timeout: 50_000 } as const;
  const { error, stdout, stderr } = spawnSync(shell, [...SHELLS[shell], line], options);
  if (error && 'code' in error && error.code === 'ENOENT')
    throw new Error(`${shell} is not installed: run "npm test", which installs it, or: apt-get install ${shell}`);
  expect([error, stderr]).toEqual([undefined, '']);
  return stdout.trimEnd();
}

describe.each(['bash', 'zsh', 'fish'] as const)('%s completes', (shell) => {
  test.each([
    ['podwirectl get affiniti', 'podwirectl get affinities'],
    ['podwirectl get -o yaml --output=j', 'podwirectl get -o yaml --output=json'],
  ])('%s', (line, completed) => {
    expect(completedBy(shell, line)).toBe(completed);
  });
});

test.each(['zsh', 'fish'] as const)('%s completes files where no word is known', (shell) => {
  writeFileSync(join(fakes.folder, 'pools.yaml'), '');
  expect(completedBy(shell, 'podwirectl apply -f poo')).toBe('podwirectl apply -f pools.yaml');
  expect(completedBy(shell, 'podwirectl nonsense noth')).toBe('podwirectl nonsense noth');
});

test('another shell is refused', async () => {
  expect(await fakes.podwirectl('completion', 'tcsh')).toMatchObject({ exitCode: 2 });
});
