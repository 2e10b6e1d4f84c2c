import type { X509Certificate } from 'node:crypto';

import { Failure } from '@podwire/shared/failure/failure';
import { backoffMs, type BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';

import { failureLine } from '../output/words.js';
import {
  areSameAuthorities,
  commonNameOf,
  inspect,
  momentOf,
  parseCertificates,
  timeText,
  type Inspection,
} from './certificate.js';
import type { CertificateDirectory } from './certificate-directory.js';
import { ISSUER_OPTIONS, readIssuerFile, type Issuer, type requestCertificate } from './certificate-request.js';

/** Part of its life after which a certificate is renewed. A random part is added, as all nodes may start at once. */
const RENEWAL_PART = 1 / 2;
const RENEWAL_SPREAD_PART = 1 / 10;

/** Part of its life that a certificate has left when the warnings begin. */
const WARNING_PART = 1 / 10;

/** Interval between two warnings, in milliseconds. */
const WARNING_INTERVAL_MS = 3_600_000;

/** Timeout of one request, in milliseconds. */
const REQUEST_TIMEOUT_MS = 10_000;

/** Interval between two readings of the files, in milliseconds. */
const READ_INTERVAL_MS = 5000;

/** Back-off for a file that does not exist yet, in milliseconds: a read costs the service nothing. */
const FILE_RETRY_MS = 1000;

/** Back-off while the node has no usable certificate, and while it has one. */
const URGENT_BACKOFF: BackoffBounds = { baseMs: 500, maxMs: 30_000 };
const RENEWAL_BACKOFF: BackoffBounds = { baseMs: 5000, maxMs: 300_000 };

/** Longest time until the next request after a success, in milliseconds. A service with a defect is not flooded. */
const AFTER_SUCCESS_MS = 60_000;

/** Failures that are remembered, so that each is logged once. More of them contain something that changes, such as a trace. */
const MAX_REPORTED = 50;

export interface EnrolmentOptions {
  readonly issuer: Issuer;
  readonly directory: CertificateDirectory;
  readonly request: typeof requestCertificate;
  readonly clock: Clock;
  readonly log: Logger;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
}

/** A usable certificate. */
export type Held = Extract<Inspection, { readonly usable: true }>;

/** The result of {@link Enrolment.obtain}. */
export interface Obtained {
  readonly held: Held;
  readonly state: 'issued' | 'unchanged';
}

/** One look at the files, and one request where a certificate is due. */
interface Round {
  /** Undefined where there is no usable certificate. */
  readonly held: Held | undefined;
  readonly isIssued: boolean;
  /** Why a certificate that is due was not issued. */
  readonly failure: Failure | undefined;
}

/** The files as they were read. */
interface Look {
  readonly caText: string;
  readonly inspection: Inspection | undefined;
  /** Why another certificate is due; undefined while none is. */
  readonly due: string | undefined;
}

interface RoundLimits {
  readonly signal: AbortSignal;
  readonly timeoutMs: number;
}

/**
 * Keeps the certificate of a node. Requests one where there is none, where it cannot be used, where half of its life is
 * over, and where the trusted authorities have changed.
 *
 * Hard about it: podwire-ipam may be down for as long as a certificate is valid, so a usable one is kept. The authorities
 * and the token are files that change, and may not exist yet. An authority that is in the answer of podwire-ipam and not
 * in the file must not cause a request per look.
 */
export class Enrolment {
  readonly #options: EnrolmentOptions;
  readonly #renewalPart: number;
  readonly #reported = new Set<string>();
  /** Content of the file of authorities at the last look. */
  #caText: string | undefined;
  /** The last success: the authorities of its answer belong to this content of the file. */
  #accepted: { readonly caText: string; readonly authorities: readonly X509Certificate[] } | undefined;
  #warnedAtMs = -Infinity;

  constructor(options: EnrolmentOptions) {
    this.#options = options;
    this.#renewalPart = RENEWAL_PART + RENEWAL_SPREAD_PART * options.random();
  }

  /**
   * Waits until there is a usable certificate. One that cannot be renewed now is kept.
   * @param deadlineMs - epoch milliseconds; undefined to retry without a limit
   * @throws Failure CANCELLED when the signal fires, DEADLINE_EXCEEDED with the last failure
   */
  async obtain(signal: AbortSignal, deadlineMs?: number): Promise<Obtained> {
    const { clock, directory } = this.#options;
    for (let attempt = 0; ; attempt++) {
      const leftMs = (deadlineMs ?? Infinity) - clock.nowMs();
      const round = await this.#round({ signal, timeoutMs: Math.max(1, Math.min(REQUEST_TIMEOUT_MS, leftMs)) });
      const { held, failure, isIssued } = round;
      if (held) return { held, state: isIssued ? 'issued' : 'unchanged' };
      if (signal.aborted)
        throw new Failure('CANCELLED', `certificate in ${directory.path}: stopped before it was issued`);
      const untilDeadlineMs = (deadlineMs ?? Infinity) - clock.nowMs();
      await this.#pause(Math.min(this.#delayMs(round, attempt), untilDeadlineMs), signal);
      // An attempt without time would hide why the earlier one failed.
      if (deadlineMs !== undefined && clock.nowMs() >= deadlineMs) throw this.#overdue(failure);
    }
  }

  /** Keeps the certificate until the signal fires. */
  async follow(signal: AbortSignal): Promise<void> {
    let failures = 0;
    while (!signal.aborted) {
      const round = await this.#round({ signal, timeoutMs: REQUEST_TIMEOUT_MS });
      this.#warnBeforeExpiry(round.held);
      await this.#pause(this.#delayMs(round, failures), signal);
      failures = round.failure ? failures + 1 : 0;
    }
  }

  async #round({ signal, timeoutMs }: RoundLimits): Promise<Round> {
    let held: Held | undefined;
    try {
      const look = await this.#look();
      held = look.inspection?.usable ? look.inspection : undefined;
      if (look.due === undefined) return { held, isIssued: false, failure: undefined };
      this.#report('info', `certificate in ${this.#options.directory.path}: ${look.due}; requesting one`);
      return { held: await this.#request(look.caText, { signal, timeoutMs }), isIssued: true, failure: undefined };
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      const next = held ? `the certificate stays in use until ${timeText(held.life.untilMs)}` : 'retrying';
      if (!signal.aborted) this.#report('warn', `${failureLine(error)}; ${next}`);
      return { held, isIssued: false, failure: error };
    }
  }

  /** @throws Failure INVALID_SETTINGS while the file of authorities cannot be used, STATE_IO */
  async #look(): Promise<Look> {
    const { issuer, directory, clock } = this.#options;
    this.#caText = undefined;
    const caText = await readIssuerFile(issuer, 'caFile');
    this.#caText = caText;
    const trusted = this.#trustedBy(caText);
    const files = await directory.read();
    if (!files) return { caText, inspection: undefined, due: 'there is none' };
    const inspection = inspect(files, trusted, clock.nowMs());
    if (!inspection.usable) return { caText, inspection, due: inspection.fault };
    const isAccepted = this.#accepted?.caText === caText;
    if (!isAccepted && !areSameAuthorities(trusted, parseCertificates(files.authorities)))
      return { caText, inspection, due: `the authorities of ${ISSUER_OPTIONS.caFile} have changed` };
    const isOld = clock.nowMs() >= momentOf(inspection.life, this.#renewalPart);
    return { caText, inspection, due: isOld ? 'half of its life is over' : undefined };
  }

  #trustedBy(caText: string): readonly X509Certificate[] {
    const { caFile } = this.#options.issuer;
    const accepted = this.#accepted?.caText === caText ? this.#accepted.authorities : [];
    try {
      const trusted = parseCertificates(caText);
      if (trusted.length > 0) return [...trusted, ...accepted];
    } catch {
      // Reported below.
    }
    const advice = "write the certificate of podwire-ipam's authority to it, in PEM";
    throw new Failure('INVALID_SETTINGS', `${ISSUER_OPTIONS.caFile} ${caFile}: is not a certificate; ${advice}`);
  }

  /** @throws Failure; the earlier certificate is unchanged */
  async #request(caText: string, limits: RoundLimits): Promise<Held> {
    const { issuer, directory, request, log } = this.#options;
    // Before the request: a certificate that cannot be stored would be issued at each attempt.
    await directory.prepare();
    const { files, inspection } = await request(issuer, this.#options, limits);
    await directory.write(files);
    this.#accepted = { caText, authorities: parseCertificates(files.authorities) };
    this.#reported.clear();
    this.#warnedAtMs = -Infinity;
    const { certificate, life } = inspection;
    const [end, renewal] = [life.untilMs, momentOf(life, this.#renewalPart)].map(timeText);
    const node = JSON.stringify(commonNameOf(certificate));
    log.info(`certificate of node ${node}: issued, valid until ${end}, renewed from ${renewal} on`);
    return inspection;
  }

  #delayMs({ held, isIssued, failure }: Round, attempt: number): number {
    const { clock, random } = this.#options;
    if (failure?.code === 'INVALID_SETTINGS') return FILE_RETRY_MS;
    if (failure) return backoffMs(attempt, held ? RENEWAL_BACKOFF : URGENT_BACKOFF, random());
    const leftMs = (held?.life.untilMs ?? 0) - clock.nowMs();
    return isIssued ? Math.min(AFTER_SUCCESS_MS, leftMs / 4) : Math.min(READ_INTERVAL_MS, leftMs / 4);
  }

  /** Ends early when the file of authorities changes, or the signal fires. */
  async #pause(durationMs: number, signal: AbortSignal): Promise<void> {
    const { clock, issuer } = this.#options;
    for (let leftMs = durationMs; leftMs > 0; leftMs -= READ_INTERVAL_MS) {
      if ((await clock.sleep(Math.min(leftMs, READ_INTERVAL_MS), signal)) === 'aborted') return;
      const caText = await readIssuerFile(issuer, 'caFile').catch(() => undefined);
      if (caText !== this.#caText) return;
    }
  }

  #report(level: 'info' | 'warn', message: string): void {
    if (this.#reported.has(message)) return;
    if (this.#reported.size >= MAX_REPORTED) this.#reported.clear();
    this.#reported.add(message);
    this.#options.log[level](message);
  }

  #warnBeforeExpiry(held: Held | undefined): void {
    const { clock, log, directory } = this.#options;
    const nowMs = clock.nowMs();
    if (!held || nowMs < momentOf(held.life, 1 - WARNING_PART) || nowMs - this.#warnedAtMs < WARNING_INTERVAL_MS)
      return;
    this.#warnedAtMs = nowMs;
    const end = timeText(held.life.untilMs);
    log.warn(`certificate in ${directory.path}: expires at ${end} and is not renewed; correct the earlier failures`);
  }

  #overdue(cause: Failure | undefined): Failure {
    const reason = cause ? failureLine(cause) : 'no attempt was made';
    const subject = `certificate in ${this.#options.directory.path}`;
    return new Failure('DEADLINE_EXCEEDED', `${subject}: not issued in time; raise --timeout: ${reason}`, { cause });
  }
}
