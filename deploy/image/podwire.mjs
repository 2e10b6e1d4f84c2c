// The second layer: Podwire, compiled from the source tree, and the npm packages that it needs.
import { chmodSync, existsSync, mkdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import process from 'node:process';

import { neededBy } from './base.mjs';
import { COMPILED_IN, HOME, NODE, NPM_FILES, NPM_UNUSED, PROGRAMS, WORKSPACES } from './recipe.mjs';
import { filesBelow, link, run, ship, step, write } from './tree.mjs';

const WORKSPACE_OPTIONS = Object.keys(WORKSPACES).flatMap((path) => ['-w', path]);
const NPM_QUIET = ['--no-audit', '--no-fund', '--ignore-scripts', '--loglevel=error'];

export const readJson = (path) => JSON.parse(readFileSync(path, 'utf8'));

/** The files of a workspace that a glob means; `*` is within a folder, `**` is any folder. */
export function matches(glob, path) {
  const expression = glob
    .split('**/')
    .map((part) => part.replace(/[.+]/g, '\\$&').replaceAll('*', '[^/]*'))
    .join('(?:.*/)?');
  return new RegExp(`^${expression}$`).test(path);
}

function compileServices(source) {
  const projects = Object.values(WORKSPACES).map(({ project }) => project);
  run(process.execPath, ['node_modules/typescript/bin/tsc', '-b', ...projects], { cwd: source });
}

/** Compiles addon and shim for the architecture. Paths of this machine are left out of them. */
function compilePrograms({ source, names, cross, nodeFolder }) {
  const flags = `-ffile-prefix-map=${source}=.`;
  const tools = { CC: `${cross}gcc`, CXX: `${cross}g++`, AR: `${cross}ar`, CFLAGS: flags, CXXFLAGS: flags };
  const gyp = join(source, 'node_modules/node-gyp/bin/node-gyp.js');
  const target = ['rebuild', `--arch=${names.node}`, `--nodedir=${nodeFolder}`, '-j', '2'];
  run(process.execPath, [gyp, ...target], { cwd: join(source, 'addon'), env: tools });
  const shim = ['-C', 'plugin/shim', `CC=${cross}gcc`, `CXX=${cross}g++ ${flags}`, `STRIP=${cross}strip`];
  run('make', shim, { cwd: source });
}

/** Installs the npm packages that the shipped workspaces need at run time. @returns folder with node_modules */
function installProduction({ source, work, names }) {
  const folder = join(work, 'production');
  mkdirSync(folder);
  const { workspaces } = readJson(join(source, 'package.json'));
  for (const path of ['.', ...workspaces]) ship(join(source, path, 'package.json'), join(folder, path, 'package.json'));
  for (const file of ['package-lock.json', '.npmrc']) ship(join(source, file), join(folder, file));
  const platform = ['--os=linux', `--cpu=${names.node}`, '--libc=glibc'];
  run('npm', ['ci', '--omit=dev', ...NPM_QUIET, ...platform, ...WORKSPACE_OPTIONS], { cwd: folder });
  return folder;
}

function shipWorkspaces({ source, layer }) {
  for (const [path, { files }] of Object.entries(WORKSPACES)) {
    const folder = join(source, path);
    const { name, bin = {} } = readJson(join(folder, 'package.json'));
    const all = filesBelow(folder);
    for (const glob of files) {
      const found = all.filter((file) => matches(glob, file));
      if (found.length === 0) throw new Error(`${path}: no file matches ${glob}`);
      for (const file of found) ship(join(folder, file), join(layer, HOME, path, file));
    }
    link(join(layer, HOME, 'node_modules', name), `../../${path}`);
    for (const [command, file] of Object.entries(bin)) shipCommand({ layer, command, file: join(HOME, path, file) });
  }
  for (const [command, file] of Object.entries(PROGRAMS)) {
    if (!existsSync(join(layer, HOME, file))) throw new Error(`${command}: ${file} is not shipped`);
    link(join(layer, 'usr/local/bin', command), join(HOME, file));
  }
}

/** Puts a command on PATH. The image has no `env`, and a host has another Node.js or none. */
function shipCommand({ layer, command, file }) {
  const program = join(layer, file);
  write(program, readFileSync(program, 'utf8').replace('#!/usr/bin/env node', `#!${NODE.program}`), 0o755);
  link(join(layer, 'usr/local/bin', command), file);
}

/** Throws where Node.js could be led into a folder that is left out. */
function checkExports(path, manifest) {
  const targets = [manifest.main ?? '', ...defaultTargets(manifest.exports)];
  const gone = targets.filter((target) => isUnused(join(path, target)));
  if (gone.length > 0)
    throw new Error(`${path}: ${gone.join(', ')} is loaded by Node.js; change NPM_UNUSED in recipe.mjs`);
}

/** Files that Node.js chooses from a package's exports. */
function defaultTargets(exports) {
  if (typeof exports === 'string') return [exports];
  if (typeof exports !== 'object' || exports === null) return [];
  if (exports.node !== undefined) return defaultTargets(exports.node);
  const unused = ['types', 'module', 'esnext', 'browser', 'deno', 'bun', 'development'];
  return Object.entries(exports).flatMap(([name, value]) => (unused.includes(name) ? [] : defaultTargets(value)));
}

const isUnused = (path) => NPM_UNUSED.some((unused) => unused.test(path));

/** Whether a file of an npm package is shipped; its path is from node_modules. */
export const isShipped = (path) => NPM_FILES.test(path) && !isUnused(path);

/** Ships the files of npm packages that Node.js can load. @returns path, manifest and origin of each shipped package */
function shipPackages({ production, layer }) {
  const installed = readJson(join(production, 'node_modules/.package-lock.json')).packages;
  const packages = Object.entries(installed).filter(
    ([path, { link: isWorkspace }]) => path.startsWith('node_modules/') && !isWorkspace,
  );
  const listed = [];
  for (const [path, { integrity }] of packages) {
    const folder = join(production, path);
    const name = path.replace(/^node_modules\//, '');
    const manifest = readJson(join(folder, 'package.json'));
    const own = filesBelow(folder).filter((file) => !file.startsWith('node_modules/'));
    const files = own.filter((file) => isShipped(join(name, file)));
    const isCompiledIn = COMPILED_IN.includes(manifest.name);
    // Only its manifest is left of a package of type declarations.
    if (!isCompiledIn && files.every((file) => file === 'package.json')) continue;
    listed.push({ folder, manifest, integrity, licences: own.filter(isLicence) });
    if (isCompiledIn) continue;
    checkExports(name, manifest);
    for (const file of files) ship(join(folder, file), join(layer, HOME, path, file));
  }
  return listed;
}

const isLicence = (file) =>
  /^(licen[cs]e|copying|notice|copyright)([.-].*)?$/i.test(basename(file)) && !/\.(js|ts|map)$/.test(file);

/** Strips the native modules, and throws where one needs a library that the image does not have. */
function finishNativeModules({ layer, cross, names, output }) {
  for (const file of filesBelow(layer).filter((path) => path.endsWith('.node'))) {
    const path = join(layer, file);
    run(`${cross}strip`, ['--strip-unneeded', path]);
    chmodSync(path, 0o755);
    const missing = neededBy(path).libraries.filter(
      (name) => !existsSync(join(output, 'base/usr/lib', names.gnu, name)),
    );
    if (missing.length > 0) throw new Error(`${file} needs ${missing.join(', ')}; add them to recipe.mjs`);
  }
}

/** Fills the layer. @returns the shipped npm packages: folder, manifest, digest and licence files of each */
export function addPodwire({ source, work, names, cross, layer, nodeFolder }) {
  step('npm packages to build with', () => run('npm', ['ci', ...NPM_QUIET], { cwd: source }));
  step('services', () => compileServices(source));
  step('addon and shim', () => compilePrograms({ source, names, cross, nodeFolder }));
  const production = step('npm packages to ship', () => installProduction({ source, work, names }));
  return step('Podwire layer', () => {
    shipWorkspaces({ source, layer });
    const packages = shipPackages({ production, layer });
    finishNativeModules({ layer, cross, names, output: dirname(layer) });
    return packages;
  });
}
