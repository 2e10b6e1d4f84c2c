import { existsSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';

import { loadVerbs, parseCommandLine } from '@podwire/ctl/command-line/program';
import { VERBS } from '@podwire/ctl/verbs';
import { describe, expect, test } from 'vitest';

import { phrasesIn, PROSE } from './architecture/dialect.js';
import { missingOf, quotedTests } from './architecture/quoted-tests.js';
import { FILES, isTest, read } from './architecture/tree.js';
import { ROOT } from './support/root.js';

describe('documents', () => {
  const documents = FILES.filter((file) => file.endsWith('.md'));

  test.each(documents)('the links of %s have targets', (file) => {
    const links = [...read(file).matchAll(/\]\(([^)\s]+)\)/g)].map(([, link]) => link!.replace(/#.*$/, ''));
    const local = links.filter((link) => link !== '' && !/^[a-z]+:/.test(link));
    const missing = local.filter((link) => !existsSync(join(ROOT, normalize(join(dirname(file), link)))));
    expect(missing).toEqual([]);
  });

  test.each(documents)('the headings that %s links to exist', (file) => {
    const links = [...read(file).matchAll(/\]\(([\w./-]*)#([^)\s]+)\)/g)];
    const targets = links.map(([, path, heading]) => ({
      heading: heading!,
      target: path === '' ? file : normalize(join(dirname(file), path!)),
    }));
    expect(targets.filter(({ heading, target }) => !anchorsOf(target).includes(heading))).toEqual([]);
  });

  test.each(documents)('the tests that %s names exist', (file) => {
    expect(quotedTests(read(file)).flatMap(missingOf)).toEqual([]);
  });

  // The changelog has commands as they were.
  const lasting = documents.filter((file) => file !== 'CHANGELOG.md');

  test.each(lasting)('podwirectl accepts the commands that %s shows', (file) => {
    expect(commandsIn(read(file)).filter((words) => !isTaken(words))).toEqual([]);
  });

  test('the runbook has every condition of podwire-node', () => {
    const sources = FILES.filter((file) => /^services\/(dataplane|node)\/.*\.ts$/.test(file) && !isTest(file));
    const texts = sources.map((file) => read(file)).join('\n');
    const reasons = [...texts.matchAll(/reason: '([A-Z]\w+)'|^ {2}([A-Z]\w+): \(/gm)].map(([, a, b]) => a ?? b!);
    const [, section] = read('deploy/observability/RUNBOOK.md').split('## Conditions');
    const listed = [...section!.matchAll(/^\| (\w+) \| .+\|$/gm)].map(([, reason]) => reason!).slice(1);
    expect(listed.sort()).toEqual([...new Set(reasons)].sort());
  });

  test('an unknown podwirectl command is found', () => {
    const text =
      'Say `podwirectl who 10.0.0.1 --since 2h`:\n\npodwirectl get ippools   # how full\npodwirectl pool list\n';
    const commands = commandsIn(text);
    expect(commands.map((words) => words.join(' '))).toEqual(['get ippools', 'pool list', 'who 10.0.0.1 --since 2h']);
    expect(commands.map(isTaken)).toEqual([true, false, false]);
  });

  test('a missing test is found', () => {
    const text =
      'by `net/prefix.test.ts`, `net/gone.test.ts` "a", and `mac.test.ts` "of … that\nis gone", "a unicast … zero"';
    const [prefix, gone, mac] = quotedTests(text);
    expect(prefix).toEqual({ file: 'net/prefix.test.ts', titles: [] });
    expect(mac!.titles).toEqual(['of … that is gone', 'a unicast … zero']);
    expect([prefix!, gone!, mac!].flatMap(missingOf)).toEqual(['net/gone.test.ts', 'mac.test.ts "of … that is gone"']);
  });
});

describe('plain language', () => {
  test('no file has a phrase of the word list', () => {
    expect(PROSE.flatMap((file) => phrasesIn(file, read(file)))).toEqual([]);
  });

  test('a planted phrase is found, with its replacement', () => {
    expect(phrasesIn('a.ts', 'const a = 1;\n// Nobody is told.\n')).toEqual([
      'a.ts:2: "Nobody": write name the actor: the plugin, an operator, another process',
      'a.ts:2: "is told": write is reported, is logged, is notified',
    ]);
  });

  test('documents, C++ and tests are searched', () => {
    expect(PROSE).toEqual(
      expect.arrayContaining(['README.md', 'plugin/shim/src/failure.h', 'services/ipam/watch/streams.test.ts']),
    );
  });
});

/** The anchors of a document's headings. */
function anchorsOf(file: string): string[] {
  const headings = [...read(file).matchAll(/^#+ (.+)$/gm)].map(([, text]) => text!.toLowerCase());
  return headings.map((text) => text.replace(/[^\p{L}\p{N}\s_-]/gu, '').replaceAll(' ', '-'));
}

const COMMANDS = await loadVerbs([], VERBS);

/** The arguments after `podwirectl` in code, without comments. */
function commandsIn(text: string): string[][] {
  const shown = [...text.matchAll(/^podwirectl ([^#\n]+)/gm), ...text.matchAll(/`podwirectl ([^`]+)`/g)];
  return shown.map(([, words]) => words!.trim().split(/\s+/)).filter((words) => !words.includes('COMMAND'));
}

function isTaken(words: readonly string[]): boolean {
  const parsed = parseCommandLine(words, COMMANDS);
  return parsed.kind === 'run' || parsed.exitCode === 0;
}
