// Takes a clone to the point where everything can run: npm packages, TypeScript, native addon, shim. Each step only when it
// is needed, so that the second start takes a second.
import { execFile } from 'node:child_process';
import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { BUILD_PROGRAMS, ensurePrograms } from './programs.mjs';

export const ROOT = join(dirname(fileURLToPath(import.meta.url)), '..', '..');

/** Oldest releases of Node.js that everything is tested with, by major version. */
const NODE_RELEASES = { 20: 19, 22: 13 };
const NEWER_MAJOR = 24;

/** Fault of the system or of Node.js, and its remedy; undefined when none is. */
export function systemFault({ platform, version } = { platform: process.platform, version: process.versions.node }) {
  if (platform !== 'linux') {
    return `Podwire programs the Linux kernel's network, and this is ${platform}. Run it on Linux, for example in a virtual machine.`;
  }
  const [major, minor] = version.split('.').map(Number);
  const oldest = NODE_RELEASES[major];
  const served = major >= NEWER_MAJOR || (oldest !== undefined && minor >= oldest);
  return served ? undefined : `Podwire needs Node.js 20.19, 22.13, 24 or newer, and this is ${version}.`;
}

const execute = promisify(execFile);

/**
 * Runs one step, and reports how long it took; its own output only when it fails.
 * @throws Error with the output when the step fails
 */
async function step(title, [command, ...args]) {
  const startMs = Date.now();
  try {
    await execute(command, args, { cwd: ROOT, maxBuffer: 64 * 1024 * 1024 });
  } catch (error) {
    const { stdout = '', stderr = '', message } = error;
    const output = `${stdout}${stderr}` || message;
    throw new Error(`${title}: ${[command, ...args].join(' ')} failed:\n${output}`, { cause: error });
  }
  process.stdout.write(`  ${title}: ${((Date.now() - startMs) / 1000).toFixed(1)} s\n`);
}

/** Newest modification below a folder, in epoch milliseconds; build results and test captures do not count. */
function newestMs(path) {
  const found = statSync(path);
  if (!found.isDirectory()) return found.mtimeMs;
  const entries = readdirSync(path).filter((name) => !['build', 'dist', 'node_modules', 'test'].includes(name));
  return Math.max(0, ...entries.map((name) => newestMs(join(path, name))));
}

function isOlder(result, ...sources) {
  const file = join(ROOT, result);
  return (
    !existsSync(file) || statSync(file).mtimeMs < Math.max(...sources.map((source) => newestMs(join(ROOT, source))))
  );
}

/** The headers that belong to this Node.js, where they lie beside it: then node-gyp has nothing to download. */
function nodeHeaders() {
  const prefix = join(dirname(process.execPath), '..');
  return existsSync(join(prefix, 'include', 'node', 'common.gypi')) ? ['--', `--nodedir=${prefix}`] : [];
}

/** TypeScript 7, which builds in a third of the time. The linter still needs the release before it. */
const COMPILER = 'node_modules/typescript-native/bin/tsc';

/**
 * Whether npm's own record of the installation differs from package-lock.json. Optional packages are absent if they are
 * for another platform.
 */
function packagesAreMissing() {
  const [wanted, installed] = ['package-lock.json', 'node_modules/.package-lock.json'].map(packagesOf);
  const paths = Object.keys({ ...wanted, ...installed }).filter((path) => path !== '');
  return paths.some((path) => {
    const [entry, found] = [wanted[path], installed[path]];
    if (!entry || !found) return !entry?.optional;
    return entry.version !== found.version || entry.integrity !== found.integrity;
  });
}

function packagesOf(lock) {
  const file = join(ROOT, lock);
  return existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')).packages : {};
}

/**
 * Installs and builds missing parts.
 * @param {string[]} projects of TypeScript to build; the default has the tests, too
 * @throws Error that names the missing or failed part, and the remedy
 */
export async function prepare(projects = ['tsconfig.json']) {
  const fault = systemFault() ?? ensurePrograms(BUILD_PROGRAMS);
  if (fault) throw new Error(fault);
  if (packagesAreMissing()) await step('installing npm packages', ['npm', 'ci', '--no-audit', '--no-fund']);
  const builds = [step('building the services', [process.execPath, COMPILER, '-b', ...projects])];
  if (isOlder('addon/build/Release/podwire_netlink.node', 'addon/src', 'addon/binding.gyp')) {
    const build = ['npm', 'run', '-s', 'build', '-w', '@podwire/netlink', ...nodeHeaders()];
    builds.push(step('building the netlink addon', build));
  }
  if (isOlder('plugin/shim/build/podwire', 'plugin/shim')) {
    builds.push(step('building the CNI shim', ['npm', 'run', '-s', 'build:shim', '-w', '@podwire/plugin']));
  }
  // None may still write when the caller ends.
  const failed = (await Promise.allSettled(builds)).find(({ status }) => status === 'rejected');
  if (failed) throw failed.reason;
}
