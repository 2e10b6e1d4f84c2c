import { performance } from 'node:perf_hooks';
import process from 'node:process';

import { readOwnPackage } from './own-package.js';

/** Release of this process, and its start. */
export interface ProcessRelease {
  /** Release of Podwire, as `--version` prints it. */
  readonly release: string;
  /** Version of Node.js: `v20.19.0`. */
  readonly nodeVersion: string;
  readonly startTime: Date;
}

/** The release of Podwire. Its packages have one version. */
export async function readRelease(): Promise<string> {
  return (await readOwnPackage(import.meta.url, '@podwire/shared')).version;
}

/** Called when the process starts: an update replaces the files of a running process. */
export async function readProcessRelease(): Promise<ProcessRelease> {
  return {
    release: await readRelease(),
    nodeVersion: process.version,
    startTime: new Date(performance.timeOrigin),
  };
}
