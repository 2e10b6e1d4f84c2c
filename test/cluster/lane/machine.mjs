// A machine: network, mount, process, host name, IPC and control group namespaces, with PID 1, a disk and a network card.
import { spawn, spawnSync } from 'node:child_process';
import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

import { must, until } from './wait.mjs';

const CGROUPS = '/sys/fs/cgroup';
const HIERARCHIES = ['cpu', 'cpuacct', 'cpuset', 'memory', 'devices', 'freezer', 'blkio', 'pids', 'systemd'];
const RESTART_MS = 1000;
const SCRIPT = join(dirname(fileURLToPath(import.meta.url)), 'machine.sh');
/** A namespace keeps no process out of the control groups of its starter: the process moves first. */
const MOVE = 'for group in $GROUPS_OF_MACHINE; do echo 0 > $group/cgroup.procs; done; exec "$@"';

/** Missing program of this machine for the cluster; undefined when none. */
export function cgroupFault() {
  const missing = HIERARCHIES.filter((name) => !existsSync(join(CGROUPS, name, 'cgroup.procs')));
  return missing.length === 0
    ? undefined
    : `control groups: no cgroup v1 hierarchy ${missing.join(', ')} in ${CGROUPS}; this lane runs on cgroup v1 only`;
}

export class Machine {
  #starter;
  #pid;
  #starts = 0;

  /** `cgroup` is the one below which the machine may make its own; `path` has the folders of the cluster's programs. */
  constructor({ name, folder, cgroup, path, addresses, gateways }) {
    Object.assign(this, { name, folder, cgroup: `${cgroup}/${name}`, path, addresses, gateways });
    this.logs = join(folder, 'logs');
    mkdirSync(this.logs, { recursive: true });
  }

