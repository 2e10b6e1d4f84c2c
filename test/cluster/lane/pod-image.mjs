// The image of the pods and of their sandboxes: one static program.
import { copyFileSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';

import { writeDockerArchive } from '../docker-archive.mjs';

/** Imported on each node; no registry has them. */
export const POD_IMAGE = 'cluster.invalid/pod:1';
export const PAUSE_IMAGE = 'cluster.invalid/pause:1';

/** @returns the path of the archive */
export function makePodImage(folder, program) {
  const root = join(folder, 'pod-root');
  mkdirSync(root, { recursive: true });
  copyFileSync(program, join(root, 'pod'));
  const archive = join(folder, 'pod-image.tar');
  const config = { Entrypoint: ['/pod'], Cmd: ['pause'] };
  const images = [{ tags: [POD_IMAGE, PAUSE_IMAGE], layers: ['pod'], config }];
  writeDockerArchive({ archive, work: join(folder, 'pod-archive'), layers: { pod: root }, images });
  return archive;
}
