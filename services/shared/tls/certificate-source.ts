import { X509Certificate } from 'node:crypto';

import type { experimental } from '@grpc/grpc-js';

import { Failure } from '../failure/failure.js';
import { messageOf } from '../failure/thrown.js';
import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import { IPAM_SERVER_NAME } from './caller.js';
import { filesOrigin, isSameMaterial, type TlsFiles, type TlsMaterial, type TlsOrigin } from './tls-files.js';

/** Interval between two readings of the origin, in milliseconds. Kubernetes updates a mounted Secret within a minute or two. */
const READ_INTERVAL_MS = 10_000;

/** Part of its life that a certificate has left when the warnings begin. Issuers renew it when a third or a fifth is left. */
const WARNING_PART = 1 / 10;

/** Interval between two warnings, in milliseconds. */
const WARNING_INTERVAL_MS = 3_600_000;

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
  #material: TlsMaterial;
  /** The fault that was logged last; undefined once the files are usable again. */
  #reportedFault: string | undefined;
  #warnedAtMs = -Infinity;
  /** Ends the reading; undefined while nothing listens. */
  #following: AbortController | undefined;

  /** @throws Failure INVALID_SETTINGS that lists every file that cannot be read or used */
  constructor(options: CertificateSourceOptions) {
    this.#options = options;
    this.#material = options.origin.read();
  }

  /** Whether this side shows a certificate. */
  get hasIdentity(): boolean {
    return this.#material.identity !== undefined;
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
    const { ca } = this.#material;
    return ca ? { caCertificate: ca } : null;
  }

  #identityUpdate(): Parameters<IdentityListener>[0] {
    const { identity } = this.#material;
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
    const { origin, log } = this.#options;
    try {
      const material = origin.read();
      this.#reportedFault = undefined;
      if (!isSameMaterial(material, this.#material)) {
        this.#material = material;
        for (const listener of this.#caListeners) listener(this.#caUpdate());
        for (const listener of this.#identityListeners) listener(this.#identityUpdate());
        log.info('TLS certificates: read new ones; new connections use them');
      }
    } catch (error) {
      const fault = error instanceof Failure ? faultText(error) : messageOf(error);
      if (fault !== this.#reportedFault) log.warn(`TLS certificates: the former ones stay in use: ${fault}`);
      this.#reportedFault = fault;
    }
    this.#warnBeforeExpiry();
  }

  /** A connection outlives its certificate, so an expiry would show only when the next connection is refused. */
  #warnBeforeExpiry(): void {
    const { origin, clock, log } = this.#options;
    const nowMs = clock.nowMs();
    const { identity } = this.#material;
    if (!identity || nowMs - this.#warnedAtMs < WARNING_INTERVAL_MS) return;
    const { validFrom, validTo } = new X509Certificate(identity.certificate);
    const endMs = Date.parse(validTo);
    if (endMs - nowMs > (endMs - Date.parse(validFrom)) * WARNING_PART) return;
    this.#warnedAtMs = nowMs;
    const path = origin.certificateName;
    const end = new Date(endMs).toISOString();
    if (endMs > nowMs) log.warn({ path, end }, `certificate ${path}: expires at ${end}; renew it`);
    else log.error({ path, end }, `certificate ${path}: expired at ${end}; no new connection is accepted; renew it`);
  }
}

function faultText({ message, violations }: Failure): string {
  return violations.length === 0 ? message : violations.map(({ field, reason }) => `${field} ${reason}`).join('; ');
}

/** How a client and a server prove to each other who they are. */
export interface ClientTls {
  readonly certificates: CertificateSource;
  /** DNS name in the server's certificate. It does not depend on the address, which may be any of several hosts. */
  readonly serverName: string;
}

/**
 * What a client of podwire-ipam connects with.
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
