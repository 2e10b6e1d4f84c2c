// Files of the image, with modes and times that do not depend on the machine.
import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  copyFileSync,
  existsSync,
  lstatSync,
  lutimesSync,
  mkdirSync,
  readdirSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import process from 'node:process';

const EXECUTABLE = 0o111;
const PROGRAM_MODE = 0o755;
const FILE_MODE = 0o644;

/**
 * Runs a program.
 * @returns its standard output
 * @throws Error with what it printed when it fails
 */
export function run(command, args, { cwd, env = {} } = {}) {
  const { status, stdout, stderr, error } = spawnSync(command, args, {
    cwd,
    env: { ...process.env, ...env },
    encoding: 'utf8',
    maxBuffer: 64 * 1024 * 1024,
  });
  if (status === 0) return stdout;
  throw new Error(`${[command, ...args].join(' ')} failed: ${error?.message ?? ''}\n${stdout ?? ''}${stderr ?? ''}`);
}

/** Prints the name of a step, runs it and prints how long it took. */
export function step(title, action) {
  const startMs = Date.now();
  process.stdout.write(`  ${title} … `);
  const result = action();
  process.stdout.write(`${((Date.now() - startMs) / 1000).toFixed(1)} s\n`);
  return result;
}

/** Copies a file, following links, and makes it a program where the original is one. */
export function ship(from, to) {
  mkdirSync(dirname(to), { recursive: true });
  copyFileSync(from, to);
  chmodSync(to, statSync(from).mode & EXECUTABLE ? PROGRAM_MODE : FILE_MODE);
}

export function write(path, text, mode = FILE_MODE) {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
  chmodSync(path, mode);
}

export function link(path, target) {
  mkdirSync(dirname(path), { recursive: true });
  if (!existsSync(path)) symlinkSync(target, path);
}

/** Paths of all files and links below a folder, relative to it, sorted. Links are not followed. */
export function filesBelow(folder, below = '') {
  const entries = readdirSync(join(folder, below), { withFileTypes: true });
  const paths = entries.flatMap((entry) => {
    const path = join(below, entry.name);
    return entry.isDirectory() ? filesBelow(folder, path) : [path];
  });
  return paths.sort();
}

/** Sets the time of a folder and of everything below it. */
export function setTimes(folder, epochSeconds) {
  const status = lstatSync(folder);
  if (status.isDirectory()) {
    for (const name of readdirSync(folder)) setTimes(join(folder, name), epochSeconds);
  }
  lutimesSync(folder, epochSeconds, epochSeconds);
}
