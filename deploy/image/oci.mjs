// Writes layers and configuration as an OCI image archive. The same input gives the same bytes.
import { Buffer } from 'node:buffer';
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { run } from './tree.mjs';

const TYPES = {
  config: 'application/vnd.oci.image.config.v1+json',
  index: 'application/vnd.oci.image.index.v1+json',
  layer: 'application/vnd.oci.image.layer.v1.tar+gzip',
  manifest: 'application/vnd.oci.image.manifest.v1+json',
};

const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex');

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

/** Packs a folder. @returns the layer's descriptor and the digest of its uncompressed form */
function packLayer({ blobs, folder, work, epochSeconds }) {
  const file = join(work, 'layer.tar');
  run('tar', [...tarOptions(epochSeconds), '-cf', file, '-C', folder, '.']);
  const diffId = `sha256:${sha256(readFileSync(file))}`;
  run('gzip', ['--no-name', '-9', '--force', file]);
  return { descriptor: blobs.add(TYPES.layer, readFileSync(`${file}.gz`)), diffId };
}

/**
 * Writes the archive.
 * @param image - file; work: empty folder; layers: folders, lowest first; arch; name: reference for the runtime; config:
 * user, workingDirectory, environment, labels; epochSeconds
 * @returns digest of the manifest, and the layers' compressed sizes in bytes
 */
export function writeArchive({ file, work, layers, arch, name, config, epochSeconds }) {
  const layout = join(work, 'layout');
  const blobs = new BlobFolder(layout);
  const created = new Date(epochSeconds * 1000).toISOString();
  const packed = layers.map((folder) => packLayer({ blobs, folder, work, epochSeconds }));
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
  const descriptors = packed.map(({ descriptor }) => descriptor);
  const manifest = blobs.addJson(TYPES.manifest, {
    schemaVersion: 2,
    mediaType: TYPES.manifest,
    config: description,
    layers: descriptors,
    annotations: config.labels,
  });
  const annotations = { 'io.containerd.image.name': name, 'org.opencontainers.image.ref.name': name.split(':').pop() };
  const entry = { ...manifest, platform: { architecture: arch, os: 'linux' }, annotations };
  const index = { schemaVersion: 2, mediaType: TYPES.index, manifests: [entry] };
  writeFileSync(join(layout, 'index.json'), JSON.stringify(index));
  writeFileSync(join(layout, 'oci-layout'), JSON.stringify({ imageLayoutVersion: '1.0.0' }));
  rmSync(file, { force: true });
  run('tar', [...tarOptions(epochSeconds), '-cf', file, '-C', layout, 'oci-layout', 'index.json', 'blobs']);
  return { digest: manifest.digest, sizesBytes: descriptors.map(({ size }) => size) };
}
