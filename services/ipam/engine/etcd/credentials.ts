import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createSecureContext, rootCertificates } from 'node:tls';

import { violationsFailure, type Violation } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';

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
 * Reads the files as they are now. Those of TLS are replaced one after the other: until all are, they may be none to connect with.
 * @throws Failure INVALID_SETTINGS that lists every file that cannot be read or used
 */
export function readCredentials(files: CredentialFiles): Credentials {
  const violations: Violation[] = [];
  const read = (variable: string, path: string): Buffer => {
    try {
      return readFileSync(path);
    } catch (error) {
      const reason = messageOf(error);
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
  if (violations.length === 0) violations.push(...unusable(ca, client));
  if (violations.length > 0) throw violationsFailure('INVALID_SETTINGS', 'Settings refused', violations);
  return {
    tls: ca || client ? { ca: ca ?? Buffer.from(rootCertificates.join('\n')), client } : undefined,
    user: username === undefined ? undefined : { name: username, password },
  };
}

/** What TLS would refuse only once a connection is made with it, and then without a word of which file is meant. */
function unusable(
  ca: Buffer | undefined,
  client: { readonly key: Buffer; readonly certificate: Buffer } | undefined,
): readonly Violation[] {
  const violations: Violation[] = [];
  const check = (field: string, what: string, use: () => unknown): void => {
    try {
      use();
    } catch (error) {
      const reason = messageOf(error);
      violations.push({ field, reason: `${what}: ${reason}` });
    }
  };
  if (ca) check('PODWIRE_IPAM_ETCD_CA_FILE', 'names a file without a certificate', () => new X509Certificate(ca));
  if (!client) return violations;
  const { key, certificate: cert } = client;
  check('PODWIRE_IPAM_ETCD_CERT_FILE', 'names a file without a certificate', () => createSecureContext({ cert }));
  check('PODWIRE_IPAM_ETCD_KEY_FILE', 'names a file without a key', () => createSecureContext({ key }));
  if (violations.length > 0) return violations;
  check('PODWIRE_IPAM_ETCD_KEY_FILE', 'names a key that does not belong to the certificate', () =>
    createSecureContext({ cert, key }),
  );
  return violations;
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
