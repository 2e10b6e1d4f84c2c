import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createSecureContext } from 'node:tls';

import { Failure, violationsFailure, type Violation } from '../failure/failure.js';
import { messageOf } from '../failure/thrown.js';

/** A file that a setting names. */
export interface NamedFile {
  /** Name of the setting, for messages: `PODWIRE_IPAM_TLS_CERT_FILE`. */
  readonly setting: string;
  /** Absolute path of a PEM file. */
  readonly path: string;
}

/** The PEM files of one side of a TLS connection. */
export interface TlsFiles {
  /** Certificates of the authorities that sign the other side's certificate; undefined for the ones that Node.js brings. */
  readonly ca: NamedFile | undefined;
  /** This side's certificate, with its chain, and its key. Undefined for a client that shows none. */
  readonly identity: { readonly certificate: NamedFile; readonly key: NamedFile } | undefined;
}

/** Where a side's certificates come from. */
export interface TlsOrigin {
  /** Credentials in force now. @throws Failure INVALID_SETTINGS when they cannot be used; the former stay in force */
  readonly read: () => TlsMaterial;
  /** The certificate that this side shows, for messages; undefined where it shows none. */
  readonly certificate: NamedFile | undefined;
}

/** Files that are read again and again. */
export function filesOrigin(files: TlsFiles): TlsOrigin {
  return { read: () => readTlsFiles(files), certificate: files.identity?.certificate };
}

/** The certificates of a PEM text, one by one, each with a line feed at its end. */
export function splitCertificates(text: string): readonly string[] {
  const blocks = text.match(/-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g) ?? [];
  return blocks.map((block) => `${block}\n`);
}

/** Contents of {@link TlsFiles}. */
export interface TlsMaterial {
  readonly ca: Buffer | undefined;
  readonly identity: { readonly certificate: Buffer; readonly key: Buffer } | undefined;
}

/** @throws Failure INVALID_SETTINGS when the file cannot be read */
export function readNamedFile({ setting: field, path }: NamedFile): Buffer {
  try {
    return readFileSync(path);
  } catch (error) {
    const reason = `names a file that cannot be read: ${messageOf(error)}`;
    throw violationsFailure('INVALID_SETTINGS', 'Settings refused', [{ field, reason }]);
  }
}

/**
 * Reads the files as they are now. While they are being replaced one after the other, key and certificate may not match.
 * @throws Failure INVALID_SETTINGS that lists every file that cannot be read or used
 */
export function readTlsFiles({ ca: caFile, identity }: TlsFiles): TlsMaterial {
  const violations: Violation[] = [];
  const attempt = <Result>({ setting: field }: NamedFile, fault: string, use: () => Result): Result | undefined => {
    try {
      return use();
    } catch (error) {
      violations.push({ field, reason: `${fault}: ${messageOf(error)}` });
      return undefined;
    }
  };
  const read = (file: NamedFile): Buffer | undefined =>
    attempt(file, 'names a file that cannot be read', () => readFileSync(file.path));
  const ca = caFile && read(caFile);
  const certificate = identity && read(identity.certificate);
  const key = identity && read(identity.key);
  // OpenSSL would name no file when it refuses one of them during a handshake.
  if (caFile && ca) attempt(caFile, 'names a file without a certificate', () => new X509Certificate(ca));
  if (identity && certificate && key) {
    const { certificate: certificateFile, key: keyFile } = identity;
    const hasCertificate = attempt(certificateFile, 'names a file without a certificate', () =>
      createSecureContext({ cert: certificate }),
    );
    const hasKey = attempt(keyFile, 'names a file without a key', () => createSecureContext({ key }));
    if (hasCertificate && hasKey)
      attempt(keyFile, 'names a key that does not belong to the certificate', () =>
        createSecureContext({ cert: certificate, key }),
      );
  }
  if (violations.length > 0) throw violationsFailure('INVALID_SETTINGS', 'Settings refused', violations);
  return { ca, identity: certificate && key && { certificate, key } };
}

/** Whether two sets of files have the same contents. */
export function isSameMaterial(one: TlsMaterial, other: TlsMaterial): boolean {
  const isSame = (a: Buffer | undefined, b: Buffer | undefined): boolean => (a && b ? a.equals(b) : a === b);
  return (
    isSame(one.ca, other.ca) &&
    isSame(one.identity?.certificate, other.identity?.certificate) &&
    isSame(one.identity?.key, other.identity?.key)
  );
}

export interface FileContentOptions<Content> {
  /** Reads the files as they are now. @throws Failure when they cannot be read or used */
  readonly read: () => Content;
  readonly isSame: (one: Content, other: Content) => boolean;
  /** Reports that the files cannot be used, once for each reason in a row. Must not throw. */
  readonly report: (failure: Failure) => void;
}

/** Content of some files, read again on demand. While they cannot be used, the last content stays in use. */
export class FileContent<Content> {
  readonly #options: FileContentOptions<Content>;
  #content: Content;
  #reportedFault: string | undefined;

  /** @throws Failure of `read` */
  constructor(options: FileContentOptions<Content>) {
    this.#options = options;
    this.#content = options.read();
  }

  get content(): Content {
    return this.#content;
  }

  /** @returns whether the content has changed */
  readAgain(): boolean {
    const { read, isSame, report } = this.#options;
    try {
      const content = read();
      this.#reportedFault = undefined;
      if (isSame(content, this.#content)) return false;
      this.#content = content;
      return true;
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      if (error.message !== this.#reportedFault) report(error);
      this.#reportedFault = error.message;
      return false;
    }
  }
}
