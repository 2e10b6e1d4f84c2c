// `npm run release`: builds the files of a release from the last commit into deploy/release/build. See README.md.
//   npm run release -- [--check | --push=REGISTRY [--key=FILE]]
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';
import { parseArgs } from 'node:util';

import { buildLayers, readCommit, writeImages } from '../image/image.mjs';
import { writeChartArchive } from '../image/oci.mjs';
import { readJson } from '../image/podwire.mjs';
import { ARCHITECTURES, DEBIAN } from '../image/recipe.mjs';
import { run, step } from '../image/tree.mjs';
import { findHelm } from '../kubernetes/helm.mjs';
import { ROOT } from '../local/prepare.mjs';
import { check } from './check.mjs';
import { checksums, digestsOf, notesOf, provenance } from './documents.mjs';
import { packChart, writePackages } from './packages.mjs';
import { publish } from './publish.mjs';

const BUILD = join(ROOT, 'deploy', 'release', 'build');
const CHARTS = { podwire: 'chart', 'podwire-crds': 'podwire-crds' };
const SBOM = 'usr/share/podwire/sbom.spdx.json';

/** The charts, each as the file that helm installs and as the archive that is pushed to a registry. */
function writeCharts({ kubernetes, commit: { version, epochSeconds }, work, output, helm }) {
  for (const [name, folder] of Object.entries(CHARTS)) {
    run(helm, ['lint', join(kubernetes, folder), '--quiet', '--strict']);
    const chart = join(output, `${name}-${version}.tgz`);
    packChart({ chart, source: join(kubernetes, folder), name, work, epochSeconds });
    const fields = readFileSync(join(kubernetes, folder, 'Chart.yaml'), 'utf8').matchAll(/^(\w+): (.*)$/gm);
    const metadata = Object.fromEntries([...fields].map(([, field, value]) => [field, value]));
    const file = join(output, `${name}-chart-${version}.oci.tar`);
    writeChartArchive({ file, work, name: `charts/${name}:${version}`, epochSeconds, chart, metadata });
  }
}

function writeManifests({ kubernetes, output, helm }) {
  for (const name of ['podwire.yaml', 'uninstall.yaml']) copyFileSync(join(kubernetes, name), join(output, name));
  const namespace = ['--namespace', 'podwire-system'];
  const definitions = run(helm, ['template', 'podwire-crds', join(kubernetes, CHARTS['podwire-crds']), ...namespace]);
  writeFileSync(join(output, 'podwire-crds.yaml'), definitions);
}

/** The conformance kit as npm package. */
function packKit({ source, output }) {
  const folder = join(source, 'test', 'conformance');
  const compile = [join(source, 'node_modules/typescript/bin/tsc'), '-b', 'tsconfig.build.json'];
  run(process.execPath, compile, { cwd: folder });
  copyFileSync(join(source, 'LICENSE'), join(folder, 'LICENSE'));
  run('npm', ['pack', '--silent', '--pack-destination', output], { cwd: folder });
}

function build() {
  process.umask(0o022);
  const commit = readCommit();
  const helm = findHelm();
  const output = join(BUILD, `podwire-${commit.version}`);
  const work = join(BUILD, 'work');
  rmSync(BUILD, { recursive: true, force: true });
  for (const folder of [output, work]) mkdirSync(folder, { recursive: true });
  const images = Object.keys(ARCHITECTURES).map((arch) => {
    process.stdout.write(`${arch}\n`);
    return buildLayers({ arch, work: join(work, arch), commit });
  });
  const [{ source }] = images;
  const kubernetes = join(source, 'deploy', 'kubernetes');
  const name = `localhost/podwire:${commit.version}`;
  process.stdout.write('release\n');
  const file = join(output, `podwire-image-${commit.version}.oci.tar`);
  const digest = step('image', () => writeImages({ file, work, images, name, commit }));
  for (const image of images) {
    step(`packages of ${image.arch}`, () => writePackages({ ...image, commit, work, output }));
    const sbom = join(output, `podwire-${commit.version}-${image.arch}.spdx.json`);
    copyFileSync(join(image.layers.podwire, SBOM), sbom);
  }
  step('charts and manifests', () => {
    writeCharts({ kubernetes, commit, work, output, helm });
    writeManifests({ kubernetes, output, helm });
  });
  step('conformance kit', () => packKit({ source, output }));
  writeDocuments({ source, commit, images, output, image: [name, digest.replace('sha256:', '')] });
  rmSync(work, { recursive: true });
  process.stdout.write(`${output}\n`);
}

function writeDocuments({ source, commit, images, output, image }) {
  writeFileSync(join(output, 'NOTES.md'), notesOf(readFileSync(join(source, 'CHANGELOG.md'), 'utf8'), commit.version));
  const digests = { ...digestsOf(output, readdirSync(output)), ...Object.fromEntries([image]) };
  const sboms = images.map(({ layers }) => readJson(join(layers.podwire, SBOM)));
  const builder = { debian: DEBIAN.codename, gcc: run('gcc', ['-dumpfullversion']).trim() };
  const statement = provenance({ digests, commit, sboms, builder });
  writeFileSync(join(output, 'provenance.intoto.json'), `${JSON.stringify(statement, null, 1)}\n`);
  writeFileSync(join(output, 'SHA256SUMS'), checksums(digestsOf(output, readdirSync(output))));
}

function builtRelease() {
  const { version } = readJson(join(ROOT, 'package.json'));
  return { version, folder: join(BUILD, `podwire-${version}`) };
}

const { values } = parseArgs({
  options: { check: { type: 'boolean' }, push: { type: 'string' }, key: { type: 'string' } },
});
try {
  if (values.push) publish({ ...builtRelease(), registry: values.push, key: values.key });
  else if (values.check) process.exitCode = check(builtRelease());
  else build();
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exit(1);
}
