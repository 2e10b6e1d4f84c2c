#!/usr/bin/env node
// `npm test`: installs and builds what is missing, then runs every test in namespaces of its own.
// usage: test/run.mjs [VITEST ARGS…]
import { chmodSync, mkdtempSync, rmSync } from 'node:fs';
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
import { failures, runParts, Running, total } from './parts.mjs';

function fail(message) {
  process.stderr.write(`\nnpm test: ${message}\n`);
  process.exit(1);
}

/**
 * How many parts everything is tested in. The more there are, the less the last one to end makes the other worker wait; each
 * costs a start of vitest, some two seconds, as what one has compiled serves the others.
 */
const PARTS_COUNT = 20;

/** How many of them run side by side: what waits for the kernel in one leaves the processors to the others. */
const WORKERS_COUNT = 3;

/** Whatever a test leaves in the folder for temporary files goes with it, also after a test that was killed. */
async function runVitest(wanted, { folder, count }) {
  const isolated = join(ROOT, 'test', 'support', 'isolated.mjs');
  const compiled = join(folder, 'compiled');
  const cache = ['--experimental.fsModuleCache', `--experimental.fsModuleCachePath=${compiled}`];
  const args = ({ report, selection }) => {
    const reporters = ['--reporter=default', '--reporter=json', `--outputFile.json=${report}`];
    return [isolated, 'vitest', 'run', ...reporters, ...cache, ...wanted, ...selection];
  };
  const running = new Running();
  const options = { cwd: ROOT, env: process.env };
  const parts = await runParts({ running, folder, count, workersCount: WORKERS_COUNT, args, options });
  return running.stoppedWith ?? conclude(parts);
}

/** The last line for people and machines, and what no green run may hold: nothing run, or, in CI, anything skipped. */
function conclude(parts) {
  const { missing, passed, failed, skipped } = total(parts);
  for (const failure of failures(parts)) process.stdout.write(`\n── failed: ${failure}\n`);
  process.stdout.write(`\n${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ''}\n`);
  const flaws = [
    ...missing,
    ...(passed + failed === 0 ? ['no test was run'] : []),
    ...(skipped > 0 && process.env.CI === 'true' ? ['a skipped test is a failure in CI'] : []),
  ];
  for (const flaw of flaws) process.stderr.write(`\nnpm test: ${flaw}\n`);
  return Math.max(flaws.length > 0 ? 1 : 0, ...parts.map(({ status }) => status));
}

/**
 * What takes minutes by itself, or needs what nothing else does, left out where everything is tested: `npm run test:conformance`, the
 * addon's soak and its sockets under sanitizers, `npm test -- addon/test/endurance.test.ts addon/test/sockets.test.ts`, and Go's libcni, `npm run test:libcni`.
 */
const LONG_TESTS = [
  'addon/test/endurance.test.ts',
  'addon/test/sockets.test.ts',
  'test/conformance/flaws.test.ts',
  'test/conformance/peers.test.ts',
  'test/e2e/conformance.test.ts',
  'test/libcni/libcni.test.ts',
];

/** Container runtimes need more of root than a user namespace gives; where there is no more, their tests are left out. */
const RUNTIME_TESTS = 'test/runtime/**';

async function main(args) {
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
  const leftOut = [...(isRoot ? [] : [RUNTIME_TESTS]), ...(args.length === 0 ? LONG_TESTS : [])];
  const wanted = [...args, ...leftOut.flatMap((path) => ['--exclude', path])];
  const folder = mkdtempSync(join(tmpdir(), 'podwire-test-'));
  // Others may pass through, as tests of access rights need.
  chmodSync(folder, 0o711);
  try {
    // Some tests alone are not worth a second start.
    const count = args.length === 0 ? PARTS_COUNT : 1;
    return await runVitest(wanted, { folder, count });
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

process.exit(await main(process.argv.slice(2)));
