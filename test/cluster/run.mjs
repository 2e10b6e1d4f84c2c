#!/usr/bin/env node
// `npm run test:cluster`: Podwire on a real Kubernetes cluster, in namespaces of its own. See README.md.
// usage: run.mjs [--family=ipv4|ipv6|dual] [--only=REGEXP] [--image=ARCHIVE]
import { spawn, spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

import { ensurePrograms, NAMESPACE_PROGRAMS } from '../../deploy/local/programs.mjs';
import { cgroupFault } from './lane/machine.mjs';
import { buildPrograms, CACHE } from './programs.mjs';

const FOLDER = dirname(fileURLToPath(import.meta.url));
const ROOT = join(FOLDER, '..', '..');
const FAMILIES = ['ipv4', 'ipv6', 'dual'];

/** Programs of the host that the nodes use. */
const PROGRAMS = { ...NAMESPACE_PROGRAMS, nft: 'nftables', openssl: 'openssl', pgrep: 'procps', git: 'git' };

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

/** Logs of the last run, for a look after a failure. Everything else of a run is removed. */
function keepLogs(folder) {
  const logs = join(CACHE, 'last-run');
  rmSync(logs, { recursive: true, force: true });
  for (const machine of ['control-plane', 'node-a', 'node-b']) {
    const parts = { daemons: join(folder, machine, 'logs'), pods: join(folder, machine, 'var', 'log', 'pods') };
    for (const [name, path] of Object.entries(parts)) {
      if (existsSync(path)) cpSync(path, join(logs, machine, name), { recursive: true });
    }
  }
  return logs;
}

function runLane(settings) {
  const command = [join(ROOT, 'test', 'support', 'isolated.mjs'), process.execPath, join(FOLDER, 'lane', 'main.mjs')];
  const lane = spawn(process.execPath, [...command, JSON.stringify(settings)], { stdio: 'inherit', cwd: ROOT });
  // isolated.mjs ends everything that it started, and removes its control groups.
  for (const signal of ['SIGTERM', 'SIGHUP', 'SIGINT']) process.on(signal, () => lane.kill('SIGTERM'));
  return new Promise((resolve) => lane.on('exit', (code) => resolve(code ?? 1)));
}

async function main() {
  const options = { family: { type: 'string', default: 'ipv4' }, only: { type: 'string' }, image: { type: 'string' } };
  const { family, only, image } = parseArgs({ options }).values;
  if (!FAMILIES.includes(family)) fail(`--family=${family}: unknown; use one of ${FAMILIES.join(', ')}`);
  if (process.platform !== 'linux' || process.getuid() !== 0) fail('needs root on Linux, as container runtimes do');
  const fault = ensurePrograms(PROGRAMS) ?? cgroupFault();
  if (fault) fail(fault);
  mkdirSync(CACHE, { recursive: true });
  const programs = buildPrograms();
  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  const imageArchive = image ?? imageOf(version);
  const folder = mkdtempSync(join(tmpdir(), 'podwire-cluster-'));
  try {
    const settings = { folder, programs, image: `localhost/podwire:${version}`, imageArchive, family, only };
    const status = await runLane(settings);
    const logs = keepLogs(folder);
    if (status !== 0) process.stdout.write(`logs: ${logs}\n`);
    return status;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

try {
  process.exit(await main());
} catch (error) {
  fail(error.message);
}
