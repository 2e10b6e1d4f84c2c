#!/usr/bin/env node
// `npm run test:cluster`: Podwire on a real Kubernetes cluster, in namespaces of its own. See README.md.
// usage: run.mjs [--family=ipv4|ipv6|dual] [--store=embedded|etcd|kubernetes] [--kube-proxy=nftables|iptables] [--only=REGEXP]
//   [--image=ARCHIVE | --release=FOLDER] [--keep] [--former-image=ARCHIVE --former-manifests=FOLDER]
//   run.mjs --e2e=conformance|rest|netpol|serial|cnp,… [--family=…] [--store=embedded|kubernetes] [--kube-proxy=…] [--only=REGEXP] [--image=ARCHIVE]
import { spawn, spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

import { findHelm } from '../../deploy/kubernetes/helm.mjs';
import { ensurePrograms, NAMESPACE_PROGRAMS, RELEASE_PROGRAMS } from '../../deploy/local/programs.mjs';
import { makeE2eImages } from './e2e-images.mjs';
import { E2E_GROUPS } from './lane/e2e.mjs';
import { cgroupFault } from './lane/machine.mjs';
import { NODES } from './lane/network.mjs';
import { buildPrograms, CACHE } from './programs.mjs';

const FOLDER = dirname(fileURLToPath(import.meta.url));
const ROOT = join(FOLDER, '..', '..');
const FAMILIES = ['ipv4', 'ipv6', 'dual'];
const STORES = ['embedded', 'etcd', 'kubernetes'];
/** Mode of kube-proxy without `--kube-proxy`: the clusters of a run have both. */
const PROXY_OF = { ipv4: 'nftables', ipv6: 'iptables', dual: 'nftables' };

/**
 * The clusters of a run without `--family` and `--store`, in rounds. The clusters of a round run at the same time: each waits for
 * something much of the time, and needs 2 GB of memory.
 */
const ROUNDS = [
  [{ family: 'ipv4', store: 'embedded' }],
  [
    { family: 'dual', store: 'etcd' },
    { family: 'ipv6', store: 'embedded' },
  ],
  [{ family: 'dual', store: 'kubernetes' }],
];

/** Programs of the host that the nodes use. */
const PROGRAMS = {
  ...NAMESPACE_PROGRAMS,
  nft: 'nftables',
  openssl: 'openssl',
  iptables: 'iptables',
  pgrep: 'procps',
  git: 'git',
  prometheus: 'prometheus',
};

function fail(message) {
  process.stderr.write(`npm run test:cluster: ${message}\n`);
  process.exit(1);
}

const git = (...args) => spawnSync('git', args, { cwd: ROOT, encoding: 'utf8' }).stdout.trim();

/** The image of the last commit; built once for each commit, and kept until the next one. */
function imageOf(version) {
  const kept = join(CACHE, `image-${git('rev-parse', 'HEAD')}.tar`);
  if (existsSync(kept)) return kept;
  process.stdout.write('  building the image (npm run image)\n');
  const { status } = spawnSync('npm', ['run', '-s', 'image'], { cwd: ROOT, stdio: ['ignore', 'ignore', 'inherit'] });
  if (status !== 0) fail('npm run image failed; its output is above');
  for (const name of readdirSync(CACHE)) if (name.startsWith('image-')) rmSync(join(CACHE, name));
  const arch = { x64: 'amd64', arm64: 'arm64' }[process.arch];
  const unfinished = `${kept}.${process.pid}`;
  cpSync(join(ROOT, 'deploy', 'image', 'build', `podwire-${version}-${arch}.tar`), unfinished);
  renameSync(unfinished, kept);
  return kept;
}

/** The folder of helm, with which Podwire is rendered and installed. */
function helmFolder() {
  const { stdout } = spawnSync('sh', ['-c', `command -v ${findHelm()}`], { encoding: 'utf8' });
  return dirname(stdout.trim());
}

/** Logs of the last run of a cluster, for a look after a failure. Everything else of a run is removed. */
function keepLogs(folder, cluster) {
  const logs = join(CACHE, 'last-run', cluster);
  rmSync(logs, { recursive: true, force: true });
  for (const machine of ['control-plane', 'podwire-etcd', 'observability', ...NODES.map(({ name }) => name)]) {
    const parts = { daemons: join(folder, machine, 'logs'), pods: join(folder, machine, 'var', 'log', 'pods') };
    for (const [name, path] of Object.entries(parts)) {
      if (existsSync(path)) cpSync(path, join(logs, machine, name), { recursive: true });
    }
  }
  return logs;
}

let isStopped = false;

function runLane(settings) {
  const command = [join(ROOT, 'test', 'support', 'isolated.mjs'), process.execPath, join(FOLDER, 'lane', 'main.mjs')];
  const lane = spawn(process.execPath, [...command, JSON.stringify(settings)], { stdio: 'inherit', cwd: ROOT });
  // isolated.mjs ends everything that it started, and removes its control groups.
  for (const signal of ['SIGTERM', 'SIGHUP', 'SIGINT']) {
    process.on(signal, () => {
      isStopped = true;
      lane.kill('SIGTERM');
    });
  }
  return new Promise((resolve) => lane.on('exit', (code) => resolve(code ?? 1)));
}

function readOptions() {
  const text = { type: 'string' };
  const former = { 'former-image': text, 'former-manifests': text };
  const cluster = { family: text, store: text, 'kube-proxy': text };
  const { values } = parseArgs({
    options: { ...cluster, e2e: text, only: text, image: text, release: text, keep: { type: 'boolean' }, ...former },
  });
  const { family, store, 'kube-proxy': kubeProxy, only, image, release, keep } = values;
  const check = (name, value, known) => {
    if (value !== undefined && !known.includes(value))
      fail(`--${name}=${value}: unknown; use one of ${known.join(', ')}`);
  };
  check('family', family, FAMILIES);
  check('store', store, STORES);
  check('kube-proxy', kubeProxy, [...new Set(Object.values(PROXY_OF))]);
  const e2e = values.e2e?.split(',');
  for (const group of e2e ?? []) check('e2e', group, E2E_GROUPS);
  const rounds = roundsOf({ family, store, kubeProxy, e2e });
  if (keep && rounds.length > 1) fail('--keep: keeps one cluster; name it with --family or --store');
  return { rounds, e2e, only, image, keep, former: readFormer(values), release: release && resolve(release) };
}

/** One cluster if an option names it, otherwise all. */
function roundsOf({ family, store, kubeProxy, e2e }) {
  if (e2e !== undefined && store === 'etcd') fail('--e2e: does not run with --store=etcd; use embedded or kubernetes');
  const one = { family: family ?? (e2e === undefined ? 'ipv4' : 'dual'), store: store ?? 'embedded' };
  const rounds = (family ?? store ?? e2e) ? [[one]] : ROUNDS;
  const complete = (cluster) => ({ ...cluster, kubeProxy: kubeProxy ?? PROXY_OF[cluster.family] });
  return rounds.map((clusters) => clusters.map(complete));
}

/** Image and manifests of the former release; undefined without both. */
function readFormer({ 'former-image': image, 'former-manifests': manifests }) {
  if ((image === undefined) !== (manifests === undefined))
    fail('--former-image and --former-manifests need each other');
  return image === undefined ? undefined : { imageArchive: resolve(image), manifests: resolve(manifests) };
}

/** @returns whether all scenarios of the cluster passed */
async function runCluster(cluster, settings) {
  const folder = mkdtempSync(join(tmpdir(), 'podwire-cluster-'));
  try {
    const status = await runLane({ ...settings, ...cluster, folder });
    const kind = settings.e2e === undefined ? cluster.store : 'e2e';
    const logs = keepLogs(folder, `${cluster.family}-${kind}`);
    if (status !== 0) process.stdout.write(`logs: ${logs}\n`);
    return status === 0;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function main() {
  const { rounds, e2e: groups, only, image, keep, former, release } = readOptions();
  if (process.platform !== 'linux' || process.getuid() !== 0) fail('needs root on Linux, as container runtimes do');
  const fault = ensurePrograms({ ...PROGRAMS, ...(release ? RELEASE_PROGRAMS : {}) }) ?? cgroupFault();
  if (fault) fail(fault);
  mkdirSync(CACHE, { recursive: true });
  const programs = { ...buildPrograms(groups !== undefined), helm: helmFolder() };
  const e2e = groups && { groups, images: makeE2eImages({ cache: CACHE, programs }) };
  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  const archive = image ?? (release && join(release, `podwire-image-${version}.oci.tar`));
  const imageArchive = archive === undefined ? imageOf(version) : resolve(archive);
  const podwire = {
    image: `localhost/podwire:${version}`,
    imageArchive,
    former,
    release: release && { folder: release, version },
  };
  const settings = { programs, ...podwire, only, keep, e2e };
  const startMs = Date.now();
  const results = [];
  for (const clusters of rounds) {
    if (!isStopped) results.push(...(await Promise.all(clusters.map((cluster) => runCluster(cluster, settings)))));
  }
  process.stdout.write(`${((Date.now() - startMs) / 60_000).toFixed(1)} minutes\n`);
  return results.every(Boolean) ? 0 : 1;
}

try {
  process.exit(await main());
} catch (error) {
  fail(error.message);
}
