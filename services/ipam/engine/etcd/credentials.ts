import { Failure, violationsFailure, type Violation } from '@podwire/shared/failure/failure';
import {
  isSameMaterial,
  readNamedFile,
  readTlsFiles,
  type NamedFile,
  type TlsFiles,
  type TlsMaterial,
} from '@podwire/shared/tls/tls-files';

/** File names of the credentials of this process and of etcd's authorities. */
export interface CredentialFiles {
  /** Certificates of the authorities that sign etcd's certificate; undefined for Node.js's own authorities. */
  readonly caFile: string | undefined;
  /** This process's certificate and its key, both or neither. */
  readonly certFile: string | undefined;
  readonly keyFile: string | undefined;
  /** User of etcd; undefined without authentication. */
  readonly username: string | undefined;
  readonly passwordFile: string | undefined;
}

export interface Credentials {
  readonly tls: TlsMaterial;
  readonly user: { readonly name: string; readonly password: string } | undefined;
}

/** The certificate for etcd, with the setting that names it. */
export function etcdCertificate(path: string): NamedFile {
  return { setting: 'PODWIRE_IPAM_ETCD_CERT_FILE', path };
}

/**
 * Reads the files. TLS files are replaced one after another, so they may not match meanwhile.
 * @throws Failure INVALID_SETTINGS that lists every file that cannot be read or used
 */
export function readCredentials(files: CredentialFiles): Credentials {
  const violations: Violation[] = [];
  const attempt = <Result>(read: () => Result): Result | undefined => {
    try {
      return read();
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      violations.push(...error.violations);
      return undefined;
    }
  };
  const tls = attempt(() => readTlsFiles(tlsFilesOf(files)));
  const user = attempt(() => readUser(files));
  if (!tls || violations.length > 0) throw violationsFailure('INVALID_SETTINGS', 'Settings refused', violations);
  return { tls, user };
}

function tlsFilesOf({ caFile, certFile, keyFile }: CredentialFiles): TlsFiles {
  const named = (setting: string, path: string | undefined) => (path === undefined ? undefined : { setting, path });
  const certificate = certFile === undefined ? undefined : etcdCertificate(certFile);
  const key = named('PODWIRE_IPAM_ETCD_KEY_FILE', keyFile);
  return { ca: named('PODWIRE_IPAM_ETCD_CA_FILE', caFile), identity: certificate && key && { certificate, key } };
}

function readUser({ username: name, passwordFile }: CredentialFiles): Credentials['user'] {
  if (name === undefined || passwordFile === undefined) return undefined;
  const file = { setting: 'PODWIRE_IPAM_ETCD_PASSWORD_FILE', path: passwordFile };
  return {
    name,
    password: readNamedFile(file)
      .toString()
      .replace(/\r?\n$/, ''),
  };
}

/** Whether two sets of credentials are the same, byte by byte. */
export function sameCredentials(a: Credentials, b: Credentials): boolean {
  return isSameMaterial(a.tls, b.tls) && a.user?.name === b.user?.name && a.user?.password === b.user?.password;
}
