import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { ROOT } from '../support/root.js';

/** All files that belong to the repository, committed or about to be, by their path from the root. */
export const FILES: readonly string[] = execFileSync(
  'git',
  ['ls-files', '--cached', '--others', '--exclude-standard', '--deduplicate'],
  { cwd: ROOT, encoding: 'utf8' },
)
  .trimEnd()
  .split('\n')
  .filter((file) => isThere(file));

/** A committed file that was removed and not yet committed is still listed. */
function isThere(file: string): boolean {
  try {
    readFileSync(join(ROOT, file));
    return true;
  } catch {
    return false;
  }
}

export function read(file: string): string {
  return readFileSync(join(ROOT, file), 'utf8');
}

export function lineCount(file: string): number {
  return read(file).trimEnd().split('\n').length;
}

export const isGenerated = (file: string) => file.startsWith('proto/gen/');

export const isTest = (file: string) =>
  /\.test\.ts$|\/testing\//.test(file) || file.startsWith('test/') || /(^|\/)test\/.*\.(cc|h|ts)$/.test(file);

/** Our own TypeScript, tests included. */
export const SOURCES = FILES.filter((file) => file.endsWith('.ts') && !isGenerated(file) && file.includes('/'));

/** Imports of a TypeScript file, as written. */
export function importsOf(file: string): string[] {
  const statement =
    /(?:^|\n)\s*(?:import|export)\s(?:[^'";]*?\sfrom\s+)?['"]([^'"]+)['"]|\bimport\(\s*['"]([^'"]+)['"]\s*\)/g;
  return [...read(file).matchAll(statement)].map(([, fixed, dynamic]) => fixed ?? dynamic ?? '');
}

/** The workspace that a file is in: `services/ipam`, `plugin`, `test/conformance`. */
export function workspaceOf(file: string): string {
  return file
    .split('/')
    .slice(0, /^(services|test\/conformance)\//.test(`${file}/`) ? 2 : 1)
    .join('/');
}
