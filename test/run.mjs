#!/usr/bin/env node
// `npm test`: installs and builds missing parts, then runs every test in separate namespaces.
// usage: test/run.mjs [VITEST ARGS…]
import { chmodSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';

import { prepare, ROOT } from '../deploy/local/prepare.mjs';
import {
  ensureBrowser,
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
 * The number of parts. The more there are, the less the other workers wait for the last part; each
 * costs a start of vitest, some two seconds, as parts share the compiled code.
 */
const PARTS_COUNT = 20;

/** The number of concurrent parts: while one waits for the kernel, the rest uses the processors. */
const WORKERS_COUNT = 3;

/** Files that tests leave in the folder for temporary files are deleted with it, also after a killed test. */
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

/** The last line for people and machines, and the rules for a green run: some tests ran, and, in CI, none was skipped. */
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
 * Tests that take minutes, or have special requirements, excluded from a full run: `npm run test:api-server` and `test:conformance`, the
 * addon's soak and its sockets under sanitizers, `npm test -- addon/test/endurance.test.ts addon/test/sockets.test.ts`, and Go's libcni, `npm run test:libcni`.
 */
const LONG_TESTS = [
  'addon/test/endurance.test.ts',
  'addon/test/sockets.test.ts',
  'test/api-server/*.test.ts',
  'test/conformance/flaws.test.ts',
  'test/conformance/peers.test.ts',
  'test/e2e/conformance.test.ts',
  'test/libcni/libcni.test.ts',
];

/** Container runtimes need more privileges than a user namespace has; their tests are skipped without. */
const RUNTIME_TESTS = 'test/runtime/**';

async function main(args) {
  const isRoot = process.getuid() === 0;
  if (!isRoot && process.env.CI === 'true') fail(`CI is to run all tests, and ${RUNTIME_TESTS} needs root`);
  try {
    await prepare();
  } catch (error) {
    fail(error.message);
  }
  const programs = { ...NAMESPACE_PROGRAMS, ...TEST_PROGRAMS, ...ETCD_PROGRAMS, ...(isRoot ? RUNTIME_PROGRAMS : {}) };
  const missing = ensurePrograms(programs) ?? ensureBrowser();
  if (missing) fail(missing);
  if (!isRoot) process.stdout.write(`left out, as they need root: ${RUNTIME_TESTS}\n`);
  const leftOut = [...(isRoot ? [] : [RUNTIME_TESTS]), ...(args.length === 0 ? LONG_TESTS : [])];
  const wanted = [...args, ...leftOut.flatMap((path) => ['--exclude', path])];
  const folder = mkdtempSync(join(tmpdir(), 'podwire-test-'));
  // Other users may enter it, as tests of access rights need.
  chmodSync(folder, 0o711);
  try {
    // A few selected tests are not worth a second start.
    const count = args.length === 0 ? PARTS_COUNT : 1;
    return await runVitest(wanted, { folder, count });
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

process.exit(await main(process.argv.slice(2)));
