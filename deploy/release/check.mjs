// `npm run release -- --check`: tries the files of a built release as their users do. It leaves nothing behind.
import { spawn, spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';

import { readJson } from '../image/podwire.mjs';
import { NODE } from '../image/recipe.mjs';
import { run, step } from '../image/tree.mjs';
import { findHelm } from '../kubernetes/helm.mjs';
import { ROOT } from '../local/prepare.mjs';
import { ensurePrograms, RELEASE_PROGRAMS } from '../local/programs.mjs';
import { publish } from './publish.mjs';

/** The architecture that no machine of this project has: its programs are emulated. */
const EMULATED = { arch: 'arm64', cross: 'aarch64-linux-gnu-', emulator: '/usr/bin/qemu-aarch64-static' };

const REGISTRY = '127.0.0.1:5000';
const ATTEMPTS = 100;
const PAUSE_MS = 200;

const pause = () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, PAUSE_MS);

/** Runs a program until it succeeds. @throws Error of the last attempt */
function eventually(...command) {
  for (let attempt = 1; attempt < ATTEMPTS; attempt++) {
    try {
      return run(...command);
    } catch {
      pause();
    }
  }
  return run(...command);
}

/** Pushes the release to a registry on loopback, and reads it back with skopeo and helm. */
function checkRegistry({ folder, version, work, helm }) {
  const config = join(work, 'registry.yml');
  const storage = `storage: { filesystem: { rootdirectory: ${join(work, 'registry')} } }`;
  writeFileSync(config, `version: 0.1\n${storage}\nhttp: { addr: ${REGISTRY} }\n`);
  const registry = spawn('docker-registry', ['serve', config], { stdio: 'ignore' });
  try {
    const image = `docker://${REGISTRY}/podwire:${version}`;
    eventually('bash', ['-c', `exec 3<>/dev/tcp/${REGISTRY.replace(':', '/')}`]);
    publish({ folder, version, registry: REGISTRY });
    for (const arch of ['amd64', EMULATED.arch]) {
      const inspect = ['inspect', '--config', '--tls-verify=false', `--override-arch=${arch}`, image];
      const { architecture, config: labelled } = JSON.parse(run('skopeo', inspect));
      const found = `${architecture} ${labelled.Labels['org.opencontainers.image.version']}`;
      if (found !== `${arch} ${version}`) throw new Error(`${image}: is ${found}, not ${arch} ${version}`);
    }
    for (const name of ['podwire', 'podwire-crds']) {
      const chart = ['pull', `oci://${REGISTRY}/charts/${name}`, '--version', version, '--plain-http', '-d', work];
      run(helm, chart);
      run('cmp', [join(work, `${name}-${version}.tgz`), join(folder, `${name}-${version}.tgz`)]);
    }
  } finally {
    registry.kill();
  }
}

/** Installs the kit into an empty folder, and runs it on a plugin of Debian. @returns folder of the installation */
function checkKit({ folder, version, work }) {
  const empty = join(work, 'kit');
  mkdirSync(empty);
  const kit = join(folder, `podwire-conformance-${version}.tgz`);
  run('npm', ['install', '--offline', '--no-audit', '--no-fund', '--prefix', empty, kit], { cwd: empty });
  const args = ['--plugin', 'ptp', '--only', 'version', '--only', 'add'];
  run('npx', ['--offline', 'podwire-conformance', ...args], { cwd: empty });
  return empty;
}

/** Unpacks the image of the emulated architecture into a folder. */
function unpackImage({ archive, work, root }) {
  const copy = join(work, 'image');
  const options = ['--insecure-policy', 'copy', '--quiet', `--override-arch=${EMULATED.arch}`];
  run('skopeo', [...options, `oci-archive:${archive}`, `dir:${copy}`]);
  mkdirSync(root);
  const { layers } = readJson(join(copy, 'manifest.json'));
  for (const { digest } of layers) run('tar', ['-xzf', join(copy, digest.replace('sha256:', '')), '-C', root]);
}

