#!/usr/bin/env node
// `npm test`: installs and builds what is missing, then runs every test in namespaces of its own.
// usage: test/run.mjs [VITEST ARGS…]
import { spawnSync } from 'node:child_process';
import { chmodSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';

import { prepare, ROOT } from '../deploy/local/prepare.mjs';
import {
  ensurePrograms,
  ETCD_PROGRAMS,
  NAMESPACE_PROGRAMS,
  RUNTIME_PROGRAMS,
  TEST_PROGRAMS,
} from '../deploy/local/programs.mjs';

function fail(message) {
  process.stderr.write(`\nnpm test: ${message}\n`);
  process.exit(1);
}

/** Whatever a test leaves in the folder for temporary files goes with it, also after a test that was killed. */
function runVitest(args, { folder, report }) {
  const isolated = join(ROOT, 'test', 'support', 'isolated.mjs');
  const reporters = ['--reporter=default', '--reporter=json', `--outputFile.json=${report}`];
  const command = [isolated, 'vitest', 'run', ...reporters, ...args];
  const env = { ...process.env, TMPDIR: folder };
  return spawnSync(process.execPath, command, { cwd: ROOT, env, stdio: 'inherit' }).status ?? 1;
}

/** The last line for people and machines, and what no green run may hold: nothing run, or, in CI, anything skipped. */
function conclude(status, report) {
  const {
    numPassedTests: passed,
    numFailedTests: failed,
    numPendingTests: skipped,
  } = JSON.parse(readFileSync(report, 'utf8'));
  process.stdout.write(`\n${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ''}\n`);
  if (passed + failed === 0) fail('no test was run');
  if (skipped > 0 && process.env.CI === 'true') fail('a skipped test is a failure in CI');
  return status;
}

/** Container runtimes need more of root than a user namespace gives; where there is no more, their tests are left out. */
const RUNTIME_TESTS = 'test/runtime/**';

function main(args) {
  const isRoot = process.getuid() === 0;
  if (!isRoot && process.env.CI === 'true') fail(`CI is to run all tests, and ${RUNTIME_TESTS} needs root`);
  try {
    prepare();
  } catch (error) {
    fail(error.message);
  }
  const programs = { ...NAMESPACE_PROGRAMS, ...TEST_PROGRAMS, ...ETCD_PROGRAMS, ...(isRoot ? RUNTIME_PROGRAMS : {}) };
  const missing = ensurePrograms(programs);
  if (missing) fail(missing);
  if (!isRoot) process.stdout.write(`left out, as they need root: ${RUNTIME_TESTS}\n`);
  const wanted = isRoot ? args : [...args, '--exclude', RUNTIME_TESTS];
  const folder = mkdtempSync(join(tmpdir(), 'podwire-test-'));
  // Others may pass through, as tests of access rights need.
  chmodSync(folder, 0o711);
  const report = join(folder, 'report.json');
  try {
    return conclude(runVitest(wanted, { folder, report }), report);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

process.exit(main(process.argv.slice(2)));
