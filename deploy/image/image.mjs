// `npm run image`: builds the image of the current commit as an OCI archive, without a registry.
//   npm run image -- [--arch=amd64|arm64] [--name=localhost/podwire:VERSION]
import { existsSync, mkdirSync, readFileSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

import { writeArchive } from './oci.mjs';
import { ARCHITECTURES, CONFIG, LAYERS } from './recipe.mjs';
import { buildRootfs, machineFault } from './rootfs.mjs';
import { run } from './tree.mjs';

const FOLDER = dirname(fileURLToPath(import.meta.url));
const ROOT = join(FOLDER, '..', '..');
const MEBIBYTE = 1024 * 1024;

const git = (...args) => run('git', args, { cwd: ROOT }).trim();

function fail(message) {
  process.stderr.write(`${message}\n`);
  process.exit(1);
}

/** A copy of the commit, so that nothing of an earlier build or of an editor is in the image. */
function checkOut(folder) {
  mkdirSync(folder, { recursive: true });
  run('sh', ['-c', 'git archive HEAD | tar -x -C "$1"', 'sh', folder], { cwd: ROOT });
}

function build({ arch, name }) {
  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  const revision = git('rev-parse', 'HEAD');
  const epochSeconds = Number(process.env.SOURCE_DATE_EPOCH ?? git('log', '-1', '--format=%ct'));
  if (git('status', '--porcelain') !== '')
    process.stdout.write('The image has the last commit, not the changes since.\n');
  const work = join(FOLDER, 'build', arch);
  rmSync(work, { recursive: true, force: true });
  checkOut(join(work, 'source'));
  const rootfs = join(work, 'rootfs');
  const layers = buildRootfs({ arch, source: join(work, 'source'), output: rootfs, epochSeconds, revision });
  const file = join(FOLDER, 'build', `podwire-${version}-${arch}.tar`);
  const { digest, sizesBytes } = writeArchive({
    file,
    work,
    layers: LAYERS.map((layer) => layers[layer]),
    arch,
    name: name ?? `localhost/podwire:${version}`,
    config: {
      ...CONFIG,
      labels: {
        ...CONFIG.labels,
        'org.opencontainers.image.version': version,
        'org.opencontainers.image.revision': revision,
        'org.opencontainers.image.created': new Date(epochSeconds * 1000).toISOString(),
      },
    },
    epochSeconds,
  });
  rmSync(work, { recursive: true, force: true });
  const sizes = LAYERS.map((layer, index) => `${layer} ${(sizesBytes[index] / MEBIBYTE).toFixed(1)} MiB`);
  process.stdout.write(`${file}\n${digest}\ncompressed: ${sizes.join(', ')}\n`);
}

const { values } = parseArgs({ options: { arch: { type: 'string' }, name: { type: 'string' } } });
const arch = values.arch ?? Object.keys(ARCHITECTURES).find((key) => ARCHITECTURES[key].node === process.arch);
if (!existsSync(join(ROOT, '.git'))) fail('`npm run image` needs the git repository; without it use the Dockerfile');
const fault = machineFault(arch);
if (fault) fail(fault);
try {
  build({ arch, name: values.name });
} catch (error) {
  fail(error instanceof Error ? error.message : String(error));
}
