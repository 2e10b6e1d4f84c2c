import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { execFile } from 'node:child_process';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { promisify } from 'node:util';

import { z } from 'zod';

import { NETWORK } from '../support/pods.js';
import { run } from '../support/programs.js';
import { SHIM } from '../support/root.js';
import { until } from '../support/until.js';
import type { RunningPod } from './holdings.js';
import { IMAGE, makeImage } from './image.js';
import { controlGroups, mountsBelow, prepareMachine, processesIn, removeControlGroup } from './machine.js';

const inspection = z.array(
  z.object({
    Id: z.string(),
    NetworkSettings: z.object({
      SandboxKey: z.string(),
      Networks: z.record(z.string(), z.object({ IPAddress: z.string() })),
    }),
  }),
);

export interface PodmanOptions {
  /** Path of the node's network namespace. */
  readonly netns: string;
  /** The content of its CNI configuration list. */
  readonly conflist: object;
}

/**
 * Debian's podman with its CNI backend, with folders and control group of its own. It has no daemon: each command finds the
 * state of earlier ones in the folders.
 */
export class Podman {
  readonly folder = mkdtempSync(join(tmpdir(), 'podwire-podman-'));
  readonly #cgroup: string;
  readonly #netns: string;
  readonly #env: NodeJS.ProcessEnv;

  constructor({ netns, conflist }: PodmanOptions) {
    this.#cgroup = join(prepareMachine(), basename(this.folder));
    this.#netns = netns;
    for (const name of ['bin', 'net.d', 'images']) mkdirSync(join(this.folder, name));
    run('cp', SHIM, join(this.folder, 'bin', 'podwire'));
    const file = (name: string, text: string) => {
      writeFileSync(join(this.folder, name), text);
      return join(this.folder, name);
    };
    file('net.d/10-test.conflist', JSON.stringify(conflist));
    this.#env = {
      ...process.env,
      CONTAINERS_CONF: file('containers.conf', configuration(this.folder)),
      CONTAINERS_STORAGE_CONF: file('storage.conf', storage(this.folder)),
    };
  }

  /** Puts the tests' image into podman's storage. */
  async start(): Promise<void> {
    await this.command('load', '-i', makeImage(join(this.folder, 'images')));
  }

  /** Runs a podman command on the node. @returns its standard output @throws Error with its standard error */
  async command(...args: readonly string[]): Promise<string> {
    const command = [`--net=${this.#netns}`, 'podman', ...args];
    return (await promisify(execFile)('nsenter', command, { env: this.#env })).stdout;
  }

  /** Runs a container of the tests' image in the background. @param args - the program's */
  async run(name: string, { options = [], args = [] }: ContainerOptions = {}): Promise<RunningPod> {
    const usual = ['--detach', '--name', name, '--network', NETWORK, '--cgroup-parent', this.#cgroup];
    await this.command('run', ...usual, ...options, IMAGE, ...args);
    return this.inspect(name);
  }

  /** A running container's ID and network. */
  async inspect(name: string): Promise<RunningPod> {
    const [container] = inspection.parse(JSON.parse(await this.command('inspect', name)));
    if (!container) throw new Error(`podman does not know ${name}`);
    const { Id: id, NetworkSettings: network } = container;
    return { id, address: network.Networks[NETWORK]?.IPAddress ?? '', netns: network.SandboxKey };
  }

  /** Objects that containers leave behind when something leaks; empty otherwise. */
  async leftovers(): Promise<readonly string[]> {
    return [
      ...(await this.command('ps', '--all', '--quiet')).split('\n').filter(Boolean),
      ...processesIn(this.#cgroup).map((pid) => `process ${pid}`),
      ...run('ip', 'netns', 'list')
        .split('\n')
        .filter((name) => name.startsWith('netns-')),
    ];
  }

  /** Ends every container, and removes everything. */
  async destroy(): Promise<void> {
    await this.command('rm', '--all', '--force', '--time', '0');
    await until(
      () => {
        for (const pid of processesIn(this.#cgroup)) process.kill(pid, 'SIGKILL');
        return processesIn(this.#cgroup).length === 0;
      },
      () => `processes do not end: ${controlGroups(this.#cgroup).join()}`,
    );
    for (const path of mountsBelow(this.folder)) run('umount', '--lazy', path);
    removeControlGroup(this.#cgroup);
    rmSync(this.folder, { recursive: true, force: true });
  }
}

interface ContainerOptions {
  /** Options of `podman run`. */
  readonly options?: readonly string[];
  readonly args?: readonly string[];
}

/** Other differences from Debian's defaults than the folder have their reason beside them. */
function configuration(folder: string): string {
  return `
[containers]
cgroupns = "private"
log_driver = "k8s-file"
# The usual ones are more than root may have without CAP_SYS_RESOURCE, as in containers.
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[network]
network_backend = "cni"
cni_plugin_dirs = ["${folder}/bin", "/usr/lib/cni"]
network_config_dir = "${folder}/net.d"
default_network = "${NETWORK}"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
# The other kind is in the machine's shared memory.
lock_type = "file"
runtime = "runc"
tmp_dir = "${folder}/tmp"
`;
}

function storage(folder: string): string {
  return `
[storage]
driver = "vfs"
graphroot = "${folder}/root"
runroot = "${folder}/run"
`;
}
