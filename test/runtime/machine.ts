import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync } from 'node:fs';
import { join } from 'node:path';

import { run } from '../support/programs.js';

const CGROUPS = '/sys/fs/cgroup';

/**
 * Paths that runtimes write outside of their configured folders, without a setting: states of runc and
 * sockets of the shims, libcni's cache, and what podman knows of images elsewhere.
 */
const FIXED_FOLDERS = ['/run/containerd', '/var/lib/cni', '/var/lib/containers'];

const AS_ROOT =
  'Run the tests as root on a machine of its own, or without them: npm test -- --exclude "test/runtime/**"';

/**
 * Prepares the machine for a container runtime: its fixed folders become empty ones in the tests' own mount namespace. Idempotent,
 * also at the same time. Only in the namespaces of test/support/isolated.mjs.
 * @returns the control group below which runtimes have to create theirs
 * @throws Error with the operation that the machine does not allow
 */
export function prepareMachine(): string {
  const cgroup = process.env.ISOLATED_CGROUP;
  if (cgroup === undefined) throw new Error('not in the namespaces of test/support/isolated.mjs');
  const [first = '', , count = ''] = readFileSync('/proc/self/uid_map', 'utf8').trim().split(/\s+/);
  if (first !== '0' || Number(count) < 2 ** 32 - 1) {
    throw new Error(`container runtimes need more than a user namespace with one user. ${AS_ROOT}`);
  }
  if (hierarchies().length === 0)
    throw new Error(`runc needs control groups, and there are none in ${CGROUPS}. ${AS_ROOT}`);
  for (const path of hierarchies()) {
    try {
      if (!existsSync(join(path, cgroup))) mkdirSync(join(path, cgroup));
    } catch (error) {
      throw new Error(`runc cannot make control groups in ${path}. ${AS_ROOT}`, { cause: error });
    }
  }
  const script =
    'mkdir -p "$0" && { [ "$(findmnt -no SOURCE "$0")" = podwire-test ] || mount -t tmpfs podwire-test "$0"; }';
  for (const folder of FIXED_FOLDERS) run('flock', '/run/netns', 'sh', '-c', script, folder);
  return cgroup;
}

/** Roots of the control group hierarchies: one with cgroup v2, one of each controller with v1. */
function hierarchies(): readonly string[] {
  const isHierarchy = (path: string) => existsSync(join(path, 'cgroup.procs'));
  if (isHierarchy(CGROUPS)) return [CGROUPS];
  if (!existsSync(CGROUPS)) return [];
  return readdirSync(CGROUPS, { withFileTypes: true })
    .filter((entry) => entry.isDirectory())
    .map(({ name }) => join(CGROUPS, name))
    .filter(isHierarchy);
}

/** The control groups below one, by path, of all hierarchies. */
export function controlGroups(cgroup: string): readonly string[] {
  const below = (path: string): readonly string[] => {
    if (!existsSync(path)) return [];
    const children = readdirSync(path, { withFileTypes: true }).filter((entry) => entry.isDirectory());
    return children.flatMap(({ name }) => [join(path, name), ...below(join(path, name))]);
  };
  return hierarchies().flatMap((path) => below(join(path, cgroup)));
}

/** Removes a control group without processes. */
export function removeControlGroup(cgroup: string): void {
  const paths = [...hierarchies().map((path) => join(path, cgroup)), ...controlGroups(cgroup)].reverse();
  for (const path of paths) if (existsSync(path)) rmdirSync(path);
}

/** Processes in a control group or one below it. */
export function processesIn(cgroup: string): readonly number[] {
  const groups = [...hierarchies().map((path) => join(path, cgroup)), ...controlGroups(cgroup)];
  const pids = groups.flatMap((path) => {
    const file = join(path, 'cgroup.procs');
    return existsSync(file) ? readFileSync(file, 'utf8').trim().split('\n').filter(Boolean).map(Number) : [];
  });
  return [...new Set(pids)];
}

/** Processes whose command line contains a text, and whose environment contains a variable, if given; without zombies. */
export function processesOf(text: string, variable?: string): readonly number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => stringsOf(pid, 'cmdline').join(' ').includes(text))
    .filter((pid) => variable === undefined || stringsOf(pid, 'environ').includes(variable))
    .map(Number);
}

/** The kernel's zero-terminated strings of a process; none once it has ended. */
function stringsOf(pid: string, file: 'cmdline' | 'environ'): readonly string[] {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'utf8').split('\0');
  } catch {
    return [];
  }
}

/** The mounts at or below a folder, in the order in which they can be unmounted. */
export function mountsBelow(folder: string): readonly string[] {
  return readFileSync('/proc/self/mounts', 'utf8')
    .split('\n')
    .map((line) => line.split(' ')[1] ?? '')
    .filter((path) => path.startsWith(`${folder}/`))
    .reverse();
}
