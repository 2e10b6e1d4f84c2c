import type { experimental } from '@grpc/grpc-js';

import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import { IPAM_SERVER_NAME } from './caller.js';
import { certificateEndMs, ExpiryWarning } from './certificate-expiry.js';
import {
  FileContent,
  filesOrigin,
  isSameMaterial,
  type TlsFiles,
  type TlsMaterial,
  type TlsOrigin,
} from './tls-files.js';

/** Interval between two readings of the origin, in milliseconds. Kubernetes updates a mounted Secret within a minute or two. */
const READ_INTERVAL_MS = 10_000;

export interface CertificateSourceOptions {
  readonly origin: TlsOrigin;
  readonly clock: Clock;
  readonly log: Logger;
}

type CaListener = Parameters<experimental.CertificateProvider['addCaCertificateListener']>[0];
type IdentityListener = Parameters<experimental.CertificateProvider['addIdentityCertificateListener']>[0];

/**
 * The certificates of one side, as gRPC takes them for each new connection. Their origin is read again while the process
 * runs; files that cannot be used are reported, and the last usable ones stay in force. gRPC's own provider refuses every
 * connection from the moment at which one file of a pair is replaced.
 */
export class CertificateSource implements experimental.CertificateProvider {
  readonly #options: CertificateSourceOptions;
  readonly #caListeners = new Set<CaListener>();
  readonly #identityListeners = new Set<IdentityListener>();
  readonly #expiry: ExpiryWarning | undefined;
  readonly #files: FileContent<TlsMaterial>;
  /** Ends the reading; undefined while nothing listens. */
  #following: AbortController | undefined;

  /** @throws Failure INVALID_SETTINGS that lists every file that cannot be read or used */
  constructor(options: CertificateSourceOptions) {
    const { origin, clock, log } = options;
    this.#options = options;
    this.#files = new FileContent({
      read: origin.read,
      isSame: isSameMaterial,
      report: ({ message }) => log.warn(`TLS certificates: the former ones stay in use: ${message}`),
    });
    this.#expiry = origin.certificate && new ExpiryWarning({ file: origin.certificate, clock, log });
  }

  /** Whether this side shows a certificate. */
  get hasIdentity(): boolean {
    return this.#files.content.identity !== undefined;
  }

  /** When the certificate that this side shows expires, in epoch milliseconds; undefined: it shows none. */
  get endMs(): number | undefined {
    const { identity } = this.#files.content;
    return identity && certificateEndMs(identity.certificate);
  }

  addCaCertificateListener(listener: CaListener): void {
    this.#caListeners.add(listener);
    this.#startOrStop();
    // gRPC registers what the listener updates after this call.
    queueMicrotask(() => listener(this.#caUpdate()));
  }

  removeCaCertificateListener(listener: CaListener): void {
    this.#caListeners.delete(listener);
    this.#startOrStop();
  }

  addIdentityCertificateListener(listener: IdentityListener): void {
    this.#identityListeners.add(listener);
    this.#startOrStop();
    queueMicrotask(() => listener(this.#identityUpdate()));
  }

  removeIdentityCertificateListener(listener: IdentityListener): void {
    this.#identityListeners.delete(listener);
    this.#startOrStop();
  }

  #caUpdate(): Parameters<CaListener>[0] {
    const { ca } = this.#files.content;
    return ca ? { caCertificate: ca } : null;
  }

  #identityUpdate(): Parameters<IdentityListener>[0] {
    const { identity } = this.#files.content;
    return identity ? { certificate: identity.certificate, privateKey: identity.key } : null;
  }

  /** The origin is read while gRPC listens to them: while a server listens or a channel is open. */
  #startOrStop(): void {
    const isWanted = this.#caListeners.size + this.#identityListeners.size > 0;
    if (isWanted && !this.#following) {
      this.#following = new AbortController();
      this.#warnBeforeExpiry();
      void this.#follow(this.#following.signal);
    } else if (!isWanted) {
      this.#following?.abort();
      this.#following = undefined;
    }
  }

  async #follow(stopped: AbortSignal): Promise<void> {
    const { clock } = this.#options;
    while ((await clock.sleep(READ_INTERVAL_MS, stopped)) === 'elapsed') this.#readAgain();
  }

  #readAgain(): void {
    if (this.#files.readAgain()) {
      for (const listener of this.#caListeners) listener(this.#caUpdate());
      for (const listener of this.#identityListeners) listener(this.#identityUpdate());
      this.#options.log.info('TLS certificates: read new ones; new connections use them');
    }
    this.#warnBeforeExpiry();
  }

  #warnBeforeExpiry(): void {
    const { identity } = this.#files.content;
    if (identity) this.#expiry?.check(identity.certificate);
  }
}

/** How a client and a server prove to each other who they are. */
export interface ClientTls {
  readonly certificates: CertificateSource;
  /** DNS name in the server's certificate. It does not depend on the address, which may be any of several hosts. */
  readonly serverName: string;
}

/**
 * Credentials of a client of podwire-ipam.
 * @param files - undefined for plain text
 * @throws Failure INVALID_SETTINGS that lists every file that cannot be read or used
 */
export function ipamTls(
  files: TlsFiles | undefined,
  options: Omit<CertificateSourceOptions, 'origin'>,
): ClientTls | undefined {
  if (!files) return undefined;
  const certificates = new CertificateSource({ origin: filesOrigin(files), ...options });
  return { certificates, serverName: IPAM_SERVER_NAME };
}
