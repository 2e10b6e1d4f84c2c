import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';

import { z } from 'zod';

import { run } from '../support/programs.js';
import { SHIM } from '../support/root.js';
import { until } from '../support/until.js';
import { Cri, type SandboxConfig, type SandboxStatus } from './cri.js';
import { IMAGE, makeImage } from './image.js';
import { controlGroups, mountsBelow, prepareMachine, processesIn, processesOf, removeControlGroup } from './machine.js';

/** The folder of Debian's package containernetworking-plugins. */
const PEER_PLUGINS = '/usr/lib/cni';

export interface ContainerdOptions {
  /** Path of the node's network namespace. */
  readonly netns: string;
  /** The content of its CNI configuration list. */
  readonly conflist: object;
}

export interface PodOptions {
  /** TCP ports of the node, each with its port of the pod. */
  readonly ports?: Readonly<Record<number, number>>;
  readonly annotations?: Readonly<Record<string, string>>;
  /** The number of earlier sandboxes of this pod. */
  readonly attempt?: number;
}

/** Data of containerd besides the CRI's fields. */
const info = z.object({
  pid: z.number(),
  runtimeSpec: z.object({
    linux: z.object({ namespaces: z.array(z.object({ type: z.string(), path: z.string().optional() })) }),
  }),
});

/**
 * Debian's containerd and runc as they run on a node, with folders, socket and control group of their own, in a network
 * namespace that is the node's. Its sandboxes continue without it, as on a node; destroy() ends them.
 *
 * Three things are shared with other containerds of the same test run, none with the machine's: /run/containerd, libcni's
 * cache, and the mount namespace, in which Podwire's processes find the pods' namespaces by their paths.
 */
export class Containerd {
  readonly folder = mkdtempSync(join(tmpdir(), 'podwire-containerd-'));
  readonly socket = join(this.folder, 'containerd.sock');
  readonly cri: Cri;
  readonly cgroup: string;
  readonly #netns: string;
  #process: ChildProcess | undefined;

  constructor({ netns, conflist }: ContainerdOptions) {
    this.cgroup = join(prepareMachine(), basename(this.folder));
    this.#netns = netns;
    for (const name of ['bin', 'net.d']) mkdirSync(join(this.folder, name));
    for (const name of readdirSync(PEER_PLUGINS)) symlinkSync(join(PEER_PLUGINS, name), join(this.folder, 'bin', name));
    cpSync(SHIM, join(this.folder, 'bin', 'podwire'));
    this.configure(conflist);
    writeFileSync(join(this.folder, 'config.toml'), configuration(this.folder));
    this.cri = new Cri(this.socket);
  }

  /** Replaces the CNI configuration list; containerd reads it at once. */
  configure(conflist: object): void {
    writeFileSync(join(this.folder, 'net.d', '10-test.conflist'), JSON.stringify(conflist));
  }

