import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { describe, expect, test } from 'vitest';
import { z } from 'zod';

import { isShipped, matches } from '../deploy/image/podwire.mjs';
import { ARCHITECTURES, COMPILED_IN, CONFIG, NODE, USERS, PROGRAMS, WORKSPACES } from '../deploy/image/recipe.mjs';
import { FILES, read } from './architecture/tree.js';
import { ROOT } from './support/root.js';

const names = z.record(z.string(), z.string());
const manifestSchema = z.object({
  name: z.string().optional(),
  bin: names.optional(),
  dependencies: names.optional(),
  workspaces: z.array(z.string()).optional(),
});

function manifestOf(folder: string) {
  return manifestSchema.parse(JSON.parse(readFileSync(join(ROOT, folder, 'package.json'), 'utf8')));
}

describe('the image', () => {
  const shipped = Object.entries(WORKSPACES);
  const folders = manifestOf('.').workspaces!;
  const folderOf = new Map(folders.map((folder) => [manifestOf(folder).name!, folder]));

  test('has every workspace with a program, and everything they need', () => {
    const needed = new Set(
      folders.filter((folder) => manifestOf(folder).bin !== undefined && !folder.startsWith('test')),
    );
    for (const folder of needed) {
      for (const name of Object.keys(manifestOf(folder).dependencies ?? {})) {
        const dependency = folderOf.get(name);
        if (dependency !== undefined) needed.add(dependency);
      }
    }
    expect([...needed].toSorted()).toEqual(Object.keys(WORKSPACES).toSorted());
  });

  test('has the four commands', () => {
    const commands = shipped.flatMap(([folder]) => Object.keys(manifestOf(folder).bin ?? {}));
    expect(commands.toSorted()).toEqual(['podwire', 'podwire-ipam', 'podwire-node', 'podwirectl']);
  });

  test('has the health probe, which is the shim under another name', () => {
    const shim = 'plugin/shim/build/podwire';
    expect(PROGRAMS).toEqual({ 'podwire-probe': shim, 'podwire-run': shim });
    expect(WORKSPACES.plugin?.files).toContain('shim/build/podwire');
  });

  test.each(shipped)('ships the programs and committed files of %s', (folder, { files, project }) => {
    expect(
      Object.values(manifestOf(folder).bin ?? {}).filter(
        (file) => !files.some((glob) => matches(glob, file.replace('./', ''))),
      ),
    ).toEqual([]);
    const own = FILES.filter((file) => file.startsWith(`${folder}/`)).map((file) => file.slice(folder.length + 1));
    // Compiled files do not exist before the build.
    const committed = files.filter((glob) => !/(^|\/)(dist|build)\//.test(glob));
    expect(committed.filter((glob) => !own.some((file) => matches(glob, file)))).toEqual([]);
    expect(FILES.some((file) => file === project || file === `${project}/tsconfig.json`)).toBe(true);
  });

  test.each(shipped)('ships no source and no test of %s', (folder, { files }) => {
    const own = FILES.filter((file) => file.startsWith(`${folder}/`)).map((file) => file.slice(folder.length + 1));
    const found = own.filter((file) => files.some((glob) => matches(glob, file)));
    expect(found.filter((file) => /\.(ts|cc|h|md)$|(^|\/)(test|testing|src)\//.test(file))).toEqual([]);
  });

  test('a glob matches within its folders', () => {
    expect(matches('dist/**/*.js', 'dist/a/b/c.js')).toBe(true);
    expect(matches('dist/**/*.js', 'dist/c.js')).toBe(true);
    expect(matches('dist/**/*.js', 'dist/c.js.map')).toBe(false);
    expect(matches('bin/*.mjs', 'bin/a/b.mjs')).toBe(false);
    expect(matches('package.json', 'packageXjson')).toBe(false);
  });

  test('ships the files of npm packages that Node.js loads', () => {
    const paths = [
      'zod/index.js',
      'zod/index.d.ts',
      'zod/index.js.map',
      'zod/README.md',
      'pino/test/basic.test.js',
      'yaml/dist/doc/Document.js',
      '@opentelemetry/core/build/src/index.js',
      '@opentelemetry/core/build/esm/index.js',
      '@lmdb/lmdb-linux-x64/node.napi.glibc.node',
      '@lmdb/lmdb-linux-x64/node.napi.musl.node',
      '@lmdb/lmdb-linux-x64/node.abi127.glibc.node',
    ];
    expect(paths.filter(isShipped)).toEqual([
      'zod/index.js',
      'yaml/dist/doc/Document.js',
      '@opentelemetry/core/build/src/index.js',
      '@lmdb/lmdb-linux-x64/node.napi.glibc.node',
    ]);
  });

  test('leaves out packages that no service imports', () => {
    const importing = Object.keys(WORKSPACES)
      .flatMap((folder) => FILES.filter((file) => file.startsWith(`${folder}/`) && /(?<!\.d)\.ts$/.test(file)))
      .filter((file) => COMPILED_IN.some((name) => read(file).includes(`'${name}'`)));
    expect(importing).toEqual([]);
  });

  test('runs as a known user other than root', () => {
    const [id] = CONFIG.user.split(':').map(Number);
    expect(USERS.filter((user) => user.id === id).map(({ name }) => name)).toEqual(['podwire']);
    expect(id).not.toBe(0);
  });

  test('has a digest of Node.js for each architecture', () => {
    expect(Object.keys(NODE.integrity)).toEqual(Object.keys(ARCHITECTURES));
  });
});
