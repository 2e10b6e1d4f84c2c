// `npm run image`: builds the image of the current commit as an OCI archive, without a registry. deploy/release uses its parts.
//   npm run image -- [--arch=amd64|arm64] [--name=localhost/podwire:VERSION]
import { existsSync, mkdirSync, rmSync } from 'node:fs';
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

const git = (...args) => run('git', args, { cwd: ROOT }).trim();

/** A copy of the commit, so that nothing of an earlier build or of an editor is in the image. */
function checkOut(folder, revision) {
  mkdirSync(folder, { recursive: true });
  run('sh', ['-c', 'git -c tar.umask=0022 archive "$1" | tar -x -C "$2"', 'sh', revision, folder], { cwd: ROOT });
}

/** The commit to build: version, revision, and the time of every file in seconds of the epoch. */
export function readCommit() {
  if (!existsSync(join(ROOT, '.git'))) throw new Error('git: this is no clone; clone the repository');
  const { version } = JSON.parse(git('show', 'HEAD:package.json'));
  if (git('status', '--porcelain') !== '') process.stdout.write('The last commit is built, not the changes since.\n');
  const epochSeconds = Number(process.env.SOURCE_DATE_EPOCH ?? git('log', '-1', '--format=%ct'));
  return { version, revision: git('rev-parse', 'HEAD'), epochSeconds };
}

/** Builds the layers of an architecture below `work`. @returns arch, source: the compiled tree, and layers by name */
export function buildLayers({ arch, work, commit: { epochSeconds, revision } }) {
  const fault = machineFault(arch);
  if (fault) throw new Error(fault);
  rmSync(work, { recursive: true, force: true });
  const source = join(work, 'source');
  checkOut(source, revision);
  return { arch, source, layers: buildRootfs({ arch, source, output: join(work, 'rootfs'), epochSeconds, revision }) };
}

/** Writes the archive of images that {@link buildLayers} returned. @returns digest */
export function writeImages({ file, work, images, name, commit: { version, revision, epochSeconds } }) {
  const labels = {
    ...CONFIG.labels,
    'org.opencontainers.image.version': version,
    'org.opencontainers.image.revision': revision,
    'org.opencontainers.image.created': new Date(epochSeconds * 1000).toISOString(),
  };
  return writeArchive({
    file,
    work,
    name,
    epochSeconds,
    config: { ...CONFIG, labels },
    images: images.map(({ arch, layers }) => ({ arch, layers: LAYERS.map((layer) => layers[layer]) })),
  });
}

function main() {
  const { values } = parseArgs({ options: { arch: { type: 'string' }, name: { type: 'string' } } });
  const arch = values.arch ?? Object.keys(ARCHITECTURES).find((key) => ARCHITECTURES[key].node === process.arch);
  const commit = readCommit();
  const work = join(FOLDER, 'build', arch);
  const images = [buildLayers({ arch, work, commit })];
  const file = join(FOLDER, 'build', `podwire-${commit.version}-${arch}.tar`);
  const name = values.name ?? `localhost/podwire:${commit.version}`;
  const digest = writeImages({ file, work, images, name, commit });
  rmSync(work, { recursive: true, force: true });
  process.stdout.write(`${file}\n${digest}\n`);
}

if (import.meta.filename === process.argv[1]) {
  try {
    main();
  } catch (error) {
    process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
    process.exit(1);
  }
}