/** The unit tests of shim and addon for the other architecture. */
function checkNativeTests({ work }) {
  const { cross, emulator } = EMULATED;
  // The sanitizers do not run in the emulator. Statically linked programs need no libraries of the architecture.
  const plain = '-g -O1 -static';
  const tools = [`CXX=${cross}g++`, `RUN=${emulator}`];
  run('make', ['-s', '-C', 'plugin/shim', 'test', `BUILD=${join(work, 'shim')}`, `CHECKED=${plain}`, ...tools], {
    cwd: ROOT,
  });
  const out = [`OUT=${join(work, 'addon')}`, `SANITIZERS=${plain}`];
  run('make', ['-s', '-C', 'addon/test/native', 'codec', ...out, ...tools], { cwd: ROOT });
}

/** Starts podwirectl and podwire-ipam of the other architecture in the unpacked image, and makes a call. */
function checkEmulatedImage({ folder, version, work }) {
  const root = join(work, 'root');
  unpackImage({ archive: join(folder, `podwire-image-${version}.oci.tar`), work, root });
  copyFileSync(EMULATED.emulator, join(root, 'emulator'));
  run('chmod', ['755', join(root, 'emulator')]);
  for (const path of ['/proc', '/dev']) run('mount', ['--rbind', path, join(root, path)]);
  const program = (file) => [root, '/emulator', NODE.program, join('/opt/podwire/services', file)];
  const ctl = program('ctl/bin/podwirectl.mjs');
  const answer = run('chroot', [...ctl, 'version', '--client']);
  if (!answer.includes(version)) throw new Error(`podwirectl version: answered ${answer}`);
  const settings = { PODWIRE_IPAM_STORE: 'embedded', PODWIRE_IPAM_LISTEN: 'unix:/run/podwire/ipam.sock' };
  const options = { env: { ...process.env, ...settings }, stdio: 'ignore' };
  const ipam = spawn('chroot', program('ipam/bin/podwire-ipam.mjs'), options);
  try {
    eventually('chroot', [...ctl, 'create', 'ippool', 'pods', 'cidr=10.65.0.0/16']);
    const pools = run('chroot', [...ctl, 'get', 'ippools']);
    if (!pools.includes('10.65.0.0/16')) throw new Error(`podwirectl get ippools: answered ${pools}`);
  } finally {
    ipam.kill('SIGKILL');
  }
}

/** The commands of a section of the units' page. */
function commandsOf(heading) {
  const page = readFileSync(join(ROOT, 'deploy', 'systemd', 'README.md'), 'utf8');
  return new RegExp(`## ${heading}\n[^#]*?\`\`\`console\n([^\`]*)\`\`\``).exec(page)[1];
}

/** Script of a host that installs Podwire as documented, adds pods with the kit, upgrades and removes it. */
const hostScript = (file) => `
set -ex
ip link add eth0 type veth peer name peer0
ip address add 192.0.2.2/24 dev eth0
ip link set eth0 up
ip link set peer0 up
cd /check
mkdir -p /opt/cni/bin
cp /usr/lib/cni/loopback /opt/cni/bin
${commandsOf('Installing')}
podwirectl version
(cd kit && npx --offline podwire-conformance --plugin podwire --bin-dir /opt/cni/bin --socket /run/podwire/cni.sock \\
  --node-netns /proc/1/ns/net --only version --only add)
dpkg --install ${file}
systemctl is-active podwire-ipam podwire-node podwire-install
${commandsOf('Removing')}
if systemctl is-active podwire-ipam podwire-node podwire-install; then exit 1; fi
if ls -d /opt/podwire /etc/podwire /opt/cni/bin/podwire; then exit 1; fi
`;

const UNIT = `[Unit]
After=basic.target
SuccessAction=exit
FailureAction=exit
[Service]
Type=oneshot
TimeoutStartSec=10min
ExecStart=/bin/bash /check/host.sh
StandardOutput=file:/check/output
StandardError=inherit
`;

