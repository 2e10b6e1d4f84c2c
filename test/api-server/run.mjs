#!/usr/bin/env node
// `npm run test:api-server`: the Kubernetes store on a real API server, in namespaces of its own.
// usage: run.mjs [--group=v3|v1] [--definitions=FOLDER] [VITEST ARGS…]
//   --group        Calico's API group; v1 has the names and types of the older one
//   --definitions  folder of CustomResourceDefinitions (*.yaml) in place of Podwire's own, such as Calico's
import { spawnSync } from 'node:child_process';
import { dirname, join, resolve } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

import { findHelm } from '../../deploy/kubernetes/helm.mjs';
import { prepare } from '../../deploy/local/prepare.mjs';
import { ensurePrograms, ETCD_PROGRAMS, NAMESPACE_PROGRAMS } from '../../deploy/local/programs.mjs';
import { buildGroup } from '../cluster/programs.mjs';

const FOLDER = dirname(fileURLToPath(import.meta.url));
const GROUPS = ['v3', 'v1'];

function fail(message) {
  process.stderr.write(`npm run test:api-server: ${message}\n`);
  process.exit(1);
}

async function main() {
  const text = { type: 'string' };
  const { values, positionals } = parseArgs({ options: { group: text, definitions: text }, allowPositionals: true });
  const { group = 'v3', definitions } = values;
  if (!GROUPS.includes(group)) fail(`--group=${group}: unknown; use one of ${GROUPS.join(', ')}`);
  if (process.platform !== 'linux' || process.getuid() !== 0) fail('needs root on Linux');
  const fault = ensurePrograms({ ...NAMESPACE_PROGRAMS, ...ETCD_PROGRAMS, openssl: 'openssl' });
  if (fault) fail(fault);
  await prepare();
  const { stdout } = spawnSync('sh', ['-c', `command -v ${findHelm()}`], { encoding: 'utf8' });
  const path = [buildGroup('kubernetes'), dirname(stdout.trim()), process.env.PATH].join(':');
  const folder = definitions === undefined ? '' : resolve(definitions);
  const env = { ...process.env, PATH: path, API_SERVER_GROUP: group, API_SERVER_DEFINITIONS: folder };
  const tests = positionals.length > 0 ? positionals : [FOLDER];
  const command = [join(FOLDER, '..', 'support', 'isolated.mjs'), 'vitest', 'run', '--reporter=verbose', ...tests];
  return spawnSync(process.execPath, command, { stdio: 'inherit', cwd: join(FOLDER, '..', '..'), env }).status ?? 1;
}

try {
  process.exit(await main());
} catch (error) {
  fail(error.message);
}
