import { constants } from 'node:fs';
import { access, mkdir, mkdtemp, open, readdir, readFile, readlink, rename, rm, stat, symlink } from 'node:fs/promises';
import { basename, join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { codeOf, messageOf } from '@podwire/shared/failure/thrown';
import type { Clock } from '@podwire/shared/runtime/clock';
import { syncDirectory } from '@podwire/shared/files/sync-directory';

import type { CertificateFiles } from './certificate.js';

/** Names of the files, as a Kubernetes Secret of type kubernetes.io/tls has them. */
const FILE_NAMES: Readonly<Record<keyof CertificateFiles, string>> = {
  certificate: 'tls.crt',
  key: 'tls.key',
  authorities: 'ca.crt',
};
const FILES = [
  ['key', FILE_NAMES.key],
  ['certificate', FILE_NAMES.certificate],
  ['authorities', FILE_NAMES.authorities],
] as const;

/** Accessible to their owner only. */
const DIRECTORY_MODE = 0o700;
const FILE_MODE = 0o600;

/** Link to the version in use. */
const CURRENT = '.current';
/** Beginnings of the names of subfolders: of a version, and of one with a link that is not in its place yet. */
const VERSION = '.version-';
const NEW_LINK = '.link-';

/** Age from which on an unused version is removed, in milliseconds. Another process may be about to use a younger one. */
const UNUSED_MS = 600_000;

/**
 * The files of one certificate. They are replaced together, by one rename(2): each set is a subfolder, and the files are
 * links through `.current`, as the kubelet does it for Secrets. A process that is killed, or two processes at once, leave
 * no key beside the certificate of another.
 */
export class CertificateDirectory {
  /** Absolute or relative to the working directory. */
  readonly path: string;
  readonly #clock: Clock;

  constructor(path: string, clock: Clock) {
    this.path = path;
    this.#clock = clock;
  }

  /**
   * The files as their readers see them.
   * @returns undefined where one is missing
   * @throws Failure STATE_IO
   */
  async read(): Promise<CertificateFiles | undefined> {
    const read = (name: string) => readFile(join(this.path, name), 'utf8');
    try {
      const [key, certificate, authorities] = await Promise.all([
        read(FILE_NAMES.key),
        read(FILE_NAMES.certificate),
        read(FILE_NAMES.authorities),
      ]);
      return { key, certificate, authorities };
    } catch (error) {
      if (codeOf(error) === 'ENOENT') return undefined;
      throw this.#failure('cannot be read', error);
    }
  }

  /**
   * Makes the directory, unless it exists.
   * @throws Failure STATE_IO when no file can be written there
   */
  async prepare(): Promise<void> {
    try {
      await mkdir(this.path, { recursive: true, mode: DIRECTORY_MODE });
      await access(this.path, constants.W_OK | constants.X_OK);
    } catch (error) {
      throw this.#failure('cannot be written', error);
    }
  }

  /**
   * Replaces the files. They survive a power failure once this resolves.
   * @throws Failure STATE_IO; the earlier files are unchanged
   */
  async write(files: CertificateFiles): Promise<void> {
    await this.prepare();
    try {
      const version = await this.#writeVersion(files);
      const previous = await this.#targetOf(CURRENT);
      await this.#link(CURRENT, version);
      for (const [, name] of FILES) {
        const target = join(CURRENT, name);
        if ((await this.#targetOf(name)) !== target) await this.#link(name, target);
      }
      await syncDirectory(this.path);
      await this.#removeUnused([version, previous]);
    } catch (error) {
      throw this.#failure('cannot be written', error);
    }
  }

  /** @returns the name of the subfolder */
  async #writeVersion(files: CertificateFiles): Promise<string> {
    const folder = await mkdtemp(join(this.path, VERSION));
    try {
      for (const [part, name] of FILES) {
        const file = await open(join(folder, name), 'wx', FILE_MODE);
        try {
          await file.writeFile(files[part]);
          await file.sync();
        } finally {
          await file.close();
        }
      }
      await syncDirectory(folder);
    } catch (error) {
      // On a full disk, an incomplete version takes the space of the next one.
      await rm(folder, { recursive: true, force: true });
      throw error;
    }
    return basename(folder);
  }

  async #targetOf(name: string): Promise<string | undefined> {
    try {
      return await readlink(join(this.path, name));
    } catch {
      return undefined;
    }
  }

  /** Replaces a link, or the file in its place, at once. */
  async #link(name: string, target: string): Promise<void> {
    const folder = await mkdtemp(join(this.path, NEW_LINK));
    try {
      await symlink(target, join(folder, name));
      await rename(join(folder, name), join(this.path, name));
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  }

  /** @param kept - versions that readers may have open */
  async #removeUnused(kept: readonly (string | undefined)[]): Promise<void> {
    const names = await readdir(this.path);
    const unused = names.filter(
      (name) => [VERSION, NEW_LINK].some((beginning) => name.startsWith(beginning)) && !kept.includes(name),
    );
    for (const path of unused.map((name) => join(this.path, name))) {
      const ageMs = this.#clock.nowMs() - (await modifiedAtMs(path));
      if (ageMs > UNUSED_MS) await rm(path, { recursive: true, force: true });
    }
  }

  #failure(what: string, cause: unknown): Failure {
    const advice = 'check that it is a directory of this user, on a file system with free space that is not read-only';
    return new Failure('STATE_IO', `certificate directory ${this.path}: ${what}; ${advice} (${messageOf(cause)})`, {
      cause,
    });
  }
}

/** @returns Infinity for a file that another process has removed */
async function modifiedAtMs(path: string): Promise<number> {
  try {
    return (await stat(path)).mtimeMs;
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return Infinity;
    throw error;
  }
}