/** Puts this process into the control groups that end with its namespaces: systemd makes its own below them. */
function joinControlGroups() {
  const hierarchies = ['', 'systemd', 'unified'].map((name) => join('/sys/fs/cgroup', name));
  for (const hierarchy of hierarchies.filter((path) => existsSync(join(path, 'cgroup.procs')))) {
    const group = join(hierarchy, process.env.ISOLATED_CGROUP);
    mkdirSync(group, { recursive: true });
    writeFileSync(join(group, 'cgroup.procs'), String(process.pid));
  }
}

/** Installs the Debian package on a copy of this machine's files, and starts its units with systemd. */
function checkDebianPackage({ folder, version, work, kit }) {
  const [host, layer, upper] = ['host', 'layer', 'layer/upper'].map((name) => join(work, name));
  for (const path of [host, layer]) mkdirSync(path);
  mkdirSync('/run/systemd', { recursive: true });
  for (const path of [layer, '/run/systemd']) run('mount', ['-t', 'tmpfs', 'tmpfs', path]);
  for (const path of [upper, join(layer, 'work')]) mkdirSync(path);
  run('mount', ['-t', 'overlay', '-o', `lowerdir=/,upperdir=${upper},workdir=${join(layer, 'work')}`, 'overlay', host]);
  // No unit of this machine starts: neither its services nor its settings belong to the check.
  run('rm', ['-rf', join(host, 'etc/systemd/system'), join(host, 'etc/machine-id')]);
  const check = join(host, 'check');
  for (const path of [check, join(host, 'etc/systemd/system')]) mkdirSync(path);
  const file = `podwire_${version}_amd64.deb`;
  copyFileSync(join(folder, file), join(check, file));
  run('cp', ['-a', kit, join(check, 'kit')]);
  writeFileSync(join(check, 'host.sh'), hostScript(file));
  writeFileSync(join(host, 'etc/systemd/system/check.service'), UNIT);
  joinControlGroups();
  const options = [
    '--register=no',
    '--keep-unit',
    '--private-network',
    '--capability=all',
    '--console=pipe',
    '-D',
    host,
  ];
  const env = { ...process.env, SYSTEMD_NSPAWN_API_VFS_WRITABLE: 'network' };
  const command = [...options, '--boot', 'systemd.unit=check.service'];
  const { status } = spawnSync('systemd-nspawn', command, { env, stdio: 'ignore' });
  const output = readFileSync(join(check, 'output'), 'utf8');
  if (status !== 0) throw new Error(`${file}: failed on a host:\n${output}`);
}

/** Checks a built release. @returns exit code */
export function check({ folder, version }) {
  const fault = ensurePrograms(RELEASE_PROGRAMS);
  if (fault) throw new Error(fault);
  const work = mkdtempSync(join(tmpdir(), 'podwire-release-'));
  // The registry, the mounts and the processes end with their namespaces.
  const isolated = join(ROOT, 'test', 'support', 'isolated.mjs');
  const args = [isolated, process.execPath, import.meta.filename, folder, version, work, findHelm()];
  try {
    return spawnSync(process.execPath, args, { stdio: 'inherit' }).status ?? 1;
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

function main([folder, version, work, helm]) {
  const release = { folder, version, work, helm };
  step('checksums', () => run('sha256sum', ['--check', '--quiet', 'SHA256SUMS'], { cwd: folder }));
  step('registry', () => checkRegistry(release));
  const kit = step('conformance kit', () => checkKit(release));
  step('Debian package with systemd', () => checkDebianPackage({ ...release, kit }));
  step(`unit tests of shim and addon for ${EMULATED.arch}`, () => checkNativeTests(release));
  step(`image of ${EMULATED.arch}`, () => checkEmulatedImage(release));
}

if (import.meta.filename === process.argv[1]) main(process.argv.slice(2));
