import { dirname, join } from 'node:path';

import { FILES, importsOf, read } from './tree.js';

/** A test that a document names: a file, and titles of it. */
export interface QuotedTest {
  /** The end of the file's path. */
  readonly file: string;
  /** Titles with `…` for omitted parts. */
  readonly titles: readonly string[];
}

const FILE = /`([\w./-]+\.test\.ts|[\w./-]*testing\/[\w./-]+\.ts)`((?:,?\s(?:and )?"[^"`]+")*)/g;

/** All tests that a text names, as in: `plan/diff.test.ts` "a route that is gone …", "a second time". */
export function quotedTests(text: string): QuotedTest[] {
  return [...text.matchAll(FILE)].map(([, file = '', quotes = '']) => ({
    file: file.replace(/^(\.\.?\/)+/, ''),
    titles: [...quotes.matchAll(/"([^"]+)"/g)].map(([, title = '']) => title.replace(/\s+/g, ' ')),
  }));
}

/** @returns the missing parts: the file, or titles that are neither in it nor in a test double that has its cases */
export function missingOf({ file, titles }: QuotedTest): string[] {
  const candidates = FILES.filter((each) => each === file || each.endsWith(`/${file}`));
  if (candidates.length === 0) return [file];
  const texts = candidates.map((candidate) => [candidate, ...fixturesOf(candidate)].map(read).join('\n'));
  const isIn = (text: string, title: string) => title.split('…').every((part) => text.includes(part.trim()));
  const missing = titles.filter((title) => !texts.some((text) => isIn(text, title)));
  return missing.map((title) => `${file} "${title}"`);
}

function fixturesOf(file: string): string[] {
  const imported = importsOf(file).map((specifier) => join(dirname(file), specifier).replace(/\.js$/, '.ts'));
  return imported.filter((each) => FILES.includes(each) && each.includes('/testing/'));
}
