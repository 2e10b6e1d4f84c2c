import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { run } from '../support/programs.js';
import { ROOT } from '../support/root.js';

/** Name of the tests' image. It is imported, not pulled from a registry. */
export const IMAGE = 'registry.invalid/podwire/pod:1';

/** The image's program (pod-program.c). */
export const PROGRAM = '/pod';

/** Entries of an archive in a fixed order, with one time and owner, so that the same content is the same archive. */
const TAR = ['--sort=name', '--mtime=@0', '--owner=0', '--group=0', '--numeric-owner'];

/** Creates the tests' image in a folder, in the form of `docker save`, with nothing but the compiler. @returns its path */
export function makeImage(folder: string): string {
  const [root, archive] = [join(folder, 'root'), join(folder, 'archive')];
  for (const name of ['etc', 'proc', 'sys', 'dev', 'tmp']) mkdirSync(join(root, name), { recursive: true });
  mkdirSync(archive);
  const source = join(ROOT, 'test', 'runtime', 'pod-program.c');
  run('gcc', '-static', '-Os', '-s', '-Wall', '-Werror', '-o', join(root, PROGRAM), source);
  const layer = join(archive, 'layer.tar');
  run('tar', ...TAR, '-C', root, '-cf', layer, '.');
  const digest = createHash('sha256').update(readFileSync(layer)).digest('hex');
  const config = {
    created: '1970-01-01T00:00:00Z',
    architecture: process.arch === 'x64' ? 'amd64' : process.arch,
    os: 'linux',
    config: { Entrypoint: [PROGRAM], Env: ['PATH=/'], User: '65535:65535' },
    rootfs: { type: 'layers', diff_ids: [`sha256:${digest}`] },
  };
  const manifest = [{ Config: 'config.json', RepoTags: [IMAGE], Layers: ['layer.tar'] }];
  writeFileSync(join(archive, 'config.json'), JSON.stringify(config));
  writeFileSync(join(archive, 'manifest.json'), JSON.stringify(manifest));
  const image = join(folder, 'image.tar');
  run('tar', ...TAR, '-C', archive, '-cf', image, 'manifest.json', 'config.json', 'layer.tar');
  return image;
}
