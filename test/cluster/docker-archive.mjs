// Images as `docker save` writes them, which containerd imports without a registry.
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';

import { must } from './lane/wait.mjs';

export const ARCHITECTURE = { x64: 'amd64' }[process.arch] ?? process.arch;

const CREATED = '1970-01-01T00:00:00Z';

/** Makes a layer of a folder's files. @returns name and digest */
function makeLayer(work, [name, root]) {
  const file = `${name}.tar`;
  must('tar', ['-C', root, '--owner=0', '--group=0', '--numeric-owner', '-cf', join(work, file), '.']);
  const digest = createHash('sha256')
    .update(readFileSync(join(work, file)))
    .digest('hex');
  return { file, digest: `sha256:${digest}` };
}

/**
 * Writes an archive of images that share layers.
 * @param layers - folder of the files of each layer, by name
 * @param images - tags, names of layers from the lowest, and config (Entrypoint, Cmd, Env) of each
 */
export function writeDockerArchive({ archive, work, layers, images }) {
  mkdirSync(work, { recursive: true });
  const made = Object.fromEntries(Object.entries(layers).map((layer) => [layer[0], makeLayer(work, layer)]));
  const manifest = images.map(({ tags, layers: names, config }, index) => {
    const below = names.map((name) => made[name]);
    const rootfs = { type: 'layers', diff_ids: below.map(({ digest }) => digest) };
    const history = below.map(() => ({ created: CREATED }));
    const file = `config-${index}.json`;
    const image = { created: CREATED, architecture: ARCHITECTURE, os: 'linux', config, rootfs, history };
    writeFileSync(join(work, file), JSON.stringify(image));
    return { Config: file, RepoTags: tags, Layers: below.map((layer) => layer.file) };
  });
  writeFileSync(join(work, 'manifest.json'), JSON.stringify(manifest));
  const configs = manifest.map(({ Config }) => Config);
  const files = Object.values(made).map(({ file }) => file);
  must('tar', ['-C', work, '-cf', archive, 'manifest.json', ...configs, ...files]);
}
