// `npm run manifests`: renders the plain YAML from the chart with helm.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';

import { CHART, header, RENDER, RENDERED } from './checksum.mjs';

const HELM = 'helm.sh/helm/v4/cmd/helm';
const HELM_VERSION = 'v4.3.1';

function fail(message) {
  process.stderr.write(`${message}\n`);
  process.exit(1);
}

function run(program, args, options = {}) {
  const { status, stdout, error } = spawnSync(program, args, {
    encoding: 'utf8',
    maxBuffer: 64 * 1024 * 1024,
    stdio: ['ignore', 'pipe', 'inherit'],
    ...options,
  });
  if (error !== undefined) fail(`${program}: cannot be started: ${error.message}; install it`);
  if (status !== 0) fail(`${program}: ended with exit code ${status}; see its messages above`);
  return stdout;
}

const isOnPath = (program, argument) => spawnSync(program, [argument], { stdio: 'ignore' }).status === 0;

/** helm of the PATH, or one that is built once from its Go module into the user's cache folder. */
function helm() {
  if (isOnPath('helm', 'version')) return 'helm';
  const cache = process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache');
  const folder = join(cache, 'podwire', `helm-${HELM_VERSION}`);
  const program = join(folder, 'helm');
  if (existsSync(program)) return program;
  if (!isOnPath('go', 'version'))
    fail('helm: is not on the PATH, and there is no Go to build it; install helm 3 or 4, or Go');
  process.stdout.write(`Building helm ${HELM_VERSION}, once, into ${folder}. This takes some minutes.\n`);
  mkdirSync(folder, { recursive: true });
  run('go', ['install', `${HELM}@${HELM_VERSION}`], { env: { ...process.env, CGO_ENABLED: '0', GOBIN: folder } });
  return program;
}

const program = helm();
process.stdout.write(run(program, ['lint', CHART, '--quiet', '--strict']));
writeFileSync(RENDERED, header() + run(program, RENDER));
process.stdout.write(`${RENDERED}\n`);
