import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';

import type { Clock } from '@podwire/shared/runtime/clock';

export interface CertificateLifeOptions {
  /** PEM; the process's own certificate first. */
  readonly file: string;
  readonly clock: Clock;
  /** Told that the certificate ends soon, or has ended. Must not throw. */
  readonly ending: (end: Date, hasEnded: boolean) => void;
}

/** Certificates are renewed when a third of their life is left, or a fifth. */
const LEFT_PART = 1 / 10;

/** Of runs that are half a minute apart, as a rule: an hour. */
const RUNS_PER_LOOK = 120;

/**
 * Tells in time that nobody has renewed the certificate that etcd is shown. A connection outlives the certificate that it was made
 * with, so that else nobody would know before the next one is refused.
 */
export class CertificateLife {
  readonly #options: CertificateLifeOptions;
  #runs = 0;

  constructor(options: CertificateLifeOptions) {
    this.#options = options;
  }

  /** To be called again and again; looks at the first call, and once in an hour. */
  run(): void {
    if (this.#runs++ % RUNS_PER_LOOK > 0) return;
    const { clock, ending } = this.#options;
    const span = this.#span();
    const nowMs = clock.nowMs();
    if (!span || span.endMs - nowMs > (span.endMs - span.beginMs) * LEFT_PART) return;
    ending(new Date(span.endMs), span.endMs <= nowMs);
  }

  /** @returns undefined for a file that cannot be read, as while it is replaced: that is told when it is used */
  #span(): { readonly beginMs: number; readonly endMs: number } | undefined {
    try {
      const { validFrom, validTo } = new X509Certificate(readFileSync(this.#options.file));
      return { beginMs: Date.parse(validFrom), endMs: Date.parse(validTo) };
    } catch {
      return undefined;
    }
  }
}
