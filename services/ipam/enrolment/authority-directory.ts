import { mkdirSync, readFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { putDurably } from '@podwire/shared/runtime/durable-file';
import { Authority, type IssuedCertificate } from '@podwire/shared/tls/authority';

const CERTIFICATE_FILE = 'ca.crt';
const KEY_FILE = 'ca.key';

/** An authority as its directory has it. */
export interface StoredAuthority {
  readonly authority: Authority;
  /** Content of `ca.crt`: the authority's certificate, and further ones that are trusted too. */
  readonly certificates: string;
}

/**
 * The directory with `ca.crt` and `ca.key` of podwire-ipam's authority: its own storage, or a mounted Secret.
 */
export class AuthorityDirectory {
  readonly #path: string;

  constructor(path: string) {
    this.#path = path;
  }

  /**
   * Reads the directory as it is now.
   * @returns undefined where it has neither file
   * @throws Failure INVALID_SETTINGS when a file is missing, cannot be read, or does not belong to the other
   */
  async read(): Promise<StoredAuthority | undefined> {
    const [certificate, key] = [this.#readFile(CERTIFICATE_FILE), this.#readFile(KEY_FILE)];
    if (certificate === undefined && key === undefined) return undefined;
    if (certificate === undefined || key === undefined) {
      const [present, missing] = key === undefined ? [CERTIFICATE_FILE, KEY_FILE] : [KEY_FILE, CERTIFICATE_FILE];
      throw this.#fault(
        `has ${present} and no ${missing}; restore ${missing}, or remove ${present} for a new authority`,
      );
    }
    try {
      return { authority: await Authority.load({ certificate, key }), certificates: certificate };
    } catch (error) {
      throw this.#fault(`${CERTIFICATE_FILE} and ${KEY_FILE} cannot be used: ${messageOf(error)}`, error);
    }
  }

  /**
   * Stores a new authority durably, accessible to its owner only; the directory is created.
   * @throws Failure INVALID_SETTINGS when it cannot be written
   */
  async write({ certificate, key }: IssuedCertificate): Promise<void> {
    try {
      mkdirSync(this.#path, { recursive: true, mode: 0o700 });
      await putDurably(join(this.#path, KEY_FILE), key);
      await putDurably(join(this.#path, CERTIFICATE_FILE), certificate);
    } catch (error) {
      throw this.#fault(`cannot be written: ${messageOf(error)}`, error);
    }
  }

  /** Removes what {@link AuthorityDirectory.write} wrote. */
  async clear(): Promise<void> {
    for (const name of [CERTIFICATE_FILE, KEY_FILE]) await rm(join(this.#path, name), { force: true });
  }

  #readFile(name: string): string | undefined {
    try {
      return readFileSync(join(this.#path, name), 'utf8');
    } catch (error) {
      if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined;
      throw this.#fault(`${name} cannot be read: ${messageOf(error)}`, error);
    }
  }

  #fault(reason: string, cause?: unknown): Failure {
    return new Failure('INVALID_SETTINGS', `PODWIRE_IPAM_AUTHORITY_DIRECTORY ${this.#path}: ${reason}`, { cause });
  }
}
