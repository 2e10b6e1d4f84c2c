// Writes archives: of a folder, of OCI images for one or more architectures, and of a Helm chart as OCI artifact.
// The same input gives the same bytes.
import { Buffer } from 'node:buffer';
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { run } from './tree.mjs';

const TYPES = {
  chart: 'application/vnd.cncf.helm.chart.content.v1.tar+gzip',
  chartConfig: 'application/vnd.cncf.helm.config.v1+json',
  config: 'application/vnd.oci.image.config.v1+json',
  index: 'application/vnd.oci.image.index.v1+json',
  layer: 'application/vnd.oci.image.layer.v1.tar+gzip',
  manifest: 'application/vnd.oci.image.manifest.v1+json',
};

export const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex');

/** Options that make GNU tar's output depend on nothing but the files. */
const tarOptions = (epochSeconds) => [
  '--sort=name',
  '--format=gnu',
  '--owner=0',
  '--group=0',
  '--numeric-owner',
  `--mtime=@${epochSeconds}`,
];

class BlobFolder {
  constructor(layout) {
    this.folder = join(layout, 'blobs', 'sha256');
    mkdirSync(this.folder, { recursive: true });
  }

  /** Stores the bytes. @returns their descriptor */
  add(mediaType, bytes) {
    const digest = sha256(bytes);
    writeFileSync(join(this.folder, digest), bytes);
    return { mediaType, digest: `sha256:${digest}`, size: bytes.length };
  }

  addJson(mediaType, value) {
    return this.add(mediaType, Buffer.from(JSON.stringify(value)));
  }
}

/** Packs entries of a folder as a gzip-compressed tar archive. @returns digest of its uncompressed form */
export function packFolder({ file, folder, epochSeconds, entries = ['.'] }) {
  const tar = `${file}.part`;
  run('tar', [...tarOptions(epochSeconds), '-cf', tar, '-C', folder, ...entries]);
  const digest = sha256(readFileSync(tar));
  run('gzip', ['--no-name', '-9', '--force', tar]);
  renameSync(`${tar}.gz`, file);
  return digest;
}

/**
 * Adds an image of one architecture.
 * @param image - layers: folders, lowest first; arch; config: user, workingDirectory, environment, labels; work: folder;
 * epochSeconds
 * @returns descriptor of the manifest
 */
function addImage(blobs, { layers, arch, config, work, epochSeconds }) {
  const created = new Date(epochSeconds * 1000).toISOString();
  const packed = layers.map((folder) => {
    const file = join(work, 'layer.tar.gz');
    const digest = packFolder({ file, folder, epochSeconds });
    return { descriptor: blobs.add(TYPES.layer, readFileSync(file)), diffId: `sha256:${digest}` };
  });
  const description = blobs.addJson(TYPES.config, {
    created,
    architecture: arch,
    os: 'linux',
    config: {
      User: config.user,
      Env: Object.entries(config.environment).map(([variable, value]) => `${variable}=${value}`),
      WorkingDir: config.workingDirectory,
      Labels: config.labels,
    },
    rootfs: { type: 'layers', diff_ids: packed.map(({ diffId }) => diffId) },
    history: packed.map(() => ({ created, created_by: 'deploy/image/rootfs.mjs' })),
  });
  const manifest = blobs.addJson(TYPES.manifest, {
    schemaVersion: 2,
    mediaType: TYPES.manifest,
    config: description,
    layers: packed.map(({ descriptor }) => descriptor),
    annotations: config.labels,
  });
  return { ...manifest, platform: { architecture: arch, os: 'linux' } };
}

/** Writes the archive of one thing, which `add` adds to the blobs. @returns digest of that thing */
function writeLayout({ file, work, name, epochSeconds }, add) {
  const layout = join(work, 'layout');
  rmSync(layout, { recursive: true, force: true });
  const entry = add(new BlobFolder(layout));
  const annotations = { 'io.containerd.image.name': name, 'org.opencontainers.image.ref.name': name.split(':').pop() };
  const index = { schemaVersion: 2, mediaType: TYPES.index, manifests: [{ ...entry, annotations }] };
  writeFileSync(join(layout, 'index.json'), JSON.stringify(index));
  writeFileSync(join(layout, 'oci-layout'), JSON.stringify({ imageLayoutVersion: '1.0.0' }));
  rmSync(file, { force: true });
  run('tar', [...tarOptions(epochSeconds), '-cf', file, '-C', layout, 'oci-layout', 'index.json', 'blobs']);
  rmSync(layout, { recursive: true });
  return entry.digest;
}

/**
 * Writes the archive of an image: its manifest for one architecture, an index of manifests for several.
 * @param archive - file; work: folder; name: reference for the runtime; epochSeconds; config: see addImage; images: arch and
 * layers of each
 * @returns digest of manifest or index
 */
export function writeArchive({ images, config, ...archive }) {
  return writeLayout(archive, (blobs) => {
    const manifests = images.map((image) => addImage(blobs, { ...archive, ...image, config }));
    if (manifests.length === 1) return manifests[0];
    return blobs.addJson(TYPES.index, {
      schemaVersion: 2,
      mediaType: TYPES.index,
      manifests,
      annotations: config.labels,
    });
  });
}

/** Writes the archive of a packed Helm chart; metadata: content of its Chart.yaml. @returns digest of the manifest */
export function writeChartArchive({ chart, metadata, ...archive }) {
  return writeLayout(archive, (blobs) =>
    blobs.addJson(TYPES.manifest, {
      schemaVersion: 2,
      mediaType: TYPES.manifest,
      config: blobs.addJson(TYPES.chartConfig, metadata),
      layers: [blobs.add(TYPES.chart, readFileSync(chart))],
    }),
  );
}
