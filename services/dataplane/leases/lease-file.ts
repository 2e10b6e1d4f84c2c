import { mkdirSync, readFileSync, renameSync, unlinkSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';

import { codeOf } from '@podwire/shared/failure/thrown';

import { decodeLeases, encodeLeases, NO_LEASES, type StoredLeases } from './lease.js';
import type { LeaseEvents } from './lease-events.js';
import type { LeaseFile } from './lease-stock.js';

const WRITING = '.writing';

const DIRECTORY_MODE = 0o700;
const FILE_MODE = 0o600;

interface TmpfsLeaseFileOptions {
  /** Absolute path, on tmpfs beside the records. */
  readonly path: string;
  /** Of this boot: leases end with it. */
  readonly bootId: string;
  readonly events: LeaseEvents;
}

/** The unbound leases in a file on tmpfs. Synchronous, as the records' store, and not synced: a reboot ends leases and pods together. */
export class TmpfsLeaseFile implements LeaseFile {
  readonly #options: TmpfsLeaseFileOptions;

  constructor(options: TmpfsLeaseFileOptions) {
    this.#options = options;
  }

  load(): StoredLeases {
    const { path, bootId, events } = this.#options;
    try {
      return decodeLeases(readFileSync(path, 'utf8'), bootId) ?? NO_LEASES;
    } catch (error) {
      if (codeOf(error) !== 'ENOENT') events.fileFailed(path, error);
      return NO_LEASES;
    }
  }

  save(leases: StoredLeases): void {
    const { path, bootId, events } = this.#options;
    try {
      mkdirSync(dirname(path), { recursive: true, mode: DIRECTORY_MODE });
      writeFileSync(path + WRITING, encodeLeases(leases, bootId), { mode: FILE_MODE });
      renameSync(path + WRITING, path);
    } catch (error) {
      events.fileFailed(path, error);
      // An outdated file would offer addresses that pods had since.
      removeIfPossible(path + WRITING);
      removeIfPossible(path);
    }
  }
}

function removeIfPossible(path: string): void {
  try {
    unlinkSync(path);
  } catch {
    // The caller reports the write error.
  }
}