  #groups() {
    return HIERARCHIES.map((name) => join(CGROUPS, name, this.cgroup));
  }

  #makeGroups() {
    for (const group of this.#groups()) {
      mkdirSync(group, { recursive: true });
      // A new group of cpuset has neither processors nor memory, and no process may join it.
      for (const path of [dirname(group), group].filter((each) => each.includes('/cpuset/'))) {
        for (const file of ['cpuset.cpus', 'cpuset.mems']) {
          writeFileSync(join(path, file), readFileSync(join(CGROUPS, 'cpuset', file)));
        }
      }
    }
  }

  #environment() {
    const path = `${this.path}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin`;
    return { PATH: path, HOME: '/root', GROUPS_OF_MACHINE: this.#groups().join(' ') };
  }

  async start() {
    this.#makeGroups();
    const log = openSync(join(this.logs, 'machine.log'), 'a');
    const command = ['unshare', '-m', '-n', '-p', '-u', '-i', '-C', '-f', '--kill-child'];
    const args = ['-c', MOVE, 'sh', ...command, 'bash', SCRIPT, this.folder, this.name, ...HIERARCHIES];
    this.#starter = spawn('sh', args, { env: this.#environment(), stdio: ['ignore', log, log], cwd: '/' });
    this.#pid = await until(`${this.name}: first process`, () => childOf(this.#starter.pid), 5);
    await until(`${this.name}: start`, () => this.enter(['test', '-e', '/run/machine-is-up']).status === 0, 10);
    this.#plugIn();
  }

  #plugIn() {
    const port = `port-${this.name}`;
    must('ip', ['link', 'add', port, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', String(this.#pid)]);
    must('ip', ['link', 'set', port, 'master', 'lan', 'up']);
    const lines = [
      ...this.addresses.map((address) => `address add ${address} dev eth0 ${address.includes(':') ? 'nodad' : ''}`),
      'link set eth0 up',
      ...this.gateways.map((gateway) => `route add default via ${gateway}`),
    ];
    for (const line of lines) {
      const family = line.includes(':') ? ['-6'] : [];
      this.run('ip', [...family, ...line.trim().split(' ')]);
    }
    this.run('sysctl', ['-qw', 'net.ipv4.ip_forward=1', 'net.ipv6.conf.all.forwarding=1']);
  }

  #enterArgs(command) {
    const target = ['-t', String(this.#pid), '-m', '-n', '-p', '-u', '-i', '-C'];
    return ['-c', MOVE, 'sh', 'nsenter', ...target, '--', ...command];
  }

  /** Runs a command on the machine. @returns status, stdout, stderr */
  enter(command, options = {}) {
    const settings = { env: this.#environment(), encoding: 'utf8', cwd: '/', maxBuffer: 64 * 1024 * 1024, ...options };
    return spawnSync('sh', this.#enterArgs(command), settings);
  }

  /** @returns the output of the command. @throws Error when it fails */
  run(command, args) {
    const { status, stdout, stderr } = this.enter([command, ...args]);
    if (status !== 0) throw new Error(`${this.name}: ${command} ${args.join(' ')}: ${stderr || stdout}`);
    return stdout;
  }

  /** Starts a program on the machine. @returns its process, with its output as a stream */
  follow(command) {
    return spawn('sh', this.#enterArgs(command), {
      env: this.#environment(),
      stdio: ['ignore', 'pipe', 'inherit'],
      cwd: '/',
    });
  }

  /** Starts a daemon on the machine, and again a second after it ended, until the machine is off. */
  spawn(command, args, env = {}) {
    const log = openSync(join(this.logs, `${command}.log`), 'a');
    const stdio = ['ignore', log, log];
    const options = { env: { ...this.#environment(), ...env }, stdio, cwd: '/' };
    const starts = this.#starts;
    const daemon = spawn('sh', this.#enterArgs([command, ...args]), options);
    closeSync(log);
    const restart = () => (starts === this.#starts ? this.spawn(command, args, env) : undefined);
    daemon.on('exit', () => setTimeout(restart, RESTART_MS));
  }

  /** Processes of the machine, its containers' too, whose command line matches. */
  processes(pattern) {
    return readdirSync('/proc').filter((pid) => {
      if (!/^\d+$/.test(pid)) return false;
      try {
        const groups = readFileSync(`/proc/${pid}/cgroup`, 'utf8');
        const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ');
        return new RegExp(`${this.cgroup}(/|$)`, 'm').test(groups) && pattern.test(command);
      } catch {
        return false;
      }
    });
  }

  /** @returns how many processes got the signal */
  signal(pattern, signal) {
    const pids = this.processes(pattern);
    for (const pid of pids) {
      try {
        process.kill(Number(pid), signal);
      } catch {
        // It ended meanwhile.
      }
    }
    return pids.length;
  }

  kill(pattern) {
    return this.signal(pattern, 'SIGKILL');
  }

  /** Simulates a loss of power: every process ends, all namespaces go, the disk stays. */
  async powerOff() {
    this.#starts += 1;
    const ended = new Promise((resolve) => this.#starter.on('exit', resolve));
    process.kill(this.#pid, 'SIGKILL');
    await ended;
    await until(
      `${this.name}: its network card to go`,
      () => spawnSync('ip', ['link', 'show', `port-${this.name}`]).status !== 0,
      10,
    );
    for (const group of this.#groups()) await until(`${group} to be free`, () => removeBelow(group), 10);
  }
}

/**
 * Removes the control groups below one, which a machine that is off does not have either. A kubelet asks the runtime for
 * 3 s about each group of a container that it finds at its start, one after the other.
 * @returns false while processes end
 */
function removeBelow(group) {
  const children = readdirSync(group, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  for (const { name } of children) {
    const child = join(group, name);
    if (!removeBelow(child)) return false;
    try {
      rmdirSync(child);
    } catch (error) {
      if (error.code === 'EBUSY') return false;
      throw error;
    }
  }
  return true;
}

function childOf(pid) {
  const { stdout } = spawnSync('pgrep', ['-P', String(pid), 'bash'], { encoding: 'utf8' });
  const [child] = stdout.trim().split('\n').filter(Boolean);
  return child === undefined ? undefined : Number(child);
}
