import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';

/**
 * What tests do to the real kernel, always in the throwaway namespaces of test/support/isolated.mjs: pods are made with
 * `ip netns add`, this process's own network namespace is the node.
 */

let isThrowaway = false;

/**
 * Tests begin with it, before they make links of their own, which it would take for the machine's.
 * @throws Error outside a namespace that was made for tests, so that no test can reach the machine's network
 */
export function requireThrowawayNamespace(): void {
  isThrowaway = false;
  const mounts = readFileSync('/proc/self/mounts', 'utf8');
  const uplinks = Object.keys(networkInterfaces()).filter((name) => name !== 'lo');
  if (!/^tmpfs \/run\/netns tmpfs /m.test(mounts) || uplinks.some((name) => /^(e|w)/.test(name))) {
    throw new Error('run kernel tests as `node test/support/isolated.mjs vitest run …`, in namespaces of their own');
  }
  isThrowaway = true;
}

/** Runs a program and gives its standard output. @throws Error with its standard error */
export function run(program: string, ...args: readonly string[]): string {
  return execFileSync(program, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
}

export function addPod(name: string): string {
  run('ip', 'netns', 'add', name);
  return `/run/netns/${name}`;
}

export function removePod(name: string): void {
  run('ip', 'netns', 'delete', name);
}

/**
 * Deletes every link and table of the node that a test made, and every pod. Vitest calls it also after a test that was refused.
 * @throws Error unless {@link requireThrowawayNamespace} has let the test begin
 */
export function cleanUp(): void {
  if (!isThrowaway) throw new Error('nothing is cleaned up here: requireThrowawayNamespace did not let the test begin');
  run('nft', 'flush', 'ruleset');
  for (const kind of ['veth', 'bridge']) {
    for (const line of run('ip', '-br', 'link', 'show', 'type', kind).split('\n')) {
      const [link = ''] = line.split(/[@\s]/);
      if (link !== '') run('ip', 'link', 'delete', link);
    }
  }
  for (const line of run('ip', 'netns', 'list').split('\n')) {
    const [pod = ''] = line.split(' ');
    if (pod !== '') removePod(pod);
  }
}

/** Fields that change by themselves, and what the kernel tells of a carrier, which it notices later. */
const VOLATILE =
  /"(ifindex|link_index|link_netnsid|used|updated|probes|confirmed|refcnt|state|operstate)":[^,}]*,?|"NO-CARRIER",|,?"(LOWER_UP|linkdown)"/g;

/** What is to be compared, as arguments of `ip`. */
const OBJECTS: readonly (readonly string[])[] = [
  ['-4', 'link'],
  ['-4', 'address'],
  ['-4', 'route', 'show', 'table', 'all'],
  ['-4', 'neigh', 'show', 'nud', 'permanent'],
  ['-6', 'address', 'show', 'scope', 'global'],
  ['-6', 'route', 'show', 'table', 'all', 'proto', '87'],
  ['-6', 'neigh', 'show', 'nud', 'permanent'],
];

const SETTINGS =
  '^net.(ipv4.(ip_forward|conf|neigh)|ipv6.conf.*.(disable_ipv6|forwarding|accept_dad|addr_gen_mode|proxy_ndp|accept_ra))';

/**
 * Links, addresses, routes, neighbours and settings of the node and some pods, as text to compare. Of IPv6 without what the kernel
 * makes by itself and when it likes: link-local addresses, and the routes to them.
 */
export function snapshot(...pods: readonly string[]): string {
  const where = [[], ...pods.map((pod) => ['-n', pod])];
  const objects = where.flatMap((at) =>
    OBJECTS.map(([family = '', ...object]) => run('ip', family, ...at, '-j', ...object).replace(VOLATILE, '')),
  );
  const switches = pods.map((pod) => run('ip', 'netns', 'exec', pod, 'sysctl', '-a', '-r', SETTINGS));
  return [...objects, run('sysctl', '-a', '-r', SETTINGS), ...switches].join('\n');
}

const FORWARDING = ['net.ipv4.ip_forward', 'net.ipv6.conf.all.forwarding'];

/** What a service gives its node at some time after the first pod, and does not take back. */
export function nodeForwards(state: 'on' | 'off' = 'on'): void {
  run('sysctl', '-qw', ...FORWARDING.map((key) => `${key}=${state === 'on' ? '1' : '0'}`));
}

/** Whether one ping is answered within two seconds; from the node, or from a pod. */
export function pings(address: string, pod?: string): boolean {
  const enter = pod === undefined ? [] : ['ip', 'netns', 'exec', pod];
  try {
    run('env', ...enter, 'ping', '-n', '-q', '-c', '1', '-W', '2', address);
    return true;
  } catch {
    return false;
  }
}
