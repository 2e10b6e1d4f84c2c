// Takes a clone to the point where everything can run: npm packages, TypeScript, native addon, shim. Each step only when it
// is needed, so that the second start takes a second.
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

import { BUILD_PROGRAMS, ensurePrograms } from './programs.mjs';

export const ROOT = join(dirname(fileURLToPath(import.meta.url)), '..', '..');

/** Oldest releases of Node.js that everything is tested with, by major version. */
const NODE_RELEASES = { 20: 19, 22: 13 };
const NEWER_MAJOR = 24;

/** What is wrong with the system or with Node.js, and what to do; undefined when nothing is. */
export function systemFault({ platform, version } = { platform: process.platform, version: process.versions.node }) {
  if (platform !== 'linux') {
    return `Podwire programs the Linux kernel's network, and this is ${platform}. Run it on Linux, for example in a virtual machine.`;
  }
  const [major, minor] = version.split('.').map(Number);
  const oldest = NODE_RELEASES[major];
  const served = major >= NEWER_MAJOR || (oldest !== undefined && minor >= oldest);
  return served ? undefined : `Podwire needs Node.js 20.19, 22.13, 24 or newer, and this is ${version}.`;
}

/**
 * Runs one step, showing what it is and how long it took; its own output only when it fails.
 * @throws Error with the output when the step fails
 */
function step(title, [command, ...args]) {
  const startMs = Date.now();
  process.stdout.write(`  ${title} … `);
  const { status, stdout, stderr } = spawnSync(command, args, {
    cwd: ROOT,
    encoding: 'utf8',
    maxBuffer: 64 * 1024 * 1024,
  });
  if (status !== 0) {
    process.stdout.write('failed\n');
    throw new Error(`${[command, ...args].join(' ')} failed:\n${stdout}${stderr}`);
  }
  process.stdout.write(`${((Date.now() - startMs) / 1000).toFixed(1)} s\n`);
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

const INSTALLED = 'node_modules/.podwire-installed';

function packagesAreMissing() {
  const marker = join(ROOT, INSTALLED);
  const lock = readFileSync(join(ROOT, 'package-lock.json'), 'utf8');
  return !existsSync(marker) || readFileSync(marker, 'utf8') !== lock;
}

function installPackages() {
  step('installing npm packages', ['npm', 'ci', '--no-audit', '--no-fund']);
  writeFileSync(join(ROOT, INSTALLED), readFileSync(join(ROOT, 'package-lock.json')));
}

/**
 * Installs and builds what is missing.
 * @throws Error that says what is missing or failed, and what to do
 */
export function prepare() {
  const fault = systemFault() ?? ensurePrograms(BUILD_PROGRAMS);
  if (fault) throw new Error(fault);
  if (packagesAreMissing()) installPackages();
  step('building the services', [process.execPath, 'node_modules/typescript/bin/tsc', '-b']);
  if (isOlder('addon/build/Release/podwire_netlink.node', 'addon/src', 'addon/binding.gyp')) {
    step('building the netlink addon', ['npm', 'run', '-s', 'build', '-w', '@podwire/netlink', ...nodeHeaders()]);
  }
  if (isOlder('plugin/shim/build/podwire', 'plugin/shim')) {
    step('building the CNI shim', ['npm', 'run', '-s', 'build:shim', '-w', '@podwire/plugin']);
  }
}
