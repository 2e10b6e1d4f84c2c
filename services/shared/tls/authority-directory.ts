import { mkdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';

import type { Failure } from '../failure/failure.js';
import { codeOf, messageOf } from '../failure/thrown.js';
import { putDurably, putNewDurably } from '../files/durable-file.js';
import type { Authority } from './authority.js';

/** The authority's certificate, and further ones that are trusted too; PEM. */
export const AUTHORITY_CERTIFICATE = 'ca.crt';
const AUTHORITY_KEY = 'ca.key';

/** Accessible to its owner only. */
const DIRECTORY_MODE = 0o700;

const AUTHORITY_NAME = 'podwire';

/** Life of a new authority, in milliseconds. */
const AUTHORITY_LIFE_MS = 3650 * 86_400_000;

/** Certificates are valid from this long before they are issued, as the clocks of machines differ. */
export const CLOCK_TOLERANCE_MS = 300_000;

/** An authority as its directory has it. */
export interface StoredAuthority {
  readonly authority: Authority;
  /** Content of `ca.crt`. */
  readonly certificates: string;
}

/**
 * The directory with `ca.crt` and `ca.key` of an authority: of podwire-ipam (its storage, or a mounted Secret), or of
 * `podwirectl certificates create`. The library for certificates is loaded with the first authority, as it takes 18 MiB.
 */
export class AuthorityDirectory {
  readonly #path: string;
  readonly #failure: (reason: string, cause?: unknown) => Failure;

  /** @param failure - the failure that names the directory and has the reason */
  constructor(path: string, failure: (reason: string, cause?: unknown) => Failure) {
    this.#path = path;
    this.#failure = failure;
  }

  /**
   * Reads the directory as it is now.
   * @returns undefined where it has neither file
   * @throws Failure when a file is missing, cannot be read, or does not belong to the other
   */
  async read(): Promise<StoredAuthority | undefined> {
    const certificates = await this.#readFile(AUTHORITY_CERTIFICATE);
    const key = await this.#readFile(AUTHORITY_KEY);
    if (certificates === undefined && key === undefined) return undefined;
    if (certificates === undefined || key === undefined) {
      const missing = key === undefined ? AUTHORITY_KEY : AUTHORITY_CERTIFICATE;
      throw this.#failure(`${missing} does not exist; restore it, or use another directory`);
    }
    const { Authority } = await import('./authority.js');
    try {
      return { authority: await Authority.load({ certificate: certificates, key }), certificates };
    } catch (error) {
      const advice = `restore ${AUTHORITY_CERTIFICATE} and ${AUTHORITY_KEY}, or use another directory`;
      throw this.#failure(`cannot be used: ${messageOf(error)}; ${advice}`, error);
    }
  }

  /**
   * Makes an authority and stores it durably, accessible to its owner only; the directory is created.
   * @returns undefined if another process has stored one there: the files of two authorities are never mixed
   * @throws Failure when it cannot be written
   */
  async create(nowMs: number): Promise<StoredAuthority | undefined> {
    const { Authority } = await import('./authority.js');
    const validity = { fromMs: nowMs - CLOCK_TOLERANCE_MS, untilMs: nowMs + AUTHORITY_LIFE_MS };
    const authority = await Authority.create(AUTHORITY_NAME, validity);
    const { certificate: certificates, key } = await authority.stored();
    try {
      await mkdir(this.#path, { recursive: true, mode: DIRECTORY_MODE });
      if (!(await putNewDurably(join(this.#path, AUTHORITY_KEY), key))) return undefined;
      await putDurably(join(this.#path, AUTHORITY_CERTIFICATE), certificates);
    } catch (error) {
      throw this.#failure(`cannot be written; check access and free space (${messageOf(error)})`, error);
    }
    return { authority, certificates };
  }

  /** Removes the authority. */
  async clear(): Promise<void> {
    for (const name of [AUTHORITY_CERTIFICATE, AUTHORITY_KEY]) await rm(join(this.#path, name), { force: true });
  }

  async #readFile(name: string): Promise<string | undefined> {
    try {
      return await readFile(join(this.#path, name), 'utf8');
    } catch (error) {
      if (codeOf(error) === 'ENOENT') return undefined;
      throw this.#failure(`${name} cannot be read; check its access rights (${messageOf(error)})`, error);
    }
  }
}
