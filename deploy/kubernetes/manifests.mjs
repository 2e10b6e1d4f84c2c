// `npm run manifests`: renders the plain YAML from the chart with helm.
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import process from 'node:process';

import { CHART, header, RENDER, RENDER_UNINSTALL, RENDERED, UNINSTALL } from './checksum.mjs';
import { findHelm } from './helm.mjs';

function run(program, args) {
  const options = { encoding: 'utf8', maxBuffer: 64 * 1024 * 1024, stdio: ['ignore', 'pipe', 'inherit'] };
  const { status, stdout, error } = spawnSync(program, args, options);
  if (error !== undefined) throw new Error(`${program}: cannot be started: ${error.message}; install it`);
  if (status !== 0) throw new Error(`${program}: ended with exit code ${status}; see its messages above`);
  return stdout;
}

try {
  const program = findHelm();
  process.stdout.write(run(program, ['lint', CHART, '--quiet', '--strict']));
  writeFileSync(RENDERED, header() + run(program, RENDER));
  writeFileSync(UNINSTALL, header() + run(program, RENDER_UNINSTALL));
  process.stdout.write(`${RENDERED}\n`);
} catch (error) {
  process.stderr.write(`${error.message}\n`);
  process.exit(1);
}
