#!/usr/bin/env node
// Runs the layers below the binding under valgrind's memcheck, against the real kernel, in a network namespace of their own.
// usage: npm run test:leak -w @podwire/netlink   (exit code 1 for an error or a leak, 2 when it cannot be run)
import { spawnSync } from 'node:child_process';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

import { ensurePrograms, MEMORY_PROGRAMS, NAMESPACE_PROGRAMS, TEST_PROGRAMS } from '../../../deploy/local/programs.mjs';

const NATIVE = dirname(fileURLToPath(import.meta.url));
const ISOLATED = join(NATIVE, '..', '..', '..', 'test', 'support', 'isolated.mjs');
const SOCKETS = join(NATIVE, '..', '..', 'build', 'test', 'sockets-plain');

/** Valgrind reports memory of an ended thread as “possibly lost”, so that is shown and is no failure. */
const VALGRIND = [
  '--leak-check=full',
  '--show-leak-kinds=definite,indirect,possible',
  '--errors-for-leak-kinds=definite,indirect',
  '--error-exitcode=9',
];

function fail(message) {
  process.stderr.write(`test:leak: ${message}\n`);
  process.exit(2);
}

const { ping, nft } = TEST_PROGRAMS;
const missing = ensurePrograms({ ...MEMORY_PROGRAMS, ...NAMESPACE_PROGRAMS, ping, nft });
if (missing) fail(missing);
const make = spawnSync('make', ['-C', NATIVE, 'plain'], { stdio: 'inherit' });
if (make.status !== 0) fail('cannot build it');
const run = spawnSync(process.execPath, [ISOLATED, 'valgrind', ...VALGRIND, SOCKETS], { stdio: 'inherit' });
process.exit(run.status === 0 ? 0 : 1);
