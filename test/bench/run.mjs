#!/usr/bin/env node
// `npm run bench`: installs and builds missing parts, then measures in separate namespaces.
// usage: npm run bench -- [--only GROUP,…] [--json FILE]
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import process from 'node:process';

import { prepare, ROOT } from '../../deploy/local/prepare.mjs';
import {
  ensurePrograms,
  ETCD_PROGRAMS,
  NAMESPACE_PROGRAMS,
  PEER_PROGRAMS,
  RUNTIME_PROGRAMS,
} from '../../deploy/local/programs.mjs';

function fail(message) {
  process.stderr.write(`bench: ${message}\n`);
  process.exit(1);
}

try {
  await prepare();
} catch (error) {
  fail(error.message);
}
const missing = ensurePrograms({ ...NAMESPACE_PROGRAMS, ...PEER_PROGRAMS, ...ETCD_PROGRAMS, ...RUNTIME_PROGRAMS });
if (missing) fail(missing);
const isolated = join(ROOT, 'test', 'support', 'isolated.mjs');
const command = [isolated, process.execPath, join(ROOT, 'test', 'dist', 'bench', 'main.js'), ...process.argv.slice(2)];
process.exit(spawnSync(process.execPath, command, { stdio: 'inherit' }).status ?? 1);
