import { X509Certificate } from 'node:crypto';

import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import type { Authority, IssuedCertificate, Validity } from '@podwire/shared/tls/authority';
import {
  CLOCK_TOLERANCE_MS,
  type AuthorityDirectory,
  type StoredAuthority,
} from '@podwire/shared/tls/authority-directory';
import { splitCertificates, type TlsMaterial } from '@podwire/shared/tls/tls-files';

import type { AuthorityConfigMap } from './authority-config-map.js';

const DAY_MS = 86_400_000;

/** podwire-ipam makes its own certificate again when half of this is over. */
const SERVER_LIFE_MS = 90 * DAY_MS;

export interface OwnAuthorityOptions {
  readonly directory: AuthorityDirectory;
  /** Where the nodes learn which authority to trust; undefined outside of Kubernetes. */
  readonly publication?: Pick<AuthorityConfigMap, 'read' | 'replace' | 'subject'> | undefined;
  readonly clock: Clock;
  readonly log: Logger;
}

interface State extends StoredAuthority {
  readonly server: IssuedCertificate;
  readonly renewAtMs: number;
}

/**
 * The authority that podwire-ipam keeps itself: for its own certificate and operators' certificates. Another authority in
 * the directory, as after the rotation of a Secret, takes over without a restart.
 */
export class OwnAuthority {
  readonly #options: OwnAuthorityOptions;
  #state: State;

  private constructor(options: OwnAuthorityOptions, state: State) {
    this.#options = options;
    this.#state = state;
  }

  /**
   * Reads the directory, and creates an authority in an empty one.
   * @throws Failure INVALID_SETTINGS when the directory cannot be used, or is empty although nodes trust another
   * authority; UNREACHABLE, DEADLINE_EXCEEDED, ACCESS_DENIED where a new one cannot be published
   */
  static async open(options: OwnAuthorityOptions, signal: AbortSignal): Promise<OwnAuthority> {
    const { directory } = options;
    const stored = (await directory.read()) ?? (await createAuthority(options, signal));
    return new OwnAuthority(options, await withServerCertificate(stored, options.clock));
  }

  /** Certificates that podwire-ipam's listeners use now. */
  material(): TlsMaterial {
    const { certificates, server } = this.#state;
    return {
      ca: Buffer.from(certificates),
      identity: { certificate: Buffer.from(server.certificate), key: Buffer.from(server.key) },
    };
  }

  /**
   * Follows the directory, renews podwire-ipam's own certificate, and publishes the authority. Idempotent; to be called
   * again and again.
   * @throws Failure INVALID_SETTINGS when the directory has become unusable, which changes nothing; UNREACHABLE,
   * DEADLINE_EXCEEDED, ACCESS_DENIED of the API server
   */
  async maintain(signal: AbortSignal): Promise<void> {
    const { directory, clock, log } = this.#options;
    const stored = await directory.read();
    if (!stored) throw new Failure('INVALID_SETTINGS', 'authority: its directory is empty; restore ca.crt and ca.key');
    const isReplaced = stored.certificates !== this.#state.certificates;
    if (isReplaced) log.info('certificate authority: read another one');
    if (isReplaced || clock.nowMs() >= this.#state.renewAtMs) {
      this.#state = await withServerCertificate(stored, clock);
    }
    await this.#publish(signal);
  }

  async #publish(signal: AbortSignal): Promise<void> {
    const { publication, clock, log } = this.#options;
    if (!publication) return;
    const published = await publication.read(signal);
    const known = splitCertificates(published.certificates);
    const missing = splitCertificates(this.#state.certificates).filter((certificate) => !known.includes(certificate));
    if (missing.length === 0) return;
    const kept = known.filter((certificate) => isValidAt(certificate, clock.nowMs()));
    const certificates = [...missing, ...kept].join('');
    if (await publication.replace({ ...published, certificates }, signal))
      log.info(`certificate authority: published in ${publication.subject}`);
  }
}

/**
 * Creates the authority of an empty directory. Refused when nodes already trust one: the storage was lost, or podwire-ipam
 * was started on another node, where it would also begin with an empty datastore.
 */
async function createAuthority(options: OwnAuthorityOptions, signal: AbortSignal): Promise<StoredAuthority> {
  const { directory, publication, clock, log } = options;
  const published = await publication?.read(signal);
  if (publication && published && splitCertificates(published.certificates).length > 0) {
    throw new Failure(
      'INVALID_SETTINGS',
      `${publication.subject}: has the certificate of another authority, and the storage of this podwire-ipam is empty; run it on the node with its storage, or restore that. To begin with a new authority, empty the ConfigMap`,
    );
  }
  const stored = await directory.create(clock.nowMs());
  if (!stored)
    throw new Failure('UNREACHABLE', 'authority: another process makes one in its directory; it is read again');
  const { certificates } = stored;
  if (publication && published) {
    const isPublished = await publication
      .replace({ ...published, certificates }, signal)
      .catch(async (error: unknown) => {
        await directory.clear();
        throw error;
      });
    if (!isPublished) {
      await directory.clear();
      throw new Failure('UNREACHABLE', `${publication.subject}: was changed by another process; it is read again`);
    }
  }
  log.info('certificate authority: created');
  return stored;
}

async function withServerCertificate(stored: StoredAuthority, clock: Clock): Promise<State> {
  const validity = validityOf(clock, SERVER_LIFE_MS, stored.authority);
  const server = await stored.authority.issueServer(validity);
  return { ...stored, server, renewAtMs: (validity.fromMs + validity.untilMs) / 2 };
}

/** No certificate outlives its authority. */
function validityOf(clock: Clock, lifeMs: number, { untilMs }: Authority): Validity {
  const nowMs = clock.nowMs();
  return { fromMs: nowMs - CLOCK_TOLERANCE_MS, untilMs: Math.min(nowMs + lifeMs, untilMs) };
}

/** An unreadable certificate is not kept. */
function isValidAt(certificate: string, nowMs: number): boolean {
  try {
    return Date.parse(new X509Certificate(certificate).validTo) > nowMs;
  } catch {
    return false;
  }
}
