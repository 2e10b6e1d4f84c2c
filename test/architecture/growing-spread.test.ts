import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Linter } from 'eslint';
import ts from 'typescript';
import tseslint from 'typescript-eslint';
import { afterAll, expect, test } from 'vitest';

import { growingSpread } from './growing-spread.mjs';

const folder = mkdtempSync(join(tmpdir(), 'podwire-growing-'));
const TYPES =
  'declare const known: { a: number; b?: string };\ndeclare const more: { c: number };\ndeclare const any: Record<string, string>;\n';
let count = 0;

afterAll(() => rmSync(folder, { recursive: true }));

/** The messages about an expression, with its types. */
function faults(expression: string): string[] {
  const file = join(folder, `${count++}.ts`);
  const text = `${TYPES}${expression};\n`;
  writeFileSync(file, text);
  const programs = [ts.createProgram([file], { strict: true })];
  const linter = new Linter({ cwd: folder });
  const messages = linter.verify(
    text,
    [
      {
        files: ['**/*.ts'],
        languageOptions: { parser: tseslint.parser, parserOptions: { programs } },
        plugins: { own: { rules: { growing: growingSpread } } },
        rules: { 'own/growing': 'error' },
      },
    ],
    file,
  );
  return messages.map(({ message }) => message);
}

test.each([
  ['a field', 'export const x = { ...known, c: 1 }', 'c'],
  ['a name in quotes', "export const x = { ...more, 'd-e': 1 }", 'd-e'],
  ['the fields of another', 'export const x = { ...known, ...more }', 'c'],
  ['one of several', 'export const x = { ...known, a: 2, d: 3 }', 'd'],
])('a literal that begins with a spread may not add %s', (_, expression, name) => {
  expect(faults(expression)).toEqual([`Name ${name} before the spread: see growing-spread.mjs.`]);
});

test.each([
  ['the spread is last', 'export const x = { c: 1, ...known }'],
  ['all fields are present', 'export const x = { ...known, a: 2 }'],
  // It may not come before the spread, which could have it.
  ['the field may be present', "export const x = { ...known, b: '' }"],
  ['any name may be present', "export const x = { ...any, c: '' }"],
  ['nothing follows', 'export const x = { ...known }'],
  ['it is created once', 'export class K { readonly x: object; constructor() { this.x = { ...known, c: 1 }; } }'],
])('a literal is allowed where %s', (_, expression) => {
  expect(faults(expression)).toEqual([]);
});
