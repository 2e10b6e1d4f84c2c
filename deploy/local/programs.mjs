// The programs that building and running need, and how they come onto the machine.
import { spawnSync } from 'node:child_process';
import { existsSync, rmSync, writeFileSync } from 'node:fs';
import process from 'node:process';

/** Programs to build with, each with the Debian package that brings it. */
export const BUILD_PROGRAMS = { 'g++': 'g++', make: 'make', python3: 'python3' };

/** Programs that only `npm run lint` needs: it reads the C++ with them. */
export const CPP_PROGRAMS = { 'clang-format': 'clang-format', 'clang-tidy': 'clang-tidy' };

/** Programs to make network namespaces with. */
export const NAMESPACE_PROGRAMS = { unshare: 'util-linux', nsenter: 'util-linux', mount: 'mount', ip: 'iproute2' };

/** Programs that tests compare Podwire with, or look at the kernel with. */
export const TEST_PROGRAMS = {
  ping: 'iputils-ping',
  strace: 'strace',
  nft: 'nftables',
  conntrack: 'conntrack',
  bird: 'bird2',
  '/usr/lib/cni/host-local': 'containernetworking-plugins',
  'systemd-analyze': 'systemd',
  promtool: 'prometheus',
  zsh: 'zsh',
  fish: 'fish',
};

/** Memory checker of the addon's layers, for `npm run test:leak -w @podwire/netlink` alone. */
export const MEMORY_PROGRAMS = { ...BUILD_PROGRAMS, valgrind: 'valgrind' };

/** libFuzzer, for `npm run fuzz -w @podwire/netlink` and nothing else. Debian has its run-time library in a package apart. */
export const FUZZ_PROGRAMS = { ...BUILD_PROGRAMS, 'clang++': 'clang libclang-rt-dev' };

/** A real etcd, for tests and measurements. Each test starts its own; Debian's service is not used. */
export const ETCD_PROGRAMS = { etcd: 'etcd-server', etcdctl: 'etcd-client', openssl: 'openssl', setpriv: 'util-linux' };

/** Other people's CNI plugins, to be measured beside ours. */
export const PEER_PROGRAMS = { '/usr/lib/cni/ptp': 'containernetworking-plugins' };

/** Container runtimes that drive the plugin as on a node; `gcc` makes the one program of their image. */
export const RUNTIME_PROGRAMS = {
  containerd: 'containerd',
  ctr: 'containerd',
  runc: 'runc',
  podman: 'podman',
  iptables: 'iptables',
  gcc: 'gcc',
  '/usr/lib/cni/portmap': 'containernetworking-plugins',
};

/** Programs of `npm run release -- --check`: a registry, an emulator, a compiler for arm64, and systemd on a root of its own. */
export const RELEASE_PROGRAMS = {
  ...NAMESPACE_PROGRAMS,
  ...PEER_PROGRAMS,
  skopeo: 'skopeo',
  'docker-registry': 'docker-registry',
  'qemu-aarch64-static': 'qemu-user-static',
  'aarch64-linux-gnu-g++': 'g++-aarch64-linux-gnu',
  'systemd-nspawn': 'systemd-container',
  make: 'make',
  nft: 'nftables',
  modprobe: 'kmod',
};

/** Go's libcni, for `npm run test:libcni` and nothing else. */
export const LIBCNI_PROGRAMS = { go: 'golang-go golang-github-appc-cni-dev' };

/** Any of them shows the demonstration's page. The first is Debian's; it needs no display. */
const BROWSERS = ['chromium-headless-shell', 'chromium', 'google-chrome'];
const BROWSER_PACKAGES = 'chromium-headless-shell fonts-liberation';

/** @returns the path of a browser; undefined without one */
export function browserPath() {
  const { stdout } = spawnSync('sh', ['-c', BROWSERS.map((name) => `command -v ${name}`).join(' || ')]);
  return String(stdout).trim() || undefined;
}

/** Installs a browser as {@link ensurePrograms} does, if there is none. @returns undefined, or the error */
export function ensureBrowser() {
  return browserPath() === undefined ? ensurePrograms({ [BROWSERS[0]]: BROWSER_PACKAGES }) : undefined;
}

export function hasProgram(program) {
  return spawnSync('sh', ['-c', `command -v ${program}`]).status === 0;
}

/** Debian starts the services of a package as it installs them, unless this says no (invoke-rc.d). */
const SERVICE_POLICY = '/usr/sbin/policy-rc.d';

/** Services that come with the packages above, and that nothing here wants to run. */
const SERVICES = {
  'etcd-server': ['etcd.service'],
  containerd: ['containerd.service'],
  bird2: ['bird.service'],
  prometheus: ['prometheus.service', 'prometheus-node-exporter.service'],
  'docker-registry': ['docker-registry.service'],
  podman: ['podman.service', 'podman.socket', 'podman-restart.service', 'podman-auto-update.timer'],
};

/** Runs what installs packages, and leaves none of their services started, now or at the next boot. */
function withoutServices(packages, install) {
  const services = packages.flatMap((name) => SERVICES[name] ?? []);
  if (services.length === 0) return install();
  // A policy that is there is the machine's own, and stays as it is.
  const isOurs = !existsSync(SERVICE_POLICY);
  if (isOurs) writeFileSync(SERVICE_POLICY, '#!/bin/sh\nexit 101\n', { mode: 0o755 });
  try {
    return install();
  } finally {
    if (isOurs) rmSync(SERVICE_POLICY, { force: true });
    if (hasProgram('systemctl')) spawnSync('systemctl', ['disable', '--now', '--quiet', ...services]);
  }
}

/**
 * Installs missing programs with `apt-get` when run as root on Debian; otherwise returns the install command.
 * @param programs - program → Debian package
 * @returns undefined, or the error with the command to run
 */
export function ensurePrograms(programs) {
  const missing = () => Object.keys(programs).filter((program) => !hasProgram(program));
  const wanted = missing();
  if (wanted.length === 0) return undefined;
  const packages = [...new Set(wanted.map((program) => programs[program]))];
  const command = `apt-get install -y --no-install-recommends ${packages.join(' ')}`;
  if (process.getuid() !== 0 || !hasProgram('apt-get')) {
    return `${wanted.join(', ')}: not installed. As root on Debian: ${command}`;
  }
  process.stdout.write(`installing ${packages.join(', ')} (${command})\n`);
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' };
  const options = { env, stdio: ['ignore', 'ignore', 'inherit'] };
  const install = withoutServices(packages, () =>
    spawnSync('sh', ['-c', `apt-get update -qq && ${command} -qq`], options),
  );
  const still = missing();
  if (install.status === 0 && still.length === 0) return undefined;
  return `${(still.length > 0 ? still : wanted).join(', ')}: could not be installed with: ${command}`;
}
