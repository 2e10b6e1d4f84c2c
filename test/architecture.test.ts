import { existsSync, readdirSync } from 'node:fs';
import { basename, dirname, join, relative } from 'node:path';
import { pathToFileURL } from 'node:url';

import { ESLint } from 'eslint';
import tseslint from 'typescript-eslint';
import { beforeAll, describe, expect, test } from 'vitest';

import { faultOf, targetOf, zoneOf } from './architecture/allowed-imports.mjs';
import { WORKSPACES, ZONES } from './architecture/directions.mjs';
import { FILES, importsOf, isGenerated, isTest, lineCount, read, SOURCES, workspaceOf } from './architecture/tree.js';
import { ROOT } from './support/root.js';

const GENERATED = FILES.filter((file) => isGenerated(file) && file.endsWith('.ts'));

test('the repository has files to check', () => {
  expect(SOURCES.length).toBeGreaterThan(100);
  expect(GENERATED.length).toBeGreaterThan(5);
  expect(importsOf('services/shared/rpc/server.ts')).toEqual([
    'node:net',
    'node:timers/promises',
    '@grpc/grpc-js',
    'grpc-health-check',
    '../failure/failure.js',
    '../failure/thrown.js',
    '../runtime/clock.js',
    '../runtime/log.js',
    '../sockets/listen.js',
    '../sockets/unix-listener.js',
    '../tls/certificate-source.js',
    './access.js',
    './border.js',
    './connection.js',
    './network-listener.js',
    './reflection.js',
    './release.js',
    './request-queue.js',
    './rpc-events.js',
    './streaming.js',
    './unary.js',
  ]);
});

