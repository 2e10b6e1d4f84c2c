#!/usr/bin/env node
// Runs a command in separate network, mount and process namespaces, so that tests cannot reach the host's
// network configuration, and their processes and devices are gone when it ends, also after SIGKILL.
// usage: isolated.mjs [vitest ARGS… | COMMAND ARGS…]   (default: vitest run)
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, readdirSync, rmdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import process from 'node:process';

/** The required programs, each with its Debian package. */
const PROGRAMS = { unshare: 'util-linux', ip: 'iproute2', mount: 'mount' };

const NAMESPACES = ['--net', '--mount', '--propagation', 'private', '--pid', '--fork', '--kill-child', '--mount-proc'];

const SET_UP = 'mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && ip link set lo up && exec "$@"';

function fail(message) {
  process.stderr.write(`isolated: ${message}\n`);
  process.exit(1);
}

function missingPrograms() {
  return Object.entries(PROGRAMS)
    .filter(([program]) => spawnSync('sh', ['-c', `command -v ${program}`]).status !== 0)
    .map(([program, debianPackage]) => `${program} (apt-get install ${debianPackage})`);
}

/** Root creates the namespaces directly; other users first need a user namespace in which they are root. */
function unshareFlags() {
  const flags = process.getuid() === 0 ? NAMESPACES : ['--user', '--map-root-user', ...NAMESPACES];
  return spawnSync('unshare', [...flags, 'true']).status === 0 ? flags : undefined;
}

function commandLine([first, ...rest]) {
  const vitest = () => join(dirname(createRequire(import.meta.url).resolve('vitest/package.json')), 'vitest.mjs');
  if (first === undefined) return [process.execPath, vitest(), 'run'];
  return first === 'vitest' ? [process.execPath, vitest(), ...rest] : [first, ...rest];
}

/**
 * The only control group under which the command creates groups, in every hierarchy: no namespace isolates them.
 * Passed in `ISOLATED_CGROUP`.
 */
const CGROUP = `podwire-isolated-${process.pid}`;

/** Timeout for killed processes to end, in milliseconds. */
const KILLED_WITHIN_MS = 5000;

function removeControlGroup(path, endMs = Date.now() + KILLED_WITHIN_MS) {
  if (!existsSync(path)) return;
  for (const { name } of readdirSync(path, { withFileTypes: true }).filter((entry) => entry.isDirectory())) {
    removeControlGroup(join(path, name), endMs);
  }
  while (!removed(path, endMs)) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20);
}

/** @returns false while a process is still in the control group, and may yet end in time */
function removed(path, endMs) {
  try {
    rmdirSync(path);
    return true;
  } catch (error) {
    if (error.code === 'EBUSY' && Date.now() < endMs) return false;
    throw error;
  }
}

/** Removes the command's leftovers, once all its processes are gone. */
function removeControlGroups() {
  const root = '/sys/fs/cgroup';
  if (!existsSync(root)) return;
  const hierarchies = readdirSync(root, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  for (const path of [root, ...hierarchies.map(({ name }) => join(root, name))]) {
    try {
      removeControlGroup(join(path, CGROUP));
    } catch (error) {
      process.stderr.write(`isolated: ${join(path, CGROUP)} stays: ${error.message}\n`);
    }
  }
}

function main(argv) {
  if (process.platform !== 'linux') fail(`needs Linux network namespaces; this is ${process.platform}`);
  const missing = missingPrograms();
  if (missing.length > 0) fail(`missing: ${missing.join(', ')}`);
  const flags = unshareFlags();
  if (!flags) fail('cannot make a network namespace: run as root, or allow unprivileged user namespaces');

  const env = { ...process.env, ISOLATED_CGROUP: `/${CGROUP}` };
  const child = spawn('unshare', [...flags, 'sh', '-c', SET_UP, 'sh', ...commandLine(argv)], { stdio: 'inherit', env });
  // `unshare` ignores signals except this one. Ctrl-C reaches the command as well, which ends by itself; this process stays meanwhile.
  for (const signal of ['SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill('SIGKILL'));
  process.on('SIGINT', () => {});
  child.on('exit', (code, signal) => {
    removeControlGroups();
    process.exit(signal ? 1 : (code ?? 1));
  });
}

main(process.argv.slice(2));
