// The programs of the cluster, built from Go modules into a cache folder outside the repository. Each group has a folder
// named by a digest of its go.mod, go.sum and sources, so that a change of version builds that group alone.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
} from 'node:fs';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

const SOURCES = join(dirname(fileURLToPath(import.meta.url)), 'programs');

const KUBERNETES = ['kube-apiserver', 'kube-controller-manager', 'kube-scheduler', 'kube-proxy', 'kubelet', 'kubectl'];

/**
 * `packages`: program → Go package. `tests`: program → Go package of tests. `links`: other names of the program. `cgo`: tags
 * of a build with the C compiler. `files`: name → file of the module `module`. `isForE2e`: built only for `--e2e`.
 */
const GROUPS = {
  pod: { packages: { pod: '.' } },
  plugins: {
    packages: {
      portmap: 'github.com/containernetworking/plugins/plugins/meta/portmap',
      bandwidth: 'github.com/containernetworking/plugins/plugins/meta/bandwidth',
      loopback: 'github.com/containernetworking/plugins/plugins/main/loopback',
    },
  },
  // runc without seccomp refuses every sandbox of the kubelet.
  runc: { packages: { runc: 'github.com/opencontainers/runc' }, cgo: 'seccomp netgo osusergo' },
  etcd: { packages: { etcd: 'go.etcd.io/etcd/server/v3', etcdctl: 'go.etcd.io/etcd/etcdctl/v3' } },
  containerd: {
    packages: {
      containerd: 'github.com/containerd/containerd/v2/cmd/containerd',
      'containerd-shim-runc-v2': 'github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2',
      ctr: 'github.com/containerd/containerd/v2/cmd/ctr',
    },
  },
  collector: { packages: { otelcol: '.' } },
  kubernetes: { packages: { kubernetes: '.' }, links: KUBERNETES },
  // The newest version that needs no newer module than Kubernetes.
  coredns: { packages: { coredns: '.' }, isForE2e: true },
  e2e: {
    packages: {
      agnhost: 'k8s.io/kubernetes/test/images/agnhost',
      'regression-issue-74839': 'k8s.io/kubernetes/test/images/regression-issue-74839',
      ginkgo: 'github.com/onsi/ginkgo/v2/ginkgo',
    },
    tests: { 'e2e.test': 'k8s.io/kubernetes/test/e2e' },
    isForE2e: true,
  },
  agnhost: { packages: { agnhost: '.' }, isForE2e: true },
  cnp: {
    tests: { 'cnp.test': 'sigs.k8s.io/network-policy-api/conformance' },
    module: 'sigs.k8s.io/network-policy-api',
    files: {
      // The standard channel has no named ports.
      'crd.yaml': 'config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml',
      'manifests.yaml': 'conformance/base/manifests.yaml',
    },
    isForE2e: true,
  },
};

/** Without `-vet=off`, vet reads the 2,500 packages that the tests import. */
const TEST = ['test', '-c', '-vet=off'];

export const CACHE = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'podwire', 'cluster');

const GO_MISSING =
  'go: not installed; install Go 1.26 or newer (the cluster test builds Kubernetes, containerd, runc and etcd from ' +
  'their Go modules, once, in about 15 minutes)';

function folderOf(group) {
  const hash = createHash('sha256');
  for (const file of readdirSync(join(SOURCES, group)).sort()) {
    hash.update(`${file}\0`).update(readFileSync(join(SOURCES, group, file)));
  }
  return join(CACHE, `${group}-${hash.digest('hex').slice(0, 12)}`);
}

function go(group, args, env = {}) {
  const options = { cwd: join(SOURCES, group), env: { ...process.env, ...env }, encoding: 'utf8' };
  const { status, error, stdout, stderr } = spawnSync('go', args, { ...options, maxBuffer: 64 * 1024 * 1024 });
  if (error?.code === 'ENOENT') throw new Error(GO_MISSING);
  if (status !== 0) throw new Error(`go ${args.join(' ')} failed in ${join(SOURCES, group)}:\n${stdout}${stderr}`);
  return stdout;
}

/** runc links to libseccomp: its headers have no program that could be looked for. */
function ensureSeccomp() {
  const found = () => existsSync('/usr/include/seccomp.h') && spawnSync('pkg-config', ['--version']).status === 0;
  if (found()) return;
  const install = 'apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libseccomp-dev pkg-config';
  const options = {
    env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
    stdio: ['ignore', 'ignore', 'inherit'],
  };
  spawnSync('sh', ['-c', install], options);
  if (!found()) throw new Error(`libseccomp-dev, pkg-config: could not be installed; run: ${install}`);
}

/**
 * Builds a group that is missing: beside the final folder, and renames it, so that an interrupted build leaves no half.
 * @returns its folder
 */
export function buildGroup(group) {
  const { packages = {}, tests = {}, cgo, links = [], module, files = {} } = GROUPS[group];
  const folder = folderOf(group);
  if (existsSync(folder)) return folder;
  const startMs = Date.now();
  process.stdout.write(`  building ${Object.keys({ ...packages, ...tests }).join(', ')} … `);
  if (cgo) ensureSeccomp();
  const unfinished = `${folder}.${process.pid}`;
  mkdirSync(unfinished, { recursive: true });
  try {
    const tags = cgo ? ['-tags', cgo] : [];
    const build = (command, [program, path]) => {
      const output = ['-o', join(unfinished, program)];
      const args = [...command, '-mod=readonly', '-trimpath', '-ldflags', '-s -w', ...tags, ...output, path];
      go(group, args, { CGO_ENABLED: cgo ? '1' : '0', GOFLAGS: '-buildvcs=false' });
    };
    for (const each of Object.entries(packages)) build(['build'], each);
    for (const each of Object.entries(tests)) build(TEST, each);
    const source = module && go(group, ['list', '-m', '-f', '{{.Dir}}', module]).trim();
    for (const [name, path] of Object.entries(files)) copyFileSync(join(source, path), join(unfinished, name));
    for (const link of links) symlinkSync(Object.keys(packages)[0], join(unfinished, link));
    renameSync(unfinished, folder);
  } finally {
    rmSync(unfinished, { recursive: true, force: true });
  }
  process.stdout.write(`${((Date.now() - startMs) / 1000).toFixed(0)} s\n`);
  return folder;
}

/**
 * Builds missing parts.
 * @param forE2e - also the programs of `--e2e`
 * @returns the folder of each group
 * @throws Error that names the missing program or has the compiler's output
 */
export function buildPrograms(forE2e) {
  const wanted = Object.keys(GROUPS).filter((group) => forE2e || !GROUPS[group].isForE2e);
  return Object.fromEntries(wanted.map((group) => [group, buildGroup(group)]));
}
