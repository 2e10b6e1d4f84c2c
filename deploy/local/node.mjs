// The node that the demonstration plays on: the network namespace that start.mjs made.
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';

/** Address of the benchmark range (RFC 2544), which no real network uses. */
export const NODE_ADDRESS = '198.18.0.1';

/** Runs a program and gives its standard output. @throws Error with its standard error when it fails */
export function run(command, ...args) {
  const { status, stdout, stderr, error } = spawnSync(command, args, { encoding: 'utf8' });
  if (status !== 0) throw new Error(`${[command, ...args].join(' ')} failed: ${error?.message ?? stderr.trim()}`);
  return stdout;
}

/** Brings the loopback up and gives the node an address. Pods' namespaces and sockets get folders that die with it. */
export function setUpNode(folder) {
  run('ip', 'link', 'set', 'lo', 'up');
  run('ip', 'address', 'add', `${NODE_ADDRESS}/32`, 'dev', 'lo');
  for (const name of ['netns', 'run', 'log']) mkdirSync(join(folder, name), { mode: 0o700 });
}

/** Lets go of the pods' namespaces and removes the folder; also when start.mjs, which made it, was killed. */
export function takeDownNode(folder) {
  for (const name of readdirSync(join(folder, 'netns'))) run('umount', join(folder, 'netns', name));
  rmSync(folder, { recursive: true, force: true });
}
