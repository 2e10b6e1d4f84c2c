import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';

import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import type { NamedFile } from './tls-files.js';

/** Part of its life that a certificate has left when the warnings begin. Issuers renew it when a third or a fifth is left. */
const WARNING_PART = 1 / 10;

/** Interval between two warnings, in milliseconds. */
const WARNING_INTERVAL_MS = 3_600_000;

/** @param certificate - PEM, the own certificate first @returns when it expires, in epoch milliseconds */
export function certificateEndMs(certificate: Buffer): number {
  return Date.parse(new X509Certificate(certificate).validTo);
}

export interface ExpiryWarningOptions {
  /** The own certificate, for which the other side of a connection asks. */
  readonly file: NamedFile;
  readonly clock: Clock;
  readonly log: Logger;
}

/**
 * Warns before a certificate expires, at most hourly. A connection outlives its certificate, so the expiry would otherwise
 * show only when the next connection is refused.
 */
export class ExpiryWarning {
  readonly #options: ExpiryWarningOptions;
  #warnedAtMs = -Infinity;

  constructor(options: ExpiryWarningOptions) {
    this.#options = options;
  }

  /** Call it periodically. @param certificate - PEM, the own certificate first */
  check(certificate: Buffer): void {
    const { file, clock, log } = this.#options;
    const nowMs = clock.nowMs();
    if (nowMs - this.#warnedAtMs < WARNING_INTERVAL_MS) return;
    const { validFrom, validTo } = new X509Certificate(certificate);
    const endMs = Date.parse(validTo);
    if (endMs - nowMs > (endMs - Date.parse(validFrom)) * WARNING_PART) return;
    this.#warnedAtMs = nowMs;
    const { setting, path } = file;
    const end = new Date(endMs).toISOString();
    if (endMs > nowMs) log.warn({ path, end }, `certificate ${path} of ${setting}: expires at ${end}; renew it`);
    else
      log.error({ path, end }, `certificate ${path} of ${setting}: expired at ${end}; new connections fail; renew it`);
  }

  /** {@link check} of what the file holds. One that cannot be read, as during its replacement, is reported by its next use. */
  checkFile(): void {
    try {
      this.check(readFileSync(this.#options.file.path));
    } catch {
      // See above.
    }
  }
}