  /** Starts containerd and waits until it can start pods. */
  async start(): Promise<void> {
    const log = openSync(this.#logFile, 'a', 0o600);
    const command = [`--net=${this.#netns}`, 'containerd', '-c', join(this.folder, 'config.toml'), '-l', 'info'];
    this.#process = spawn('nsenter', command, { stdio: ['ignore', log, log] });
    let faults = 'no answer';
    const ready = async () => {
      const ended = this.#process?.exitCode;
      if (typeof ended === 'number') throw new Error(`containerd ended with code ${ended}:\n${this.log()}`);
      faults = await this.cri.faults().then((all) => all.join(), String);
      return faults === '';
    };
    await until(ready, () => `containerd is not ready: ${faults}\n${this.log()}`);
    const images = join(this.folder, 'images');
    if (existsSync(images)) return;
    mkdirSync(images);
    run('ctr', '-a', this.socket, '-n', 'k8s.io', 'images', 'import', '--snapshotter', 'native', makeImage(images));
  }

  /** Kills containerd alone, like a crash. Pods and plugins that it has started continue. */
  async kill(): Promise<void> {
    const child = this.#process;
    this.#process = undefined;
    if (child?.exitCode !== null || child.signalCode !== null) return;
    const exited = once(child, 'exit');
    child.kill('SIGKILL');
    await exited;
  }

  /** The log of containerd. */
  log(): string {
    return readFileSync(this.#logFile, 'utf8');
  }

  /** A pod as kubelet describes it, for `cri.run`. */
  pod(name: string, { ports = {}, annotations = {}, attempt = 0 }: PodOptions = {}): SandboxConfig {
    return {
      metadata: { name, uid: `uid-of-${name}`, namespace: 'default', attempt },
      hostname: name,
      log_directory: join(this.folder, 'logs', name),
      port_mappings: Object.entries(ports).map(([hostPort, containerPort]) => ({
        protocol: 'TCP',
        container_port: containerPort,
        host_port: Number(hostPort),
      })),
      annotations,
      linux: {
        cgroup_parent: this.cgroup,
        security_context: { namespace_options: { network: 'POD', pid: 'CONTAINER', ipc: 'POD' } },
      },
    };
  }

  /** Starts a container that greets each client of a TCP port. */
  async serve(id: string, { config, port }: { readonly config: SandboxConfig; readonly port: number }): Promise<void> {
    const container = {
      metadata: { name: 'server' },
      image: { image: IMAGE },
      args: ['serve', String(port)],
      log_path: 'server.log',
    };
    await this.cri.startContainer(id, config, container);
  }

  /** Path of a running sandbox's network namespace. */
  async netnsOf(id: string): Promise<string> {
    return netnsOf(await this.cri.status(id));
  }

  /** Kills a sandbox's first process, and waits until containerd has noticed. */
  async killPod(id: string): Promise<void> {
    const { pid } = info.parse(JSON.parse((await this.cri.status(id)).info.info));
    process.kill(pid, 'SIGKILL');
    const noticed = async () => (await this.cri.status(id)).status.state === 'SANDBOX_NOTREADY';
    await until(noticed, () => `containerd still calls ${id} ready`);
  }

  /** Processes of Podwire's plugin that containerd has started for a command; they continue when it is killed. */
  plugins(command: 'ADD' | 'DEL'): readonly number[] {
    return processesOf(join(this.folder, 'bin', 'podwire'), `CNI_COMMAND=${command}`);
  }

  /** Objects that sandboxes leave behind when something leaks; empty otherwise. */
  async leftovers(): Promise<readonly string[]> {
    return [
      ...(await this.cri.list()).map(({ id }) => `sandbox ${id}`),
      ...mountsBelow(join(this.folder, 'state')).map((path) => `mount ${path}`),
      ...controlGroups(this.cgroup).map((path) => `control group ${path}`),
      ...this.#shims().map((pid) => `shim ${pid}`),
      ...this.#entriesOfOwn('/var/lib/cni/results').map((name) => `libcni's cache ${name}`),
    ];
  }

  /** Removes what a reboot of the machine removes: every process, mount and network namespace, and the files below /run. */
  async reboot(): Promise<void> {
    await this.#endAll();
    for (const id of this.#bundles()) rmSync(join('/run/containerd/runc/k8s.io', id), { recursive: true, force: true });
    rmSync(join(this.folder, 'state'), { recursive: true, force: true });
  }

  /** Ends containerd and all its pods, and removes all their objects. */
  async destroy(): Promise<void> {
    this.cri.close();
    await this.#endAll();
    rmSync(this.folder, { recursive: true, force: true });
  }

  get #logFile(): string {
    return join(this.folder, 'containerd.log');
  }

  #shims(): readonly number[] {
    return processesOf(`-address ${this.socket}`);
  }

  /** IDs of the sandboxes and containers with folders in containerd's state. */
  #bundles(): readonly string[] {
    const folder = join(this.folder, 'state', 'io.containerd.runtime.v2.task', 'k8s.io');
    return existsSync(folder) ? readdirSync(folder) : [];
  }

  /** Entries whose name has the ID of one of this containerd's sandboxes, as its root folder lists them. */
  #entriesOfOwn(folder: string): readonly string[] {
    const sandboxes = join(this.folder, 'root', 'io.containerd.grpc.v1.cri', 'sandboxes');
    const ids = existsSync(sandboxes) ? readdirSync(sandboxes) : [];
    const names = existsSync(folder) ? readdirSync(folder) : [];
    return names.filter((name) => ids.some((id) => name.includes(id)));
  }

  async #endAll(): Promise<void> {
    await this.kill();
    // The shims first: they would notice the end of their pods, and clean up at the same time.
    for (const processes of [() => this.#shims(), () => processesIn(this.cgroup)]) {
      await until(
        () => {
          for (const pid of processes()) killIfThere(pid);
          return processes().length === 0;
        },
        () => `processes do not end: ${processes().join()}`,
      );
    }
    for (const path of mountsBelow(this.folder)) run('umount', '--lazy', path);
    removeControlGroup(this.cgroup);
  }
}

function killIfThere(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // The process has already ended.
  }
}

function netnsOf(status: SandboxStatus): string {
  const { runtimeSpec } = info.parse(JSON.parse(status.info.info));
  const path = runtimeSpec.linux.namespaces.find(({ type }) => type === 'network')?.path;
  if (path === undefined) throw new Error(`sandbox ${status.status.id} has no network namespace`);
  return path;
}

/** Everything in one folder. Other differences from Debian's defaults have their reason beside them. */
function configuration(folder: string): string {
  return `
version = 2
root = "${folder}/root"
state = "${folder}/state"
disabled_plugins = [${['aufs', 'btrfs', 'devmapper', 'overlayfs', 'zfs'].map((name) => `"io.containerd.snapshotter.v1.${name}"`).join()}]
[grpc]
  address = "${folder}/containerd.sock"
[ttrpc]
  address = "${folder}/containerd.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "${folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "${IMAGE}"
  netns_mounts_under_state_dir = true
  disable_tcp_service = true
  # runc may not lower its score where root lacks CAP_SYS_RESOURCE, as in containers.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "${folder}/bin"
    conf_dir = "${folder}/net.d"
    max_conf_num = 1
  [plugins."io.containerd.grpc.v1.cri".containerd]
    # Works on every file system, also on an overlay.
    snapshotter = "native"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
`;
}
