// The image of the pods and of their sandboxes: one static program, as `docker save` writes it.
import { createHash } from 'node:crypto';
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';

import { must } from './wait.mjs';

/** Imported on each node; no registry has them. */
export const POD_IMAGE = 'cluster.invalid/pod:1';
export const PAUSE_IMAGE = 'cluster.invalid/pause:1';

/** @returns the path of the archive */
export function makePodImage(folder, program) {
  const [root, archive] = [join(folder, 'pod-root'), join(folder, 'pod-archive')];
  for (const path of [root, archive]) mkdirSync(path, { recursive: true });
  copyFileSync(program, join(root, 'pod'));
  const layer = join(archive, 'layer.tar');
  must('tar', ['-C', root, '-cf', layer, 'pod']);
  const digest = createHash('sha256').update(readFileSync(layer)).digest('hex');
  const config = {
    created: '1970-01-01T00:00:00Z',
    architecture: process.arch === 'x64' ? 'amd64' : process.arch,
    os: 'linux',
    config: { Entrypoint: ['/pod'], Cmd: ['pause'] },
    rootfs: { type: 'layers', diff_ids: [`sha256:${digest}`] },
    history: [{ created: '1970-01-01T00:00:00Z' }],
  };
  writeFileSync(join(archive, 'config.json'), JSON.stringify(config));
  const manifest = [{ Config: 'config.json', RepoTags: [POD_IMAGE, PAUSE_IMAGE], Layers: ['layer.tar'] }];
  writeFileSync(join(archive, 'manifest.json'), JSON.stringify(manifest));
  const image = join(folder, 'pod-image.tar');
  must('tar', ['-C', archive, '-cf', image, 'manifest.json', 'config.json', 'layer.tar']);
  return image;
}