describe('a planted violation fails the lint', () => {
  // Each text would be a new program for the rules that use types. None of these does, and they take most of the time.
  const eslint = new ESLint({ cwd: ROOT, overrideConfig: [tseslint.configs.disableTypeChecked] });

  /** Lints a text as if it were the content of a file. */
  async function faults(file: string, text: string): Promise<string[]> {
    const [result] = await eslint.lintText(text, { filePath: join(ROOT, file) });
    return (result?.messages ?? []).map(({ ruleId, message }) => `${ruleId ?? 'parser'}: ${message}`);
  }

  const uses = (specifier: string) => `import { x } from '${specifier}';\n\nexport const y: unknown = x;\n`;
  const lines = (count: number, line: string) => `${line}\n`.repeat(count);

  beforeAll(async () => {
    await faults('services/shared/net/mac.ts', 'export {};\n');
  });

  test('and an allowed import passes', async () => {
    const allowed = "import { familyBits } from './address.js';\n\nexport const bits = familyBits(4);\n";
    await expect(faults('services/shared/net/prefix.ts', allowed)).resolves.toEqual([]);
  });

  test.each([
    ['service → service', 'services/ipam/engine/store.ts', '@podwire/dataplane/dataplane'],
    ['service → service, by a path', 'services/dataplane/wiring/network.ts', '../../ipam/ipam.js'],
    ['service → plugin', 'services/dataplane/pods/pods.ts', '@podwire/plugin/run'],
    ['plugin → service', 'plugin/run.ts', '@podwire/ipam/ipam'],
    ['plugin → addon', 'plugin/run.ts', '@podwire/netlink'],
    ['shared → service', 'services/shared/net/prefix.ts', '@podwire/ipam/ipam'],
    ['anything → tests', 'services/ipam/ipam.ts', '@podwire/test/support/root'],
    ['addon → ours', 'addon/lib/index.ts', '@podwire/shared/net/prefix'],
    ['pure → files', 'services/ipam/records/view.ts', 'node:fs'],
    ['pure → files, by the old name', 'services/shared/net/prefix.ts', 'fs'],
    ['pure → network', 'services/dataplane/wiring/network.ts', 'node:net'],
    ['record → store', 'services/ipam/records/view.ts', '../engine/store.js'],
    ['record → stored form', 'services/ipam/records/view.ts', './json/block.js'],
    ['rule → operation of its feature', 'services/ipam/pools/pools.ts', './pools-operations.js'],
    ['rule → engine', 'services/ipam/pools/pools.ts', '../engine/updates/operation.js'],
    ['rule → stored form', 'services/ipam/pools/pools.ts', '../records/json/pool.js'],
    ['operation → messages', 'services/ipam/pools/pools-operations.ts', './pools-rpc.js'],
    ['lower feature → higher feature', 'services/ipam/blocks/search.ts', '../pools/pools.js'],
    ['feature → feature of the same row', 'services/ipam/pools/pools.ts', '../endpoints/endpoints.js'],
    ['engine → feature', 'services/ipam/engine/events.ts', '../addresses/allocate.js'],
    ['one datastore → the other', 'services/ipam/engine/etcd/etcd-store.ts', '../embedded/embedded-store.js'],
    ['product → test double', 'services/ipam/startup/datastore.ts', '../engine/testing/memory-store.js'],
    ['decision → telemetry', 'services/ipam/records/view.ts', '@opentelemetry/api'],
    ['wiring → kernel', 'services/dataplane/wiring/network.ts', '../kernel/pod-kernel.js'],
    ['pods → routes', 'services/dataplane/pods/pods.ts', '../routes/planner.js'],
    ['routes → kernel', 'services/dataplane/routes/reconciler.ts', '../kernel/node-kernel.js'],
    ['nft → filters', 'services/dataplane/nft/table.ts', '../filters/masquerade.js'],
    ['filters → nft program', 'services/dataplane/filters/masquerade.ts', '../nft/nft-program.js'],
    ['filters → bird', 'services/dataplane/filters/masquerade.ts', '../bird/bird.js'],
    ['cluster → routes', 'services/dataplane/cluster/cluster.ts', '../routes/planner.js'],
    ['decision → contract', 'services/ipam/records/view.ts', '@podwire/proto/podwire/ipam/v1/pool'],
    ['store → contract', 'services/ipam/engine/store.ts', '@podwire/proto/podwire/ipam/v1/pool'],
    ['CNI protocol → contract', 'plugin/cni/error.ts', '@podwire/proto/podwire/ipam/v1/pool'],
    ['addon outside of kernel', 'services/dataplane/pods/kernel.ts', '@podwire/netlink'],
    ['addon outside of kernel, by a path', 'services/dataplane/pods/pods.ts', '../../../addon/lib/index.js'],
    ['lmdb outside of engine/embedded', 'services/ipam/engine/updates/update-loop.ts', 'lmdb'],
    ['etcd3 outside of engine/etcd', 'services/ipam/engine/updates/update-loop.ts', 'etcd3'],
    ['lmdb in the plugin', 'plugin/run.ts', 'lmdb'],
    ['a package that is in no table', 'services/shared/net/prefix.ts', 'lodash'],
    ['a library’s inside', 'services/shared/rpc/server.ts', '@grpc/grpc-js/build/src/server'],
  ])('%s', async (_, file, specifier) => {
    const found = await faults(file, uses(specifier));
    expect(found.filter((fault) => fault.startsWith('podwire/allowed-imports'))).toHaveLength(1);
  });

  const BAD = '@podwire/ipam/ipam';

  test.each([
    ['import type', `import type { A } from '${BAD}';\n\nexport type B = A;\n`],
    ['import for effect', `import '${BAD}';\n`],
    ['import()', `export const a: unknown = await import('${BAD}');\n`],
    ['import() of a type', `export type A = import('${BAD}').B;\n`],
    ['export from', `export { a } from '${BAD}';\n`],
    ['export *', `export * from '${BAD}';\n`],
  ])('in each form: %s', async (_, text) => {
    const found = await faults('services/shared/net/prefix.ts', text);
    expect(found.filter((fault) => fault.startsWith('podwire/allowed-imports'))).toHaveLength(1);
  });

  test.each<[string, string, string, string]>([
    [
      'a package that the workspace does not declare',
      'import-x/no-extraneous-dependencies',
      'services/shared/net/prefix.ts',
      uses('lmdb'),
    ],
    [
      'a cycle',
      'import-x/no-cycle',
      'services/shared/net/address.ts',
      "import { hostPrefix } from './prefix.js';\n\nexport const y = hostPrefix;\n",
    ],
    ['time', 'no-restricted-properties', 'services/ipam/ipam.ts', 'export const now = Date.now();\n'],
    ['time, as an object', 'no-restricted-syntax', 'services/ipam/ipam.ts', 'export const now = new Date();\n'],
    ['chance', 'no-restricted-properties', 'services/ipam/ipam.ts', 'export const chance = Math.random();\n'],
    ['the process', 'no-restricted-globals', 'services/ipam/ipam.ts', 'export const { pid } = process;\n'],
    [
      'the process, imported',
      'no-restricted-imports',
      'services/ipam/ipam.ts',
      "import process from 'node:process';\n\nexport const { pid } = process;\n",
    ],
    ['a cast', 'no-restricted-syntax', 'services/ipam/ipam.ts', 'export const a = (b: unknown) => b as string;\n'],
    [
      'any',
      '@typescript-eslint/no-explicit-any',
      'services/ipam/ipam.ts',
      'export const a = (b: any): unknown => b;\n',
    ],
    ['a file of 601 lines', 'max-lines', 'services/ipam/ipam.ts', lines(601, 'export {};')],
    [
      'a wait of a test for a second at most',
      'no-restricted-syntax',
      'services/shared/net/mac.test.ts',
      "import { vi } from 'vitest';\n\nawait vi.waitFor(() => undefined);\n",
    ],
    [
      'a wait of a test for a second at most, with a pause of its own',
      'no-restricted-syntax',
      'services/shared/net/mac.test.ts',
      "import { vi } from 'vitest';\n\nawait vi.waitUntil(() => true, { interval: 1 });\n",
    ],
    ['a test of 601 lines', 'max-lines', 'services/shared/net/mac.test.ts', lines(601, 'export {};')],
    [
      'a function of 61 lines',
      'max-lines-per-function',
      'services/ipam/ipam.ts',
      `export function a(): void {\n${lines(59, '  a();')}}\n`,
    ],
    ['output', 'no-console', 'services/ipam/ipam.ts', "console.log('a');\n"],
  ])('%s', async (_, rule, file, text) => {
    const found = await faults(file, text);
    expect(found.map((fault) => fault.split(': ')[0])).toContain(rule);
  });
});

