#!/usr/bin/env node
// `npm run test:unit`: the tests that need neither root nor a kernel, process, socket, file or datastore. They need no build.
// usage: test/unit.mjs [--watch] [VITEST ARGS…], such as `npm run test:unit -- --watch pools/rules`
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import process from 'node:process';

import { ROOT } from '../deploy/local/prepare.mjs';

/** A test that imports one of these, itself or through other files, is not a unit test. */
const FOREIGN = new Set([
  ...['child_process', 'dgram', 'fs', 'http', 'http2', 'https', 'net', 'tls'].map((name) => `node:${name}`),
  ...['etcd3', 'eslint', 'lmdb'],
  // A tracer is global, and these tests share a process.
  '@opentelemetry/sdk-trace-base',
]);

const IMPORT = /(?:^|\n)\s*(?:import|export)\s(?!type\s)(?:[^'";]*?\sfrom\s+)?['"]([^'"]+)['"]/g;

const read = (path) => readFileSync(join(ROOT, path), 'utf8');

/** The folders of the workspaces, by the names of their packages. */
const FOLDERS = new Map(
  JSON.parse(read('package.json')).workspaces.map((folder) => [
    JSON.parse(read(join(folder, 'package.json'))).name,
    folder,
  ]),
);

/** The TypeScript file that an import leads to; undefined for a package of another project and for generated code. */
function targetOf(specifier, file) {
  if (specifier.startsWith('.')) return join(dirname(file), specifier).replace(/\.js$/, '.ts');
  const [scope, name, ...path] = specifier.split('/');
  const folder = FOLDERS.get(`${scope}/${name}`);
  return folder === undefined || folder === 'proto' ? undefined : `${join(folder, ...path)}.ts`;
}

/** The answers so far: most files share their imports. */
const known = new Map();

/** Whether a file reaches a foreign module or the native addon. */
function isForeign(file) {
  if (file.startsWith('addon') || !existsSync(join(ROOT, file))) return true;
  const answer = known.get(file);
  if (answer !== undefined) return answer;
  known.set(file, false);
  const found = [...read(file).matchAll(IMPORT)].some(([, specifier]) => {
    const target = targetOf(specifier, file);
    return FOREIGN.has(specifier) || (target !== undefined && isForeign(target));
  });
  known.set(file, found);
  return found;
}

const listed = execFileSync('git', ['ls-files', '-co', '--exclude-standard', '*.test.ts', ':!**/test/**'], {
  cwd: ROOT,
  encoding: 'utf8',
});
const files = listed
  .trimEnd()
  .split('\n')
  .filter((file) => !isForeign(file));
const [first, ...rest] = process.argv.slice(2);
const [command, wanted] = first === '--watch' ? ['watch', rest] : ['run', process.argv.slice(2)];
const filters = wanted.filter((word) => !word.startsWith('-'));
const chosen = filters.length === 0 ? files : files.filter((file) => filters.some((filter) => file.includes(filter)));
if (chosen.length === 0) {
  process.stderr.write(`test:unit: no unit test matches ${filters.join(', ')}; npm test runs all kinds of tests\n`);
  process.exit(1);
}
const options = wanted.filter((word) => word.startsWith('-'));
const args = [command, '--fileParallelism', '--no-isolate', '--pool=threads', ...options, ...chosen];
const vitest = join(ROOT, 'node_modules', 'vitest', 'vitest.mjs');
process.exit(spawnSync(process.execPath, [vitest, ...args], { cwd: ROOT, stdio: 'inherit' }).status ?? 1);
