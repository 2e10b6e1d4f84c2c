import { readFileSync } from 'node:fs';
import { rootCertificates } from 'node:tls';

import { violationsFailure, type Violation } from '@podwire/shared/failure/failure';

/** What identifies this process to etcd, and etcd to it: names of files. */
export interface CredentialFiles {
  /** Certificates of the authorities that etcd's is signed by; undefined for those that Node.js brings. */
  readonly caFile: string | undefined;
  /** This process's certificate and its key, both or neither. */
  readonly certFile: string | undefined;
  readonly keyFile: string | undefined;
  /** Undefined for none. */
  readonly username: string | undefined;
  readonly passwordFile: string | undefined;
}

export interface Credentials {
  /** Undefined when nothing but the URL's scheme decides. */
  readonly tls:
    | {
        readonly ca: Buffer;
        readonly client: { readonly key: Buffer; readonly certificate: Buffer } | undefined;
      }
    | undefined;
  readonly user: { readonly name: string; readonly password: string } | undefined;
}

/**
 * Reads the files as they are now.
 * @throws Failure INVALID_SETTINGS that lists every file that cannot be read
 */
export function readCredentials(files: CredentialFiles): Credentials {
  const violations: Violation[] = [];
  const read = (variable: string, path: string): Buffer => {
    try {
      return readFileSync(path);
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      violations.push({ field: variable, reason: `names a file that cannot be read: ${reason}` });
      return Buffer.alloc(0);
    }
  };
  const { caFile, certFile, keyFile, username, passwordFile } = files;
  const ca = caFile === undefined ? undefined : read('PODWIRE_IPAM_ETCD_CA_FILE', caFile);
  const client =
    certFile === undefined || keyFile === undefined
      ? undefined
      : {
          certificate: read('PODWIRE_IPAM_ETCD_CERT_FILE', certFile),
          key: read('PODWIRE_IPAM_ETCD_KEY_FILE', keyFile),
        };
  const password =
    passwordFile === undefined
      ? ''
      : read('PODWIRE_IPAM_ETCD_PASSWORD_FILE', passwordFile)
          .toString()
          .replace(/\r?\n$/, '');
  if (violations.length > 0) throw violationsFailure('INVALID_SETTINGS', 'Settings refused', violations);
  return {
    tls: ca || client ? { ca: ca ?? Buffer.from(rootCertificates.join('\n')), client } : undefined,
    user: username === undefined ? undefined : { name: username, password },
  };
}

/** Whether two sets of credentials are the same, byte by byte. */
export function sameCredentials(a: Credentials, b: Credentials): boolean {
  return fingerprint(a) === fingerprint(b);
}

function fingerprint({ tls, user }: Credentials): string {
  const { ca, client } = tls ?? {};
  const parts = [ca, client?.key, client?.certificate].map((bytes) => bytes?.toString('base64'));
  return JSON.stringify([...parts, user?.name, user?.password]);
}
