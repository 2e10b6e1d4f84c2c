// Waiting for a state, and running programs that must succeed.
import { spawn, spawnSync } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

export { sleep };

const INTERVAL_MS = 300;

/**
 * Waits until a condition returns something other than false and undefined.
 * @throws Error with the last state that `describe` returns, or the last error
 */
export async function until(what, condition, timeoutSeconds, describe = () => '') {
  const endMs = Date.now() + timeoutSeconds * 1000;
  for (;;) {
    let failure = '';
    try {
      const value = await condition();
      if (value !== false && value !== undefined) return value;
    } catch (error) {
      failure = error.message;
    }
    if (Date.now() > endMs) {
      const state = await describe();
      throw new Error(`${what}: not within ${timeoutSeconds} s. ${[failure, state].filter(Boolean).join(' ')}`);
    }
    await sleep(INTERVAL_MS);
  }
}

/** @returns the standard output. @throws Error with `stdout` when the program fails */
export function must(program, args, options = {}) {
  const { status, stdout, stderr, error } = spawnSync(program, args, { encoding: 'utf8', ...options });
  if (status === 0) return stdout;
  const text = error?.message ?? (stderr || stdout);
  throw Object.assign(new Error(`${program} ${args.join(' ')}: ${text}`), { stdout });
}

/** Runs a program with its output in a file. @returns the exit code */
export function runLogged(program, args, { log, ...options }) {
  const output = openSync(log, 'a');
  const child = spawn(program, args, { ...options, stdio: ['ignore', output, output] });
  closeSync(output);
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('exit', resolve);
  });
}

/** Kills a process, and restarts it after the time. `during` runs meanwhile. */
export async function outage(child, durationMs, { during, restart }) {
  const ended = new Promise((resolve) => child.on('exit', resolve));
  child.kill('SIGKILL');
  await ended;
  const endMs = Date.now() + durationMs;
  try {
    await during();
    await sleep(Math.max(0, endMs - Date.now()));
  } finally {
    restart();
  }
}
