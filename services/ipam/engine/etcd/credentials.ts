import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createSecureContext, rootCertificates } from 'node:tls';

import { InterceptingCall, type Interceptor } from '@grpc/grpc-js';
import { violationsFailure, type Violation } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import type { Clock } from '@podwire/shared/runtime/clock';
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
  /** Undefined when only the URL's scheme selects TLS. */
  readonly tls:
    | {
        readonly ca: Buffer;
        readonly client: { readonly key: Buffer; readonly certificate: Buffer } | undefined;
      }
    | undefined;
  readonly user: { readonly name: string; readonly password: string } | undefined;
}

/**
 * Reads the files. TLS files are replaced one after another, so they may not match meanwhile.
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
  if (violations.length === 0) violations.push(...credentialFaults(ca, client));
  if (violations.length > 0) throw violationsFailure('INVALID_SETTINGS', 'Settings refused', violations);
  return {
    tls: ca || client ? { ca: ca ?? Buffer.from(rootCertificates.join('\n')), client } : undefined,
    user: username === undefined ? undefined : { name: username, password },
  };
}

/** Checks what TLS would refuse only at the first connection, without naming the file. */
function credentialFaults(
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

interface CertificateLifeOptions {
  /** PEM; the process's own certificate first. */
  readonly file: string;
  readonly clock: Clock;
  /** Reports that the certificate expires soon, or has expired. Must not throw. */
  readonly reportExpiry: (end: Date, hasEnded: boolean) => void;
}

/** Later than usual renewals, at a third or a fifth of the lifetime. */
const WARNING_FRACTION = 1 / 10;

/** An hour, with a run every 30 s. */
const RUNS_PER_CHECK = 120;

/**
 * Warns before the client certificate for etcd expires. A connection outlives its certificate, so the expiry would
 * otherwise show only when the next connection is refused.
 */
export class CertificateExpiryCheck {
  readonly #options: CertificateLifeOptions;
  #runs = 0;

  constructor(options: CertificateLifeOptions) {
    this.#options = options;
  }

  /** Call it periodically; checks at the first call and then hourly. */
  run(): void {
    if (this.#runs++ % RUNS_PER_CHECK > 0) return;
    const { clock, reportExpiry } = this.#options;
    const validity = this.#validity();
    const nowMs = clock.nowMs();
    if (!validity || validity.endMs - nowMs > (validity.endMs - validity.beginMs) * WARNING_FRACTION) return;
    reportExpiry(new Date(validity.endMs), validity.endMs <= nowMs);
  }

  /** @returns undefined for a file that cannot be read, as during its replacement; its next use reports that */
  #validity(): { readonly beginMs: number; readonly endMs: number } | undefined {
    try {
      const { validFrom, validTo } = new X509Certificate(readFileSync(this.#options.file));
      return { beginMs: Date.parse(validFrom), endMs: Date.parse(validTo) };
    } catch {
      return undefined;
    }
  }
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
