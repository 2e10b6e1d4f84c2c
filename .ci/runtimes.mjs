// `npm run test:runtimes`: the tests that depend on Node.js itself, with its oldest and its newest supported release.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

import { NODE } from '../deploy/image/recipe.mjs';

const ROOT = join(dirname(fileURLToPath(import.meta.url)), '..');

/** The oldest supported release, and the one of the image, which is the newest. */
const RELEASES = ['20.19.0', NODE.version];

/** TLS, gRPC, the addon, processes under the shim, and what the image contains. */
const TESTS = [
  'addon/test/kernel.test.ts',
  'addon/test/misuse.test.ts',
  'plugin/shim/shim.test.ts',
  'plugin/shim/supervisor.test.ts',
  'services/ctl/certificates',
  'services/ipam/access',
  'services/ipam/engine/etcd',
  'services/ipam/api-server',
  'services/ipam/test/etcd-service.test.ts',
  'services/node/service.kernel.test.ts',
  'services/shared',
  'test/image.test.ts',
];

/** npm's package of one release of Node.js. @returns the folder of its program */
function install(release) {
  const name = `node-linux-${process.arch}`;
  const folder = join(ROOT, 'node_modules', '.podwire-runtimes', release);
  const programs = join(folder, 'node_modules', name, 'bin');
  if (existsSync(join(programs, 'node'))) return programs;
  const options = ['--no-save', '--no-audit', '--no-fund', '--ignore-scripts', '--prefix', folder];
  const { status, stderr } = spawnSync('npm', ['install', ...options, `${name}@${release}`], { encoding: 'utf8' });
  if (status === 0) return programs;
  process.stderr.write(`${stderr}\nNode.js ${release} cannot be installed from npm's package ${name}\n`);
  process.exit(1);
}

/** All tests have run with the major version of this process. */
const otherReleases = RELEASES.filter((release) => release.split('.')[0] !== process.versions.node.split('.')[0]);
for (const release of otherReleases) {
  const programs = install(release);
  const env = { ...process.env, PATH: `${programs}${delimiter}${process.env.PATH}` };
  const command = [join(ROOT, 'test', 'run.mjs'), ...TESTS];
  const { status } = spawnSync(join(programs, 'node'), command, { env, stdio: 'inherit' });
  if (status !== 0) {
    process.stderr.write(`\ntests failed with Node.js ${release}\n`);
    process.exit(1);
  }
}
