import { InterceptingCall, type Interceptor } from '@grpc/grpc-js';
import { Failure, violationsFailure, type Violation } from '@podwire/shared/failure/failure';
import {
  isSameMaterial,
  readNamedFile,
  readTlsFiles,
  type NamedFile,
  type TlsFiles,
  type TlsMaterial,
} from '@podwire/shared/tls/tls-files';
import type { Etcd3 } from 'etcd3';

/** File names of the credentials of this process and of etcd's authorities. */
export interface CredentialFiles {
  /** Certificates of the authorities that sign etcd's certificate; undefined for those of Node.js. */
  readonly caFile: string | undefined;
  /** This process's certificate and its key, both or neither. */
  readonly certFile: string | undefined;
  readonly keyFile: string | undefined;
  /** Undefined for none. */
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

/**
 * How etcd refuses a token that it issued (api/v3rpc/rpctypes/error.go): it has expired, or was lost with a restart or
 * a new password; or, for a JSON web token, users or roles have changed since. The request has not been executed.
 */
const STALE_TEXTS = ['etcdserver: invalid auth token', 'etcdserver: revision of auth store is old'];

/** Replaces etcd's own text for an invalid token: etcd3 retries a call that fails with that exact text, without end. */
const STALE_TOKEN_MESSAGE = 'etcd rejects the token';

/**
 * A user's token, sent with every request. It replaces etcd3's own, which is kept until etcd reports it as invalid, and
 * is fetched on a separate connection without a timeout and through any proxy in the environment.
 */
export class UserToken {
  readonly #user: NonNullable<Credentials['user']>;
  #latest: Promise<string> | undefined;

  constructor(user: NonNullable<Credentials['user']>) {
    this.#user = user;
  }

  /** The current token; requests one if there is none. @throws Error of etcd3 */
  get({ auth }: Etcd3): Promise<string> {
    const { name, password } = this.#user;
    if (this.#latest) return this.#latest;
    const pending = auth.authenticate({ name, password }).then(({ token }) => token);
    this.#latest = pending;
    pending.catch(() => this.forget(pending));
    return pending;
  }

  /** Drops a refused token, so that the next call requests a new one. */
  forget(pending: Promise<string>): void {
    if (this.#latest === pending) this.#latest = undefined;
  }
}

/** Whether a request failed only because of its token. */
export function isStaleTokenError(error: unknown): boolean {
  return error instanceof Error && [STALE_TOKEN_MESSAGE, ...STALE_TEXTS].some((text) => error.message.includes(text));
}

/** Adds a token to each call. */
export function withToken(token: string): Interceptor {
  return (options, nextCall) =>
    new InterceptingCall(nextCall(options), {
      start: (metadata, _listener, next) => {
        // etcd3 uses one object for all calls.
        const own = metadata.clone();
        own.set('token', token);
        next(own, {
          onReceiveStatus: (status, forward) => {
            const isStale = STALE_TEXTS.some((text) => status.details.includes(text));
            forward(isStale ? { ...status, details: STALE_TOKEN_MESSAGE } : status);
          },
        });
      },
    });
}
