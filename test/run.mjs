#!/usr/bin/env node
// `npm test`: installs and builds what is missing, then runs every test in namespaces of its own.
// usage: test/run.mjs [VITEST ARGS…]
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, closeSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
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

/** How many parts everything is tested in, side by side: what waits for the kernel in one leaves the processors to the other. */
const PARTS_COUNT = 2;

/** Whatever a test leaves in the folder for temporary files goes with it, also after a test that was killed. */
async function runVitest(args, { folder, output }) {
  const isolated = join(ROOT, 'test', 'support', 'isolated.mjs');
  const reporters = ['--reporter=default', '--reporter=json', `--outputFile.json=${reportOf(folder)}`];
  const command = [isolated, 'vitest', 'run', ...reporters, ...args];
  const env = { ...process.env, TMPDIR: folder };
  const child = spawn(process.execPath, command, { cwd: ROOT, env, stdio: ['ignore', output, output] });
  const [status] = await once(child, 'exit');
  return status ?? 1;
}

const reportOf = (folder) => join(folder, 'report.json');

/** Every part in namespaces of its own. The first is seen as it runs, the others once they have ended. */
async function runParts(args, { folder, count }) {
  const parts = Array.from({ length: count }, (_, index) => {
    const own = join(folder, `part-${index + 1}`);
    mkdirSync(own, { mode: 0o711 });
    return { own, log: join(own, 'output'), shard: count === 1 ? [] : [`--shard=${index + 1}/${count}`] };
  });
  const runs = parts.map(async ({ own, log, shard }, index) => {
    const output = index === 0 ? 'inherit' : openSync(log, 'w');
    const status = await runVitest([...args, ...shard], { folder: own, output });
    if (index > 0) closeSync(output);
    return status;
  });
  const statuses = await Promise.all(runs);
  for (const { log } of parts.slice(1)) process.stdout.write(readFileSync(log));
  return { status: Math.max(...statuses), reports: parts.map(({ own }) => reportOf(own)) };
}

/** The last line for people and machines, and what no green run may hold: nothing run, or, in CI, anything skipped. */
function conclude({ status, reports }) {
  const read = reports.map((report) => JSON.parse(readFileSync(report, 'utf8')));
  const sum = (name) => read.reduce((total, report) => total + report[name], 0);
  const [passed, failed, skipped] = [sum('numPassedTests'), sum('numFailedTests'), sum('numPendingTests')];
  process.stdout.write(`\n${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ''}\n`);
  if (passed + failed === 0) fail('no test was run');
  if (skipped > 0 && process.env.CI === 'true') fail('a skipped test is a failure in CI');
  return status;
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
    return conclude(await runParts(wanted, { folder, count }));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

process.exit(await main(process.argv.slice(2)));