describe('zones', () => {
  test.each(SOURCES)('%s belongs to one', (file) => {
    expect(zoneOf(file)).toBeDefined();
  });

  test.each(ZONES.map(({ path }) => path))('%s exists', (path) => {
    expect(existsSync(join(ROOT, path))).toBe(true);
  });

  test('list only paths that belong to a zone', () => {
    const listed = ZONES.flatMap(({ zones }) => zones.map((place) => place.replace(/\/\*$|#.*$/, '')));
    expect(listed.filter((path) => path !== '*' && !existsSync(join(ROOT, path)))).toEqual([]);
  });

  test.each(Object.entries(WORKSPACES))('%s is in %s', (name, folder) => {
    const manifest: { readonly name: string } = JSON.parse(read(`${workspaceOf(folder)}/package.json`));
    expect(manifest.name).toBe(name);
  });
});

/** The files of ours that each file imports, types included. */
type Graph = ReadonlyMap<string, readonly string[]>;

/** Files that import themselves through other files; the lint rule sees no cycle through imports of types. */
function inCycles(graph: Graph): string[] {
  const reaches = (from: string, to: string, seen = new Set<string>()): boolean =>
    (graph.get(from) ?? []).some((next) => {
      if (next === to) return true;
      if (seen.has(next)) return false;
      seen.add(next);
      return reaches(next, to, seen);
    });
  return [...graph.keys()].filter((file) => reaches(file, file));
}

test('every built file has its source: a moved one would hide imports of its former path', () => {
  const workspaces = FILES.filter((file) => basename(file) === 'package.json').map(dirname);
  const stale = workspaces.flatMap((workspace) =>
    builtFiles(join(workspace, 'dist')).filter(
      (built) => !existsSync(join(ROOT, workspace, relative(`${workspace}/dist`, built).replace(/\.js$/, '.ts'))),
    ),
  );
  expect(stale, 'delete the dist folders and build again').toEqual([]);
});

function builtFiles(dist: string): string[] {
  if (!existsSync(join(ROOT, dist))) return [];
  const files = readdirSync(join(ROOT, dist), { recursive: true, encoding: 'utf8' });
  return files.filter((file) => file.endsWith('.js')).map((file) => join(dist, file));
}

describe('cycles', () => {
  test('there are none', () => {
    const targets = (file: string) => importsOf(file).map((specifier) => targetOf(specifier, file).name);
    const graph = new Map(SOURCES.map((file) => [file, targets(file)]));
    expect(graph.get('services/shared/net/prefix.ts')).toContain('services/shared/net/address.ts');
    expect(graph.get('services/shared/failure/status.ts')).toContain('proto/gen/google/rpc/status.ts');
    expect(inCycles(graph)).toEqual([]);
  });

  test('a planted cycle is found', () => {
    const graph = new Map([
      ['a', ['b']],
      ['b', ['c', 'd']],
      ['c', ['b']],
      ['d', []],
      ['e', ['e']],
    ]);
    expect(inCycles(graph)).toEqual(['b', 'c', 'e']);
  });
});

describe('generated code', () => {
  test.each(GENERATED)('%s imports nothing of ours', (file) => {
    const faults = importsOf(file).map((specifier) => faultOf(specifier, file));
    expect(faults.filter((fault) => fault !== undefined)).toEqual([]);
  });

  test.each(['@podwire/shared/net/prefix', '../../services/ipam/ipam.js', 'node:fs', 'zod'])(
    'may not import %s',
    (specifier) => {
      expect(faultOf(specifier, 'proto/gen/planted.ts')).toBeDefined();
    },
  );
});

describe('restricted packages', () => {
  test.each([
    ['lmdb', 'services/ipam/engine/embedded/'],
    ['etcd3', 'services/ipam/engine/etcd/'],
    [
      '@podwire/netlink',
      'services/dataplane/kernel/',
      'services/node/diagnostics/',
      'services/node/preflight/facts.ts',
      'services/shared/files/directory-lock.ts',
      'services/shared/sockets/peer-check.ts',
    ],
    ['grpc-health-check', 'services/shared/rpc/'],
    ['@grpc/reflection', 'services/shared/rpc/'],
    ['@opentelemetry/sdk-metrics', 'services/shared/telemetry/'],
    ['@opentelemetry/sdk-trace-base', 'services/shared/telemetry/'],
    ['pino', 'services/shared/runtime/'],
    ['ipaddr.js', 'services/shared/net/'],
  ])('%s is imported only below %s', (name, ...places) => {
    const importers = SOURCES.filter((file) => importsOf(file).some((specifier) => isOf(specifier, name)));
    const outside = importers.filter((file) => !places.some((place) => file.startsWith(place)) && !isTest(file));
    expect(outside).toEqual([]);
  });
});

describe('dependencies', () => {
  const folders = [...new Set(SOURCES.map(workspaceOf))].filter((folder) =>
    existsSync(join(ROOT, folder, 'package.json')),
  );

  test.each(folders)('%s declares every package that it imports', (folder) => {
    const manifest: { dependencies?: object; name: string } = JSON.parse(read(`${folder}/package.json`));
    const declared = new Set([manifest.name, ...Object.keys(manifest.dependencies ?? {})]);
    const files = SOURCES.filter((file) => workspaceOf(file) === folder && !isTest(file));
    const imported = files.flatMap(importsOf).flatMap(packageOf);
    expect([...new Set(imported)].filter((name) => !declared.has(name))).toEqual([]);
  });

  test.each(folders)('%s declares no unused package', (folder) => {
    const { dependencies = {} }: { dependencies?: object } = JSON.parse(read(`${folder}/package.json`));
    const own = FILES.filter((file) => workspaceOf(file) === folder && basename(file) !== 'package.json');
    const texts = own.filter((file) => /\.(ts|mjs|gyp)$/.test(file)).map(read);
    expect(Object.keys(dependencies).filter((name) => !texts.some((text) => text.includes(name)))).toEqual([]);
  });
});

describe('shared code', () => {
  const folders = [...new Set(SOURCES.flatMap((file) => /^services\/shared\/[^/]+/.exec(file)?.[0] ?? []))];

  test.each(folders)('%s is imported by two workspaces or more', (folder) => {
    const prefix = folder.replace('services/shared', '@podwire/shared');
    const importers = SOURCES.filter((file) => importsOf(file).some((specifier) => specifier.startsWith(`${prefix}/`)));
    const workspaces = new Set(importers.map(workspaceOf).filter((workspace) => workspace !== 'test'));
    expect([...workspaces].length, `importers of ${prefix}: ${[...workspaces].join(', ')}`).toBeGreaterThanOrEqual(2);
  });

  test('has no root index', () => {
    expect(FILES.filter((file) => /^services\/shared\/[^/]+\.ts$/.test(file))).toEqual([]);
  });
});

describe('exports', () => {
  const words = new Map(FILES.filter((file) => /\.(ts|mts|mjs)$/.test(file)).map((file) => [file, wordsOf(file)]));

  test('every exported function, class or value is imported by another file', () => {
    const unused = SOURCES.flatMap((file) => {
      const exported = [...read(file).matchAll(/^export (?:async )?(?:function\*?|class|const) (\w+)/gm)];
      const isNamed = (name: string) => [...words].some(([other, named]) => other !== file && named.has(name));
      return exported.flatMap(([, name]) => (isNamed(name!) ? [] : [`${file}: ${name!}`]));
    });
    expect(unused).toEqual([]);
  });
});

function wordsOf(file: string): ReadonlySet<string> {
  return new Set(read(file).match(/\w+/g));
}

describe('names and sizes', () => {
  test('no folder or file is called utils, helpers, common, misc or types', () => {
    const vague = /(^|[-_.])(utils?|helpers?|common|misc|types?)$/;
    const parts = (file: string) => file.split('/').map((part) => part.replace(/(\.d)?(\.test)?\.[a-z]+$/, ''));
    expect(FILES.filter((file) => !isGenerated(file) && parts(file).some((part) => vague.test(part)))).toEqual([]);
  });

  const code = FILES.filter((file) => /\.(ts|mts|mjs|cc|h)$/.test(file) && !isGenerated(file));

  test('files have 600 lines at most', () => {
    const long = code.filter((file) => lineCount(file) > 600);
    expect(long.map((file) => `${file}: ${lineCount(file)}`)).toEqual([]);
  });

  test.each(code.filter((file) => basename(file) === 'main.ts'))('%s has 40 lines at most', (file) => {
    expect(lineCount(file)).toBeLessThanOrEqual(40);
  });

  test('there is a main.ts for each process', () => {
    const mains = code.filter((file) => /^(services\/[a-z]+|plugin)\/main\.ts$/.test(file));
    expect(mains).toEqual(['services/ctl/main.ts', 'services/ipam/main.ts', 'services/node/main.ts']);
  });
});

describe('tests', () => {
  test('no test is skipped, focused or marked as todo', () => {
    const marks =
      /\b(test|it|describe)\.(skip|only|todo|fails)\b|\b(TODO|FIXME|XXX)\b|eslint-disable|@ts-(ignore|nocheck)/;
    const own = 'test/architecture.test.ts';
    const marked = FILES.filter((file) => /\.(ts|mjs|cc|h)$/.test(file) && !isGenerated(file) && file !== own);
    expect(marked.filter((file) => marks.test(read(file)))).toEqual([]);
  });
});

describe('the contract', () => {
  test.each(['ipam', 'dataplane'])('each method of %s is served by one file', (service) => {
    const contract = FILES.filter((file) => file.startsWith(`proto/podwire/${service}/`) && file.endsWith('.proto'));
    const methods = contract.flatMap((file) =>
      [...read(file).matchAll(/^service (\w+) \{$([^]*?)^\}$/gm)].flatMap(([, name, body]) =>
        [...body!.matchAll(/^\s*rpc (\w)(\w*)\(/gm)].map(
          ([, first, rest]) => `${name!}Service.${first!.toLowerCase()}${rest!}`,
        ),
      ),
    );
    expect(methods.length).toBeGreaterThan(3);
    // The table of roles names every method as well.
    const isServer = (file: string) => file.startsWith(`services/${service}/`) && !file.includes('/access/');
    const own = SOURCES.filter((file) => isServer(file) && !isTest(file)).map(read);
    // The compiler requires a handler for each method in a call of unaryService().
    const servers = (method: string) =>
      own.filter((text) => new RegExp(`\\b(${method}|unaryService\\(${method.split('.')[0]!})[,)]`).test(text));
    expect(methods.filter((method) => servers(method).length !== 1)).toEqual([]);
  });
});

describe('the lint configuration', () => {
  test('names only existing files and folders', async () => {
    const { default: config } = await import(pathToFileURL(join(ROOT, 'eslint.config.mjs')).href);
    const entries: readonly { readonly files?: readonly string[]; readonly ignores?: readonly string[] }[] = config;
    const own = entries.filter(({ files }) => files !== undefined);
    const globs = new Set(own.flatMap(({ files = [], ignores = [] }) => [...files, ...ignores]));
    expect(globs.size).toBeGreaterThan(10);
    expect([...globs].filter((glob) => !FILES.some((file) => patternOf(glob).test(file)))).toEqual([]);
  });

  test('a glob that matches nothing is found', () => {
    expect(FILES.filter((file) => patternOf('services/{ipam,dataplane}/gone/*.ts').test(file))).toEqual([]);
    expect(FILES.filter((file) => patternOf('services/{ipam,ctl}/main.ts').test(file))).toHaveLength(2);
  });

  /** A glob of the configuration as a regular expression; it uses `**`, `*` and `{a,b}` only. */
  function patternOf(glob: string): RegExp {
    const parts: Readonly<Record<string, string>> = {
      '**/': '(?:.*/)?',
      '/**': '/.*',
      '*': '[^/]*',
      '{': '(?:',
      '}': ')',
      ',': '|',
      '.': '\\.',
    };
    return new RegExp(`^${glob.replace(/\*\*\/|\/\*\*$|[*{},.]/g, (part) => parts[part]!)}$`);
  }
});

function isOf(specifier: string, name: string): boolean {
  return specifier === name || specifier.startsWith(`${name}/`);
}

/** The npm package of a specifier: none for files of the same workspace and for built-in modules. */
function packageOf(specifier: string): string[] {
  if (specifier.startsWith('.') || specifier.startsWith('node:')) return [];
  const [first = '', second = ''] = specifier.split('/');
  return [first.startsWith('@') ? `${first}/${second}` : first];
}
