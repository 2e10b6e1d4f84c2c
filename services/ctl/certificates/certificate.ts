import { createPrivateKey, X509Certificate } from 'node:crypto';

/** What can be said of certificates by their content alone. */

const PEM_CERTIFICATE = /-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g;

/**
 * The certificates of a PEM text, in its order; other blocks are ignored.
 * @throws Error for a block that is not a certificate
 */
export function parseCertificates(pem: string): X509Certificate[] {
  return (pem.match(PEM_CERTIFICATE) ?? []).map((block) => new X509Certificate(block));
}

/** From when until when a certificate holds, in epoch milliseconds. */
export interface Life {
  readonly fromMs: number;
  readonly untilMs: number;
}

export function lifeOf({ validFrom, validTo }: X509Certificate): Life {
  return { fromMs: Date.parse(validFrom), untilMs: Date.parse(validTo) };
}

/** A moment of a life. @param part - from 0 (the start) to 1 (the end) */
export function momentOf({ fromMs, untilMs }: Life, part: number): number {
  return fromMs + (untilMs - fromMs) * part;
}

/** The common name (CN); the whole subject where it has none. */
export function commonNameOf({ subject }: X509Certificate): string {
  return /^CN=(.*)$/m.exec(subject)?.[1] ?? subject;
}

/** A certificate with its key and the authorities of the other side, in PEM. */
export interface CertificateFiles {
  readonly certificate: string;
  readonly key: string;
  readonly authorities: string;
}

/** Part of a life, and time in milliseconds, that has to be left. The shorter one counts. */
const MARGIN_PART = 1 / 20;
const MARGIN_MS = 300_000;

/** The result of {@link inspect}: a usable certificate, or why it cannot be used. */
export type Inspection =
  | { readonly usable: true; readonly certificate: X509Certificate; readonly life: Life }
  | { readonly usable: false; readonly fault: string };

/**
 * Whether a certificate can be used now, and for some time.
 * @param trusted - authorities of which one has to have signed the certificate
 */
export function inspect(files: CertificateFiles, trusted: readonly X509Certificate[], nowMs: number): Inspection {
  const unusable = (fault: string): Inspection => ({ usable: false, fault });
  const certificate = firstOf(files.certificate);
  if (!certificate) return unusable('is not a certificate in PEM');
  if (!belongs(files.key, certificate)) return unusable('does not belong to its key');
  if (!trusted.some((authority) => isSignedBy(certificate, authority)))
    return unusable('is not signed by a trusted authority');
  if (!firstOf(files.authorities)) return unusable('is stored without authorities');
  const life = lifeOf(certificate);
  if (life.untilMs <= nowMs) return unusable(`expired at ${timeText(life.untilMs)}`);
  if (life.fromMs > nowMs) return unusable(`is valid from ${timeText(life.fromMs)} on`);
  const marginMs = Math.min(MARGIN_MS, (life.untilMs - life.fromMs) * MARGIN_PART);
  if (life.untilMs - nowMs < marginMs) return unusable(`expires at ${timeText(life.untilMs)}`);
  return { usable: true, certificate, life };
}

/** In RFC 3339 with seconds. */
export function timeText(ms: number): string {
  return new Date(ms).toISOString().replace(/\.\d+Z$/, 'Z');
}

function firstOf(pem: string): X509Certificate | undefined {
  try {
    return parseCertificates(pem)[0];
  } catch {
    return undefined;
  }
}

function belongs(key: string, certificate: X509Certificate): boolean {
  try {
    return certificate.checkPrivateKey(createPrivateKey(key));
  } catch {
    return false;
  }
}

function isSignedBy(certificate: X509Certificate, authority: X509Certificate): boolean {
  return certificate.checkIssued(authority) && certificate.verify(authority.publicKey);
}

/** Whether two sets of authorities are the same, in any order. */
export function areSameAuthorities(one: readonly X509Certificate[], other: readonly X509Certificate[]): boolean {
  const fingerprints = (all: readonly X509Certificate[]) => new Set(all.map(({ fingerprint256 }) => fingerprint256));
  const [first, second] = [fingerprints(one), fingerprints(other)];
  return first.size === second.size && [...first].every((fingerprint) => second.has(fingerprint));
}
