import { execFileSync, spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

import { afterEach } from 'vitest';

import { openNamespace, type Namespace, type Outcome, type VethAdd } from '../lib/index.js';
import type { NativeDumpFilter } from '../lib/native.js';

/** The package's folder, where the compiled addon is found. */
export const ADDON_FOLDER = fileURLToPath(new URL('..', import.meta.url));

/**
 * Test files run in parallel in one network namespace, the process's own, so their objects have the process in their
 * name.
 */
const MARK = process.pid.toString(36);

export const [link0, link1, link2] = [`t${MARK}n0`, `t${MARK}n1`, `t${MARK}n2`];
/** A link that never exists. */
export const noLink = `t${MARK}none`;

/** No filter, in the shape of the compiled addon's lists; as source text for threads and separate processes. */
const EVERYTHING: NativeDumpFilter = {
  family: 0,
  index: 0,
  table: 0,
  destination: null,
  prefixLengthBits: 0,
  protocol: 0,
  proxy: false,
  maxCount: 0,
  timeoutMs: 0,
};
export const FILTER = JSON.stringify(EVERYTHING);

let count = 0;
const podNames: string[] = [];
const opened: Namespace[] = [];

/** The output of a program. */
export function run(program: string, ...args: string[]): string {
  return execFileSync(program, args, { encoding: 'utf8', maxBuffer: 2 ** 26 });
}

/** The JSON output of `ip -j -d …`. */
export function ip(...args: string[]): Record<string, unknown>[] {
  return JSON.parse(run('ip', '-j', '-d', ...args) || '[]');
}

/** A new, empty namespace; gone after the test. */
export function makePod(): { name: string; path: string } {
  count += 1;
  const name = `t${MARK}p${count}`;
  run('ip', 'netns', 'add', name);
  podNames.push(name);
  return { name, path: `/run/netns/${name}` };
}

/** Deletes a namespace's name, like a runtime when a pod ends. The namespace ends when no process has it open. */
export function deletePod(name: string): void {
  podNames.splice(podNames.indexOf(name), 1);
  run('ip', 'netns', 'delete', name);
}

/** Opens a namespace that is closed after the test. */
export async function open(path?: string): Promise<Namespace> {
  const namespace = await openNamespace(path);
  opened.push(namespace);
  return namespace;
}

export function vethPair(name: string, pod: Namespace, peerName = 'eth0'): VethAdd {
  const peer = { name: peerName, mac: '02:00:00:00:00:01', mtuBytes: 1450, namespace: pod };
  return { type: 'link.add', kind: 'veth', name, mac: 'ee:ee:ee:ee:ee:ee', mtuBytes: 1450, peer };
}

/** `ok`, or the error's code, of each. */
export function codes(outcomes: readonly Outcome[]): string[] {
  return outcomes.map((outcome) => (outcome.ok ? 'ok' : outcome.error.code));
}

/** The rejection of a promise. */
export async function failureOf(promise: Promise<unknown>): Promise<unknown> {
  return promise.then(
    (value) => `resolved with ${String(value)}`,
    (reason: unknown) => reason,
  );
}

function linkNames(): string[] {
  return ip('link', 'show').map((link) => String(link.ifname));
}

afterEach(async () => {
  await Promise.all(opened.splice(0).map((namespace) => namespace.close()));
  for (const name of podNames.splice(0)) run('ip', 'netns', 'delete', name);
  const left = linkNames().filter((link) => link.startsWith(`t${MARK}n`));
  // A namespace deletes its end of a pair a little later; so an absent one is no error.
  for (const name of left) spawnSync('ip', ['link', 'delete', name]);
});
